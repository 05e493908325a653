"""Long work in slices, between which the event loop runs."""

import asyncio
import time
from typing import Final

__all__ = ["Slices"]

_SECONDS: Final = 0.004


class Slices:
    """Lets the loop run after 4 ms of work: call `await slices.pause()` in between."""

    __slots__ = ("_since",)

    def __init__(self) -> None:
        self._since = time.perf_counter()

    async def pause(self) -> None:
        if time.perf_counter() - self._since > _SECONDS:
            await asyncio.sleep(0)
            self._since = time.perf_counter()
