"""The clients that do not read as fast as they are sent to: what a process holds for all of them has one bound."""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

__all__ = ["SlowReaders", "SlowStream"]

# A stream that the client took nothing of for so many seconds may be given up; one that is read is not.
_STANDS_STILL: Final = 0.5


class SlowStream(Protocol):
    """A stream that waits for its client."""

    @property
    def since(self) -> float:
        """When the client took anything the last time, by the clock of the loop."""
        ...

    def give_up(self) -> None:
        """End the stream at once."""
        ...


class SlowReaders:
    """Counts the bytes that clients have left to read, and gives up those that read nothing once there are too many.

    Those that have stood still for longest go first. Where others wait for what they hold (`is_crowded`), one of them
    goes at a time, also if they hold less.
    """

    def __init__(self, most: int, is_crowded: Callable[[], bool]) -> None:
        self._most = most
        self._is_crowded = is_crowded
        self._held: dict[SlowStream, int] = {}
        self._total = 0
        self._check: asyncio.TimerHandle | None = None

    def hold(self, stream: SlowStream, size: int) -> None:
        """So many bytes are held for a stream that waits, until `release`."""
        self._total += size - self._held.get(stream, 0)
        self._held[stream] = size
        self._schedule()

    def release(self, stream: SlowStream) -> None:
        self._total -= self._held.pop(stream, 0)

    def _schedule(self) -> None:
        if self._held and self._check is None:
            self._check = asyncio.get_running_loop().call_later(_STANDS_STILL, self._give_up)

    def _give_up(self) -> None:
        self._check = None
        latest = asyncio.get_running_loop().time() - _STANDS_STILL
        is_crowded = self._is_crowded()
        for stream in sorted(self._held, key=lambda stream: stream.since):
            if stream.since > latest or not (is_crowded or self._total > self._most):
                break
            is_crowded = False
            self.release(stream)
            stream.give_up()
        self._schedule()
