"""Half an emoji in what a session sends, where a text was cut in its middle: JavaScript takes it, msgspec does not."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve

from support.gateways import Gateway, serving_gateway

pytestmark = pytest.mark.anyio

CUT = "cut \ud83d"
TURN: dict[str, Any] = {"id": "t1", "role": "assistant", "content": "", "parts": []}


@asynccontextmanager
async def greeting(old: list[dict[str, Any]], *answer: dict[str, Any]) -> AsyncGenerator[tuple[Gateway, list[Any]]]:
    """A gateway before a session with these old messages, which gives this answer, and what that session hears."""
    heard: list[Any] = []

    async def upstream(connection: ServerConnection) -> None:
        data = {"runnerBusy": False, "promptsQueued": 0}
        await connection.send(json.dumps({"type": "init", "session": {"messages": old}, "data": data}))
        async for raw in connection:
            heard.append(message := json.loads(raw))
            if message["type"] == "prompt":
                echo = {"id": "m-ana", "role": "user", "content": message["content"], "authorId": "ana"}
                for frame in ({"type": "message", "data": echo}, *answer):
                    await connection.send(json.dumps(frame))

    async with serve(upstream, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with serving_gateway(upstream=f"ws://127.0.0.1:{port}") as gateway:
            yield gateway, heard


async def test_half_an_emoji_costs_no_frame() -> None:
    call: dict[str, Any] = {
        "type": "tool-call",
        "callId": "c1",
        "toolName": "bash",
        "status": "completed",
        "result": CUT,
    }
    answer = (
        {"type": "message", "data": TURN},
        {"type": "chunk", "messageId": "t1", "content": "Hello \ud83d"},
        {"type": "chunk", "messageId": "t1", "content": "\ude00"},
        {"type": "message.updated", "data": TURN | {"parts": [call, {"type": "finish", "reason": "end_turn"}]}},
    )
    async with greeting([], *answer) as (gateway, _):
        shown = [part for part in await gateway.parts("Hi") if part["type"] in ("text", "tool-bash")]
        assert await gateway.metric("adapter_translation_unknown_events_total") == 0
    assert [part.get("text") or part["output"] for part in shown] == ["Hello \U0001f600", "cut \ufffd"]


@pytest.mark.parametrize("size", [10, 100_000])
async def test_half_an_emoji_in_an_old_message_does_not_hide_the_session(size: int) -> None:
    old = {"id": "m-1", "role": "user", "content": "x" * size + CUT, "channelType": "slack", "channelId": "C1"}
    ending = {"type": "message.updated", "data": TURN | {"parts": [{"type": "finish", "reason": "end_turn"}]}}
    async with greeting([old, {"id": "m-ana", "role": "user"}], {"type": "message", "data": TURN}, ending) as found:
        gateway, heard = found
        channels = (await gateway.get("channels")).json()["channels"]
        await gateway.ask("Hi")
        await gateway.ask("Hi")
    assert channels[1:] == [{"channelType": "slack", "channelId": "C1"}]
    assert [message["type"] for message in heard] == ["prompt", "revert", "prompt"]
