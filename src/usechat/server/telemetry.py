"""What is counted, traced and logged of each turn, without anything that was said in it."""

import json
import logging
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct

from usechat.server.metrics import Metrics
from usechat.server.tracing import Span, begin_span
from usechat.stores import Outcome, TurnHead, TurnLog
from usechat.turns.pending import PendingTurn

__all__ = ["TurnTelemetry"]

_log = logging.getLogger("usechat")

_PLAIN: Final = re.compile(r"[\w.-]+", re.ASCII)


class _Begun(Struct, frozen=True):
    """A turn that this process has begun."""

    arrived: float
    log: TurnLog
    span: Span


class TurnTelemetry:
    """Each turn that began here ends here, or in another process that has taken it over.

    `names` gives what the log and the traces call the chat of a turn.
    """

    def __init__(self, metrics: Metrics, names: Callable[[TurnHead], Mapping[str, str]]) -> None:
        self._metrics = metrics
        self._names = names
        self._begun: dict[str, _Begun] = {}

    def started(self, pending: PendingTurn, log: TurnLog) -> None:
        head = pending.head
        span = begin_span(head.turn, self._names(head), pending.request.headers, pending.arrived)
        span.enter()
        self._begun[head.turn] = _Begun(pending.arrived, log, span)
        self._metrics.turn_started()

    def ended(self, head: TurnHead, outcome: Outcome) -> None:
        self._metrics.turn_ended(outcome, self._leave(head, outcome))

    def fenced(self, head: TurnHead) -> None:
        if self._leave(head, "lost") is not None:
            self._metrics.turn_taken()

    def _leave(self, head: TurnHead, outcome: Outcome) -> float | None:
        """For how many seconds the turn ran here; None if another process began it."""
        begun = self._begun.pop(head.turn, None)
        if begun is None:
            return None
        seconds = time.monotonic() - begun.arrived
        if _log.isEnabledFor(logging.INFO):
            self._log(head, outcome, begun, seconds)
        begun.span.end(outcome, begun.log)
        return seconds

    def _log(self, head: TurnHead, outcome: Outcome, begun: _Begun, seconds: float) -> None:
        log = begun.log
        fields: dict[str, Any] = {
            "turn": head.turn,
            **self._names(head),
            "outcome": outcome,
            # An agent that does not wait has ended before anybody reads.
            "ttfb": round(seconds if log.first_taken is None else log.first_taken - begun.arrived, 4),
            "chunks": len(log.frames),
            "bytes": log.size,
            "duration": round(seconds, 4),
        }
        line = " ".join(f"{name}={_spelled(value)}" for name, value in fields.items())
        _log.info("%s", line, extra={"fields": fields})


def _spelled(value: object) -> str:
    # An id may hold anything that looks like more of the line, or like another one.
    return str(value) if _PLAIN.fullmatch(str(value)) else json.dumps(value)
