"""DeepAgent events at a pace that a page can follow: side events by the clock, everything else at once."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any, Final, TypeAlias

from usechat.alarms import Alarm, alarm_at
from usechat.integrations.deepagent_sdk.calls import OpenCalls
from usechat.integrations.deepagent_sdk.fields import kind_of
from usechat.integrations.deepagent_sdk.mapper import FLUSH
from usechat.integrations.deepagent_sdk.parts import SIDE_EVENTS
from usechat.integrations.event_queue import EventQueue
from usechat.turns.pump import closing_events

__all__ = ["paced"]

Event: TypeAlias = Mapping[str, Any]

# They come in pairs, and few at a time.
_UNPACED: Final = frozenset({"subagent-start", "subagent-finish"})
# How long a side event may wait for others that go into the same part, and the most that wait.
_FLUSH_AFTER: Final = 0.1
_MOST: Final = 1_000


async def paced(
    events: AsyncIterator[Event], throttle: float | None, *, batches: bool = False
) -> AsyncGenerator[Event, None]:
    """Let at most one side event of a kind pass in `throttle` seconds, and the last one in any case.

    If the mapper `batches`, all that came meanwhile pass together, and it is told when to wait no longer.
    """
    pace = _Pace(throttle or 0.0, batches=batches)
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

    def __init__(self, seconds: float, *, batches: bool) -> None:
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
            self.passed.push(event)
            return
        held = self._held.setdefault(kind, deque(maxlen=_MOST if self._batches else 1))
        held.append(event if owner is None else {**event, "toolCallId": owner})
        due = self._free.get(kind, 0.0)
        if self._loop.time() >= due:
            self._release(kind)
        elif kind not in self._alarms:
            self._alarms[kind] = alarm_at(self._loop, due, lambda: self._release(kind))

    def end(self, error: BaseException | None) -> None:
        self._release_all()
        if self._batches:
            self.passed.push({"type": FLUSH})
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
        held = self._held.pop(kind, ())
        for event in held:
            self.passed.push(event)
        self._free[kind] = self._loop.time() + self._seconds
        if held and self._batches and FLUSH not in self._alarms:
            self._alarms[FLUSH] = alarm_at(self._loop, self._loop.time() + _FLUSH_AFTER, self._flush)

    def _flush(self) -> None:
        del self._alarms[FLUSH]
        self.passed.push({"type": FLUSH})
