"""This process's copy of a turn that another process writes, and how it follows."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from usechat.protocol.chunks import Error
from usechat.protocol.frames import Frames
from usechat.protocol.messages import UIMessage
from usechat.stores import Meter, StoreAwayError, TurnHead
from usechat.stores.log import Outcome, Reader, TurnLog
from usechat.stores.redis.channels import Channels
from usechat.stores.redis.driver import Command, Reply
from usechat.stores.redis.keys import Keys
from usechat.stores.redis.line import Line
from usechat.stores.redis.looks import Look, frames_of, look
from usechat.stores.redis.settings import Settings, number
from usechat.stores.redis.steps import COUNT

__all__ = ["Copy", "CopyHost"]

_log = logging.getLogger("usechat")

_INTERRUPTED: Final = "The answer was interrupted."
# Entries of the log that are read at once.
_PAGE: Final = 16
# For so many leases the readers of a worker are counted that gives no sign of life.
_LIFE: Final = 1.2
# For so many leases since Redis was away, and more than so many looks, a copy waits for a turn that Redis forgot.
_FORGOTTEN: Final = 2.0
_LOOKS: Final = 4


class CopyHost(Protocol):
    """The store of this process, as its copies see it."""

    worker: bytes
    keys: Keys
    settings: Settings
    meter: Meter

    @property
    def line(self) -> Line: ...

    @property
    def reading(self) -> Line:
        """For what is large."""
        ...

    @property
    def channels(self) -> Channels: ...

    def reap(self, head: TurnHead) -> None:
        """End the turn if its owner is gone."""
        ...

    def unread(self, copy: "Copy") -> None:
        """Nobody reads the copy any more."""
        ...


class Copy:
    """A log that grows as the turn's own does.

    It is *loading* until it has what the turn has said so far, then *following*: what is published is added by its
    index, and what was missed is read from the log. Whoever publishes may do so in vain, so a copy that hears nothing
    looks for itself. It is *over* when the turn has ended, when nobody reads it, or when the turn is lost.
    """

    def __init__(self, host: CopyHost, head: TurnHead, log: TurnLog | None = None) -> None:
        self.head = head
        self.log = TurnLog(head.turn, head.client, event_names=head.event_names) if log is None else log
        self.keys = host.keys.of(head)
        # Whether the turn cannot be followed to its end.
        self.is_lost = False
        self._host = host
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
        """Wait until all is here that the turn has said so far.

        Raises:
            StoreAwayError: Redis is away.
        """
        if self._loading is None:
            # Not by whoever asks first, who may be cancelled: all of them share it.
            self._loading = self._loop.create_task(self._load())
        await asyncio.shield(self._loading)

    async def reach(self, state: Look) -> None:
        """Read on to what the turn was like then; a copy that has it already does nothing.

        Raises:
            StoreAwayError: Redis is away.
        """
        if not self._is_over and self.log.end < state.last:
            await self._read_on(state)

    def reader(self) -> Reader:
        reader = Reader(self.log)
        self._count()
        return reader

    def go_on(self) -> None:
        """Follow the log of an owner of this process who was fenced, from where its readers are."""
        self.log.drop_held()
        self._loading = self._loop.create_task(self._load_patiently())
        self._loading.add_done_callback(_ignore)

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
            return await Copy(self._host, self.head).take_over(last, continues)
        log = self.log
        log.open(continues)
        log.drop_held()
        while log.end < last:
            before = log.end
            await self._read_page()
            if log.end == before:
                raise StoreAwayError
        self._is_over = True
        return log

    def wait_again(self) -> None:
        """Redis was away: nobody could give back what it forgot, and it may have forgotten it again."""
        self._missing_since = None

    def check(self) -> None:
        """Look whether something was missed."""
        if not self._is_over and self._filling is None:
            self._filling = self._loop.create_task(self._fill())

    async def _load(self) -> None:
        try:
            async with asyncio.timeout(self._host.settings.patience):
                await self._host.channels.join(self.keys.turn, self._hear)
        except TimeoutError:
            raise StoreAwayError from None
        self._is_listening = True
        if self._is_over:
            self._stop()
            return
        state = await look(self._host.reading, self.keys, self._host.settings.patience)
        if self.log.continues is None:
            self.log.open(state.continues)
        await self._read_on(state)
        self._watch()

    async def _load_patiently(self) -> None:
        deadline = self._loop.time() + _FORGOTTEN * self._host.settings.lease
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
            state = await look(self._host.reading, self.keys, self._host.settings.patience)
            await self._read_on(state)
            if state.late and state.is_held:
                self._host.reap(self.head)
        except StoreAwayError:
            pass
        finally:
            self._filling = None
            self._watch()

    async def _read_on(self, state: Look) -> None:
        log = self.log
        if state.phase is None:
            self._forgotten()
            return
        self._missing_since = None
        if state.last > log.end:
            self._host.meter.lagged(state.last - log.end)
        while log.end < state.last and log.outcome is None:
            before = log.end
            await self._read_page()
            if log.end == before:
                # Redis lost it since; whoever writes it, if anybody does, gives it back.
                break
        if state.phase == "ended" and log.outcome is None:
            # The last frames once more: another owner may have ended a log that had lost what was read here.
            await self._read_page(b"%d-0" % state.last)
            if log.end == state.last:
                self._close(state.outcome)
            else:
                self._fail()

    async def _read_page(self, begin: bytes | None = None) -> None:
        begin = begin or (b"(%d-0" % self.log.end if self.log.end else b"-")
        settings = self._host.settings
        command: Command = (b"XRANGE", self.keys.log, begin, b"+", b"COUNT", b"%d" % _PAGE)
        for entry, (_, data) in await self._host.reading.call(*command, within=settings.patience):
            last = int(entry.partition(b"-")[0])
            frames = frames_of(data)
            self._add(last - len(frames), last, frames)

    def _hear(self, message: bytes) -> None:
        # Whoever says something about the turn knows it.
        self._missing_since = None
        words, _, data = message.partition(b"\n")
        match words.split():
            case [b"more", after, last]:
                is_there = self._add(int(after), int(last), frames_of(data))
            case [b"end", after, last, outcome]:
                is_there = self._add(int(after), int(last), frames_of(data))
                if is_there and self.log.end == int(last):
                    self._close(msgspec.convert(outcome.decode(), Outcome))
                elif is_there:
                    is_there = False
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
        self._stop()

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
        # Whoever comes later may see more.
        self._host.unread(self)

    def _forgotten(self) -> None:
        now = self._loop.time()
        if self._missing_since is None:
            self._missing_since, self._missing_looks = now, 0
        self._missing_looks += 1
        is_late = now - self._missing_since >= _FORGOTTEN * self._host.settings.lease - 0.1
        if is_late and self._missing_looks > _LOOKS:
            self._fail()

    def _watch(self) -> None:
        if self._is_over:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._host.settings.lease / 2, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._count()
        self.check()

    def _count(self) -> None:
        if not self._is_counting and not self._is_over:
            self._is_counting = True
            self._host.line.put(self)

    def _left(self) -> None:
        self._count()
        if not self.log.readers:
            self._host.unread(self)

    def close(self) -> None:
        """Nobody reads it."""
        self._stop()

    def _stop(self) -> None:
        self._is_over = True
        self._unlisten()

    def _unlisten(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_listening:
            self._is_listening = False
            self._host.channels.leave(self.keys.turn, self._hear)

    # What the line calls, to say how many readers there are.

    def command(self) -> Command | None:
        self._is_counting = False
        host = self._host
        life = number(int(_LIFE * host.settings.lease * 1_000_000))
        count = number(len(self.log.readers))
        turn = self.head.turn.encode()
        return (COUNT, 2, self.keys.turn, self.keys.readers, turn, host.worker, count, life, host.keys.workers)

    def done(self, reply: Reply) -> None:
        pass

    def retries(self) -> bool:
        # The next look counts again.
        return False


def _ignore(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("a log could not be followed", exc_info=error)
