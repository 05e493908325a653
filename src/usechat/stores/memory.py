"""Turns of this process only."""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Final, Literal, TypeAlias

from usechat.alarms import alarm_at
from usechat.protocol.messages import UIMessage
from usechat.stores import (
    Claim,
    FencedError,
    Found,
    IdUsedError,
    Lost,
    Producer,
    StopReason,
    TurnHead,
    TurnRunningError,
)
from usechat.stores.log import Outcome, Reader, TurnLog, Waiters

__all__ = ["MemoryTurnStore"]

_MOST_USED: Final = 100_000

_Phase: TypeAlias = Literal["claimed", "open", "sealed", "released"]


class MemoryTurnStore:
    """The turns of one process, without a lease: a turn is lost only when its owner does not answer a stop.

    The log of a turn that has ended can be read for `keep` seconds, as long as all such logs together have at most
    `keep_bytes`.
    """

    def __init__(self, keep: float = 60.0, keep_bytes: int = 64 * 1024 * 1024) -> None:
        self._keep = keep
        self._keep_bytes = keep_bytes
        self._claims: dict[str, _Claim] = {}
        self._ended: OrderedDict[str, tuple[TurnHead, TurnLog, float]] = OrderedDict()
        self._ended_size = 0
        self._epochs = count(1)
        self._used: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._lost: Lost | None = None
        self._ending: set[asyncio.Future[None]] = set()

    async def claim(self, head: TurnHead) -> Claim:
        claim = self._claims.get(head.chat)
        if claim is None:
            claim = self._claims[head.chat] = _Claim(self, head, next(self._epochs))
        elif claim.head.turn != head.turn or claim.phase != "claimed":
            raise claim.error()
        return claim

    def local(self, chat: str) -> TurnHead | None:
        claim = self._claims.get(chat)
        return None if claim is None else claim.head

    async def live(self, chat: str) -> TurnHead | None:
        return self.local(chat)

    async def find(self, chat: str, mark: str) -> Found:
        self._forget()
        live = await self.live(chat)
        if live is not None and mark in (live.turn, live.turn[:8]):
            return Found(live, live)
        ended = (head for head, log, _ in self._ended.values() if head.chat == chat and mark in (head.turn, log.mark))
        return Found(next(ended, None), live)

    async def follow(self, head: TurnHead) -> Reader | None:
        claim = await self._opened(head)
        if claim is not None:
            return claim.reader()
        ended = self._ended.get(head.turn)
        return None if ended is None else Reader(ended[1])

    async def stop(self, head: TurnHead, why: StopReason, within: float) -> None:
        while (claim := self._held(head)) is not None:
            claim.stop(why)
            try:
                async with asyncio.timeout(within):
                    while self._held(head) is claim:
                        await claim.moved.wait()
            except TimeoutError:
                # An owner that took it over meanwhile has `within` seconds, too.
                if self._held(head) is claim:
                    await self._take_over(claim, why)
                    return

    async def forget(self, chat: str) -> None:
        for turn in [turn for turn, (head, _, _) in self._ended.items() if head.chat == chat]:
            _, log, _ = self._ended.pop(turn)
            self._ended_size -= log.size

    async def wait_opened(self, head: TurnHead, within: float) -> bool:
        try:
            async with asyncio.timeout(within):
                await self._opened(head)
        except TimeoutError:
            return False
        return True

    async def are_used(self, chat: str, ids: Sequence[str]) -> bool:
        return any((chat, id_) in self._used for id_ in ids)

    async def wait_released(self, head: TurnHead) -> None:
        while (claim := self._held(head)) is not None:
            await claim.moved.wait()

    async def ping(self) -> bool:
        return True

    @asynccontextmanager
    async def serve(self, lost: Lost) -> AsyncGenerator[None, None]:
        self._lost = lost
        try:
            yield
        finally:
            self._lost = None

    def use(self, chat: str, ids: Sequence[str]) -> None:
        if any((chat, id_) in self._used for id_ in ids):
            raise IdUsedError("An id was used before.")
        self._used.update(dict.fromkeys((chat, id_) for id_ in ids))
        while len(self._used) > _MOST_USED:
            self._used.popitem(last=False)

    def free(self, claim: "_Claim") -> None:
        if self._claims.get(claim.head.chat) is claim:
            del self._claims[claim.head.chat]
        if claim.log.outcome is not None:
            loop = asyncio.get_running_loop()
            self._ended[claim.head.turn] = claim.head, claim.log, loop.time()
            self._ended_size += claim.log.size
            alarm_at(loop, loop.time() + self._keep, self._forget)
            self._forget()

    def _held(self, head: TurnHead) -> "_Claim | None":
        claim = self._claims.get(head.chat)
        return claim if claim is not None and claim.head.turn == head.turn else None

    async def _opened(self, head: TurnHead) -> "_Claim | None":
        """Wait until the turn is open; None if it is gone."""
        while (claim := self._held(head)) is not None and claim.phase == "claimed":
            await claim.moved.wait()
        return claim

    async def _take_over(self, claim: "_Claim", why: StopReason) -> None:
        taken = self._claims[claim.head.chat] = claim.hand_over(next(self._epochs))
        if taken.phase == "claimed" or self._lost is None:
            await taken.seal((), "lost")
            await taken.release()
        else:
            # In a task that the caller cannot cancel: nobody else would end the turn.
            task = asyncio.ensure_future(self._lost(taken, why))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            await asyncio.shield(task)

    def _forget(self) -> None:
        oldest = asyncio.get_running_loop().time() - self._keep
        while self._ended:
            turn, (_, log, since) = next(iter(self._ended.items()))
            if since > oldest and self._ended_size <= self._keep_bytes:
                return
            del self._ended[turn]
            self._ended_size -= log.size


