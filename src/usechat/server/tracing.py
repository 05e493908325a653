"""Spans of turns, where OpenTelemetry is installed."""

from collections.abc import Callable, Mapping
from typing import Final, Protocol, TypeAlias

from usechat.stores import Outcome, TurnLog

__all__ = ["Span", "begin_span"]


class Span(Protocol):
    """What becomes of a turn is told to it."""

    def enter(self) -> None:
        """The agent begins, in the current task."""
        ...

    def end(self, outcome: Outcome, log: TurnLog) -> None: ...


_BeginSpan: TypeAlias = Callable[[str, Mapping[str, str], Mapping[str, str], float], Span]


class _NoSpan:
    def enter(self) -> None:
        pass

    def end(self, outcome: Outcome, log: TurnLog) -> None:
        pass


def _find() -> _BeginSpan:
    try:
        from usechat.server.spans import TurnSpan
    except ModuleNotFoundError:
        return lambda _turn, _names, _headers, _arrived: _NoSpan()
    return TurnSpan


begin_span: Final = _find()
"""Begin the span of a turn: its id, the names of where it is, the headers of its request, and when that arrived."""
