"""The turns of a process whose store may be far away, for tests."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from itertools import count
from typing import Final, TypeVar

from turns.play import FOREVER, chunks_of, masked
from usechat.history import Tail
from usechat.protocol.chunks import Chunk
from usechat.protocol.messages import UIMessage
from usechat.protocol.requests import ChatRequest
from usechat.protocol.writer import MessageWriter
from usechat.stores import Claim, Found, Lost, Outcome, Producer, Reader, StopReason, TurnHead, TurnLog
from usechat.stores.memory import MemoryTurnStore
from usechat.turns.chat import Chat, Request
from usechat.turns.output import Output
from usechat.turns.pending import Admission, PendingTurn
from usechat.turns.settings import ChatSettings, Conflict, TurnLimits
from usechat.turns.turns import Turns

__all__ = ["Asks", "FarStore", "Host", "NearStore", "hang", "read_to_the_end"]

_T = TypeVar("_T")
_numbers: Final = count(1)
_SETTINGS: Final = ChatSettings()
_asked: Final = dict[str, "Asks"]()


async def hang(_: Chat) -> None:
    await asyncio.Event().wait()


async def _nothing() -> None:
    pass


class Asks(PendingTurn):
    """Somebody who asks for a turn, by an id of its own."""

    def __init__(
        self,
        chat: str = "a",
        owner: str = "owner",
        *,
        drive: Callable[[Chat], Awaitable[None]] = hang,
        regenerates: str | None = None,
        uses: Sequence[str] = (),
        may_replace: bool = True,
        is_awaited: bool = False,
        address: str = "",
    ) -> None:
        asked = ChatRequest(id=f"asks-{next(_numbers)}", last=UIMessage("u", "user", []))
        super().__init__(asked, Request({}, {}), owner, _SETTINGS, chat=chat, address=address)
        _asked[asked.id] = self
        self.regenerates = regenerates
        # The ids of the running messages after which it was to begin.
        self.checked: list[str] = []
        self.check_it: Callable[[], Awaitable[None]] = _nothing
        self.prepare_it: Callable[[], Awaitable[None]] = _nothing
        self.chat: Chat | None = None
        self.drive = drive
        self.uses = uses
        self.may_replace = may_replace
        self.is_awaited = is_awaited


class Host:
    """Turns, with a note of each answer that was stored and of each end: their agent and telemetry."""

    def __init__(
        self,
        store: "NearStore | FarStore | None" = None,
        *,
        limits: TurnLimits = FOREVER,
        conflict: Conflict = "replace",
        per_owner: int = 1000,
        per_address: int = 1000,
        per_process: int = 1000,
    ) -> None:
        self.store = store or NearStore()
        self.stored: list[str] = []
        self.ends: list[tuple[str, Outcome]] = []
        self.store_it: Callable[[], Awaitable[None]] = _nothing
        settings = ChatSettings(
            turn=limits,
            conflict=conflict,
            turns_per_user=per_owner,
            turns_per_address=per_address,
            turns_per_process=per_process,
            error_text=masked,
        )
        self.turns = Turns(self, self._drive, self.store, _History(self), settings, self)

    async def begin(self, asks: Asks) -> Reader:
        """Begin a turn, and read its first chunk."""
        reader = await self.turns.begin(asks)
        reader.take_frame()
        return reader

    async def stop_all(self, *asked: Asks) -> None:
        await asyncio.gather(*(self.turns.stop(asks.head) for asks in asked))

    async def _drive(self, chat: Chat, output: Output) -> None:
        asks = _asked[chat.id]
        asks.chat = chat
        await asks.drive(chat)

    def gives_way(self, chat_id: str, user: str | None) -> bool:
        return _asked[chat_id].may_replace

    def awaits_message(self, chat_id: str, user: str | None) -> bool:
        return _asked[chat_id].is_awaited

    def started(self, pending: PendingTurn, log: TurnLog) -> None:
        pass

    def ended(self, head: TurnHead, outcome: Outcome) -> None:
        self.ends.append((head.turn, outcome))

    def fenced(self, head: TurnHead) -> None:
        pass


class _History:
    def __init__(self, host: Host) -> None:
        self._host = host

    async def admit(self, pending: PendingTurn) -> Admission:
        asks = _asked[pending.chat_id]
        if asks.writing is not None:
            asks.checked.append(asks.writing)
            await asks.check_it()
        return Admission(Tail(0), 0, [], asks.asked.last, "", approval_ids=list(asks.uses), messages=[])

    async def begin(self, pending: PendingTurn, epoch: int) -> None:
        await _asked[pending.chat_id].prepare_it()

    def writer(self, head: TurnHead, continues: UIMessage | None, value_limit: int) -> MessageWriter:
        ids = count(1)
        return MessageWriter(head.message_id, new_id=lambda: f"id-{next(ids)}")

    async def load(self, head: TurnHead) -> list[UIMessage]:
        return []

    async def has_ended(self, head: TurnHead) -> bool:
        return head.turn in self._host.stored

    async def end(self, head: TurnHead, epoch: int, message: UIMessage, state: bytes | None) -> None:
        await self._host.store_it()
        self._host.stored.append(head.turn)


class NearStore(MemoryTurnStore):
    """A store in this process, with a note of the last claim of each turn."""

    def __init__(self) -> None:
        super().__init__()
        self.claims: dict[str, Claim] = {}

    async def claim(self, head: TurnHead) -> Claim:
        self.claims[head.turn] = claim = await super().claim(head)
        return claim


async def read_to_the_end(reader: Reader) -> list[Chunk]:
    while reader.log.outcome is None:
        await reader.log.changed()
    return chunks_of(reader.log.frames)


class FarStore:
    """A store to which each way takes some time."""

    def __init__(self) -> None:
        self._inner = NearStore()
        self.claims = self._inner.claims

    async def claim(self, head: TurnHead) -> Claim:
        return FarClaim(await _far(partial(self._inner.claim, head)))

    def local(self, chat: str) -> TurnHead | None:
        return self._inner.local(chat)

    async def live(self, chat: str) -> TurnHead | None:
        return await _far(partial(self._inner.live, chat))

    async def find(self, chat: str, mark: str) -> Found:
        return await _far(partial(self._inner.find, chat, mark))

    async def follow(self, head: TurnHead) -> Reader | None:
        return await _far(partial(self._inner.follow, head))

    async def stop(self, head: TurnHead, why: StopReason, within: float) -> None:
        await _far(partial(self._inner.stop, head, why, within))

    async def forget(self, chat: str) -> None:
        await _far(partial(self._inner.forget, chat))

    async def wait_opened(self, head: TurnHead, within: float) -> bool:
        return await _far(partial(self._inner.wait_opened, head, within))

    async def are_used(self, chat: str, ids: Sequence[str]) -> bool:
        return await _far(partial(self._inner.are_used, chat, ids))

    async def wait_released(self, head: TurnHead) -> None:
        await _far(partial(self._inner.wait_released, head))

    async def ping(self) -> bool:
        return await _far(self._inner.ping)

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

    async def open(self, producer: Producer, continues: UIMessage | None, uses: Sequence[str]) -> None:
        await _far(partial(self._inner.open, producer, continues, uses))

    def append(self, frames: Sequence[bytes]) -> None:
        self._inner.append(frames)

    async def drain(self) -> None:
        await self._inner.drain()

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
