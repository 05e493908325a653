"""A turn of an agent in a store of its own, for tests."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from itertools import count
from typing import Any, Final, cast

from support.hang import HANG_SECONDS
from usechat.history import Tail
from usechat.integrations import Integration, drive
from usechat.integrations.plain import PlainAgent, PlainFunction
from usechat.protocol.chunks import Chunk, FinishStep, Start, StartStep, TextDelta, TextEnd, TextStart
from usechat.protocol.frames import decode_frame
from usechat.protocol.messages import UIMessage
from usechat.protocol.requests import ChatRequest
from usechat.protocol.writer import MessageWriter
from usechat.stores import Outcome, Reader, TurnHead
from usechat.stores.memory import MemoryTurnStore
from usechat.turns.chat import Chat, Request
from usechat.turns.failures import ErrorText
from usechat.turns.output import Output
from usechat.turns.pending import Admission, PendingTurn
from usechat.turns.pump import Unused
from usechat.turns.settings import ChatSettings, TurnLimits
from usechat.turns.threads import THREADS, Threads
from usechat.turns.turns import Turns

__all__ = ["CLOSED", "FOREVER", "GREETING", "HEAD", "Played", "chunks_of", "masked", "play", "play_drive"]

FOREVER: Final = TurnLimits(linger=None, idle=None, total=None)
HEAD: Final = TurnHead("turn", "chat", "owner", "m")
GREETING: Final[list[Chunk]] = [Start("m"), StartStep(), TextStart("id-1"), TextDelta("id-1", "hello")]
CLOSED: Final[list[Chunk]] = [TextEnd("id-1"), FinishStep()]

_REQUEST: Final = Request({}, {})
_DRIVES = Callable[[Chat, Output], Awaitable[None]]


def masked(_: BaseException) -> str:
    return "masked"


def chunks_of(frames: Iterable[bytes]) -> list[Chunk]:
    return [decode_frame(frame) for frame in frames]


class Played:
    """A turn that has begun, with what happens at its end in `events` and the answer in `stored`; nobody reads it."""

    reader: Reader

    def __init__(
        self,
        limits: TurnLimits = FOREVER,
        error_text: ErrorText | None = masked,
        new_id: Callable[[], str] | None = None,
    ) -> None:
        numbers = count(1)
        self.store = MemoryTurnStore()
        self.events: list[str | Outcome] = []
        self.stored: list[list[dict[str, Any]]] = []
        self.unused = Unused()
        self.store_answer: Callable[[], Awaitable[None]] = _nothing
        self.on_end: Callable[[], Awaitable[None]] = _nothing
        self._new_id = new_id or (lambda: f"id-{next(numbers)}")
        self._settings = ChatSettings(turn=limits, error_text=error_text, on_end=self._on_end)

    async def begin(self, drives: _DRIVES) -> None:
        asked = ChatRequest(id="chat", last=UIMessage("u", "user", []))
        pending = PendingTurn(asked, _REQUEST, None, self._settings, chat=HEAD.chat)
        pending.head = HEAD
        self.turns = Turns(None, drives, self.store, _History(self, self._new_id), self._settings)
        self.reader = await self.turns.begin(pending)
        self.turn = self.turns.running[HEAD.chat]
        self.claim = self.turn.claim
        self.chat = Chat(self.turn, id="chat", text="hi", messages=[], request=_REQUEST, client="portable")

    async def _on_end(self, outcome: Outcome, message: UIMessage) -> None:
        # The chat is free, and what was stored is what is given here.
        assert (await self.store.live(HEAD.chat), message.parts) == (None, self.stored[-1])
        self.events.append(outcome)
        await self.on_end()

    @property
    def chunks(self) -> list[Chunk]:
        """What can be read."""
        return chunks_of(self.claim.log.frames)

    def text(self, delta: str) -> None:
        self.turn.write(self.turn.writer.text, delta)

    async def changed(self) -> None:
        """Wait until there is more to read, or nothing more comes."""
        async with asyncio.timeout(HANG_SECONDS):
            await self.claim.log.changed()

    async def released(self) -> None:
        """Wait until the chat is free."""
        await self.store.wait_released(HEAD)

    async def over(self, within: float = HANG_SECONDS) -> None:
        """Wait until what follows the end is through, too."""
        await self.turns.drain(within)

    async def ended(self, within: float = HANG_SECONDS) -> list[Chunk]:
        """What was said, once the turn is over and what follows is through, which happens once."""
        await self.over(within)
        assert self.claim.log.outcome is not None
        outcome = self.claim.log.outcome
        assert (self.events, self.turn.outcome) == (["stored", outcome], outcome)
        return self.chunks


class _History:
    def __init__(self, played: Played, new_id: Callable[[], str]) -> None:
        self._played = played
        self._new_id = new_id

    async def admit(self, pending: PendingTurn) -> Admission:
        return Admission(Tail(0), 0, [], pending.asked.last, "hi", messages=[])

    async def begin(self, pending: PendingTurn, epoch: int) -> None:
        pass

    def writer(self, head: TurnHead, continues: UIMessage | None, value_limit: int) -> MessageWriter:
        return MessageWriter("m", new_id=self._new_id)

    async def load(self, head: TurnHead) -> list[UIMessage]:
        return []

    async def has_ended(self, head: TurnHead) -> bool:
        return False

    async def end(self, head: TurnHead, epoch: int, message: UIMessage, state: bytes | None) -> None:
        await self._played.store_answer()
        self._played.stored.append(message.parts)
        self._played.events.append("stored")


async def play(
    function: PlainFunction,
    limits: TurnLimits = FOREVER,
    *,
    threads: Threads = THREADS,
    error_text: ErrorText | None = masked,
    new_id: Callable[[], str] | None = None,
) -> Played:
    """Start a turn of a plain agent."""
    played = Played(limits, error_text, new_id)
    agent = cast("Integration[Any]", PlainAgent(function, threads))
    await played.begin(partial(drive, agent, unused=played.unused, threads=threads))
    played.reader.leave()
    return played


async def play_drive(drives: Callable[[Played], Awaitable[None]], limits: TurnLimits = FOREVER) -> Played:
    """Start a turn that something else drives than an agent."""
    played = Played(limits)
    await played.begin(lambda _chat, _output: drives(played))
    played.reader.leave()
    return played


async def _nothing() -> None:
    pass
