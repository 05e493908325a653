"""What a turn has said and Redis does not have yet, and how it gets there."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

from usechat.stores import Meter
from usechat.stores.log import TurnLog
from usechat.stores.redis.driver import Command, Reply
from usechat.stores.redis.line import Line

__all__ = ["REFUSED", "REFUSED_FOR", "Appends"]

# The most bytes of one entry of the log, and of what is not in the log yet.
_ENTRY: Final = 512 * 1024
_MOST_UNSENT: Final = 4 * 1024 * 1024
REFUSED: Final = 1.0
"""In how many seconds to try again what Redis has refused for a reason that we do not know."""
REFUSED_FOR: Final = 20.0
"""After how many seconds of that the turn is given up: it would have its chat, and its readers, for ever."""


class Appends:
    """The frames of a log on their way to Redis, which has the first `acked` of them.

    Nobody reads a frame that Redis does not have: if this process died, nobody else could read it. It is *open* for
    frames from `begin` to `end`, and *held* while Redis may have forgotten the turn. `command` makes the step that
    appends frames after an index, and `hear` gets the answers of Redis that are more than a confirmation.
    """

    def __init__(
        self,
        log: TurnLog,
        line: Line,
        meter: Meter,
        command: Callable[[int, int, bytes], Command],
        hear: Callable[[Reply], None],
    ) -> None:
        self.acked = log.end
        self.is_held = False
        self.is_over = False
        self._acked_size = log.end_size
        self._log = log
        self._line = line
        self._meter = meter
        self._command = command
        self._hear = hear
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._is_open = False
        self._is_queued = False
        # Since when something waits to be sent, and since when what is being sent had waited.
        self._unsent_since = self._sending_since = 0.0
        self._sending: tuple[int, int] | None = None
        self._refused_since: float | None = None
        self._waiting: list[asyncio.Future[None]] = []

    def begin(self) -> None:
        with self._lock:
            self._is_open = True

    def end(self) -> None:
        """Take no more frames."""
        # A thread that is appending has done so then.
        with self._lock:
            self._is_open = False

    def stop(self) -> None:
        """Send nothing more: another owner has the turn, or it has ended."""
        self.end()
        self.is_over = True
        self._wake()

    def add(self, frames: Sequence[bytes]) -> None:
        """Take frames, from any thread; it never waits."""
        with self._lock:
            if not self._is_open:
                return
            self._log.hold(frames)
            if self._is_queued:
                return
            self._is_queued = True
            if not self._unsent_since:
                self._unsent_since = time.monotonic()
        if threading.get_ident() == self._thread:
            self._line.put(self)
        else:
            self._loop.call_soon_threadsafe(self._line.put, self)

    async def room(self) -> None:
        """Wait until what Redis does not have is below its bound."""
        while self._is_open and self._log.size - self._acked_size > _MOST_UNSENT:
            await self._acknowledged()

    async def flush(self) -> None:
        """Take no more frames, and wait until Redis has all."""
        self.end()
        while self.acked < len(self._log.frames) and not self.is_over:
            self.queue()
            await self._acknowledged()

    def fall_back(self, index: int) -> None:
        """Redis has the log up to here only."""
        self.acked = index
        self._acked_size = sum(map(len, islice(self._log.frames, index)))
        self.queue()

    def queue(self) -> None:
        """Send what Redis does not have."""
        with self._lock:
            if self._is_queued or self.is_over:
                return
            self._is_queued = True
        self._line.put(self)

    # What the line calls.

    def command(self) -> Command | None:
        with self._lock:
            self._is_queued = False
            self._sending_since, self._unsent_since = self._unsent_since or self._sending_since, 0.0
        frames, after = self._log.frames, self.acked
        if self.is_over or self.is_held or after >= len(frames):
            return None
        batch = frames[after:]
        data = b"".join(batch)
        if len(data) > _ENTRY:
            batch = _part(batch)
            data = b"".join(batch)
        last = after + len(batch)
        self._sending = last, len(data)
        return self._command(after, last, data)

    def done(self, reply: Reply) -> None:
        if self._sending is None or self.is_over:
            return
        if isinstance(reply, Exception):
            self._refused()
            return
        self._refused_since = None
        (last, size), self._sending = self._sending, None
        if reply[0] in (b"OK", b"DUPLICATE"):
            self._meter.appended(time.monotonic() - self._sending_since)
            self._sending_since = 0.0
            self._acknowledge(last, self._acked_size + size)
            if reply[2] is None:
                return
        elif reply[0] == b"BEHIND":
            self.fall_back(reply[1])
            return
        self._hear(reply)

    def _refused(self) -> None:
        now = self._loop.time()
        self._refused_since = self._refused_since or now
        if now - self._refused_since > REFUSED_FOR:
            self._hear([b"REFUSED"])
        else:
            self._loop.call_later(REFUSED, self.queue)

    def retries(self) -> bool:
        with self._lock:
            again, self._is_queued = not self._is_queued, True
        return again

    def _acknowledge(self, index: int, size: int) -> None:
        self.acked, self._acked_size = index, size
        if self._log.end < index:
            self._log.show(index, size)
            self._log.wake()
        if index < len(self._log.frames):
            self.queue()
        self._wake()

    async def _acknowledged(self) -> None:
        future = self._loop.create_future()
        self._waiting.append(future)
        await future

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)


def _part(frames: Sequence[bytes]) -> list[bytes]:
    """The first frames that fit into an entry, and one at least."""
    part, size = list[bytes](), 0
    for frame in frames:
        size += len(frame)
        if part and size > _ENTRY:
            break
        part.append(frame)
    return part
