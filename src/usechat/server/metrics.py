"""What happens in the server, as Prometheus metrics."""

import os
from functools import partial
from typing import Final, Literal, TypeAlias, get_args

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from usechat.stores import Outcome

__all__ = ["APPEND_SECONDS", "FIRST_BYTE_SECONDS", "LAG_CHUNKS", "TURN_SECONDS", "Dropped", "Metrics"]

Dropped: TypeAlias = Literal["late", "unknown"]

FIRST_BYTE_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5, 5.0, 10.0)
APPEND_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0)
LAG_CHUNKS: Final = (1, 10, 100, 1_000, 10_000)
TURN_SECONDS: Final = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)


class Metrics:
    """The counts of one app, in a registry of their own, so that two apps in one process do not collide.

    Where PROMETHEUS_MULTIPROC_DIR names a folder, the counts of all processes that share it are added up.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter, histogram = partial(Counter, registry=self.registry), partial(Histogram, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry, multiprocess_mode="livesum")

        self._started = counter("usechat_turns_started", "Turns that began.")
        ended = counter("usechat_turns_ended", "Turns that ended.", ["outcome"])
        self._ended = {outcome: ended.labels(outcome) for outcome in get_args(Outcome)}
        self._running = gauge("usechat_turns_running", "Turns that run now.")
        self._turn_seconds = histogram("usechat_turn_seconds", "How long a turn ran.", buckets=TURN_SECONDS)
        self._streams = gauge("usechat_streams_open", "Responses and sockets that read a turn now.")
        self._first_byte = histogram(
            "usechat_first_byte_seconds", "From a request to the first byte of its stream.", buckets=FIRST_BYTE_SECONDS
        )
        self._chunks = counter("usechat_chunks_sent", "Chunks sent to clients.")
        self._bytes = counter("usechat_sent_bytes", "Bytes sent to clients in streams.")
        self._late = counter("usechat_answers_late", "Turns that ended before the database had their answer.")
        self._refused = counter("usechat_requests_refused", "Requests answered with an error.", ["status"])
        dropped = counter("usechat_events_dropped", "Events of agents that were not sent.", ["why"])
        self._dropped = {why: dropped.labels(why) for why in get_args(Dropped)}

        self._resumed = counter("usechat_turns_resumed", "Readers that came to a turn later.")
        self._orphaned = counter("usechat_turns_orphaned", "Turns that were ended here because their owner was gone.")
        self._append_seconds = histogram(
            "usechat_append_seconds", "From a chunk to its place in the shared store of turns.", buckets=APPEND_SECONDS
        )
        self._lag = histogram(
            "usechat_reader_lag_chunks",
            "How far the copy of another worker's turn was behind when it was caught up.",
            buckets=LAG_CHUNKS,
        )
        self._store_errors = counter("usechat_store_errors", "Calls of the shared store of turns that failed.")

    def turn_started(self) -> None:
        self._started.inc()
        self._running.inc()

    def turn_ended(self, outcome: Outcome, seconds: float | None = None) -> None:
        """A turn has ended; `seconds` is how long it ran here, None if it ran elsewhere."""
        self._ended[outcome].inc()
        if seconds is not None:
            self._running.dec()
            self._turn_seconds.observe(seconds)

    def turn_taken(self) -> None:
        """A turn that ran here is ended by another process."""
        self._running.dec()

    def turn_resumed(self) -> None:
        self._resumed.inc()

    def turn_orphaned(self) -> None:
        self._orphaned.inc()

    def appended(self, seconds: float) -> None:
        self._append_seconds.observe(seconds)

    def lagged(self, chunks: int) -> None:
        self._lag.observe(chunks)

    def store_failed(self) -> None:
        self._store_errors.inc()

    def stream_opened(self) -> None:
        self._streams.inc()

    def stream_closed(self) -> None:
        self._streams.dec()

    def first_byte_sent(self, seconds: float) -> None:
        self._first_byte.observe(seconds)

    def sent(self, *, chunks: int, size: int) -> None:
        """Count what was sent since the last call. It takes a lock: call it for a batch, not for a chunk."""
        self._chunks.inc(chunks)
        self._bytes.inc(size)

    def request_refused(self, status: int) -> None:
        self._refused.labels(status).inc()

    def answer_late(self) -> None:
        self._late.inc()

    def event_dropped(self, why: Dropped) -> None:
        self._dropped[why].inc()

    def render(self) -> tuple[bytes, str]:
        """All metrics as text for Prometheus, and the content type of that text."""
        registry = self.registry
        if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)
        return generate_latest(registry), CONTENT_TYPE_LATEST
