"""The turns of a process whose store may be far away, for tests."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from itertools import count
from typing import Final, TypeVar

from turns.play import FOREVER, chunks_of, masked
from usechat.protocol.chunks import Chunk
from usechat.protocol.messages import UIMessage
from usechat.protocol.writer import MessageWriter
from usechat.stores import Claim, Lost, Outcome, Producer, Reader, StopReason, TurnHead, TurnLog, TurnStore
from usechat.stores.memory import MemoryTurnStore
from usechat.turns.clocks import TurnLimits
from usechat.turns.opening import Prepared
from usechat.turns.turn import Turn
from usechat.turns.turns import Conflict, Turns, TurnSettings

__all__ = ["Asks", "FarStore", "Host", "hang", "read_to_the_end"]

_T = TypeVar("_T")
_numbers: Final = count(1)


async def hang(_: Turn) -> None:
    await asyncio.Event().wait()


async def _nothing() -> None:
    pass


class Asks:
    """Somebody who asks for a turn."""

    def __init__(
        self,
        chat: str = "a",
        owner: str = "owner",
        *,
        drive: Callable[[Turn], Awaitable[None]] = hang,
        regenerates: str | None = None,
        spends: Sequence[str] = (),
        may_replace: bool = True,
        is_awaited: bool = False,
        address: str = "",
    ) -> None:
        self.address = address
        number = next(_numbers)
        self.head = TurnHead(f"{number:08x}-turn", chat, owner, f"m{number}")
        self.regenerates = regenerates
        self.stopped: StopReason | None = None
        self.checked: list[TurnHead] = []
        self.check_it: Callable[[], Awaitable[None]] = _nothing
        self.prepare_it: Callable[[], Awaitable[None]] = _nothing
        self.claim: Claim | None = None
        self.turn: Turn | None = None
        self._drive = drive
        self._spends = spends
        self._may_replace = may_replace
        self._is_awaited = is_awaited

    def may_replace(self) -> bool:
        return self._may_replace

    def is_awaited(self) -> bool:
        return self._is_awaited

    async def check(self, running: TurnHead) -> None:
        self.checked.append(running)
        await self.check_it()

    async def prepare(self, claim: Claim) -> Prepared:
        assert claim.head == self.head
        self.claim = claim
        await self.prepare_it()
        ids = count(1)
        return Prepared(MessageWriter(self.head.message_id, new_id=lambda: f"id-{next(ids)}"), None, self._spends)

    def opened(self, log: TurnLog) -> None:
        pass

    async def drive(self, turn: Turn) -> None:
        self.turn = turn
        await self._drive(turn)


class Host:
    """Turns, with a note of each answer that was stored and of each end."""

    def __init__(
        self,
        store: TurnStore | None = None,
        *,
        limits: TurnLimits = FOREVER,
        conflict: Conflict = "replace",
        per_owner: int = 1000,
        per_address: int = 1000,
        per_process: int = 1000,
    ) -> None:
        self.store = store or MemoryTurnStore()
        self.stored: list[str] = []
        self.ends: list[tuple[str, Outcome]] = []
        self.store_it: Callable[[], Awaitable[None]] = _nothing
        settings = TurnSettings(
            limits=limits,
            conflict=conflict,
            per_owner=per_owner,
            per_address=per_address,
            per_process=per_process,
        )
        self.turns = Turns(self.store, self, settings, explain=masked, ended=self._ended)

    async def has_ended(self, head: TurnHead) -> bool:
        return head.turn in self.stored

    async def end(self, head: TurnHead, epoch: int, message: UIMessage) -> None:
        await self.store_it()
        self.stored.append(head.turn)

    async def _ended(self, head: TurnHead, outcome: Outcome, message: UIMessage) -> None:
        self.ends.append((head.turn, outcome))

    async def begin(self, asks: Asks) -> Reader:
        """Begin a turn, and read its first chunk."""
        reader = await self.turns.begin(asks)
        reader.take_frame()
        return reader

    async def stop_all(self, *asked: Asks) -> None:
        await asyncio.gather(*(self.turns.stop(asks.head) for asks in asked))


async def read_to_the_end(reader: Reader) -> list[Chunk]:
    while reader.log.outcome is None:
        await reader.log.changed()
    return chunks_of(reader.log.frames)


class FarStore:
    """A store to which each way takes some time."""

    def __init__(self, inner: TurnStore | None = None) -> None:
        self._inner = inner or MemoryTurnStore()

    async def claim(self, head: TurnHead) -> Claim:
        return FarClaim(await _far(partial(self._inner.claim, head)))

    async def live(self, chat: str) -> TurnHead | None:
        return await _far(partial(self._inner.live, chat))

    async def find(self, chat: str, mark: str) -> TurnHead | None:
        return await _far(partial(self._inner.find, chat, mark))

    async def follow(self, head: TurnHead) -> Reader | None:
        return await _far(partial(self._inner.follow, head))

    async def stop(self, head: TurnHead, why: StopReason, within: float) -> None:
        await _far(partial(self._inner.stop, head, why, within))

    async def forget(self, chat: str) -> None:
        await _far(partial(self._inner.forget, chat))

    async def opened(self, head: TurnHead, within: float) -> bool:
        return await _far(partial(self._inner.opened, head, within))

    async def are_spent(self, chat: str, ids: Sequence[str]) -> bool:
        return await _far(partial(self._inner.are_spent, chat, ids))

    async def freed(self, head: TurnHead) -> None:
        await _far(partial(self._inner.freed, head))

    async def answers(self) -> bool:
        return await _far(self._inner.answers)

    def serve(self, lost: Lost) -> AbstractAsyncContextManager[None]:
        return self._serve(lost)

    @asynccontextmanager
    async def _serve(self, lost: Lost) -> AsyncGenerator[None, None]:
        async def lose(claim: Claim, why: StopReason | None) -> None:
            await lost(FarClaim(claim), why)

        async with self._inner.serve(lose):
            yield


class FarClaim:
    def __init__(self, inner: Claim) -> None:
        self._inner = inner
        self.head: TurnHead = inner.head
        self.epoch: int = inner.epoch
        self.log: TurnLog = inner.log

    @property
    def sealed(self) -> tuple[Sequence[bytes], Outcome] | None:
        return self._inner.sealed

    async def open(self, producer: Producer, continues: UIMessage | None, spends: Sequence[str]) -> None:
        await _far(partial(self._inner.open, producer, continues, spends))

    def append(self, frames: Sequence[bytes]) -> None:
        self._inner.append(frames)

    async def room(self) -> None:
        await self._inner.room()

    async def seal(self, last: Sequence[bytes], outcome: Outcome) -> bool:
        return await _far(partial(self._inner.seal, last, outcome))

    async def release(self) -> bool:
        return await _far(self._inner.release)

    def reader(self) -> Reader:
        return self._inner.reader()


async def _far(work: Callable[[], Awaitable[_T]]) -> _T:
    await asyncio.sleep(0.01)
    try:
        return await work()
    finally:
        await asyncio.sleep(0.01)
