"""A real event loop whose clock runs fast, so that a test meets a deadline of minutes in a second."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")

# Of our own clock; only a test that hangs takes so long.
_PATIENCE = 30.0


class _HastySelector(selectors.DefaultSelector):
    def __init__(self, speed: float) -> None:
        super().__init__()
        self._speed = speed

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(None if timeout is None else timeout / self._speed)


class FastEventLoop(asyncio.SelectorEventLoop):
    """Its sockets are those of any loop; only its seconds are shorter."""

    def __init__(self, speed: float) -> None:
        self._speed = speed
        super().__init__(_HastySelector(speed))

    def time(self) -> float:
        return super().time() * self._speed


def run_fast(main: Coroutine[Any, Any, _T], speed: float) -> _T:
    """Run it to its end in a loop whose clock is so many times as fast as ours."""
    with asyncio.Runner(loop_factory=lambda: FastEventLoop(speed)) as runner:
        return runner.run(asyncio.wait_for(main, _PATIENCE * speed))


class _JumpingSelector(selectors.DefaultSelector):
    """Waits for nothing but a socket or a thread that somebody waits for without a deadline."""

    def __init__(self, jump: Callable[[float], None]) -> None:
        super().__init__()
        self._jump = jump

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(_PATIENCE if timeout is None else 0)
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
