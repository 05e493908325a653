"""Chat transports: where a chat's messages go and its streams come from, without HTTP between."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Final

from usechat.history import Tail
from usechat.ids import new_id
from usechat.integrations import CountsUnused, StopsChats, agent_of, drive
from usechat.integrations.open_harness.agent import ChatRuns, OpenHarnessAgent, Runtime, RuntimeMaker
from usechat.integrations.open_harness.translator import TransportOptions
from usechat.protocol.chunks import Chunk
from usechat.protocol.clients import ClientName
from usechat.protocol.frames import decode_frame
from usechat.protocol.messages import UIMessage
from usechat.protocol.requests import ChatRequest
from usechat.protocol.writer import MessageWriter
from usechat.stores import Reader, TurnHead
from usechat.stores.memory import MemoryTurnStore
from usechat.turns.chat import Request
from usechat.turns.pending import Admission, PendingTurn
from usechat.turns.pump import Unused
from usechat.turns.settings import ChatSettings, TurnLimits
from usechat.turns.turns import Turns

__all__ = ["AgentTransport", "OpenHarnessChatTransport"]

_LIMITS: Final = TurnLimits()
_OPTIONS: Final = TransportOptions()
_GRACE: Final = 5.0


class AgentTransport:
    """The AI SDK's `ChatTransport` for an agent: any that `create_app` takes.

    It stores no messages: each request brings all messages of its chat. A message that comes while the agent answers
    another one of the same chat replaces that one if the agent lets it, and is refused otherwise. Closing a stream does
    not stop its turn; `stop` does.
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
        self._new_message_id = new_message_id or new_id
        self._unused = Unused()
        self._store = MemoryTurnStore()
        self._settings = ChatSettings(client=client, turn=limits)
        drives = partial(drive, self.agent, unused=self.unused)
        self._turns = Turns(self.agent, drives, self._store, _Nowhere(), self._settings)

    @property
    def unused(self) -> Unused:
        """Counts the agent's events that could not be mapped."""
        return self.agent.unused if isinstance(self.agent, CountsUnused) else self._unused

    async def send_messages(self, request: ChatRequest) -> AsyncGenerator[Chunk, None]:
        """Begin a turn, and return its chunks, from `start` to its end.

        Raises:
            RequestError: one of the messages is wrong, or too many turns are running.
        """
        came, new_message_id = Request(request.extra, {}), self._new_message_id
        pending = PendingTurn(request, came, None, self._settings, chat=request.id, new_message_id=new_message_id)
        return _read(await self._turns.begin(pending))

    async def reconnect_to_stream(self, chat_id: str) -> AsyncGenerator[Chunk, None] | None:
        """The turn that runs in the chat, from its beginning; None if nothing runs."""
        head = await self._store.live(chat_id)
        return None if head is None else self._follow(head)

    async def stop(self, chat_id: str) -> None:
        """Stop the turn that runs in the chat, or else what the agent keeps of the chat between turns."""
        head = await self._store.live(chat_id)
        if head is not None:
            await self._turns.stop(head)
        elif isinstance(self.agent, StopsChats):
            await self.agent.stop(chat_id, None)

    async def aclose(self, grace: float = _GRACE) -> None:
        """Give the turns, then what outlives them, `grace` seconds each to end, and end the rest."""
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


class OpenHarnessChatTransport(AgentTransport):
    """The chat transport for Open Harness flows; `create_app` serves its agent.

    `runtime` is a function that makes a new runtime for each run, or a single runtime for a single run. With the
    `store` that its runtimes write to, a chat goes on with the run that it had, also in another process. The function
    then takes the id of that run, or None for a new one.
    """

    def __init__(
        self,
        runtime: Runtime | RuntimeMaker,
        options: TransportOptions = _OPTIONS,
        *,
        store: ChatRuns | None = None,
    ) -> None:
        """Prepare the chats.

        Raises:
            TypeError: there is a store, but no function that takes the id of a run.
        """
        super().__init__(OpenHarnessAgent(runtime, options, store), new_message_id=options.generate_message_id)


class _Nowhere:
    """The history of chats that are not stored: each request brings all messages, and all are trusted."""

    async def admit(self, pending: PendingTurn) -> Admission:
        asked, messages = pending.asked, pending.asked.messages
        continues = asked.last if pending.head.message_id == asked.last.id else None
        return Admission(Tail(0), 0, [], asked.last, asked.text, continues, messages=messages)

    async def begin(self, pending: PendingTurn, epoch: int) -> None:
        pass

    def writer(self, head: TurnHead, continues: UIMessage | None, value_limit: int) -> MessageWriter:
        return MessageWriter(head.message_id, new_id=new_id, client=head.client, continues=continues)

    async def load(self, head: TurnHead) -> list[UIMessage]:
        raise NotImplementedError

    async def has_ended(self, head: TurnHead) -> bool:
        return False

    async def end(self, head: TurnHead, epoch: int, message: UIMessage, state: bytes | None) -> None:
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
