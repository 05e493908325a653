"""Any agent as a chat transport."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final

from usechat.agents import Agent, CountsUnused, GivesWay, StopsChats
from usechat.agents.chat import Chat, Request
from usechat.agents.registry import agent_of
from usechat.ids import new_id, new_turn_id
from usechat.protocol.chunks import Chunk
from usechat.protocol.clients import ClientName
from usechat.protocol.frames import decode_frame
from usechat.protocol.messages import UIMessage
from usechat.protocol.requests import ChatRequest
from usechat.protocol.writer import MessageWriter
from usechat.stores import Claim, Outcome, Reader, StopReason, TurnHead, TurnLog
from usechat.stores.memory import MemoryTurnStore
from usechat.turns.clocks import TurnLimits
from usechat.turns.failures import explain
from usechat.turns.opening import Prepared
from usechat.turns.pump import Unused, pump
from usechat.turns.threads import THREADS
from usechat.turns.turn import Turn
from usechat.turns.turns import Turns, TurnSettings

__all__ = ["AgentTransport"]

_LIMITS: Final = TurnLimits()
_GRACE: Final = 5.0


class AgentTransport:
    """A `ChatTransport` whose answers an agent gives: any that `create_app` takes.

    Nothing is kept: each request has all messages of its chat, and they are believed. A message that comes while
    another one of its chat is answered takes the place of that, if the agent lets it, and is refused otherwise.
    """

    def __init__(
        self,
        agent: object,
        *,
        client: ClientName = "portable",
        limits: TurnLimits = _LIMITS,
        new_message_id: Callable[[], str] | None = None,
    ) -> None:
        """Prepare the chats of the agent.

        Raises:
            TypeError: it is no agent.
        """
        self.agent = agent_of(agent)
        self._client: ClientName = client
        self._new_message_id = new_message_id or new_id
        self._unused = Unused()
        self._store = MemoryTurnStore()
        settings = TurnSettings(limits=limits)
        self._turns = Turns(self._store, _Nowhere(), settings, explain=explain, ended=_nothing)

    @property
    def unused(self) -> Unused:
        """Counts the events that could not be shown."""
        return self.agent.unused if isinstance(self.agent, CountsUnused) else self._unused

    async def send_messages(self, request: ChatRequest) -> AsyncGenerator[Chunk, None]:
        """Begin a turn; its chunks, from `start` to its end.

        Raises:
            RequestError: one of the messages is wrong, or too many turns are running.
        """
        opening = _Opening(self.agent, request, self._client, self._new_message_id, self.unused)
        return _read(await self._turns.begin(opening))

    async def reconnect_to_stream(self, chat_id: str) -> AsyncGenerator[Chunk, None] | None:
        """The turn that runs in the chat, from its beginning; None if nothing runs."""
        head = await self._store.live(chat_id)
        return None if head is None else self._follow(head)

    async def stop(self, chat_id: str) -> None:
        """Stop the turn that runs in the chat, or else what the agent has of it between its turns."""
        head = await self._store.live(chat_id)
        if head is not None:
            await self._turns.stop(head)
        elif isinstance(self.agent, StopsChats):
            await self.agent.stop(chat_id, None)

    async def aclose(self, grace: float = _GRACE) -> None:
        """Give the turns, and what outlives them, `grace` seconds each, then end them."""
        await self._turns.drain(grace)
        close: Callable[[float], Awaitable[None]] | None = getattr(self.agent, "aclose", None)
        if close is not None:
            await close(grace)

    async def _follow(self, head: TurnHead) -> AsyncGenerator[Chunk, None]:
        reader = await self._store.follow(head)
        if reader is not None:
            async with aclosing(_read(reader, replay=True)) as chunks:
                async for chunk in chunks:
                    yield chunk


class _Opening:
    """What a request asks for."""

    def __init__(
        self,
        agent: Agent[Any],
        request: ChatRequest,
        client: ClientName,
        new_message_id: Callable[[], str],
        unused: Unused,
    ) -> None:
        anew = request.trigger == "regenerate-message"
        # An older message that is wrong is found here, before anything runs.
        self._messages = request.messages
        self._continues = request.last if request.last.role == "assistant" and not anew else None
        self._agent = agent
        self._request = request
        self._unused = unused
        self.regenerates = (request.message_id or "") if anew else None
        # Nobody asks from anywhere: it is called in this process.
        self.address = ""
        self.stopped: StopReason | None = None
        message_id = new_message_id() if self._continues is None else self._continues.id
        self.head = TurnHead(new_turn_id(), request.id, "", message_id, client)

    async def check(self, running: TurnHead) -> None:
        pass

    def may_replace(self) -> bool:
        if self._continues is not None or self._request.message_id is not None:
            return True
        return not isinstance(self._agent, GivesWay) or self._agent.gives_way(self._request.id, None)

    def is_awaited(self) -> bool:
        if self._continues is not None or self._request.message_id is not None:
            return False
        return isinstance(self._agent, GivesWay) and self._agent.awaits_message(self._request.id, None)

    async def prepare(self, claim: Claim) -> Prepared:
        head, continues = self.head, self._continues
        writer = MessageWriter(head.message_id, new_id=new_id, client=head.client, continues=continues)
        return Prepared(writer, continues)

    def opened(self, log: TurnLog) -> None:
        pass

    def drive(self, turn: Turn) -> Awaitable[None]:
        request = self._request
        chat = Chat(
            turn,
            id=request.id,
            text=request.text,
            messages=self._messages,
            request=Request(request.extra, {}),
            client=self.head.client,
            trigger=request.trigger,
            continues=self._continues,
        )
        mapper = self._agent.mapper(turn.output.writer)
        return pump(self._agent.events(chat), mapper, turn.output, unused=self._unused, threads=THREADS)


class _Nowhere:
    """Keeps no answers."""

    async def has_ended(self, head: TurnHead) -> bool:
        return False

    async def end(self, head: TurnHead, epoch: int, message: UIMessage) -> None:
        pass


async def _nothing(_head: TurnHead, _outcome: Outcome, _message: UIMessage) -> None:
    pass


async def _read(reader: Reader, *, replay: bool = False) -> AsyncGenerator[Chunk, None]:
    try:
        if replay:
            await reader.rewind()
        while not reader.ended:
            frame = reader.take_frame()
            if frame:
                yield decode_frame(frame)
            else:
                await reader.log.changed()
    finally:
        reader.leave()
