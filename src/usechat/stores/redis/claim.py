"""The right to write the one turn of a chat, held under a lease."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Literal, Protocol, TypeAlias

import msgspec

from usechat.protocol.messages import UIMessage
from usechat.stores import FencedError, Meter, Producer, SpentError, StopReason, StoreAwayError, TurnHead
from usechat.stores.log import Outcome, Reader, TurnLog
from usechat.stores.redis.appends import REFUSED, REFUSED_FOR, Appends
from usechat.stores.redis.driver import Command, Reply
from usechat.stores.redis.keys import Keys, TurnKeys
from usechat.stores.redis.lease import Leases
from usechat.stores.redis.line import Line
from usechat.stores.redis.settings import Settings, milliseconds, number
from usechat.stores.redis.steps import APPEND, BEAT, OPEN, RELEASE, RESTORE, SEAL

__all__ = ["Host", "RedisClaim", "reason_of"]

_Phase: TypeAlias = Literal["claimed", "open", "sealed", "released"]
# How often to look, until a turn may be released, whether Redis still has it.
_SETTLING: Final = 0.1
_TAKEN_OVER: Final = "Somebody else has taken the turn over."


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

    @property
    def unsettled(self) -> float:
        """For how many seconds readers elsewhere may still miss what a Redis that was away has got back."""
        ...

    def left(self, claim: "RedisClaim") -> None:
        """The claim is released."""
        ...

    def lost(self, claim: "RedisClaim", *, is_handed: bool) -> None:
        """The claim is fenced: its log goes on as a copy, if anybody reads it and it is not handed to another claim."""
        ...


class RedisClaim:
    """A claim of this process, in the phases of every claim. Once it is *fenced*, it writes nothing more, nowhere.

    What Redis has lost is given back to it from the log, unless this process was asleep for so long that another one
    may have taken the turn over. A claim whose answer was lost has the epoch 0, and can only be released.
    """

    def __init__(self, host: Host, head: TurnHead, epoch: int, log: TurnLog | None = None) -> None:
        self.head = head
        self.epoch = epoch
        self.log = TurnLog(head.turn, head.client, event_names=head.event_names) if log is None else log
        self.phase: _Phase = "claimed"
        self.keys: TurnKeys = host.keys.of(head)
        self.renewed = 0.0
        self.is_fenced = False
        self._host = host
        self._fence = number(epoch) if epoch else b"", host.worker
        self._appends = Appends(self.log, host.line, host.meter, self._append, self._hear)
        self._sealed: tuple[Sequence[bytes], Outcome] | None = None
        self._producer: Producer | None = None
        self._stop: StopReason | None = None
        self._remote: int | None = 0
        self._told: int | None = -1
        self._spends: Sequence[bytes] = ()
        self._restoring: asyncio.Task[None] | None = None
        self._moves: list[asyncio.Future[None]] = []
        self.log.counts = self._count

    @property
    def sealed(self) -> tuple[Sequence[bytes], Outcome] | None:
        return self._sealed

    # What the turn calls.

    async def open(self, producer: Producer, continues: UIMessage | None, spends: Sequence[str]) -> None:
        if self.is_fenced or self.phase == "released":
            raise FencedError(_TAKEN_OVER)
        if self.phase != "claimed":
            return
        settings, ids = self._host.settings, [self._host.keys.spent_id(id_) for id_ in spends]
        parts = (*self._fence, _encoded(continues), milliseconds(settings.keep_spent), *ids)
        reply = await self._call((OPEN, 2, self.keys.turn, self.keys.spent, *parts), settings.patience)
        if reply[0] == b"SPENT":
            raise SpentError("An id was used before.")
        # Another owner may have taken it over while the answer was on its way.
        if reply[0] != b"OK" or self.is_fenced:
            self.fence()
            raise FencedError(_TAKEN_OVER)
        self._spends = ids
        self.log.open(continues)
        self._producer = producer
        self._begin()
        self._count()
        why = self._stop or reason_of(reply[1])
        if why is not None:
            self.stop(why)

    def append(self, frames: Sequence[bytes]) -> None:
        self._appends.add(frames)

    async def room(self) -> None:
        await self._appends.room()

    async def seal(self, last: Sequence[bytes], outcome: Outcome) -> bool:
        if self.phase == "open" and not self.is_fenced:
            await self._appends.flush()
            while self.phase == "open" and not self.is_fenced:
                await self._seal(last, outcome)
        return self._sealed is not None and not self.is_fenced

    async def release(self) -> bool:
        if self.is_fenced or self.phase == "released":
            return not self.is_fenced
        if self._sealed is None:
            await self._drop()
            return True
        while not self.is_fenced:
            # A Redis that was away may go away again, and take along an end that nobody could give back.
            is_settled = self._host.unsettled <= 0
            reply = await self._insist(self._release() if is_settled else self.beat())
            if reply[0] == b"GONE" and await self._restored():
                await self._seal_again(*self._sealed)
            elif reply[0] not in (b"OK", b"CLOSED"):
                self.fence()
            elif is_settled:
                self._released(*self._sealed)
                return True
            else:
                await asyncio.sleep(_SETTLING)
        return False

    def reader(self) -> Reader:
        reader = Reader(self.log)
        self._count()
        return reader

    # What the store calls.

    def take(self, sealed: tuple[Sequence[bytes], Outcome] | None) -> None:
        """Go on with a turn that another owner has opened, and perhaps sealed."""
        self._sealed = sealed
        if sealed is None:
            self._begin()
        else:
            self._move("sealed")

    async def flush(self) -> None:
        """Take no more frames, and wait until Redis has all."""
        await self._appends.flush()

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
            self._stop_for(reply[1])
        elif reply[0] == b"GONE":
            self.check()
        elif reply[0] == b"FENCED" and self.phase != "claimed":
            # Whoever opens or releases a claim hears it, too.
            self.fence()

    def check(self) -> None:
        """See whether Redis still has the turn, and give it back what it lost."""
        if self.phase == "open" and not self.is_fenced and self._restoring is None:
            self._appends.is_held = True
            self._restoring = asyncio.create_task(self._restore())

    def fence(self, *, is_handed: bool = False) -> None:
        """Write nothing more: another owner has the turn; if it is of this process, the log is handed to it."""
        if self.is_fenced or self.phase == "released":
            return
        self._appends.stop()
        self.is_fenced = True
        self.log.counts = None
        producer, self._producer = self._producer, None
        self._move(self.phase)
        self._host.lost(self, is_handed=is_handed)
        if producer is not None:
            producer.fenced(is_here=is_handed)

    async def moved(self) -> None:
        """Wait until the claim has gone on, or another owner has it."""
        future = asyncio.get_running_loop().create_future()
        self._moves.append(future)
        await future

    def beat(self) -> Command:
        keys, settings = self.keys, self._host.settings
        fence = (*self._fence, settings.lease_us, milliseconds(settings.keep_running))
        return (BEAT, 4, keys.chat, keys.turn, keys.log, keys.readers, *fence)

    # How it works.

    async def _call(self, command: Command, within: float | None) -> Reply:
        return await self._host.line.call(*command, within=within)

    async def _insist(self, command: Command) -> Reply:
        """Say what ends the turn however long Redis is away; the answer is none of the known ones if it refuses it."""
        since: float | None = None
        while True:
            try:
                return await self._call(command, None)
            except StoreAwayError:
                since = since or time.monotonic()
                if time.monotonic() - since > REFUSED_FOR:
                    return [b"REFUSED"]
                await asyncio.sleep(REFUSED)

    def _append(self, after: int, last: int, data: bytes) -> Command:
        return (APPEND, 2, self.keys.turn, self.keys.log, *self._fence, number(after), number(last), data)

    def _hear(self, reply: Reply) -> None:
        """Redis has answered more than that it has the frames."""
        if reply[0] in (b"OK", b"DUPLICATE"):
            self._stop_for(reply[2])
        elif reply[0] == b"GONE":
            self.check()
        else:
            self.fence()

    def _stop_for(self, reason: bytes | None) -> None:
        if (why := reason_of(reason)) is not None and self._stop is None:
            self.stop(why)

    async def _seal(self, last: Sequence[bytes], outcome: Outcome) -> None:
        after = number(len(self.log.frames))
        parts = (*self._fence, after, b"".join(last), number(len(last)), outcome.encode())
        reply = await self._insist((SEAL, 1, self.keys.turn, *parts))
        match reply[0]:
            case b"OK" | b"CLOSED":
                self._sealed = last, outcome
                self._move("sealed")
            case b"BEHIND":
                self._appends.fall_back(reply[1])
                await self._appends.flush()
            case b"GONE" if await self._restored():
                await self._appends.flush()
            case _:
                self.fence()

    async def _seal_again(self, last: Sequence[bytes], outcome: Outcome) -> None:
        self._move("open")
        await self._appends.flush()
        while self.phase == "open" and not self.is_fenced:
            await self._seal(last, outcome)

    def _release(self) -> Command:
        keys, settings = self.keys, self._host.settings
        names = (keys.chat, keys.turn, keys.log, keys.ended, keys.readers)
        phase = b"" if self._sealed is None else b"sealed"
        bounds = (milliseconds(settings.keep), number(settings.keep_turns), number(settings.keep_bytes))
        size = self.log.size + sum(map(len, self._sealed[0] if self._sealed is not None else ()))
        return (RELEASE, 5, *names, self.head.turn.encode(), *self._fence, *bounds, phase, number(size))

    def _released(self, last: Sequence[bytes], outcome: Outcome) -> None:
        self._leave()
        self.log.extend(last)
        self.log.close(outcome)
        self._move("released")

    async def _drop(self) -> None:
        """Release a turn that was not opened; if Redis is away, its lease does."""
        with suppress(StoreAwayError):
            await self._call(self._release(), self._host.settings.patience)
        self._leave()
        self._move("released")

    def _leave(self) -> None:
        self._appends.stop()
        self.log.counts = None
        self._producer = None
        self._host.left(self)

    async def _restored(self) -> bool:
        """Give Redis back a turn that it has forgotten; False if that is not for us to do any more."""
        keys, settings = self.keys, self._host.settings
        if self._host.leases.may_be_lost(self):
            return False
        asked = time.monotonic()
        turn = (self.head.turn.encode(), *self._fence, settings.lease_us, _encoded(self.head))
        kept = (milliseconds(settings.keep_running), milliseconds(settings.keep_spent))
        command = (RESTORE, 3, keys.chat, keys.turn, keys.spent, *turn, _encoded(self.log.continues), *kept)
        reply = await self._insist((*command, *self._spends))
        if reply[0] != b"OK":
            return False
        self._host.leases.renew(self, asked)
        self._appends.fall_back(reply[1])
        return True

    async def _restore(self) -> None:
        try:
            is_ours = await self._restored()
        finally:
            self._restoring = None
            self._appends.is_held = False
        if not is_ours:
            self.fence()
            return
        self._appends.queue()
        with suppress(StoreAwayError):
            # Who reads elsewhere, and whether somebody has stopped the turn meanwhile.
            self.hear_beat(await self._call(self.beat(), self._host.settings.patience))

    def _begin(self) -> None:
        self._appends.begin()
        self._move("open")

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
        for future in moves:
            if not future.done():
                future.set_result(None)


def reason_of(value: bytes | None) -> StopReason | None:
    """Why a turn was stopped, as Redis has it."""
    return None if value is None else msgspec.convert(value.decode(), StopReason)


def _encoded(value: TurnHead | UIMessage | None) -> bytes:
    return b"" if value is None else msgspec.json.encode(value)
