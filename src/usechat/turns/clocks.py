"""The clocks that end a turn: nobody reads it, its agent says nothing, or it takes too long."""

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Literal, TypeAlias

from usechat.alarms import Alarm, alarm_at
from usechat.turns.settings import TurnLimits

__all__ = ["Clock", "Clocks"]

Clock: TypeAlias = Literal["linger", "idle", "total"]


class Clocks:
    """One timer for the three clocks of a turn, in the turn's event loop.

    `expired` is called with the clock that has run out. `may_be_silent` says whether a tool runs or the user is asked
    something, which stops the idle clock. What moves a deadline further away moves no timer: the deadline is looked at
    when the timer fires.
    """

    __slots__ = (
        "_expired",
        "_holds",
        "_limits",
        "_linger_at",
        "_loop",
        "_may_be_silent",
        "_timer",
        "_total_at",
        "last",
    )

    def __init__(self, limits: TurnLimits, expired: Callable[[Clock], None], may_be_silent: Callable[[], bool]) -> None:
        self._limits = limits
        self._expired = expired
        self._may_be_silent = may_be_silent
        self._loop = asyncio.get_running_loop()
        self._holds = 0
        self._linger_at: float | None = None
        self.last = now = self._loop.time()
        self._total_at = None if limits.total is None else now + limits.total
        self._timer: Alarm | None = None
        self._schedule()

    def moved(self) -> None:
        """The agent has said something."""
        self.last = self._loop.time()

    def readers(self, count: int | None) -> None:
        """Take the number of readers. The linger clock runs while there are none; None, for not known, stops it."""
        linger = self._limits.linger
        if count != 0 or linger is None:
            self._linger_at = None
        elif self._linger_at is None:
            self._linger_at = self._loop.time() + linger
            if linger == 0:
                self._expired("linger")
            else:
                self._schedule()

    @contextmanager
    def hold(self) -> Generator[None, None, None]:
        """Suspend the idle clock."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
            self.last = self._loop.time()
            self._schedule()

    def stop(self, *, but_total: bool = False) -> None:
        """Let no clock run out any more, but perhaps the one for the whole turn."""
        self._limits = TurnLimits(linger=None, idle=None)
        self._linger_at = None
        if not but_total:
            self._total_at = None
            # They hold the turn.
            self._expired, self._may_be_silent = _ignore, bool
        self._schedule()

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self._due()
        if due is not None:
            self._timer = alarm_at(self._loop, due, self._tick)

    def _due(self) -> float | None:
        idle_at = None if self._limits.idle is None or self._holds else self.last + self._limits.idle
        return min((at for at in (self._linger_at, idle_at, self._total_at) if at is not None), default=None)

    def _tick(self) -> None:
        self._timer = None
        now, idle = self._loop.time(), self._limits.idle
        if idle is not None and now >= self.last + idle and self._may_be_silent():
            # It is asked again when the silence has lasted as long once more.
            self.last = now
        if self._linger_at is not None and now >= self._linger_at:
            self._expired("linger")
        elif self._total_at is not None and now >= self._total_at:
            self._expired("total")
        elif idle is not None and not self._holds and now >= self.last + idle:
            self._expired("idle")
        else:
            self._schedule()


def _ignore(_: Clock) -> None:
    pass
