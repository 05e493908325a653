"""What happens in the gateway, under the names of the RFC, beside what every server of chats counts."""

from collections.abc import Callable
from typing import Literal

from prometheus_client import Counter, Gauge, Histogram

from usechat.server.metrics import FIRST_BYTE_SECONDS, TURN_SECONDS, Dropped, Metrics
from usechat.stores import Outcome

__all__ = ["GatewayMetrics"]


class GatewayMetrics(Metrics):
    """The RFC's names with underscores; what it gives as a rate or a percentile is for Prometheus to compute."""

    def __init__(self) -> None:
        super().__init__()
        registry = self.registry
        self._requests = Counter(
            "adapter_requests", "Streams that began; those that are resumed do not count.", registry=registry
        )
        self._errors = Counter("adapter_request_errors", "Streams that ended with an error.", registry=registry)
        self._ttfb = Histogram(
            "adapter_latency_ttfb_seconds",
            "From a request to the first byte of its stream.",
            buckets=FIRST_BYTE_SECONDS,
            registry=registry,
        )
        self._durations = Histogram(
            "adapter_latency_turn_duration_seconds",
            "From a request to the end of its stream.",
            buckets=TURN_SECONDS,
            registry=registry,
        )
        self._open_failures = Counter(
            "adapter_ws_open_failures", "Sockets to sessions that could not be opened.", registry=registry
        )
        aborts = Counter(
            "adapter_stream_aborts",
            "Streams that ended before their turn did, by the client or by the gateway.",
            ["by"],
            registry=registry,
        )
        self._aborts = {"client": aborts.labels("client"), "server": aborts.labels("server")}
        self._unknown = Counter(
            "adapter_translation_unknown_events", "Frames of sessions that could not be used.", registry=registry
        )
        self._open = Gauge("adapter_ws_open", "Sockets to sessions that are open.", registry=registry)
        self._open_most = Gauge(
            "adapter_ws_open_most_of_a_session", "The most that are open to one session.", registry=registry
        )

    def watch_sockets(self, count: Callable[[], int], most_of_a_session: Callable[[], int]) -> None:
        """Ask for the numbers of open sockets whenever the metrics are read."""
        self._open.set_function(count)
        self._open_most.set_function(most_of_a_session)

    def open_failed(self) -> None:
        self._open_failures.inc()

    def aborted(self, by: Literal["client", "server"]) -> None:
        self._aborts[by].inc()

    def turn_started(self) -> None:
        super().turn_started()
        self._requests.inc()

    def turn_ended(self, outcome: Outcome, seconds: float | None = None) -> None:
        super().turn_ended(outcome, seconds)
        if seconds is not None:
            self._durations.observe(seconds)
        if outcome == "error":
            self._errors.inc()

    def first_byte_sent(self, seconds: float) -> None:
        super().first_byte_sent(seconds)
        self._ttfb.observe(seconds)

    def event_dropped(self, why: Dropped) -> None:
        super().event_dropped(why)
        if why == "unknown":
            self._unknown.inc()
