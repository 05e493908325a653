"""The right to write the one turn of a chat, held under a lease, and how what is written gets into Redis."""

import asyncio
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from typing import Final, Literal, Protocol, TypeAlias

import msgspec

from usechat.protocol.messages import UIMessage
from usechat.stores import FencedError, Meter, Producer, SpentError, StopReason, StoreAwayError, TurnHead
from usechat.stores.log import Outcome, Reader, TurnLog
from usechat.stores.redis.driver import Command, Reply
from usechat.stores.redis.keys import Keys, TurnKeys
from usechat.stores.redis.lease import Leases
from usechat.stores.redis.line import Line
from usechat.stores.redis.steps import APPEND, BEAT, OPEN, RELEASE, RESTORE, SEAL

__all__ = ["Host", "RedisClaim", "Settings"]

_Phase: TypeAlias = Literal["claimed", "open", "sealed", "released"]

# The most bytes of one entry of the log, and of what is not in the log yet.
_ENTRY: Final = 512 * 1024
_MOST_UNSENT: Final = 4 * 1024 * 1024
# When to try again what Redis has refused for a reason that we do not know.
_REFUSED: Final = 1.0


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How turns are kept, in seconds and bytes; the times of turns that run are refreshed with their leases."""

    lease: float
    keep: float
    keep_turns: int
    keep_running: float
    keep_spent: float
    most_copied: int
    patience: float

    @property
    def lease_us(self) -> int:
        return int(self.lease * 1_000_000)


class Host(Protocol):
    """The store of this process, as its claims see it."""

    worker: bytes
    keys: Keys
    settings: Settings
    meter: Meter

    @property
    def line(self) -> Line: ...

    @property
    def leases(self) -> Leases: ...

    def left(self, claim: "RedisClaim") -> None:
        """The claim is released."""
        ...

    def lost(self, claim: "RedisClaim", *, is_handed: bool) -> None:
        """The claim is fenced: its log goes on as a copy, if anybody reads it and it is not handed to another claim."""
        ...


class RedisClaim:
    """A claim of this process.

    Frames are readable here at once while the lease is certain, and else as soon as Redis has them: `acked` are. What
    Redis lost is sent again from the log. A claim that is *fenced* writes nothing more, nowhere.
    """

    def __init__(self, host: Host, head: TurnHead, epoch: int, log: TurnLog | None = None) -> None:
        self.head = head
        self.epoch = epoch
        self.log = TurnLog(head.turn, head.client, event_names=head.event_names) if log is None else log
        self.phase: _Phase = "claimed"
        self.keys: TurnKeys = host.keys.of(head)
        self.renewed = 0.0
        self.certain_until = 0.0
        self.acked = self.log.end
        self.is_fenced = False
        self._acked_size = self.log.end_size
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._appends = False
        self._is_queued = False
        # Since when something waits to be sent, and since when what is being sent had waited.
        self._unsent_since = self._sending_since = 0.0
        self._sending: tuple[int, int] | None = None
        self._restoring: asyncio.Task[None] | None = None
        self._sealed: tuple[Sequence[bytes], Outcome] | None = None
        self._producer: Producer | None = None
        self._stop: StopReason | None = None
        self._remote: int | None = 0
        self._told: int | None = -1
        self._spends: Sequence[bytes] = ()
        self._moves: list[asyncio.Future[None]] = []
        self._acks: list[asyncio.Future[None]] = []
        self.log.guard = self._guard
        self.log.counts = self._count

    @property
    def sealed(self) -> tuple[Sequence[bytes], Outcome] | None:
        return self._sealed

    # What the turn calls.

    async def open(self, producer: Producer, continues: UIMessage | None, spends: Sequence[str]) -> None:
        if self.is_fenced or self.phase == "released":
            raise FencedError("Somebody else has taken the turn over.")
        if self.phase != "claimed":
            return
        host, ids = self._host, [self._host.keys.spent_id(id_) for id_ in spends]
        told = b"" if continues is None else msgspec.json.encode(continues)
        spent = self.keys.chat + b":s"
        reply = await self._call(
            (OPEN, 2, self.keys.turn, spent, *self._fence, told, _ms(host.settings.keep_spent), *ids),
            host.settings.patience,
        )
        if reply[0] == b"SPENT":
            raise SpentError("An id was used before.")
        if reply[0] != b"OK":
            self.fence()
            raise FencedError("Somebody else has taken the turn over.")
        self._spends = ids
        self.log.open(continues)
        self._producer = producer
        self.begin_appends("open")
        self._count()
        why = self._stop or _reason(reply[1])
        if why is not None:
            self.stop(why)

    def append(self, frames: Sequence[bytes]) -> None:
        with self._lock:
            if not self._appends:
                return
            if time.monotonic() < self.certain_until:
                self.log.extend(frames)
            else:
                self.log.hold(frames)
            if self._is_queued:
                return
            self._is_queued = True
            if not self._unsent_since:
                self._unsent_since = time.monotonic()
        if threading.get_ident() == self._thread:
            self._host.line.put(self)
        else:
            self._loop.call_soon_threadsafe(self._host.line.put, self)

    async def room(self) -> None:
        while self.log.size - self._acked_size > _MOST_UNSENT and not self.is_fenced and self.phase == "open":
            await self._acknowledged()

    async def seal(self, last: Sequence[bytes], outcome: Outcome) -> bool:
        if self.phase == "open" and not self.is_fenced:
            await self.flush()
            while self.phase == "open" and not self.is_fenced:
                await self._seal(last, outcome)
        return self._sealed is not None and not self.is_fenced

    async def release(self) -> None:
        if self.is_fenced or self.phase == "released":
            return
        if self._sealed is None:
            await self._drop()
            return
        while not self.is_fenced:
            reply = await self._call(self._release(), None)
            if reply[0] == b"OK":
                self._released(*self._sealed)
                return
            if reply[0] != b"GONE":
                self.fence()
            elif await self._restored():
                await self._seal_again(*self._sealed)

    def reader(self) -> Reader:
        reader = Reader(self.log)
        self._count()
        return reader

    # What the store calls.

    def take(self, phase: Literal["open", "sealed"], sealed: tuple[Sequence[bytes], Outcome] | None) -> None:
        """Go on with a turn that another owner has brought so far."""
        self._sealed = sealed
        if phase == "open":
            self.begin_appends("open")
        else:
            self._move(phase)

    def begin_appends(self, phase: _Phase) -> None:
        with self._lock:
            self._appends = True
        self._move(phase)

    async def flush(self) -> None:
        """Take no more frames, and wait until Redis has all."""
        self._end_appends()
        while self.acked < len(self.log.frames) and not self.is_fenced:
            self._queue()
            await self._acknowledged()

    def stop(self, why: StopReason) -> None:
        self._stop = self._stop or why
        if self._producer is not None:
            self._producer.stop(why)

    def count_remote(self, count: int | None) -> None:
        """So many readers follow the turn on other workers; None if nobody knows."""
        self._remote = count
        self._count()

    def hear_beat(self, reply: Reply) -> None:
        """Redis has answered a renewal of the lease."""
        if self.is_fenced or self.phase == "released" or isinstance(reply, Exception):
            return
        if reply[0] == b"OK":
            self.count_remote(reply[2])
            if (why := _reason(reply[1])) is not None and self._stop is None:
                self.stop(why)
        elif reply[0] == b"GONE":
            self.check()
        elif reply[0] == b"FENCED" and self.phase != "claimed":
            # Whoever opens or releases a claim hears it, too.
            self.fence()

    def check(self) -> None:
        """See whether Redis still has the turn, and give it back what it lost."""
        if self.phase == "open" and not self.is_fenced and self._restoring is None:
            self._restoring = self._loop.create_task(self._restore())

    def fence(self, *, is_handed: bool = False) -> None:
        """Write nothing more: another owner has the turn; if it is of this process, the log is handed to it."""
        if self.is_fenced or self.phase == "released":
            return
        self._end_appends()
        self.is_fenced = True
        self.log.guard = self.log.counts = None
        producer, self._producer = self._producer, None
        self._move(self.phase)
        self._wake_acks()
        self._host.lost(self, is_handed=is_handed)
        if producer is not None:
            producer.fenced(is_here=is_handed)

    async def moved(self) -> None:
        """Wait until the claim has gone on, or another owner has it."""
        future = self._loop.create_future()
        self._moves.append(future)
        await future

    def beat(self) -> Command:
        keys, settings = self.keys, self._host.settings
        fence = (*self._fence, _number(settings.lease_us), _ms(settings.keep_running))
        return (BEAT, 4, keys.chat, keys.turn, keys.log, keys.readers, *fence)

    # What the line calls, to send what is not in Redis yet.

    def command(self) -> Command | None:
        with self._lock:
            self._is_queued = False
            self._sending_since, self._unsent_since = self._unsent_since or self._sending_since, 0.0
        frames, after = self.log.frames, self.acked
        if self.is_fenced or self._restoring is not None or after >= len(frames):
            return None
        batch = frames[after:]
        data = b"".join(batch)
        if len(data) > _ENTRY:
            batch = _part(batch)
            data = b"".join(batch)
        last = after + len(batch)
        self._sending = last, len(data)
        return (APPEND, 2, self.keys.turn, self.keys.log, *self._fence, _number(after), _number(last), data)

    def done(self, reply: Reply) -> None:
        if self._sending is None or self.is_fenced:
            return
        if isinstance(reply, Exception):
            self._loop.call_later(_REFUSED, self._queue)
            return
        (last, size), self._sending = self._sending, None
        code = reply[0]
        if code in (b"OK", b"DUPLICATE"):
            self._host.meter.appended(time.monotonic() - self._sending_since)
            self._sending_since = 0.0
            self._acknowledge(last, self._acked_size + size)
            if reply[2] is not None and self._stop is None:
                self.stop(_as_reason(reply[2]))
        elif code == b"BEHIND":
            self._fall_back(reply[1])
        elif code == b"GONE":
            self.check()
        else:
            self.fence()

    def retries(self) -> bool:
        with self._lock:
            again, self._is_queued = not self._is_queued, True
        return again

    # How it works.

    @property
    def _fence(self) -> tuple[bytes, bytes]:
        # A claim whose answer was lost has no epoch.
        return _number(self.epoch) if self.epoch else b"", self._host.worker

    async def _call(self, command: Command, within: float | None) -> Reply:
        return await self._host.line.call(*command, within=within)

    async def _seal(self, last: Sequence[bytes], outcome: Outcome) -> None:
        data, after = b"".join(last), _number(len(self.log.frames))
        parts = (*self._fence, after, data, _number(len(last)), outcome.encode())
        reply = await self._call((SEAL, 1, self.keys.turn, *parts), None)
        match reply[0]:
            case b"OK" | b"CLOSED":
                self._sealed = last, outcome
                self._move("sealed")
            case b"BEHIND":
                self._fall_back(reply[1])
                await self.flush()
            case b"GONE" if await self._restored():
                await self.flush()
            case _:
                self.fence()

    async def _seal_again(self, last: Sequence[bytes], outcome: Outcome) -> None:
        self._move("open")
        await self.flush()
        while self.phase == "open" and not self.is_fenced:
            await self._seal(last, outcome)

    def _release(self) -> Command:
        keys, settings = self.keys, self._host.settings
        ended = keys.chat + b":t"
        names = (keys.chat, keys.turn, keys.log, ended, keys.readers)
        bounds = (_ms(settings.keep), _number(settings.keep_turns), b"" if self._sealed is None else b"sealed")
        return (RELEASE, 5, *names, self.head.turn.encode(), *self._fence, *bounds)

    def _released(self, last: Sequence[bytes], outcome: Outcome) -> None:
        self.log.guard = self.log.counts = None
        self.log.extend(last)
        self.log.close(outcome)
        self._leave()

    async def _drop(self) -> None:
        """Release a turn that was not opened; if Redis is away, its lease does."""
        with suppress(StoreAwayError):
            await self._call(self._release(), self._host.settings.patience)
        self._end_appends()
        self._leave()

    def _leave(self) -> None:
        self._producer = None
        self._host.left(self)
        self._move("released")

    async def _restored(self) -> bool:
        """Give Redis back a turn that it has forgotten; False if that is not for us to do any more."""
        keys, settings = self.keys, self._host.settings
        if self._host.leases.may_be_lost(self):
            return False
        continues = b"" if self.log.continues is None else msgspec.json.encode(self.log.continues)
        times = _ms(settings.keep_running), _ms(settings.keep_spent)
        asked = time.monotonic()
        head = msgspec.json.encode(self.head)
        parts = (*self._fence, _number(settings.lease_us), head, continues, *times, *self._spends)
        names = (keys.chat, keys.turn, keys.chat + b":s")
        reply = await self._call((RESTORE, 3, *names, self.head.turn.encode(), *parts), None)
        if reply[0] != b"OK":
            return False
        self._host.leases.renew(self, asked)
        self._fall_back(reply[1])
        return True

    async def _restore(self) -> None:
        try:
            is_ours = await self._restored()
        finally:
            self._restoring = None
        if not is_ours:
            self.fence()
            return
        self._queue()
        with suppress(StoreAwayError):
            # Who reads elsewhere, and whether somebody has stopped the turn meanwhile.
            self.hear_beat(await self._call(self.beat(), self._host.settings.patience))

    def _acknowledge(self, index: int, size: int) -> None:
        self.acked, self._acked_size = index, size
        if self.log.end < index:
            self.log.show(index, size)
            self.log.wake()
        if index < len(self.log.frames):
            self._queue()
        self._wake_acks()

    def _fall_back(self, index: int) -> None:
        """Redis has the log up to here only."""
        self.acked = index
        self._acked_size = sum(map(len, islice(self.log.frames, index)))
        self._queue()

    def _queue(self) -> None:
        with self._lock:
            if self._is_queued or self.is_fenced:
                return
            self._is_queued = True
        self._host.line.put(self)

    def _guard(self) -> None:
        """Take back what Redis may not have, as soon as somebody else may have the turn."""
        if self.log.end > self.acked and time.monotonic() >= self.certain_until:
            self.log.show(self.acked, self._acked_size)

    async def _acknowledged(self) -> None:
        future = self._loop.create_future()
        self._acks.append(future)
        await future

    def _wake_acks(self) -> None:
        acks, self._acks = self._acks, []
        _wake(acks)

    def _end_appends(self) -> None:
        # A thread that is appending has done so then.
        with self._lock:
            self._appends = False

    def _count(self) -> None:
        if self._producer is None:
            return
        local = len(self.log.readers)
        count = local or None if self._remote is None else local + self._remote
        if count != self._told:
            self._told = count
            self._producer.readers_changed(count)

    def _move(self, phase: _Phase) -> None:
        self.phase = phase
        moves, self._moves = self._moves, []
        _wake(moves)


def _wake(futures: Sequence[asyncio.Future[None]]) -> None:
    for future in futures:
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


def _number(number: int) -> bytes:
    return b"%d" % number


def _ms(seconds: float) -> bytes:
    return b"%d" % (seconds * 1000)


def _reason(value: bytes | None) -> StopReason | None:
    return None if value is None else _as_reason(value)


def _as_reason(value: bytes) -> StopReason:
    return msgspec.convert(value.decode(), StopReason)
