"""DeepAgent: what the model calls of a run used, as the SDK's LanguageModelUsage."""

from collections.abc import Mapping
from typing import Any, Final, cast

__all__ = ["UsageTotals"]

_UNCOUNTABLE: Final = 2**53
_DETAILS: Final = {
    "inputTokenDetails": ("noCacheTokens", "cacheReadTokens", "cacheWriteTokens"),
    "outputTokenDetails": ("textTokens", "reasoningTokens"),
}
# The second name is that of the seed, and of the SDK's version 4.
_COUNTS: Final = {
    "inputTokens": "promptTokens",
    "outputTokens": "completionTokens",
    "totalTokens": "totalTokens",
    "reasoningTokens": "reasoningTokens",
    "cachedInputTokens": "cachedInputTokens",
}


class UsageTotals:
    """Sums the usage of model calls; `told` says that there was any."""

    def __init__(self) -> None:
        self.told = False
        self._counts: dict[str, float] = {}
        self._details: dict[str, dict[str, float]] = {name: {} for name in _DETAILS}

    def add(self, usage: Mapping[str, Any]) -> dict[str, Any] | None:
        """Add what one model call used; the sum, or None if nothing was told."""
        counts = {name: _number(usage.get(name, usage.get(other))) for name, other in _COUNTS.items()}
        if not any(value is not None for value in counts.values()):
            return None
        self.told = True
        if counts["totalTokens"] is None:
            counts["totalTokens"] = (counts["inputTokens"] or 0) + (counts["outputTokens"] or 0)
        _sum(self._counts, counts)
        for name, parts in _DETAILS.items():
            details = usage.get(name)
            if isinstance(details, Mapping):
                told = cast("Mapping[str, Any]", details)
                _sum(self._details[name], {part: _number(told.get(part)) for part in parts})
        required: dict[str, Any] = {"inputTokens": 0, "inputTokenDetails": {}, "outputTokens": 0}
        return {**required, "outputTokenDetails": {}, **self._counts, **self._details}


def _sum(totals: dict[str, float], counts: Mapping[str, float | None]) -> None:
    for name, value in counts.items():
        if value is not None:
            totals[name] = totals.get(name, 0) + value


def _number(value: object) -> float | None:
    # What JavaScript cannot count, NaN included, is no number of anything.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _UNCOUNTABLE:
        return None
    return value
