"""What Open Harness's mapper remembers of each run of a node, and of all of them together."""

from collections import deque
from collections.abc import Mapping
from typing import Any, Final, cast

from msgspec import Struct

__all__ = ["Block", "Run", "Totals"]

_TOKENS: Final = ("inputTokens", "cacheReadInputTokens", "cacheCreationInputTokens", "outputTokens")
_BESIDE: Final = ("totalCostUsd", "durationMs", "numTurns")
_UNCOUNTABLE: Final = 2**53


class Block(Struct):
    """How much of a block of text was sent already, and the last piece of it.

    Upstream says a block in pieces, as a whole, or both ways. The length and the last piece tell what of the whole is
    left to say, without keeping the text.
    """

    length: int = 0
    tail: str = ""

    def add(self, delta: str) -> None:
        if not delta.isascii() and "\udc00" <= delta[0] <= "\udfff":
            # The second half of a character that was cut in two counts with its first.
            delta, self.tail = delta[1:], ""
        if delta:
            self.length += len(delta)
            self.tail = delta

    def rest_of(self, whole: str) -> tuple[str, bool]:
        """What of the whole is left to say, and whether it goes on where the pieces ended."""
        length, tail = self.length, self.tail
        if len(whole) < length and not whole.endswith(tail):
            # The pieces of the next block came before the whole of this one.
            self.length -= len(whole)
            return "", True
        self.length, self.tail = 0, ""
        if len(whole) < length:
            return "", True
        if whole.endswith(tail, 0, length):
            return whole[length:], True
        return whole, False


class Run(Struct):
    """One run of a node: its text and thinking, and its open calls in order, by the name of their tool.

    None stands for a call that was closed before its result came.
    """

    id: str
    text: Block
    thinking: Block
    calls: dict[str, deque[str | None]]

    @classmethod
    def fresh(cls, run_id: str) -> "Run":
        return cls(run_id, Block(), Block(), {})

    def close_calls(self) -> list[str]:
        """The calls without a result; a result that still comes for one of them belongs nowhere."""
        calls = [call for waiting in self.calls.values() for call in waiting if call is not None]
        self.calls = {tool: deque([None] * len(waiting)) for tool, waiting in self.calls.items() if waiting}
        return calls


class Totals:
    """What all agents of the turn used, summed."""

    def __init__(self) -> None:
        self._tokens: dict[str, float] | None = None
        self._beside: dict[str, float] = {}

    def add(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """Add what an `agent:complete` tells; the metadata of the message so far."""
        usage = event.get("usage")
        if isinstance(usage, dict):
            sums = self._tokens or dict.fromkeys(_TOKENS, 0)
            told = cast("dict[str, Any]", usage)
            self._tokens = {name: total + (_number(told.get(name)) or 0) for name, total in sums.items()}
        for name in _BESIDE:
            value = _number(event.get(name))
            if value is not None:
                self._beside[name] = self._beside.get(name, 0) + value
        return self._beside if self._tokens is None else {"usage": _usage(*self._tokens.values()), **self._beside}


def _usage(uncached: float, read: float, written: float, output: float) -> dict[str, Any]:
    """The SDK's LanguageModelUsage, whose input is everything that was read; upstream counts the cache apart."""
    whole = uncached + read + written
    return {
        "inputTokens": whole,
        "inputTokenDetails": {"noCacheTokens": uncached, "cacheReadTokens": read, "cacheWriteTokens": written},
        "outputTokens": output,
        "outputTokenDetails": {},
        "totalTokens": whole + output,
        "cachedInputTokens": read,
    }


def _number(value: object) -> float | None:
    # What JavaScript cannot count, NaN included, is no number of anything.
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _UNCOUNTABLE:
        return None
    return value
