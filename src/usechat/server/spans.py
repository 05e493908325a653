"""The span of a turn, as OpenTelemetry has it; `tracing` is what is imported where that may not be installed."""

import time
from collections.abc import Mapping
from typing import Final

from opentelemetry import context, propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import StatusCode

from usechat.stores import Outcome, TurnLog

__all__ = ["TurnSpan"]

# Of whichever provider the app has set up by the time of its first turn; without one nothing is recorded.
_tracer: Final = trace.get_tracer("usechat")


class TurnSpan:
    """Lasts from the arrival of the request to the end of its turn, inside of the span that the request is part of."""

    def __init__(self, turn: str, names: Mapping[str, str], headers: Mapping[str, str], arrived: float) -> None:
        self._span = _tracer.start_span(
            "usechat.turn",
            _parent(headers),
            attributes={"usechat.turn": turn, **{f"usechat.{name}": value for name, value in names.items()}},
            start_time=time.time_ns() - int((time.monotonic() - arrived) * 1e9),
        )

    def enter(self) -> None:
        """Let what the current task traces from now on be inside of this span."""
        context.attach(trace.set_span_in_context(self._span))

    def end(self, outcome: Outcome, log: TurnLog) -> None:
        self._span.set_attributes(
            {"usechat.outcome": outcome, "usechat.chunks": len(log.frames), "usechat.bytes": log.size}
        )
        if outcome == "error":
            self._span.set_status(StatusCode.ERROR)
        self._span.end()


def _parent(headers: Mapping[str, str]) -> Context:
    """The span of an instrumented server, or else the one that the client names."""
    current = context.get_current()
    is_inside = trace.get_current_span(current).get_span_context().is_valid
    return current if is_inside else propagate.extract(headers)
