"""Deadlines that share one timer of the event loop: a worker has many of them, and a timer of asyncio is large.

An alarm is set until it has called back or was cancelled; then its `callback` is None. A cancelled alarm stays in the
heap until it is the first, or until 64 cancelled ones or more make up over half of the heap. The loop's timer is that
of the first alarm in the heap. Everything here runs in the thread of the loop, and nothing is locked.
"""

import asyncio
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final
from weakref import WeakValueDictionary

__all__ = ["Alarm", "alarm_at"]

_MANY_CANCELLED: Final = 64


class Alarm:
    """Calls back once, unless it is cancelled before."""

    __slots__ = ("_alarms", "callback", "due")

    def __init__(self, alarms: "_Alarms", due: float, callback: Callable[[], None]) -> None:
        self._alarms = alarms
        self.due = due
        self.callback: Callable[[], None] | None = callback

    def __lt__(self, other: "Alarm") -> bool:
        return self.due < other.due

    def cancel(self) -> None:
        """To cancel it twice, or after it has called back, changes nothing."""
        if self.callback is not None:
            self.callback = None
            self._alarms.cancelled()


class _Alarms:
    """The alarms of one event loop, the next one first."""

    __slots__ = ("__weakref__", "_cancelled", "_heap", "_loop", "_timer", "_timer_due")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._heap: list[Alarm] = []
        # How many alarms of the heap are cancelled.
        self._cancelled = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0

    def add(self, due: float, callback: Callable[[], None]) -> Alarm:
        alarm = Alarm(self, due, callback)
        heappush(self._heap, alarm)
        if self._heap[0] is alarm:
            self._schedule()
        return alarm

    def cancelled(self) -> None:
        self._cancelled += 1
        if self._cancelled >= _MANY_CANCELLED and self._cancelled * 2 > len(self._heap):
            self._heap = [alarm for alarm in self._heap if alarm.callback is not None]
            heapify(self._heap)
            self._cancelled = 0
            self._schedule()
        elif self._heap[0].callback is None:
            self._schedule()

    def _tick(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._heap and self._heap[0].due <= now:
            alarm = heappop(self._heap)
            if alarm.callback is None:
                self._cancelled -= 1
            else:
                # Not called here: what one of them raises is not the others' affair.
                self._loop.call_soon(alarm.callback)
                alarm.callback = None
        self._schedule()

    def _schedule(self) -> None:
        """Let the loop's timer be that of the next alarm, if there is one."""
        while self._heap and self._heap[0].callback is None:
            heappop(self._heap)
            self._cancelled -= 1
        if self._timer is not None:
            if self._heap and self._heap[0].due == self._timer_due:
                return
            self._timer.cancel()
            self._timer = None
        if self._heap:
            self._timer_due = self._heap[0].due
            self._timer = self._loop.call_at(self._timer_due, self._tick)


# By the loop's id: as long as there are alarms, they keep their loop, so that no other has its id.
_ALARMS: Final[WeakValueDictionary[int, _Alarms]] = WeakValueDictionary()


def alarm_at(loop: asyncio.AbstractEventLoop, due: float, callback: Callable[[], None]) -> Alarm:
    """Call back in the loop at that time of its clock, or a little later; it is called in the loop."""
    alarms = _ALARMS.get(id(loop))
    if alarms is None:
        alarms = _ALARMS[id(loop)] = _Alarms(loop)
    return alarms.add(due, callback)
