"""This process's copy of what a turn said, and the readers of it."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Literal, TypeAlias

from usechat.alarms import Alarm, alarm_at
from usechat.protocol.clients import CLIENTS, ClientName
from usechat.protocol.frames import Frames
from usechat.protocol.messages import UIMessage
from usechat.protocol.replay import Replay
from usechat.stores.fold import Fold, Told

__all__ = ["Outcome", "Reader", "Told", "TurnLog"]

Outcome: TypeAlias = Literal["done", "stopped", "error", "lost"]


class TurnLog:
    """One frame of bytes for each chunk of a turn; a chunk's index is its place in `frames`, counted from 1.

    Readers see the first `end` of them, of `end_size` bytes: those behind are not sure to be kept yet. Frames are added
    from any thread; everything else belongs to the event loop.
    """

    __slots__ = (
        "_client",
        "_event_names",
        "_fold",
        "_waiting",
        "_watchers",
        "continues",
        "counts",
        "crowd",
        "end",
        "end_size",
        "first_taken",
        "frames",
        "last_cut",
        "mark",
        "outcome",
        "readers",
        "size",
        "turn",
    )

    def __init__(self, turn: str, client: ClientName = "portable", *, event_names: bool = False) -> None:
        self.turn = turn
        # What stands before the index in the `id:` of the turn's frames.
        self.mark = turn[:8]
        self.frames: list[bytes] = []
        self.size = 0
        self.end = 0
        self.end_size = 0
        # Called when a reader leaves, by whoever has the log then.
        self.counts: Callable[[], None] | None = None
        self.outcome: Outcome | None = None
        self.readers: set[Reader] = set()
        # When whoever asked for the turn began to read it, by the monotonic clock.
        self.first_taken: float | None = None
        # Whether the last one who read was cut off and did not leave by itself.
        self.last_cut = False
        self._client: ClientName = client
        self._event_names = event_names
        self.continues: UIMessage | None = None
        # Those who wait for a reader to read on.
        self.crowd: list[asyncio.Future[None]] = []
        self._fold: Fold | None = None
        self._waiting: list[Callable[[], None]] = []
        self._watchers: Sequence[Callable[[], None]] = ()

    def open(self, continues: UIMessage | None) -> None:
        """Say which message the turn goes on with; a replay tells it first."""
        self.continues = continues

    def extend(self, frames: Sequence[bytes]) -> None:
        """Add frames; whoever did it calls `wake` in the event loop."""
        self.hold(frames)
        # In this order, since a reader that sees bytes looks for the frames.
        self.end = len(self.frames)
        self.end_size = self.size

    def hold(self, frames: Sequence[bytes]) -> None:
        """Add frames that nobody reads until they are shown."""
        self.frames += frames
        # Nearly always there is one.
        self.size += len(frames[0]) if len(frames) == 1 else sum(map(len, frames))

    def show(self, end: int, size: int) -> None:
        """Let the first frames be read, so many, which have so many bytes."""
        self.end = end
        self.end_size = size

    def drop_held(self) -> None:
        """Forget the frames that nobody was shown."""
        del self.frames[self.end :]
        self.size = self.end_size

    def close(self, outcome: Outcome) -> None:
        """Nothing more comes."""
        self.outcome = outcome
        self._fold = None
        self.wake()
        self.made_room()

    def wake(self) -> None:
        """Call everyone who watches the log, and once everyone who waits for it to change."""
        for watcher in self._watchers:
            watcher()
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for callback in waiting:
                callback()

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call the watcher at every change, until `unwatch`."""
        # A new list each time, since the watchers may be called at the moment.
        self._watchers = [*self._watchers, watcher]

    def unwatch(self, watcher: Callable[[], None]) -> None:
        self._watchers = [other for other in self._watchers if other != watcher]

    def call_when_changed(self, callback: Callable[[], None]) -> None:
        self._waiting.append(callback)

    async def changed(self) -> None:
        """Wait for the log to change."""
        future = asyncio.get_running_loop().create_future()
        self.call_when_changed(lambda: None if future.done() else future.set_result(None))
        await future

    async def read(self) -> None:
        """Wait until a reader has read on or left, or nothing more comes."""
        future = asyncio.get_running_loop().create_future()
        self.crowd.append(future)
        await future

    def made_room(self) -> None:
        """A reader has read on or left."""
        if self.crowd:
            crowd, self.crowd = self.crowd, []
            for future in crowd:
                if not future.done():
                    future.set_result(None)

    async def replay(self) -> Told:
        """The message so far, folded.

        What came since the last fold is left to be read from the log, as long as that is little.
        """
        if self._fold is None:
            frames = Frames(self.mark, names=self._event_names)
            self._fold = Fold(self, Replay(self.continues, CLIENTS[self._client], frames))
        return await self._fold.told()