class _Claim:
    def __init__(self, store: MemoryTurnStore, head: TurnHead, epoch: int, log: TurnLog | None = None) -> None:
        self.head = head
        self.epoch = epoch
        self.log = TurnLog(head.turn, head.client, event_names=head.event_names) if log is None else log
        self.phase: _Phase = "claimed"
        self._store = store
        self._lock = threading.Lock()
        self._appends = False
        self._fenced = False
        self._sealed: tuple[Sequence[bytes], Outcome] | None = None
        self._producer: Producer | None = None
        self._stop: StopReason | None = None
        # Woken when the claim goes on, or another owner has it.
        self.moved = Waiters()
        self.log.counts = self._count

    @property
    def sealed(self) -> tuple[Sequence[bytes], Outcome] | None:
        return self._sealed

    def error(self) -> TurnRunningError:
        return TurnRunningError(self.head, is_claimed=self.phase == "claimed", is_sealed=self.phase == "sealed")

    async def open(self, producer: Producer, continues: UIMessage | None, uses: Sequence[str]) -> None:
        if self._fenced or self.phase == "released":
            raise FencedError("Another owner has taken the turn over.")
        if self.phase != "claimed":
            return
        self._store.use(self.head.chat, uses)
        self.log.continues = continues
        self._producer = producer
        self._appends = True
        self._move("open")
        producer.readers_changed(len(self.log.readers))
        if self._stop is not None:
            producer.stop(self._stop)

    def append(self, frames: Sequence[bytes]) -> None:
        with self._lock:
            if self._appends:
                self.log.extend(frames)

    async def drain(self) -> None:
        pass

    async def seal(self, last: Sequence[bytes], outcome: Outcome) -> bool:
        if self._fenced:
            return False
        if self.phase == "open":
            self._end_appends()
            self._sealed, self.phase = (last, outcome), "sealed"
        return self._sealed is not None

    async def release(self) -> bool:
        if self._fenced or self.phase == "released":
            return not self._fenced
        if self._sealed is not None:
            last, outcome = self._sealed
            self.log.extend(last)
            self.log.close(outcome)
        self._producer = self.log.counts = None
        self._store.free(self)
        self._move("released")
        return True

    def reader(self) -> Reader:
        reader = Reader(self.log)
        self._count()
        return reader

    def stop(self, why: StopReason) -> None:
        self._stop = self._stop or why
        if self._producer is not None:
            self._producer.stop(why)

    def hand_over(self, epoch: int) -> "_Claim":
        """The claim of a new owner, with all that the old one has; the old one can write no more."""
        taken = _Claim(self._store, self.head, epoch, self.log)
        self._end_appends()
        self._fenced = True
        taken.phase, taken._sealed, taken._appends = self.phase, self._sealed, self.phase == "open"
        producer, self._producer = self._producer, None
        self._move(self.phase)
        if producer is not None:
            producer.fenced(is_here=True)
        return taken

    def _end_appends(self) -> None:
        # A thread that is appending has done so then.
        with self._lock:
            self._appends = False

    def _count(self) -> None:
        if self._producer is not None:
            self._producer.readers_changed(len(self.log.readers))

    def _move(self, phase: _Phase) -> None:
        self.phase = phase
        self.moved.wake()
