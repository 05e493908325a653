"""A turn of an agent in a store of its own, for tests."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from itertools import count
from typing import Any, Final

from support.hang import HANG_SECONDS
from usechat.agents.chat import Chat, Request
from usechat.agents.plain import PlainAgent, PlainFunction
from usechat.protocol.chunks import Chunk, FinishStep, Start, StartStep, TextDelta, TextEnd, TextStart
from usechat.protocol.frames import decode_frame
from usechat.protocol.messages import UIMessage
from usechat.protocol.writer import MessageWriter
from usechat.stores import Claim, Outcome, TurnHead
from usechat.stores.memory import MemoryTurnStore
from usechat.turns.clocks import TurnLimits
from usechat.turns.pump import Unused, pump
from usechat.turns.threads import THREADS, Threads
from usechat.turns.turn import Turn

__all__ = ["CLOSED", "FOREVER", "GREETING", "HEAD", "Played", "chunks_of", "masked", "open_turn", "play", "play_drive"]

FOREVER: Final = TurnLimits(linger=None, idle=None, total=None)
HEAD: Final = TurnHead("turn", "chat", "owner", "m")
GREETING: Final[list[Chunk]] = [Start("m"), StartStep(), TextStart("id-1"), TextDelta("id-1", "hello")]
CLOSED: Final[list[Chunk]] = [TextEnd("id-1"), FinishStep()]


def masked(_: BaseException) -> str:
    return "masked"


def chunks_of(frames: Iterable[bytes]) -> list[Chunk]:
    return [decode_frame(frame) for frame in frames]


class Played:
    """A turn that is open and not yet started, with what happens at its end in `events` and the answer in `stored`."""

    def __init__(
        self,
        store: MemoryTurnStore,
        claim: Claim,
        limits: TurnLimits,
        explain: Callable[[BaseException], str],
        new_id: Callable[[], str] | None,
    ) -> None:
        numbers = count(1)
        self.store = store
        self.claim = claim
        self.events: list[tuple[str, Outcome]] = []
        self.stored: list[list[dict[str, Any]]] = []
        self.unused = Unused()
        self.store_answer: Callable[[], Awaitable[None]] = _nothing
        self.on_end: Callable[[], Awaitable[None]] = _nothing
        self.turn = Turn(
            claim,
            MessageWriter("m", new_id=new_id or (lambda: f"id-{next(numbers)}")),
            None,
            limits=limits,
            explain=explain,
            store_answer=self._store,
            on_end=self._end,
        )
        self.chat = Chat(self.turn, id="chat", text="hi", messages=[], request=Request({}, {}), client="portable")

    async def _store(self, outcome: Outcome, message: UIMessage) -> None:
        await self.store_answer()
        self.stored.append(message.parts)
        self.events.append(("stored", outcome))

    async def _end(self, outcome: Outcome, message: UIMessage) -> None:
        # The chat is free, and what was stored is what is given here.
        assert (await self.store.live(HEAD.chat), message.parts) == (None, self.stored[-1])
        self.events.append(("ended", outcome))
        await self.on_end()

    @property
    def chunks(self) -> list[Chunk]:
        """What can be read."""
        return chunks_of(self.claim.log.frames)

    def text(self, delta: str) -> None:
        self.turn.output.say(self.turn.output.writer.text, delta)

    async def changed(self) -> None:
        """Wait until there is more to read, or nothing more comes."""
        async with asyncio.timeout(HANG_SECONDS):
            await self.claim.log.changed()

    async def ended(self, within: float | None = HANG_SECONDS) -> list[Chunk]:
        """What was said, once the turn is over and what follows is through, which happens once."""
        async with asyncio.timeout(within):
            await self.turn.ended()
        assert self.claim.log.outcome is not None
        outcome = self.claim.log.outcome
        assert (self.events, self.turn.outcome) == ([("stored", outcome), ("ended", outcome)], outcome)
        return self.chunks


async def open_turn(
    limits: TurnLimits = FOREVER,
    explain: Callable[[BaseException], str] = masked,
    new_id: Callable[[], str] | None = None,
) -> Played:
    store = MemoryTurnStore()
    played = Played(store, await store.claim(HEAD), limits, explain, new_id)
    await played.claim.open(played.turn, None, ())
    return played


async def play(
    function: PlainFunction,
    limits: TurnLimits = FOREVER,
    *,
    threads: Threads = THREADS,
    explain: Callable[[BaseException], str] = masked,
    new_id: Callable[[], str] | None = None,
) -> Played:
    """Start a turn of a plain agent."""
    played = await open_turn(limits, explain, new_id)
    agent, turn = PlainAgent(function, threads), played.turn

    async def drive() -> None:
        mapper = agent.mapper(turn.output.writer)
        await pump(agent.events(played.chat), mapper, turn.output, unused=played.unused, threads=threads)

    turn.start(drive)
    return played


async def play_drive(drive: Callable[[Played], Awaitable[None]], limits: TurnLimits = FOREVER) -> Played:
    """Start a turn of whatever drives it."""
    played = await open_turn(limits)
    played.turn.start(partial(drive, played))
    return played


async def _nothing() -> None:
    pass
