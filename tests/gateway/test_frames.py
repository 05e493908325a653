"""How the frames of a session are read: once, and also those with half an emoji, which msgspec refuses.

JavaScript sends half an emoji where it cuts a text in its middle.
"""

import sys
from types import FrameType
from typing import Any

import pytest

from support.gateways import serving_gateway
from support.upstreams import TURN, finished, init, speaking, turn
from usechat.integrations.agent_ops.frames import read_frame

pytestmark = pytest.mark.anyio

CUT = "cut \ud83d"


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
        finished(call),
    )
    async with speaking(answer) as (url, _), serving_gateway(upstream=url) as gateway:
        shown = [part for part in await gateway.parts("Hi") if part["type"] in ("text", "tool-bash")]
        assert await gateway.metric("usechat_events_dropped_total") == 0
    assert [part.get("text") or part["output"] for part in shown] == ["Hello \U0001f600", "cut \ufffd"]


@pytest.mark.parametrize("size", [10, 100_000])
async def test_half_an_emoji_in_an_old_message_does_not_hide_the_session(size: int) -> None:
    old = {"id": "m-1", "role": "user", "content": "x" * size + CUT, "channelType": "slack", "channelId": "C1"}
    greeting = [init([old, {"id": "m-Hi", "role": "user"}])]
    async with (
        speaking(turn(), greeting=greeting) as (url, heard),
        serving_gateway(upstream=url) as gateway,
    ):
        channels = (await gateway.get("channels")).json()["channels"]
        await gateway.ask("Hi")
        await gateway.ask("Hi")
    assert channels[1:] == [{"channelType": "slack", "channelId": "C1"}]
    assert [message["type"] for message in heard] == ["prompt", "revert", "prompt"]


async def test_each_frame_is_read_once() -> None:
    read: list[dict[str, Any]] = []

    def note(called: FrameType, event: str, _argument: object) -> None:
        if event == "call" and called.f_code is read_frame.__code__:
            read.append(called.f_locals["frame"])

    async with serving_gateway() as gateway:
        sys.setprofile(note)
        try:
            await gateway.ask("long 100")
        finally:
            sys.setprofile(None)
    assert len({id(frame) for frame in read}) == len(read)
    assert [frame["content"] for frame in read if frame["type"] == "chunk"] == [f"{number} " for number in range(100)]
