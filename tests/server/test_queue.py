"""Messages that wait for the answer to the one before."""

import asyncio
from collections.abc import AsyncGenerator

import msgspec
import pytest

from support.loopback import message
from usechat.errors import RequestError
from usechat.protocol.requests import ChatRequest, decode_request
from usechat.server.chats import Chats
from usechat.server.endpoint import ChatEndpoint
from usechat.turns.chat import Chat
from usechat.turns.settings import ChatSettings

pytestmark = pytest.mark.anyio


def request(number: int, chat: str = "chat") -> ChatRequest:
    body = message("Hello", chat)
    body["messages"][0]["id"] = f"m{number}"
    return decode_request(msgspec.json.encode(body))


async def begin(chats: Chats, number: int, chat: str = "chat") -> str:
    try:
        await chats.begin(request(number, chat), None, {})
    except RequestError as error:
        return f"{error.status} {error}"
    return "begun"


async def test_at_most_16_messages_of_a_chat_wait() -> None:
    go_on = asyncio.Event()

    async def agent(chat: Chat) -> AsyncGenerator[str, None]:
        await go_on.wait()
        yield "Hello"

    chats = ChatEndpoint(agent, settings=ChatSettings(conflict="queue")).chats
    assert await begin(chats, 0) == "begun"
    waiting = [asyncio.create_task(begin(chats, number)) for number in range(1, 41)]
    refused, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert {task.result() for task in refused} == {"429 Too many messages wait in this chat."}
    assert await begin(chats, 0, "another") == "begun"
    go_on.set()
    ends = await asyncio.gather(*waiting)
    assert ends.count("begun") == 16
    assert await begin(chats, 41) == "begun"
    await chats.drain(10)
