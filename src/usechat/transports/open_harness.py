"""Open Harness flows as chats: a message runs the flow, wakes it or goes to the node that waits for it."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import Final, TypeAlias

from msgspec import Struct

from usechat.agents.chat import Chat
from usechat.flows import Runtime
from usechat.protocol.chunks import Chunk
from usechat.protocol.messages import UIMessage
from usechat.protocol.requests import ChatRequest
from usechat.protocol.writer import MessageWriter
from usechat.sources.open_harness import OpenHarnessMapper, TransportOptions
from usechat.stream import Unused
from usechat.transports.flow_session import FlowSession, RefusalError
from usechat.transports.local import LocalTurns, new_id
from usechat.turns import REPLACED

__all__ = ["OpenHarnessChatTransport"]

RuntimeMaker: TypeAlias = Callable[[], Runtime]

_OPTIONS: Final = TransportOptions()


class _Order(Struct, frozen=True):
    """What a turn is asked to do: nothing but to follow, if the messages end with one of the assistant.

    `chat` has the user as well, since a server that keeps no chats lets two users choose the same id.
    """

    chat: tuple[str, str]
    messages: Sequence[UIMessage]
    anew: bool

    @property
    def prompt(self) -> UIMessage | None:
        return self.messages[-1] if self.messages and self.messages[-1].role == "user" else None


class OpenHarnessChatTransport:
    """Chats whose answers a runtime gives.

    `runtime` is a function that makes a new one for each run, or a single runtime for a single run. The transport is an
    agent, so that `create_app` serves it; it also is a `ChatTransport` of its own, for whoever has no server. `unused`
    counts the events that it could not show.
    """

    def __init__(self, runtime: Runtime | RuntimeMaker, options: TransportOptions = _OPTIONS) -> None:
        self._runtime = runtime
        self._options = options
        self._sessions: dict[tuple[str, str], FlowSession] = {}
        self._turns = LocalTurns()
        self.unused = Unused()

    async def __call__(self, chat: Chat) -> None:
        """Answer a chat of the server."""
        anew = chat.trigger == "regenerate-message"
        await self._work(_Order((chat.user or "", chat.id), chat.messages, anew), chat.write)

    async def send_messages(self, request: ChatRequest) -> AsyncGenerator[Chunk, None]:
        """Begin a turn; its chunks, from `start` to its end.

        Raises:
            RequestError: one of the messages is wrong.
        """
        order = _Order(("", request.id), request.messages, request.trigger == "regenerate-message")
        continues = None if order.prompt is not None or order.anew else request.last
        message_id = (self._options.generate_message_id or new_id)()
        return await self._turns.begin(request.id, message_id, partial(self._work, order), continues)

    async def reconnect_to_stream(self, chat_id: str) -> AsyncGenerator[Chunk, None] | None:
        """The turn that runs in the chat, from its beginning; None if nothing runs."""
        return self._turns.follow(chat_id)

    async def stop(self, chat_id: str) -> None:
        """Stop the turn that runs in the chat, and the flow with it."""
        await self._turns.stop(chat_id)

    async def _work(self, order: _Order, write: MessageWriter) -> None:
        try:
            session = self._session(order)
            if session is not None:
                await self._follow(session, order, write)
        except RefusalError as refusal:
            write.fail(str(refusal))

    async def _follow(self, session: FlowSession, order: _Order, write: MessageWriter) -> None:
        mapper = OpenHarnessMapper(write, self._options)
        ended = session.show(mapper)
        try:
            if order.prompt is not None:
                await session.prompt(order.prompt, order.messages)
            await session.finished(ended)
            mapper.interrupt()
        except asyncio.CancelledError as cancelled:
            # A newer message of the same chat goes on with the run that it finds.
            if not mapper.ended and cancelled.args != (REPLACED,):
                session.abort()
            raise
        finally:
            session.hide(mapper)
            self._drop_if_over(order.chat, session)

    def _session(self, order: _Order) -> FlowSession | None:
        """The run that takes the order; None if there is nothing to do."""
        session = self._sessions.get(order.chat)
        if order.prompt is None:
            if order.anew:
                raise RefusalError("There is no message to answer.")
            return session
        if session is not None and self._drop_if_over(order.chat, session):
            session = None
        elif session is not None and (order.anew or not session.precedes(order.messages)):
            if not callable(self._runtime):
                raise RefusalError("This runtime runs only once, so it cannot answer again.")
            session.abort()
            self._drop(order.chat, session)
            session = None
        if session is None:
            session = self._sessions[order.chat] = FlowSession(
                self._make(), self.unused, partial(self._drop_if_over, order.chat)
            )
        return session

    def _make(self) -> Runtime:
        if callable(self._runtime):
            return self._runtime()
        if self._sessions:
            raise RefusalError("The runtime is at work for another chat.")
        return self._runtime

    def _drop_if_over(self, chat: tuple[str, str], session: FlowSession) -> bool:
        if session.over:
            self._drop(chat, session)
        return session.over

    def _drop(self, chat: tuple[str, str], session: FlowSession) -> None:
        session.close()
        if self._sessions.get(chat) is session:
            del self._sessions[chat]
