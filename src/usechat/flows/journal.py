"""The events of one run on their way: to the listeners at once, to the store in the background.

Everything here runs in the thread of the event loop. There are two queues, so that listeners and the store see one
order:

- `_undelivered`: `emit` delivers it before it returns. A listener that makes the run emit more only adds to the queue,
  which the outer `emit` goes on delivering (`_delivering`), so no listener sees an event before the one that caused it.
- `_unwritten`: events and snapshots for the store. The task `_writer` writes them, up to the last snapshot in one call,
  and ends when nothing is left. If the store raises, the task ends, what it did not take stays in the queue, and the
  next entry or `settled` starts another task.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from usechat.flows.nodes import as_json
from usechat.flows.scheduling import Event, RunSnapshot
from usechat.flows.store import RunStore

__all__ = ["Journal", "Listeners"]

_log = logging.getLogger("usechat")


class Listeners:
    def __init__(self) -> None:
        self._listeners: list[Callable[[Event], None]] = []

    def add(self, listener: Callable[[Event], None]) -> Callable[[], None]:
        """Give the listener each event from now on; the result ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def notify(self, event: Event) -> None:
        for listener in tuple(self._listeners):
            try:
                listener(event)
            # A listener that fails is its own loss, not the run's.
            except Exception:  # noqa: BLE001
                _log.exception("a listener of a run failed")


class Journal:
    def __init__(self, run_id: str, store: RunStore | None) -> None:
        self.run_id = run_id
        self._store = store
        self.listeners = Listeners()
        self._undelivered: deque[Event] = deque()
        self._delivering = False
        self._unwritten: deque[Event | RunSnapshot] = deque()
        self._writer: asyncio.Task[None] | None = None

    def emit(self, payloads: Iterable[Mapping[str, Any]]) -> None:
        """Emit events that belong together: what a listener causes by one of them comes after all of them."""
        timestamp = time.time_ns() // 1_000_000
        events: list[Event] = [{**as_json(payload), "timestamp": timestamp} for payload in payloads]
        self._undelivered.extend(events)
        self._write_later(events)
        if self._delivering:
            return
        self._delivering = True
        try:
            while self._undelivered:
                self.listeners.notify(self._undelivered.popleft())
        finally:
            self._delivering = False

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

    def _write_later(self, entries: Iterable[Event | RunSnapshot]) -> None:
        if self._store is None:
            return
        self._unwritten.extend(entries)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            # Without a loop nothing can be written; the next run does it.
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
            # Only now: what the store does not take now, it may take later.
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
