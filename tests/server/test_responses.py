import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest
from starlette.types import Message

from usechat.protocol.messages import UIMessage
from usechat.protocol.sse import DONE
from usechat.protocol.writer import MessageWriter
from usechat.server.metrics import Metrics
from usechat.server.responses import STREAM_HEADERS, StreamLimits, TurnResponse
from usechat.stores import Outcome, TurnLog
from usechat.turns import Turn, TurnLimits

pytestmark = pytest.mark.anyio

BATCH = 64 * 1024


async def ended_turn(*texts: str) -> Turn:
    """A turn that has said these texts, each as one chunk."""
    log = TurnLog("turn", "chat", "")
    writer = MessageWriter("m", new_id=lambda: "text")
    turn = Turn(log, writer, None, limits=TurnLimits(), explain=str, on_end=nothing)

    async def work() -> None:
        for text in texts:
            turn.say(writer.text, text)

    turn.start(work)
    await turn.settled()
    return turn


async def nothing(_outcome: Outcome, _message: UIMessage) -> None:
    pass


async def sent(response: TurnResponse) -> list[MutableMapping[str, Any]]:
    """All messages of a response whose client reads them at once and stays."""
    messages: list[MutableMapping[str, Any]] = []

    async def send(message: Message) -> None:
        messages.append(message)

    async def receive() -> Message:
        return await asyncio.get_running_loop().create_future()

    await response({}, receive, send)
    return messages


async def test_chunks_that_are_ready_are_sent_together() -> None:
    turn = await ended_turn("a", "b", "c")
    _, body = await sent(TurnResponse(turn, StreamLimits(), Metrics()))
    assert body == {"type": "http.response.body", "body": b"".join(turn.log.frames) + DONE, "more_body": False}


async def test_a_long_log_is_sent_in_batches_and_whole() -> None:
    turn = await ended_turn(*["x" * 1000] * 300)
    _, *bodies = await sent(TurnResponse(turn, StreamLimits(), Metrics()))
    assert b"".join(message["body"] for message in bodies) == b"".join(turn.log.frames) + DONE
    assert len(bodies) == 5
    assert all(BATCH <= len(message["body"]) < BATCH + 2000 for message in bodies[:-1])


async def test_who_counts_gets_what_follows_of_a_long_log() -> None:
    turn = await ended_turn(*["x" * 1000] * 300)
    _, *bodies = await sent(TurnResponse(turn, StreamLimits(), Metrics(), after=290))
    assert [message["body"] for message in bodies] == [b"".join(turn.log.frames[290:]) + DONE]


async def test_the_headers_name_the_turn() -> None:
    response = TurnResponse(await ended_turn("a"), StreamLimits(), Metrics())
    start, _ = await sent(response)
    assert {name.decode(): value.decode() for name, value in start["headers"]} == {
        **STREAM_HEADERS,
        "x-usechat-turn": "turn",
    }


async def test_whoever_leaves_while_something_is_sent_is_gone_at_once() -> None:
    log = TurnLog("turn", "chat", "")
    turn = Turn(log, MessageWriter("m", new_id=str), None, limits=TurnLimits(linger=0), explain=str, on_end=nothing)

    async def work() -> None:
        await asyncio.Event().wait()

    gone = asyncio.Event()

    async def receive() -> Message:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            gone.set()
            for _ in range(5):
                await asyncio.sleep(0)

    turn.start(work)
    await asyncio.wait_for(TurnResponse(turn, StreamLimits(), Metrics())({}, receive, send), 5)
    await asyncio.wait_for(turn.settled(), 5)
    assert log.outcome == "stopped"
