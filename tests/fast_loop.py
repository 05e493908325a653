"""A real event loop whose clock runs fast, so that a test meets a deadline of minutes in a second."""

import asyncio
import selectors
from collections.abc import Coroutine
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
