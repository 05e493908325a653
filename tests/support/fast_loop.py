"""A real event loop whose clock runs fast, so that a test meets a deadline of minutes in a second."""

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from support.hang import HANG_SECONDS

_T = TypeVar("_T")

# A loop waits for no less than a thousandth of a second.
_TICK = 0.002


class _HastySelector(selectors.DefaultSelector):
    """Shortens the waiting for a timer; `ahead` are the seconds that this has saved."""

    def __init__(self, speed: float) -> None:
        super().__init__()
        self.speed = speed
        self.ahead = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        began = time.monotonic()
        ready = super().select(timeout / self.speed)
        waited = time.monotonic() - began
        # No further than to the timer, or to the next one that can be told apart, however late a busy machine wakes us.
        self.ahead += max(0.0, min(waited * self.speed, max(timeout, _TICK * self.speed)) - waited)
        return ready


class FastEventLoop(asyncio.SelectorEventLoop):
    """Its sockets are those of any loop; only the seconds in which it has nothing to do are shorter.

    What it does takes the time that it takes, so that a busy machine does not look like one that stands still.
    """

    def __init__(self, speed: float) -> None:
        self._hasty = _HastySelector(speed)
        super().__init__(self._hasty)

    def time(self) -> float:
        return super().time() + self._hasty.ahead

    def put_forward(self, seconds: float) -> None:
        self._hasty.ahead += seconds

    @contextmanager
    def hurrying(self, speed: float) -> Generator[None, None, None]:
        """Let the clock run so fast for a while."""
        usual, self._hasty.speed = self._hasty.speed, speed
        yield
        self._hasty.speed = usual


def put_forward(seconds: float) -> None:
    """Put the clock of this loop forward, for a deadline of somebody who is busy up to it."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, FastEventLoop)
    loop.put_forward(seconds)


def hurrying(speed: float) -> AbstractContextManager[None]:
    """Let the clock of this loop run so fast while there is only a deadline to wait for.

    What comes before and after has its usual time, since it waits for threads and other processes, which do not hurry.
    """
    loop = asyncio.get_running_loop()
    assert isinstance(loop, FastEventLoop)
    return loop.hurrying(speed)


def run_fast(main: Coroutine[Any, Any, _T], speed: float = 1) -> _T:
    """Run it to its end in a loop whose clock is so many times as fast as ours."""
    with asyncio.Runner(loop_factory=lambda: FastEventLoop(speed)) as runner:
        return runner.run(asyncio.wait_for(main, HANG_SECONDS * speed))


class _JumpingSelector(selectors.DefaultSelector):
    """Waits for nothing but a socket or a thread that somebody waits for without a deadline."""

    def __init__(self, jump: Callable[[float], None]) -> None:
        super().__init__()
        self._jump = jump

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(HANG_SECONDS if timeout is None else 0)
        if timeout is not None and not ready:
            self._jump(max(0, timeout))
        elif not ready:
            raise RuntimeError("The loop waits for something that never comes.")
        return ready


class JumpingEventLoop(asyncio.SelectorEventLoop):
    """Its clock stands still while there is something to do, and jumps to the next timer when there is nothing.

    So deadlines cost no time and always come in their order. It is not for tests in which threads race with timers.
    """

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_JumpingSelector(self._jump))

    def time(self) -> float:
        return self._now

    def _jump(self, seconds: float) -> None:
        self._now += seconds


def run_jumping(main: Coroutine[Any, Any, _T]) -> _T:
    """Run it to its end in a loop that waits for no timer."""
    with asyncio.Runner(loop_factory=JumpingEventLoop) as runner:
        return runner.run(main)
