"""The connections of a process to Redis: four, whatever it does."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from usechat.stores import Meter
from usechat.stores.redis.channels import Channels
from usechat.stores.redis.driver import ThreadWire, Wire
from usechat.stores.redis.lease import Leases, Renewing
from usechat.stores.redis.line import Line

__all__ = ["Connections", "Notified"]


class Notified(Renewing, Protocol):
    """Who is told what happens to the connections."""

    def away_changed(self) -> None:
        """Redis has gone away, or has come back."""
        ...

    def heard_again(self) -> None:
        """What was published for a while was not heard, and is heard again."""
        ...


class Connections:
    """One for what is said, one for what is large to read, one for what is published, and one for leases."""

    def __init__(self, url: str, lease: float, meter: Callable[[], Meter], notified: Notified) -> None:
        seconds = min(3.0, max(lease / 3, 0.5))
        self.line = Line(Wire(url, seconds), meter, notified.away_changed)
        self.reading = Line(Wire(url, 2 * seconds), meter, lambda: None)
        self.channels = Channels(lambda: Wire(url, seconds), lease / 3, notified.heard_again)
        self.leases = Leases(ThreadWire(url, min(2.0, max(lease / 5, 0.2))), lease, notified)

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None, None]:
        """Keep them, whether Redis is there or not."""
        tasks = [asyncio.create_task(run) for run in (self.line.run(), self.reading.run(), self.channels.run())]
        self.leases.start()
        try:
            yield
        finally:
            self.leases.stop()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
