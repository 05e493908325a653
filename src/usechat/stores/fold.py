"""The message of a log so far, folded: made once for all readers of a process."""

import asyncio
from collections.abc import Sequence
from itertools import islice
from typing import Final, Protocol

from msgspec import Struct

from usechat.protocol.replay import Replay
from usechat.slices import Slices

__all__ = ["Fold", "Growing", "Told"]

# How many frames are folded between two looks at the clock.
_SLICE: Final = 256
# So much may come after a fold and be read from the log before it is worth to fold again.
_TAIL: Final = 64 * 1024


class Growing(Protocol):
    """A log, of which the first `end` frames, of `end_size` bytes, may be read."""

    frames: list[bytes]
    end: int
    end_size: int


class Told(Struct, frozen=True):
    """A message so far as pieces of frames, which stand for the first `index` frames of a log; and the bytes of both.

    It is shared by all who read it.
    """

    pieces: Sequence[bytes]
    index: int
    size: int
    log_size: int


class Fold:
    """The replay of a log, made once for all readers of this process and in slices, so that the loop is never held."""

    def __init__(self, log: Growing, replay: Replay) -> None:
        self._log = log
        self._replay = replay
        self.taken = 0
        self._size = 0
        self._told: Told | None = None
        self._making: asyncio.Task[Told] | None = None

    async def told(self) -> Told:
        if self._making is not None and self._making.get_loop() is asyncio.get_running_loop():
            return await asyncio.shield(self._making)
        told, log = self._told, self._log
        if told is not None and log.end_size - told.log_size <= max(_TAIL, told.size // 4):
            return told
        # Not by whoever asked first, who may be cancelled: two folds at once would take frames from each other.
        self._making = asyncio.create_task(self._make())
        self._making.add_done_callback(self._made)
        return await asyncio.shield(self._making)

    def _made(self, _: asyncio.Task[Told]) -> None:
        self._making = None

    async def _make(self) -> Told:
        frames, slices = self._log.frames, Slices()
        # A log that grows is not run after.
        index = self._log.end
        while self.taken < index:
            some, size = self._slice(frames, index)
            self._replay.take(some)
            self.taken += len(some)
            self._size += size
            await slices.pause()
        pieces = list[bytes]()
        # The fold takes nothing in while it is told: only this task gives it frames.
        for piece in self._replay.encoded():
            pieces.append(piece)
            await slices.pause()
        self._told = Told(pieces, index, sum(map(len, pieces)), self._size)
        return self._told

    def _slice(self, frames: Sequence[bytes], end: int) -> tuple[list[bytes], int]:
        """The next frames: a few large ones, or some more small ones."""
        some, size = list[bytes](), 0
        for frame in islice(frames, self.taken, min(self.taken + _SLICE, end)):
            some.append(frame)
            size += len(frame)
            if size >= _TAIL:
                break
        return some, size
