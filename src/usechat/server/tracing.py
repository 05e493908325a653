"""The span of a turn, where OpenTelemetry is installed."""

import time
from collections.abc import Mapping
from typing import Final

from usechat.stores import Outcome, TurnLog

__all__ = ["Span", "begin_span"]


class Span:
    """Lasts from the arrival of a request to the end of its turn; this one records nothing."""

    def enter(self) -> None:
        """Let what the current task traces from now on be inside of this span."""

    def end(self, outcome: Outcome, log: TurnLog) -> None: ...


try:
    from opentelemetry import context, propagate, trace
    from opentelemetry.trace import StatusCode
except ModuleNotFoundError:

    def begin_span(turn: str, names: Mapping[str, str], headers: Mapping[str, str], arrived: float) -> Span:
        return Span()

else:
    # Of the provider that the app has set up by its first turn; without one nothing is recorded.
    _tracer: Final = trace.get_tracer("usechat")

    class _TurnSpan(Span):
        def __init__(self, span: trace.Span) -> None:
            self._span = span

        def enter(self) -> None:
            context.attach(trace.set_span_in_context(self._span))

        def end(self, outcome: Outcome, log: TurnLog) -> None:
            self._span.set_attributes(
                {"usechat.outcome": outcome, "usechat.chunks": len(log.frames), "usechat.bytes": log.size}
            )
            if outcome == "error":
                self._span.set_status(StatusCode.ERROR)
            self._span.end()

    def begin_span(turn: str, names: Mapping[str, str], headers: Mapping[str, str], arrived: float) -> Span:
        """Begin the span of a turn: its id, the names of its chat, and its request's headers and time of arrival."""
        # Inside of the span of an instrumented server, or else of the one that the client names.
        current = context.get_current()
        is_inside = trace.get_current_span(current).get_span_context().is_valid
        span = _tracer.start_span(
            "usechat.turn",
            current if is_inside else propagate.extract(headers),
            attributes={"usechat.turn": turn, **{f"usechat.{name}": value for name, value in names.items()}},
            start_time=time.time_ns() - int((time.monotonic() - arrived) * 1e9),
        )
        return _TurnSpan(span)
