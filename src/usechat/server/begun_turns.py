"""What is counted, traced and logged of each turn that this process has begun."""

import time
from collections.abc import Mapping

from msgspec import Struct

from usechat.server.metrics import Metrics
from usechat.server.tracing import Span, begin_span
from usechat.server.turn_lines import log_turn
from usechat.stores import Outcome, TurnHead, TurnLog

__all__ = ["BegunTurns"]


class _Begun(Struct, frozen=True):
    arrived: float
    log: TurnLog
    span: Span


class BegunTurns:
    """Each of them ends here, or is taken over by another process, which ends it; `names` are those for the log."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._turns: dict[str, _Begun] = {}

    def opened(
        self, head: TurnHead, names: Mapping[str, str], headers: Mapping[str, str], arrived: float, log: TurnLog
    ) -> Span:
        span = begin_span(head.turn, names, headers, arrived)
        self._turns[head.turn] = _Begun(arrived, log, span)
        self._metrics.turn_started()
        return span

    def ended(self, head: TurnHead, names: Mapping[str, str], outcome: Outcome) -> None:
        seconds = self._leave(head, names, outcome)
        self._metrics.turn_ended(outcome, seconds)

    def taken(self, head: TurnHead, names: Mapping[str, str]) -> None:
        if self._leave(head, names, "lost") is not None:
            self._metrics.turn_taken()

    def _leave(self, head: TurnHead, names: Mapping[str, str], outcome: Outcome) -> float | None:
        """For how many seconds it ran here; None if another process began it."""
        begun = self._turns.pop(head.turn, None)
        if begun is None:
            return None
        seconds = time.monotonic() - begun.arrived
        log_turn(head.turn, names, outcome, begun.log, begun.arrived, seconds)
        begun.span.end(outcome, begun.log)
        return seconds
