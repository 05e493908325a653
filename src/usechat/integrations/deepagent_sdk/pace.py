"""DeepAgent events at a pace that a page can follow: side events by the clock, everything else at once.

`paced` reads the agent in a task of its own and puts what may pass into a queue. An alarm releases the side events of a
kind when their time has come, and another one what waits for a batch. All of it runs in the thread of the event loop.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from typing import Final

from usechat.alarms import Alarm, alarm_at
from usechat.integrations.deepagent_sdk.events import BATCH, SIDE_EVENTS, Event, kind_of
from usechat.integrations.deepagent_sdk.side_events import OpenCalls, SideEventBatches
from usechat.integrations.event_queue import EventQueue
from usechat.turns.pump import closing_events

__all__ = ["paced"]

# They come in pairs, and few at a time.
_UNPACED: Final = frozenset({"subagent-start", "subagent-finish"})
# Seconds that a side event may wait for others of its batch, and how many of a kind wait for their time.
_FLUSH_AFTER: Final = 0.1
_MOST: Final = 1_000


async def paced(
    events: AsyncIterator[Event], throttle: float | None, batches: SideEventBatches | None = None
) -> AsyncGenerator[Event, None]:
    """Let at most one side event of a kind pass in `throttle` seconds, and the last one in any case.

    With `batches`, all that came meanwhile pass, in batches that wait for others for a tenth of a second.
    """
    if throttle is None and batches is None:
        async with closing_events(events):
            async for event in events:
                yield event
        return
    pace = _Pace(throttle or 0.0, batches)
    reading = asyncio.create_task(_read(events, pace))
    try:
        async for event in pace.passed:
            yield event
    finally:
        pace.stop()
        reading.cancel()
        await asyncio.wait([reading])


async def _read(events: AsyncIterator[Event], pace: "_Pace") -> None:
    try:
        async with closing_events(events):
            async for event in events:
                pace.take(event)
                await pace.passed.drain()
    # Whatever the agent raises is raised where its events are read.
    except BaseException as error:  # noqa: BLE001
        pace.end(error)
    else:
        pace.end(None)


class _Pace:
    """Holds side events back until their time; what has passed is in the queue `passed`."""

    def __init__(self, seconds: float, batches: SideEventBatches | None) -> None:
        self.passed = EventQueue[Event]()
        self._seconds = seconds
        self._batches = batches
        self._loop = asyncio.get_running_loop()
        self._calls = OpenCalls()
        # From when on the next one of a kind may pass, and those that wait for that.
        self._free: dict[str, float] = {}
        self._held: dict[str, deque[Event]] = {}
        self._alarms: dict[str, Alarm] = {}

    def take(self, event: Event) -> None:
        kind = kind_of(event)
        if kind is None:
            self.passed.push(event)
            return
        # The call may be over when the event passes.
        owner = self._calls.see(event)
        if kind not in SIDE_EVENTS or kind in _UNPACED:
            if kind in ("done", "error"):
                self._release_all()
            self._pass(event)
            return
        held = self._held.setdefault(kind, deque(maxlen=1 if self._batches is None else _MOST))
        held.append(event if owner is None else {**event, "toolCallId": owner})
        due = self._free.get(kind, 0.0)
        if self._loop.time() >= due:
            self._release(kind)
        elif kind not in self._alarms:
            self._alarms[kind] = alarm_at(self._loop, due, lambda: self._release(kind))

    def end(self, error: BaseException | None) -> None:
        self._release_all()
        self._flush()
        self.passed.end(error)
        self.stop()

    def stop(self) -> None:
        for alarm in self._alarms.values():
            alarm.cancel()
        self._alarms.clear()

    def _release_all(self) -> None:
        for kind in list(self._held):
            self._release(kind)

    def _release(self, kind: str) -> None:
        if alarm := self._alarms.pop(kind, None):
            alarm.cancel()
        for event in self._held.pop(kind, ()):
            self._pass(event)
        self._free[kind] = self._loop.time() + self._seconds

    def _pass(self, event: Event) -> None:
        if self._batches is None:
            self.passed.push(event)
            return
        self._push(self._batches.take(event))
        if self._batches.waiting and BATCH not in self._alarms:
            self._alarms[BATCH] = alarm_at(self._loop, self._loop.time() + _FLUSH_AFTER, self._flush)

    def _flush(self) -> None:
        self._alarms.pop(BATCH, None)
        if self._batches is not None:
            self._push(self._batches.flush())

    def _push(self, events: Iterable[Event]) -> None:
        for event in events:
            self.passed.push(event)
