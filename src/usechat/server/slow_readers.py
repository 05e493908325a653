"""The clients that do not read as fast as they are sent to: what a process holds for all of them has one bound."""

import asyncio
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

    Those that have stood still for longest go first.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[SlowStream, int] = {}
        self._total = 0
        self._check: asyncio.TimerHandle | None = None

    def hold(self, stream: SlowStream, size: int) -> None:
        """So many bytes are held for a stream that waits, until `release`."""
        self._total += size - self._held.get(stream, 0)
        self._held[stream] = size
        if self._total > self._most and self._check is None:
            self._check = asyncio.get_running_loop().call_later(_STANDS_STILL, self._give_up)

    def release(self, stream: SlowStream) -> None:
        self._total -= self._held.pop(stream, 0)

    def _give_up(self) -> None:
        loop = asyncio.get_running_loop()
        self._check = None
        still = loop.time() - _STANDS_STILL
        for stream in sorted(self._held, key=lambda stream: stream.since):
            if self._total <= self._most or stream.since > still:
                break
            self.release(stream)
            stream.give_up()
        if self._total > self._most:
            self._check = loop.call_later(_STANDS_STILL, self._give_up)
