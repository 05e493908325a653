import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest

from support.hang import HANG_SECONDS
from usechat.errors import AgentError, RequestError
from usechat.events import AgentEvent
from usechat.protocol.chunks import (
    Abort,
    Chunk,
    Error,
    Finish,
    FinishStep,
    Start,
    StartStep,
    TextDelta,
    TextEnd,
    TextStart,
)
from usechat.protocol.requests import ChatRequest, decode_request
from usechat.transports import AgentTransport
from usechat.turns.chat import Chat
from usechat.turns.settings import TurnLimits

pytestmark = pytest.mark.anyio

USER = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "Hi"}]}
ANSWER = {"id": "a1", "role": "assistant", "parts": [{"type": "text", "text": "Hel", "state": "done"}]}


def request(*messages: Any, **more: Any) -> ChatRequest:
    return decode_request(msgspec.json.encode({"id": "c", "messages": messages or [USER], **more}))


async def read(stream: AsyncIterator[Chunk] | None) -> list[Chunk]:
    assert stream is not None
    async with asyncio.timeout(HANG_SECONDS):
        return [chunk async for chunk in stream]


async def read_until(stream: AsyncIterator[Chunk], text: str) -> None:
    async with asyncio.timeout(HANG_SECONDS):
        async for chunk in stream:
            if isinstance(chunk, TextDelta) and chunk.delta == text:
                return
    raise AssertionError(text)


def kinds(chunks: list[Chunk]) -> list[type[Chunk]]:
    return [type(chunk) for chunk in chunks]


def said(chunks: list[Chunk]) -> str:
    return "".join(chunk.delta for chunk in chunks if isinstance(chunk, TextDelta))


async def greets(chat: Chat) -> AsyncGenerator[AgentEvent]:
    yield f"You said {chat.text}"
    yield "."


def greets_in_a_thread(chat: Chat) -> Iterator[AgentEvent]:
    yield f"You said {chat.text}"
    yield "."


async def returns(chat: Chat) -> str:
    return f"You said {chat.text}."


async def waits(chat: Chat) -> AsyncGenerator[AgentEvent]:
    yield "So"
    await asyncio.Event().wait()


@pytest.mark.parametrize("agent", [greets, greets_in_a_thread, returns])
async def test_any_agent_answers(agent: Any) -> None:
    transport = AgentTransport(agent, new_message_id=lambda: "m")
    chunks = await read(await transport.send_messages(request()))
    assert chunks[0] == Start("m")
    assert kinds(chunks)[1:3] == [StartStep, TextStart]
    assert said(chunks) == "You said Hi."
    assert kinds(chunks)[-3:] == [TextEnd, FinishStep, Finish]
    assert await transport.reconnect_to_stream("c") is None


async def test_what_is_no_agent_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="str is not an agent"):
        AgentTransport("Hi")


async def test_the_agent_sees_the_request() -> None:
    seen: list[Any] = []

    async def agent(chat: Chat) -> None:
        ids = [message.id for message in await chat.history()]
        seen.append((chat.id, chat.text, ids, chat.request.body, chat.trigger, chat.continues))

    again = request(USER, ANSWER, {**USER, "id": "u2"}, trigger="regenerate-message", tone="kind")
    await read(await AgentTransport(agent).send_messages(again))
    assert seen == [("c", "Hi", ["u1", "a1", "u2"], {"tone": "kind"}, "regenerate-message", None)]


async def test_a_turn_goes_on_with_the_message_of_the_assistant() -> None:
    chunks = await read(await AgentTransport(returns).send_messages(request(USER, ANSWER)))
    assert chunks[0] == Start("a1")
    assert said(chunks) == "You said Hi."


async def test_a_wrong_message_is_refused_and_the_turn_that_runs_goes_on() -> None:
    transport = AgentTransport(waits)
    running = await transport.send_messages(request())
    await read_until(running, "So")
    with pytest.raises(RequestError, match=r"messages\[0\]"):
        await transport.send_messages(request({"id": "u0"}, USER))
    await transport.stop("c")
    assert kinds(await read(running))[-1] is Abort


async def test_whoever_comes_back_gets_the_turn_from_its_beginning_and_leaves_without_ending_it() -> None:
    transport = AgentTransport(waits)
    first = await transport.send_messages(request())
    await read_until(first, "So")
    await first.aclose()
    for _ in range(2):
        again = await transport.reconnect_to_stream("c")
        assert again is not None
        await read_until(again, "So")
        await again.aclose()
    last = await transport.reconnect_to_stream("c")
    await transport.stop("c")
    chunks = await read(last)
    assert (kinds(chunks)[0], said(chunks), chunks[-1]) == (Start, "So", Abort())


async def test_a_turn_that_nobody_reads_is_stopped_when_its_last_reader_has_left() -> None:
    closed = asyncio.Event()

    async def agent(chat: Chat) -> AsyncGenerator[AgentEvent]:
        try:
            yield "So"
            await asyncio.Event().wait()
        finally:
            closed.set()

    transport = AgentTransport(agent, limits=TurnLimits(linger=0))
    first = await transport.send_messages(request())
    await read_until(first, "So")
    again = await transport.reconnect_to_stream("c")
    assert again is not None
    await read_until(again, "So")
    await first.aclose()
    assert not closed.is_set()
    await again.aclose()
    await asyncio.wait_for(closed.wait(), HANG_SECONDS)


async def test_a_newer_message_takes_the_place_of_the_turn_that_runs() -> None:
    transport = AgentTransport(waits)
    first, second = await transport.send_messages(request()), await transport.send_messages(request())
    assert kinds(await read(first))[-1] is Abort
    await read_until(second, "So")
    await transport.stop("c")
    await transport.stop("c")


async def test_only_a_text_that_is_meant_for_the_user_is_shown() -> None:
    async def agent(chat: Chat) -> None:
        raise AgentError("no credit") if chat.text == "Hi" else RuntimeError("secret")

    transport = AgentTransport(agent)
    assert (await read(await transport.send_messages(request())))[-1] == Error("no credit")
    other = {**USER, "parts": [{"type": "text", "text": "Ho"}]}
    masked = await read(await transport.send_messages(request(other)))
    assert "secret" not in repr(masked)


async def test_at_the_end_turns_are_stopped_and_no_new_ones_are_taken() -> None:
    transport = AgentTransport(waits)
    stream = await transport.send_messages(request())
    await read_until(stream, "So")
    await transport.aclose(0)
    assert (await read(stream))[-1] == Abort()
    with pytest.raises(RequestError, match="busy"):
        await transport.send_messages(request())