class Reader:
    """A cursor in a turn's log, which its store counts until it leaves.

    After `rewind` it first gives the replay of the message so far, then what follows in the log.
    """

    __slots__ = ("_ahead", "_ahead_size", "_has_left", "_offset", "_read", "_untaken", "cursor", "in_flight", "log")

    def __init__(self, log: TurnLog) -> None:
        self.log = log
        self.cursor = 0
        # How many bytes were taken and not sent yet.
        self.in_flight = 0
        self._untaken: Alarm | None = None
        self._read = 0
        # Most readers have no replay, and an empty deque would be the largest part of them.
        self._ahead: deque[bytes] | tuple[()] = ()
        self._ahead_size = 0
        self._offset = 0
        self._has_left = False
        log.readers.add(self)
        log.last_cut = False

    def leave_unless_taken(self, seconds: float) -> None:
        """Leave if nobody has begun to read by then."""
        loop = asyncio.get_running_loop()
        self._untaken = alarm_at(loop, loop.time() + seconds, self.leave)

    def seek(self, index: int) -> None:
        """Go on after the chunk with this index."""
        self.cursor = index
        self._read = sum(map(len, islice(self.log.frames, index)))

    async def rewind(self) -> None:
        """Tell the whole message first, folded, with the parts that the turn continues."""
        self.tell(await self.log.replay())

    def tell(self, told: Told) -> None:
        """Give what is told before what follows in the log."""
        self._ahead = deque(told.pieces)
        self._ahead_size = told.size
        self._offset = 0
        self.cursor, self._read = told.index, told.log_size

    @property
    def unread(self) -> int:
        """How many bytes there are to take."""
        return self._ahead_size + max(0, self.log.end_size - self._read)

    @property
    def ended(self) -> bool:
        """Whether everything was taken and nothing more comes."""
        # Asked first, since a thread may write before the log is closed.
        is_closed = self.log.outcome is not None
        return is_closed and self.cursor >= len(self.log.frames) and not self._ahead

    def take(self, limit: int) -> bytes:
        """All that is there, or at least `limit` bytes of more; nothing if there is nothing."""
        if self._untaken is not None:
            self._take_up()
        if self._ahead:
            return self._take_ahead(self._ahead, limit)
        log, cursor = self.log, self.cursor
        # Asked once, since a thread may add frames at any moment.
        end = log.end
        if log.end_size - self._read > limit:
            end = self._end_of(limit, end)
        # One frame is the usual case.
        taken = log.frames[cursor] if end - cursor == 1 else b"".join(log.frames[cursor:end])
        self.cursor = end
        self._read += len(taken)
        if log.crowd:
            log.made_room()
        return taken

    def take_frame(self) -> bytes:
        """The next frame; nothing if there is none."""
        if self._untaken is not None:
            self._take_up()
        if self._ahead:
            return self._take_frame_ahead(self._ahead)
        if self.cursor >= self.log.end:
            return b""
        frame = self.log.frames[self.cursor]
        self.cursor += 1
        self._read += len(frame)
        self.log.made_room()
        return frame

    def leave(self, *, is_cut: bool = False) -> None:
        """Read no more; to leave twice is to leave once. A reader that is cut off would have read on."""
        self._take_up()
        if not self._has_left:
            self._has_left = True
            self.log.last_cut = is_cut
            self.log.readers.discard(self)
            self.log.made_room()
            if self.log.counts is not None:
                self.log.counts()

    def _take_up(self) -> None:
        if self._untaken is not None:
            self._untaken.cancel()
            self._untaken = None
            self.log.first_taken = time.monotonic()

    def _end_of(self, limit: int, end: int) -> int:
        cursor, size = self.cursor, 0
        while size < limit and cursor < end:
            size += len(self.log.frames[cursor])
            cursor += 1
        return cursor

    def _take_ahead(self, ahead: deque[bytes], limit: int) -> bytes:
        pieces, size = list[bytes](), 0
        while ahead and size < limit:
            pieces.append(ahead.popleft()[self._offset :])
            self._offset = 0
            size += len(pieces[-1])
        self._ahead_size -= size
        return b"".join(pieces)

    def _take_frame_ahead(self, ahead: deque[bytes]) -> bytes:
        piece = ahead[0]
        begin, end = self._offset, piece.index(b"\n\n", self._offset) + 2
        self._offset = end
        if end == len(piece):
            ahead.popleft()
            self._offset = 0
        self._ahead_size -= end - begin
        return piece[begin:end]
