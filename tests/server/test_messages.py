"""The messages that a page loads while a turn runs or ends."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

import anyio.lowlevel
import msgspec
import pytest

from usechat.history import MemoryHistory
from usechat.protocol.messages import UIMessage
from usechat.protocol.requests import ChatRequest
from usechat.server.endpoint import ChatEndpoint
from usechat.turns.chat import Chat

pytestmark = pytest.mark.anyio


class Meanwhile(MemoryHistory):
    """A history in which something happens while it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: list[Callable[[], Awaitable[None]]] = []

    async def load_json(
        self, chat_id: str, owner: str, *, before: str | None = None, limit: int | None = None
    ) -> list[tuple[str, bytes]]:
        rows = await super().load_json(chat_id, owner, before=before, limit=limit)
        while self.meanwhile:
            await self.meanwhile.pop()()
        return rows


async def agent(chat: Chat) -> AsyncGenerator[str, None]:
    yield "I begin"
    await chat.stopping.wait()


def question() -> ChatRequest:
    return ChatRequest(id="chat", last=UIMessage("u1", "user", [{"type": "text", "text": "Hello"}]))


async def texts(endpoint: ChatEndpoint) -> list[str]:
    messages = await endpoint.chats.messages("chat", None)
    return [msgspec.json.decode(message, type=UIMessage).text for message in messages]


async def test_the_answer_of_a_turn_that_ends_while_they_are_loaded_is_among_them() -> None:
    history = Meanwhile()
    endpoint = ChatEndpoint(agent, history=history)
    reader = await endpoint.chats.begin(question(), None, {})
    while b"I begin" not in b"".join(reader.log.frames):
        await reader.log.changed()
    assert await texts(endpoint) == ["Hello"]
    history.meanwhile = [lambda: endpoint.chats.stop("chat", None, None)]
    assert await texts(endpoint) == ["Hello", "I begin"]
    assert await endpoint.chats.follow("chat", None) is None


async def test_whoever_is_cancelled_while_a_turn_is_told_again_does_not_count_as_a_reader() -> None:
    endpoint = ChatEndpoint(agent)
    reader = await endpoint.chats.begin(question(), None, {})
    while b"I begin" not in b"".join(reader.log.frames):
        await reader.log.changed()
    resuming = asyncio.create_task(endpoint.chats.follow("chat", None))
    while len(reader.log.readers) == 1:
        await anyio.lowlevel.checkpoint()
    resuming.cancel()
    await asyncio.wait([resuming])
    assert (resuming.cancelled(), reader.log.readers) == (True, {reader})
    await endpoint.chats.stop("chat", None, None)
