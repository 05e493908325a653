"""The right to write the one turn of a chat, on Redis.

**States.** A claim goes through the phases of every claim (usechat.stores): *claimed*, *open*, *sealed*, *released*.
One step leads back: Redis may forget a turn that is sealed, and to give it back it is open and sealed once more. At any
time before its release a claim may be *fenced*, which is for ever: it then writes nothing, nowhere. It is fenced when
Redis says that another owner has the turn, when Redis has forgotten the turn and this process slept so long that
another one may have it, and when Redis has refused its frames or its end for 20 seconds.

**Giving back.** A claim gives back what Redis forgot (`check`): the turn by RESTORE, then all frames of its log. It
holds new frames back meanwhile (`_Appends.is_held`), since Redis would refuse them. A claim whose reply was lost has
the epoch 0: it can only be released.

**Frames** go from `append` into the log, from there in batches of up to 512 KiB to Redis, one batch at a time, and
readers see them when Redis has them: if this process died, nobody else could read the others. `acked` is the index up
to which Redis has the log. It falls back when Redis turns out to have less.

**Threads.** `append` may be called from any thread, by one thread at a time; everything else belongs to the event loop.
`_Appends._lock` guards three fields and the growth of the log:

- `_is_open`: the loop writes it, `add` reads it. When `end` returns, a thread that was adding frames is done.
- `_is_queued`: whether the pipeline has, or is about to get, the job. The caller that sets it puts the job.
- `_unsent_since`: `add` sets it with the first frame that waits, and the trip that takes the frames clears it.

All other fields belong to the event loop.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final, Literal, TypeAlias

import msgspec

from usechat.protocol.messages import UIMessage
from usechat.stores import FencedError, IdUsedError, Meter, Producer, StopReason, StoreAwayError, TurnHead
from usechat.stores.log import Outcome, Reader, TurnLog, Waiters
from usechat.stores.redis.driver import Command, Reply
from usechat.stores.redis.lease import Lease
from usechat.stores.redis.pipeline import Pipeline
from usechat.stores.redis.scripts import APPEND, OPEN, RELEASE, RENEW, RESTORE, SEAL, milliseconds
from usechat.stores.redis.worker import Worker

__all__ = ["RedisClaim", "reason_of"]

_Phase: TypeAlias = Literal["claimed", "open", "sealed", "released"]
# The most bytes of one entry of the log, and of what is not in the log yet.
_ENTRY: Final = 512 * 1024
_MOST_UNSENT: Final = 4 * 1024 * 1024
# In how many seconds to try again what Redis has refused for an unknown reason, and for how long before the turn is
# given up: it would have its chat, and its readers, for ever.
_REFUSED: Final = 1.0
_REFUSED_FOR: Final = 20.0
# How often to look, until a turn may be released, whether Redis still has it.
_SETTLING: Final = 0.1
_TAKEN_OVER: Final = "Another worker has taken the turn over."


class RedisClaim:
    """A claim of this process; `over` is called once, when it is released or fenced."""

    def __init__(
        self,
        worker: Worker,
        head: TurnHead,
        epoch: int,
        over: Callable[["RedisClaim"], None],
        log: TurnLog | None = None,
    ) -> None:
        self.head = head
        self.epoch = epoch
        self.log = TurnLog(head.turn, head.client, event_names=head.event_names) if log is None else log
        self.phase: _Phase = "claimed"
        self.keys = keys = worker.keys.of(head)
        self.is_fenced = False
        # Whether this process is taking the turn over from itself, and whether another claim here has the log now.
        self.is_handing = self.is_handed = False
        # Woken when the claim goes on, or is fenced.
        self.moved = Waiters()
        self._worker = worker
        self._over = over
        self._fence = epoch or b"", worker.id
        settings = worker.settings
        renew = (RENEW, 4, keys.chat, keys.turn, keys.log, keys.readers, *self._fence, settings.lease_us)
        self.lease = Lease((*renew, milliseconds(settings.keep_running)), keys.member, self.hear_renewal)
        self._appends = _Appends(self.log, worker.pipeline, worker.meter, self._append, self._hear)
        self._sealed: tuple[Sequence[bytes], Outcome] | None = None
        self._producer: Producer | None = None
        self._stop: StopReason | None = None
        # How many readers other workers have, and how many the producer has been given in all.
        self._remote: int | None = 0
        self._last_count: int | None = -1
        self._uses: Sequence[bytes] = ()
        self._restoring: asyncio.Task[None] | None = None
        self.log.counts = self._count

    @property
    def sealed(self) -> tuple[Sequence[bytes], Outcome] | None:
        return self._sealed

    @property
    def is_over(self) -> bool:
        return self.is_fenced or self.phase == "released"

    # What the turn calls.

    async def open(self, producer: Producer, continues: UIMessage | None, uses: Sequence[str]) -> None:
        if self.is_over:
            raise FencedError(_TAKEN_OVER)
        if self.phase != "claimed":
            return
        settings, ids = self._worker.settings, [self._worker.keys.used_id(id_) for id_ in uses]
        parts = (*self._fence, _encoded(continues), milliseconds(settings.keep_used), *ids)
        reply = await self._call((OPEN, 2, self.keys.turn, self.keys.used, *parts), settings.patience)
        if reply[0] == b"USED":
            raise IdUsedError("An id was used before.")
        # Another owner may have taken it over while the reply was on its way.
        if reply[0] != b"OK" or self.is_fenced:
            self.fence()
            raise FencedError(_TAKEN_OVER)
        self._uses = ids
        self.log.continues = continues
        self._producer = producer
        self._begin()
        self._count()
        why = self._stop or reason_of(reply[1])
        if why is not None:
            self.stop(why)

    def append(self, frames: Sequence[bytes]) -> None:
        self._appends.add(frames)

    async def drain(self) -> None:
        await self._appends.drain()

    async def seal(self, last: Sequence[bytes], outcome: Outcome) -> bool:
        await self._seal(last, outcome)
        return self._sealed is not None and not self.is_fenced

    async def release(self) -> bool:
        if self.is_over:
            return not self.is_fenced
        if self._sealed is None:
            # It was not opened; if Redis is away, its lease frees the chat.
            with suppress(StoreAwayError):
                await self._call(self._release(b"", ()), self._worker.settings.patience)
            self._released()
            return True
        last, outcome = self._sealed
        while not self.is_fenced:
            # A Redis that was away may go away again, and take along an end that nobody could give back.
            is_settled = self._worker.outages.left <= 0
            reply = await self._insist(self._release(b"sealed", last) if is_settled else self.lease.command)
            if reply[0] == b"GONE" and await self._restored():
                self._move("open")
                await self._seal(last, outcome)
            elif reply[0] not in (b"OK", b"CLOSED"):
                self.fence()
            elif is_settled:
                self._released()
                return True
            else:
                await asyncio.sleep(_SETTLING)
        return False

    def reader(self) -> Reader:
        reader = Reader(self.log)
        self._count()
        return reader

    # What the rest of the store calls.

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
        """Other workers have `count` readers of the turn; None if that is not known."""
        self._remote = count
        self._count()

    def hear_renewal(self, reply: Reply) -> None:
        """Redis has replied to a renewal of the lease."""
        if self.is_over or isinstance(reply, Exception):
            return
        if reply[0] == b"OK":
            self.count_remote(reply[2])
            self._stop_for(reply[1])
        elif reply[0] == b"GONE":
            self.check()
        elif reply[0] == b"FENCED" and self.phase != "claimed":
            # To open or release a claim says so, too.
            self.fence()

    def check(self) -> None:
        """See whether Redis still has the turn, and give it back what it lost."""
        if self.phase == "open" and not self.is_fenced and self._restoring is None:
            self._appends.is_held = True
            self._restoring = asyncio.create_task(self._restore())

    def fence(self, *, is_handed: bool = False) -> None:
        """Write nothing more: another owner has the turn; if it is of this process, the log is handed to it."""
        if self.is_over:
            return
        self.is_fenced, self.is_handed = True, is_handed
        producer = self._producer
        self._end()
        if producer is not None:
            producer.fenced(is_here=is_handed)

    # How it works.

    async def _call(self, command: Command, within: float | None) -> Reply:
        return await self._worker.pipeline.call(*command, within=within)

    async def _insist(self, command: Command) -> Reply:
        """Send what ends the turn however long Redis is away; the reply is none of the known ones if it refuses it."""
        since: float | None = None
        while True:
            try:
                return await self._call(command, None)
            except StoreAwayError:
                since = since or time.monotonic()
                if time.monotonic() - since > _REFUSED_FOR:
                    return [b"REFUSED"]
                await asyncio.sleep(_REFUSED)

    def _append(self, after: int, last: int, data: bytes) -> Command:
        return (APPEND, 2, self.keys.turn, self.keys.log, *self._fence, after, last, data)

    def _hear(self, reply: Reply) -> None:
        """Redis has replied more than that it has the frames."""
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
        while self.phase == "open" and not self.is_fenced:
            await self._appends.flush()
            if self.is_fenced:
                return
            parts = (*self._fence, len(self.log.frames), b"".join(last), len(last), outcome.encode())
            reply = await self._insist((SEAL, 1, self.keys.turn, *parts))
            match reply[0]:
                case b"OK" | b"CLOSED":
                    self._sealed = last, outcome
                    self._move("sealed")
                case b"BEHIND":
                    self._appends.fall_back(reply[1])
                case b"GONE" if await self._restored():
                    pass
                case _:
                    self.fence()

    def _release(self, phase: bytes, last: Sequence[bytes]) -> Command:
        keys, settings = self.keys, self._worker.settings
        names = (keys.chat, keys.turn, keys.log, keys.ended, keys.readers)
        bounds = (milliseconds(settings.keep), settings.keep_turns, settings.keep_bytes)
        size = self.log.size + sum(map(len, last))
        return (RELEASE, 5, *names, self.head.turn.encode(), *self._fence, *bounds, phase, size)

    def _released(self) -> None:
        self.phase = "released"
        self._end()
        if self._sealed is not None:
            last, outcome = self._sealed
            self.log.extend(last)
            self.log.close(outcome)

    def _end(self) -> None:
        self._appends.stop()
        self.log.counts = None
        self._producer = None
        self.moved.wake()
        self._over(self)

    async def _restored(self) -> bool:
        """Give Redis back a turn that it has forgotten; False if that is not for us to do any more."""
        keys, settings, leases = self.keys, self._worker.settings, self._worker.leases
        if leases.may_be_lost(self.lease):
            return False
        asked = time.monotonic()
        turn = (self.head.turn.encode(), *self._fence, settings.lease_us, _encoded(self.head))
        kept = (milliseconds(settings.keep_running), milliseconds(settings.keep_used))
        command = (RESTORE, 3, keys.chat, keys.turn, keys.used, *turn, _encoded(self.log.continues), *kept)
        reply = await self._insist((*command, *self._uses))
        if reply[0] != b"OK":
            return False
        leases.renewed(self.lease, asked)
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
            # Who reads elsewhere, and whether a stop came meanwhile.
            self.hear_renewal(await self._call(self.lease.command, self._worker.settings.patience))

    def _begin(self) -> None:
        self._appends.begin()
        self._move("open")

    def _count(self) -> None:
        if self._producer is None:
            return
        local = len(self.log.readers)
        count = local or None if self._remote is None else local + self._remote
        if count != self._last_count:
            self._last_count = count
            self._producer.readers_changed(count)

    def _move(self, phase: _Phase) -> None:
        self.phase = phase
        self.moved.wake()


class _Appends:
    """The frames of a log on their way to Redis; a job of the pipeline.

    `make` makes the command that appends frames after an index, and `hear` gets the replies of Redis that are more than
    a confirmation.
    """

    def __init__(
        self,
        log: TurnLog,
        pipeline: Pipeline,
        meter: Meter,
        make: Callable[[int, int, bytes], Command],
        hear: Callable[[Reply], None],
    ) -> None:
        self.acked = log.end
        self.is_held = False
        self.is_over = False
        self._acked_size = log.end_size
        self._log = log
        self._pipeline = pipeline
        self._meter = meter
        self._make = make
        self._hear = hear
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._is_open = False
        self._is_queued = False
        self._unsent_since = 0.0
        # What is on a trip: its last index and its bytes, and since when it had waited.
        self._sending: tuple[int, int] | None = None
        self._sending_since = 0.0
        self._refused_since: float | None = None
        self._acknowledged = Waiters()

    def begin(self) -> None:
        with self._lock:
            self._is_open = True

    def end(self) -> None:
        """Take no more frames."""
        with self._lock:
            self._is_open = False

    def stop(self) -> None:
        """Send nothing more: another owner has the turn, or it has ended."""
        self.end()
        self.is_over = True
        self._acknowledged.wake()

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
            self._pipeline.put(self)
        else:
            self._loop.call_soon_threadsafe(self._pipeline.put, self)

    async def drain(self) -> None:
        """Wait until what Redis does not have is below its bound."""
        while self._is_open and self._log.size - self._acked_size > _MOST_UNSENT:
            await self._acknowledged.wait()

    async def flush(self) -> None:
        """Take no more frames, and wait until Redis has all."""
        self.end()
        while self.acked < len(self._log.frames) and not self.is_over:
            self.queue()
            await self._acknowledged.wait()

    def fall_back(self, index: int) -> None:
        """Redis has the log up to here only."""
        self.acked = index
        self._acked_size = sum(map(len, islice(self._log.frames, index)))
        self.queue()

    def queue(self) -> None:
        """Send what Redis does not have."""
        if not self.is_over and self._set_queued():
            self._pipeline.put(self)

    def _set_queued(self) -> bool:
        """False if it was queued already."""
        with self._lock:
            is_new, self._is_queued = not self._is_queued, True
        return is_new

    # What the pipeline calls.

    def command(self) -> Command | None:
        with self._lock:
            self._is_queued = False
            unsent_since, self._unsent_since = self._unsent_since, 0.0
        self._sending_since = unsent_since or self._sending_since
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
        return self._make(after, last, data)

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

    def retries(self) -> bool:
        return self._set_queued()

    def _refused(self) -> None:
        now = self._loop.time()
        self._refused_since = self._refused_since or now
        if now - self._refused_since > _REFUSED_FOR:
            self._hear([b"REFUSED"])
        else:
            self._loop.call_later(_REFUSED, self.queue)

    def _acknowledge(self, index: int, size: int) -> None:
        self.acked, self._acked_size = index, size
        if self._log.end < index:
            self._log.show(index, size)
            self._log.wake()
        if index < len(self._log.frames):
            self.queue()
        self._acknowledged.wake()


def _part(frames: Sequence[bytes]) -> list[bytes]:
    """The first frames that fit into an entry, and one at least."""
    part, size = list[bytes](), 0
    for frame in frames:
        size += len(frame)
        if part and size > _ENTRY:
            break
        part.append(frame)
    return part


def reason_of(value: bytes | None) -> StopReason | None:
    """Why a turn was stopped, as Redis has it."""
    return None if value is None else msgspec.convert(value.decode(), StopReason)


def _encoded(value: TurnHead | UIMessage | None) -> bytes:
    return b"" if value is None else msgspec.json.encode(value)
