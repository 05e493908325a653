"""The events of one run on their way: to the listeners at once, to the store in the background."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from usechat.flows.context import as_json
from usechat.flows.listeners import Listeners
from usechat.flows.scheduling import Event, RunSnapshot
from usechat.flows.store import RunStore

__all__ = ["Journal"]

_log = logging.getLogger("usechat")


class Journal:
    """What happened in a run, in one order for every listener and for the store."""

    def __init__(self, run_id: str, store: RunStore | None) -> None:
        self.run_id = run_id
        self._store = store
        self._listeners = Listeners()
        self._undelivered: deque[Event] = deque()
        self._delivering = False
        self._unwritten: deque[Event | RunSnapshot] = deque()
        self._writer: asyncio.Task[None] | None = None

    def subscribe(self, listener: Callable[[Event], None]) -> Callable[[], None]:
        """Give the listener each event from now on; the result ends that."""
        return self._listeners.add(listener)

    def emit(self, payloads: Iterable[Mapping[str, Any]]) -> None:
        """Tell of events that belong together: what a listener does over one of them comes after all of them."""
        timestamp = time.time_ns() // 1_000_000
        events: list[Event] = [{**as_json(payload), "timestamp": timestamp} for payload in payloads]
        self._undelivered.extend(events)
        self._write_later(events)
        if not self._delivering:
            self._deliver()

    def save(self, snapshot: RunSnapshot) -> None:
        """Write the snapshot to the store, together with the events before it: both or neither."""
        self._write_later([snapshot])

    async def settled(self) -> None:
        """Wait until all is written.

        Raises:
            Exception: what the store raised.
        """
        while self._unwritten:
            await asyncio.shield(self._ensure_writer())

    def _deliver(self) -> None:
        self._delivering = True
        try:
            while self._undelivered:
                event = self._undelivered.popleft()
                self._listeners.tell(event)
        finally:
            self._delivering = False

    def _write_later(self, entries: Iterable[Event | RunSnapshot]) -> None:
        if self._store is None:
            return
        self._unwritten.extend(entries)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            # Outside of a loop nothing can be written; the next run does it.
            return
        self._ensure_writer()

    def _ensure_writer(self) -> asyncio.Task[None]:
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())
            self._writer.add_done_callback(self._report)
        return self._writer

    def _report(self, writer: asyncio.Task[None]) -> None:
        if not writer.cancelled() and (error := writer.exception()) is not None:
            _log.error("what happened in run %s could not be stored", self.run_id, exc_info=error)

    async def _write(self) -> None:
        store = cast("RunStore", self._store)
        while self._unwritten:
            events, snapshot, written = self._next()
            if snapshot is None:
                await store.append_event(self.run_id, *events)
            else:
                await store.save_snapshot(self.run_id, snapshot, *events)
            # What the store did not take is still in line, so that it is not lost if the store takes it later.
            for _ in range(written):
                self._unwritten.popleft()

    def _next(self) -> tuple[list[Event], RunSnapshot | None, int]:
        """All that waits up to the last snapshot, or without one all events, and how many entries that is."""
        events: list[Event] = []
        before, snapshot, written = 0, None, 0
        for number, entry in enumerate(self._unwritten, 1):
            if isinstance(entry, RunSnapshot):
                before, snapshot, written = len(events), entry, number
            else:
                events.append(entry)
        return (events, None, len(events)) if snapshot is None else (events[:before], snapshot, written)
