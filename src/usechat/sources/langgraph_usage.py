"""The tokens that the model calls of a message used, summed."""

from collections.abc import Mapping
from typing import Any, Final, cast

from usechat.sources.langgraph_messages import field

__all__ = ["Usage"]

_UNCOUNTABLE: Final = 2**53


class Usage:
    """Adds up LangChain's `usage_metadata`, and gives the AI SDK's LanguageModelUsage."""

    def __init__(self) -> None:
        self._input = self._read = self._written = self._output = self._reasoning = 0
        self.changed = False

    def add(self, told: Any) -> None:
        """Add what one chunk of a model call tells; what the chunks of a call tell adds up."""
        if not told:
            return
        ins, outs = field(told, "input_token_details"), field(told, "output_token_details")
        self._input += _count(field(told, "input_tokens"))
        self._output += _count(field(told, "output_tokens"))
        self._read += _count(field(ins, "cache_read"))
        self._written += _count(field(ins, "cache_creation"))
        self._reasoning += _count(field(outs, "reasoning"))
        self.changed = True

    def go_on(self, metadata: Any) -> None:
        """Add what the message had used before it was continued."""
        usage = cast("Mapping[str, Any]", metadata).get("usage") if isinstance(metadata, Mapping) else None
        if isinstance(usage, Mapping):
            ins, outs = field(usage, "inputTokenDetails"), field(usage, "outputTokenDetails")
            self._input += _count(field(usage, "inputTokens"))
            self._output += _count(field(usage, "outputTokens"))
            self._read += _count(field(ins, "cacheReadTokens"))
            self._written += _count(field(ins, "cacheWriteTokens"))
            self._reasoning += _count(field(outs, "reasoningTokens"))

    def take(self) -> dict[str, Any]:
        """The metadata of the message, now that what was added is told."""
        self.changed = False
        rest = max(self._input - self._read - self._written, 0)
        return {
            "usage": {
                "inputTokens": self._input,
                "inputTokenDetails": {
                    "noCacheTokens": rest,
                    "cacheReadTokens": self._read,
                    "cacheWriteTokens": self._written,
                },
                "outputTokens": self._output,
                "outputTokenDetails": {
                    "textTokens": max(self._output - self._reasoning, 0),
                    "reasoningTokens": self._reasoning,
                },
                "totalTokens": self._input + self._output,
                "reasoningTokens": self._reasoning,
                "cachedInputTokens": self._read,
            }
        }


def _count(value: object) -> int:
    # What JavaScript cannot count is no number of tokens.
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= _UNCOUNTABLE:
        return 0
    return value
