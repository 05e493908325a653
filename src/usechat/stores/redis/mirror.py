"""The mirror of a turn that another process writes: a log in this process that grows as the turn's own does.

**States.** A mirror is *loading* until it has what the turn has written so far. Then it *follows*: it adds what Redis
publishes by its index, and reads what it missed from the log in Redis (`check`). Redis publishes to those who are
connected at that moment, so a mirror must not rely on it: it checks twice in the time of a lease, whenever the channels
were not heard for a while, and when a message does not continue what it has. It is *over* when the turn has ended, when
nobody reads it any more, when this process takes the turn over, or when it is *lost*.

It is lost when it cannot be followed to its end, and its readers then get an `error`: Redis has other frames than those
that were read here, or has not had the turn for two leases and more than four looks. Owners need some of that time to
give a turn back, and it counts anew after each outage (`wait_again`).

**Tasks.** Everything belongs to the event loop. `_loading` is the one task that loads, which all readers share;
`_filling` is the one that checks; `_timer` is the next regular check. A reader that joins may read on beside them
(`reach`): `_add` takes each frame once, from either.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from usechat.protocol.chunks import Error
from usechat.protocol.frames import Frames
from usechat.protocol.messages import UIMessage
from usechat.stores import StoreAwayError, TurnHead
from usechat.stores.log import Outcome, Reader, TurnLog
from usechat.stores.redis.driver import Command
from usechat.stores.redis.scripts import COUNT
from usechat.stores.redis.worker import TurnStatus, Worker, frames_of

__all__ = ["Mirror"]

_INTERRUPTED: Final = "The answer was interrupted."
# Entries of the log that are read at once.
_PAGE: Final = 16
# For how many leases the readers of a worker count that gives no sign of life.
_LIFE: Final = 1.2
# For how many leases, and how many looks, a mirror waits for a turn that Redis forgot.
_FORGOTTEN: Final = 2.0
_LOOKS: Final = 4


class Mirror:
    """Follows a turn for its readers; `unread` is called when the last one has left, and when the turn is lost."""

    def __init__(
        self, worker: Worker, head: TurnHead, unread: Callable[["Mirror"], None], log: TurnLog | None = None
    ) -> None:
        self.head = head
        self.log = TurnLog(head.turn, head.client, event_names=head.event_names) if log is None else log
        self.is_lost = False
        self._keys = worker.keys.of(head)
        self._unread = unread
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._loading: asyncio.Task[None] | None = None
        self._filling: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._missing_since: float | None = None
        self._missing_looks = 0
        self._is_counting = False
        self._is_listening = False
        self._is_over = False
        self.log.counts = self._left

    async def loaded(self) -> None:
        """Wait until all is here that the turn has written so far.

        Raises:
            StoreAwayError: Redis is away.
        """
        if self._loading is None:
            # In a task of its own, since the first caller may be cancelled.
            self._loading = self._worker.start(self._load())
        await asyncio.shield(self._loading)

    async def reach(self, status: TurnStatus) -> None:
        """Read on to where the turn was then; a mirror that is there already does nothing.

        Raises:
            StoreAwayError: Redis is away.
        """
        if not self._is_over and self.log.end < status.last:
            await self._read_on(status)

    def reader(self) -> Reader:
        reader = Reader(self.log)
        self._count()
        return reader

    def go_on(self) -> None:
        """Follow the log of a claim of this process that was fenced, from where its readers are."""
        self.log.drop_held()
        self._loading = self._worker.spawn(self._load_patiently())

    async def take_over(self, last: int, continues: UIMessage | None) -> TurnLog:
        """Follow no more: this process writes the log now, after the chunk with this index.

        Raises:
            StoreAwayError: Redis is away.
        """
        self._unlisten()
        for task in (self._loading, self._filling):
            if task is not None:
                task.cancel()
        if self.log.end > last:
            # Redis has lost what it had, and its owner cannot give it back any more.
            self._fail()
            return await Mirror(self._worker, self.head, self._unread).take_over(last, continues)
        log = self.log
        log.continues = continues
        log.drop_held()
        while log.end < last:
            before = log.end
            await self._read_page()
            if log.end == before:
                raise StoreAwayError
        self._is_over = True
        return log

    def wait_again(self) -> None:
        """Redis was away: owners could not give back what it forgot, and it may have forgotten it again."""
        self._missing_since = None

    def check(self) -> None:
        """Look whether something was missed."""
        if not self._is_over and self._filling is None:
            self._filling = self._worker.start(self._fill())

    async def _load(self) -> None:
        await self._worker.join(self._keys.turn, self._hear)
        self._is_listening = True
        if self._is_over:
            self.stop()
            return
        status = await self._worker.status(self.head, self._worker.reading)
        if self.log.continues is None:
            self.log.continues = status.continues
        await self._read_on(status)
        self._watch()

    async def _load_patiently(self) -> None:
        deadline = self._loop.time() + _FORGOTTEN * self._worker.settings.lease
        while not self._is_over:
            try:
                await self._load()
                break
            except StoreAwayError:
                if self._loop.time() > deadline:
                    self._fail()
                    return

    async def _fill(self) -> None:
        try:
            status = await self._worker.status(self.head, self._worker.reading)
            await self._read_on(status)
        except StoreAwayError:
            pass
        finally:
            self._filling = None
            self._watch()

    async def _read_on(self, status: TurnStatus) -> None:
        log = self.log
        if status.phase is None:
            self._forgotten()
            return
        self._missing_since = None
        if status.last > log.end:
            self._worker.meter.lagged(status.last - log.end)
        while log.end < status.last and log.outcome is None:
            before = log.end
            await self._read_page()
            if log.end == before:
                # Redis lost it since; its owner, if it has one, gives it back.
                break
        if status.phase == "ended" and log.outcome is None:
            # The last frames once more: another owner may have ended a log that had lost what was read here.
            await self._read_page(b"%d-0" % status.last)
            if log.end == status.last:
                self._close(status.outcome)
            else:
                self._fail()

    async def _read_page(self, begin: bytes | None = None) -> None:
        begin = begin or (b"(%d-0" % self.log.end if self.log.end else b"-")
        command: Command = (b"XRANGE", self._keys.log, begin, b"+", b"COUNT", _PAGE)
        for entry, (_, data) in await self._worker.reading.call(*command, within=self._worker.settings.patience):
            last = int(entry.partition(b"-")[0])
            frames = frames_of(data)
            self._add(last - len(frames), last, frames)

    def _hear(self, message: bytes) -> None:
        # Redis has the turn, or it could not publish anything about it.
        self._missing_since = None
        words, _, data = message.partition(b"\n")
        match words.split():
            case [b"more", after, last]:
                is_there = self._add(int(after), int(last), frames_of(data))
            case [b"end", after, last, outcome]:
                is_there = self._add(int(after), int(last), frames_of(data)) and self.log.end == int(last)
                if is_there:
                    self._close(msgspec.convert(outcome.decode(), Outcome))
            case [b"gone"]:
                self._fail()
                return
            case _:
                return
        if not is_there:
            self.check()

    def _add(self, after: int, last: int, frames: Sequence[bytes]) -> bool:
        """Add what is new of the frames; False if some before them are missing."""
        log = self.log
        if after > log.end or self._is_over:
            return self._is_over
        known = log.frames[after:last]
        if known != frames[: len(known)]:
            # Redis had lost what was read here, and another owner has gone on without it.
            self._fail()
        elif last > log.end:
            log.extend(frames[len(known) :])
            log.wake()
        return True

    def _close(self, outcome: Outcome) -> None:
        if self.log.outcome is None:
            self.log.close(outcome)
        self.stop()

    def _fail(self) -> None:
        """End the readers of a log that cannot be followed to its end."""
        log = self.log
        if log.outcome is not None or self._is_over:
            return
        self.is_lost = True
        frames = Frames(log.mark, names=self.head.event_names)
        # Without an id, so that nobody takes it for a chunk of the turn.
        log.extend([frames.frame(None, Error(_INTERRUPTED))])
        self._close("lost")
        # Those who come later may see more.
        self._unread(self)

    def _forgotten(self) -> None:
        now = self._loop.time()
        if self._missing_since is None:
            self._missing_since, self._missing_looks = now, 0
        self._missing_looks += 1
        is_late = now - self._missing_since >= _FORGOTTEN * self._worker.settings.lease - 0.1
        if is_late and self._missing_looks > _LOOKS:
            self._fail()

    def _watch(self) -> None:
        if self._is_over:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._worker.settings.lease / 2, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._count()
        self.check()

    def _count(self) -> None:
        if not self._is_counting and not self._is_over:
            self._is_counting = True
            self._worker.pipeline.send_late(self._count_readers)

    def _count_readers(self) -> Command:
        self._is_counting = False
        worker, life = self._worker, int(_LIFE * self._worker.settings.lease_us)
        keys, turn, count = self._keys, self.head.turn.encode(), len(self.log.readers)
        return (COUNT, 2, keys.turn, keys.readers, turn, worker.id, count, life, worker.keys.workers)

    def _left(self) -> None:
        self._count()
        if not self.log.readers:
            self._unread(self)

    def stop(self) -> None:
        """Follow no more."""
        self._is_over = True
        self._unlisten()

    def _unlisten(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_listening:
            self._is_listening = False
            self._worker.channels.leave(self._keys.turn, self._hear)
