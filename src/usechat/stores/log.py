"""What this process has of a turn: its log, the readers of it, and its replay.

The log is a list of frames that only grows at its end. It has two ends: `frames` are all that the turn wrote, and
readers see the first `end` of them, since the store may not have the others yet. A log is *open* until `close` gives
it an outcome; then `end` is `len(frames)` and stays.

One thread at a time writes (`extend`, `hold`); the caller takes turns by the lock of its claim, as the log has none.
Everything else belongs to the event loop, and may run while a thread writes. Three orders make that safe:

- `extend` adds frames, then moves `end`, then `end_size`: a reader that sees bytes finds their frames.
- `Reader.take` reads `end` once.
- `Reader.ended` looks at the outcome before it looks at the frames.

Readers come and go: `readers` has those that have not left, and `counts` is called when one leaves. The log wakes two
kinds of waiters: `wake` those who want to read more, `wake_drain` those who want to write more.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from usechat.alarms import Alarm, alarm_at
from usechat.protocol.clients import CLIENTS, ClientName
from usechat.protocol.frames import Frames
from usechat.protocol.messages import UIMessage
from usechat.protocol.replay import Replay
from usechat.slices import Slices

__all__ = ["Outcome", "Reader", "Snapshot", "TurnLog", "Waiters"]

Outcome: TypeAlias = Literal["done", "stopped", "error", "lost"]

# How many frames a replay takes between two looks at the clock.
_SLICE: Final = 256
# Up to this many bytes after a snapshot are read from the log before a newer snapshot pays.
_TAIL: Final = 64 * 1024


class Waiters(list["asyncio.Future[None]"]):
    """Those who wait for something to happen."""

    __slots__ = ()

    async def wait(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self.append(future)
        await future

    def wake(self) -> None:
        waiting = self[:]
        self.clear()
        for future in waiting:
            if not future.done():
                future.set_result(None)


class TurnLog:
    """One frame of bytes for each chunk of a turn; a chunk's index is its place in `frames`, counted from 1.

    `size` is the bytes of all frames, `end_size` those of the first `end`, which readers see.
    """

    __slots__ = (
        "_client",
        "_event_names",
        "_replay",
        "_waiting",
        "_watchers",
        "continues",
        "counts",
        "drain_waiters",
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
        # Called when a reader leaves; the claim or the mirror that has the log sets it.
        self.counts: Callable[[], None] | None = None
        self.outcome: Outcome | None = None
        self.readers: set[Reader] = set()
        # When the client that asked for the turn began to read it, by the monotonic clock.
        self.first_taken: float | None = None
        # Whether the last reader was cut off and did not leave by itself.
        self.last_cut = False
        self._client: ClientName = client
        self._event_names = event_names
        # The message that the turn goes on with; a replay begins with it.
        self.continues: UIMessage | None = None
        self.drain_waiters = Waiters()
        self._replay: _ReplayCache | None = None
        self._waiting: list[Callable[[], None]] = []
        self._watchers: Sequence[Callable[[], None]] = ()

    def extend(self, frames: Sequence[bytes]) -> None:
        """Add frames that readers see; the caller then calls `wake` in the event loop."""
        self.hold(frames)
        self.end = len(self.frames)
        self.end_size = self.size

    def hold(self, frames: Sequence[bytes]) -> None:
        """Add frames that readers do not see until `show`."""
        self.frames += frames
        # Nearly always there is one.
        self.size += len(frames[0]) if len(frames) == 1 else sum(map(len, frames))

    def show(self, end: int, size: int) -> None:
        """Let readers see the first `end` frames, which have `size` bytes."""
        self.end = end
        self.end_size = size

    def drop_held(self) -> None:
        """Forget the frames that readers have not seen."""
        del self.frames[self.end :]
        self.size = self.end_size

    def close(self, outcome: Outcome) -> None:
        """Nothing more comes."""
        self.outcome = outcome
        self._replay = None
        self.wake()
        self.wake_drain()

    def wake(self) -> None:
        """Call the watchers, and once each callback of `call_when_changed`."""
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

    async def drain(self) -> None:
        """Wait until a reader has read on or left, or nothing more comes."""
        await self.drain_waiters.wait()

    def wake_drain(self) -> None:
        """A reader has read on or left."""
        if self.drain_waiters:
            self.drain_waiters.wake()

    async def replay(self) -> "Snapshot":
        """The message so far; up to 64 KiB, or a quarter of it, may follow in the log."""
        if self._replay is None:
            frames = Frames(self.mark, names=self._event_names)
            self._replay = _ReplayCache(self, Replay(self.continues, CLIENTS[self._client], frames))
        return await self._replay.snapshot()


class Snapshot(Struct, frozen=True):
    """A message so far as pieces of frames, in place of the first `index` frames of a log; all readers share it.

    `size` is the bytes of the pieces, `log_size` those of the frames.
    """

    pieces: Sequence[bytes]
    index: int
    size: int
    log_size: int


class _ReplayCache:
    """Makes snapshots of a log once for all readers of this process, in slices that do not hold the loop."""

    def __init__(self, log: TurnLog, replay: Replay) -> None:
        self._log = log
        self._replay = replay
        self._taken = 0
        self._size = 0
        self._last: Snapshot | None = None
        self._making: asyncio.Task[Snapshot] | None = None

    async def snapshot(self) -> Snapshot:
        if self._making is not None and self._making.get_loop() is asyncio.get_running_loop():
            return await asyncio.shield(self._making)
        last = self._last
        if last is not None and self._log.end_size - last.log_size <= max(_TAIL, last.size // 4):
            return last
        # In a task of its own, since the first caller may be cancelled: two at once would take frames from each other.
        self._making = asyncio.create_task(self._make())
        self._making.add_done_callback(self._made)
        return await asyncio.shield(self._making)

    def _made(self, _: asyncio.Task[Snapshot]) -> None:
        self._making = None

    async def _make(self) -> Snapshot:
        slices = Slices()
        # Asked once: a log that grows faster than it is replayed must not keep its readers waiting.
        index = self._log.end
        while self._taken < index:
            some = self._next(index)
            self._replay.take(some)
            self._taken += len(some)
            self._size += sum(map(len, some))
            await slices.pause()
        pieces = list[bytes]()
        # The replay does not change meanwhile: only this task gives it frames.
        for piece in self._replay.encoded():
            pieces.append(piece)
            await slices.pause()
        self._last = Snapshot(pieces, index, sum(map(len, pieces)), self._size)
        return self._last

    def _next(self, end: int) -> list[bytes]:
        """The next frames: a few large ones, or up to 256 small ones."""
        some, size = list[bytes](), 0
        for frame in islice(self._log.frames, self._taken, min(self._taken + _SLICE, end)):
            some.append(frame)
            size += len(frame)
            if size >= _TAIL:
                break
        return some


class Reader:
    """A cursor in a turn's log, which its store counts until it leaves.

    After `rewind` it first gives the message so far, then what follows in the log.
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
        """Begin with a replay of the whole message, with the parts that the turn continues."""
        self.begin_with(await self.log.replay())

    def begin_with(self, snapshot: Snapshot) -> None:
        """Give the snapshot, then what follows it in the log."""
        self._ahead = deque(snapshot.pieces)
        self._ahead_size = snapshot.size
        self._offset = 0
        self.cursor, self._read = snapshot.index, snapshot.log_size

    @property
    def unread(self) -> int:
        """How many bytes there are to take."""
        return self._ahead_size + max(0, self.log.end_size - self._read)

    @property
    def ended(self) -> bool:
        """Whether everything was taken and nothing more comes."""
        # First, since a thread may write until the log is closed.
        is_closed = self.log.outcome is not None
        return is_closed and self.cursor >= len(self.log.frames) and not self._ahead

    def take(self, limit: int) -> bytes:
        """All that is there, or at least `limit` bytes of more; nothing if there is nothing."""
        if self._untaken is not None:
            self._take_up()
        if self._ahead:
            return self._take_ahead(self._ahead, limit)
        log, cursor = self.log, self.cursor
        # Once, since a thread may add frames at any moment.
        end = log.end
        if log.end_size - self._read > limit:
            end = self._end_of(limit, end)
        # One frame is the usual case.
        taken = log.frames[cursor] if end - cursor == 1 else b"".join(log.frames[cursor:end])
        self.cursor = end
        self._read += len(taken)
        if log.drain_waiters:
            log.wake_drain()
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
        self.log.wake_drain()
        return frame

    def leave(self, *, is_cut: bool = False) -> None:
        """Read no more; a reader that `is_cut` would have read on. To leave again changes nothing."""
        self._take_up()
        if not self._has_left:
            self._has_left = True
            self.log.last_cut = is_cut
            self.log.readers.discard(self)
            self.log.wake_drain()
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
