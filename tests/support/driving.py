"""Turns of a chat that nobody reads, for drivers of agents."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from typing import Any

from support.hang import HANG_SECONDS
from usechat.flows import Event
from usechat.protocol.chunks import Chunk
from usechat.protocol.messages import UIMessage
from usechat.protocol.writer import MessageWriter
from usechat.turns.chat import Chat, Request
from usechat.turns.output import Output

__all__ = ["Control", "all_of", "new_chat", "until", "user"]


class Control(Output):
    """The turn of a chat that nobody reads."""

    def __init__(self) -> None:
        super().__init__(MessageWriter("m", new_id=lambda: "id"))

    def take(self, chunks: Iterable[Chunk]) -> None:
        list(chunks)

    def fail(self, error: BaseException) -> None:
        raise error


def user(text: str, message_id: str = "u1") -> UIMessage:
    return UIMessage(message_id, "user", [{"type": "text", "text": text}])


def new_chat(*messages: UIMessage, control: Control | None = None, **options: Any) -> Chat:
    return Chat(
        control or Control(),
        id="c",
        text=messages[-1].text,
        messages=list(messages),
        request=Request({}, {}),
        client="portable",
        **options,
    )


async def until(events: AsyncGenerator[Event, None], kind: str) -> Event:
    async with asyncio.timeout(HANG_SECONDS):
        async for event in events:
            if event["type"] == kind:
                return event
    raise AssertionError(kind)


async def all_of(events: AsyncGenerator[Event, None]) -> list[str]:
    async with asyncio.timeout(HANG_SECONDS):
        return [event["type"] async for event in events]
