"""What an upstream says that no session should: it costs nobody an answer, and no neighbour anything."""

import asyncio
import gc
import tracemalloc
from contextlib import AsyncExitStack
from typing import Any

import pytest

from support.gateways import FAILED, serving_gateway
from support.loopback import last_two, parts, text_part
from support.upstreams import finished, init, speaking, turn
from usechat.gateway.settings import GatewaySettings
from usechat.integrations.agent_ops.options import SocketLimits
from usechat.integrations.agent_ops.socket import SessionSocket
from usechat.turns.turn import Turn

pytestmark = pytest.mark.anyio

Frame = dict[str, Any]

QUESTION: Frame = {"type": "question", "questionId": "q-0", "text": "Shall I?"}
ANSWERED: Frame = {"type": "status", "data": {"questionAnswered": "q-0", "answer": "yes"}}


@pytest.mark.parametrize(
    "stray",
    [
        [QUESTION],
        [QUESTION, ANSWERED],
        [{"type": "interactive_prompt", "prompt": {"id": "q-0", "title": "Shall I?"}}],
        [{"type": "agentStatus", "status": "thinking"}],
        [{"type": "agentStatus", "status": "error"}],
        [{"type": "model-switched", "fromModel": "a", "toModel": "b"}],
    ],
)
async def test_what_is_told_before_the_prompt_costs_no_answer(stray: list[Frame]) -> None:
    async with (
        speaking(turn("Hello"), greeting=[init(), *stray]) as (url, _),
        serving_gateway(upstream=url) as gateway,
    ):
        for chat in ("c1", "c2"):
            assert [part for part in await gateway.parts("Hi", chat=chat) if part["type"] == "text"] == [
                text_part("Hello")
            ]


EMPTY: list[Any] = [[]] * 4_000_000


@pytest.mark.parametrize(
    "bomb",
    [
        {"type": "toast", "title": EMPTY},
        {"type": EMPTY},
        init(connectedUsers=EMPTY),
        init(promptsQueued=EMPTY),
        {"type": "init", "session": {"messages": EMPTY}},
    ],
)
async def test_a_frame_of_very_many_values_is_not_decoded(bomb: Frame) -> None:
    async with speaking([bomb, *turn("Hello")]) as (url, _), serving_gateway(upstream=url) as gateway:
        await gateway.headers("ana")
        tracemalloc.start()
        answer = await gateway.parts("Hi")
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert [part for part in answer if part["type"] == "text"] == [text_part("Hello")]
    # Its 16 MB as the upstream has them, as they come, and as they are looked at; decoded they would be 200 MB more.
    assert most < 150_000_000


async def test_channels_are_listed_up_to_a_number_and_a_length() -> None:
    messages = [{"channelType": "slack", "channelId": "x" * 513}]
    messages += [{"channelType": "slack", "channelId": f"C{number}"} for number in range(2_000)]
    async with speaking([], greeting=[init(messages)]) as (url, _), serving_gateway(upstream=url) as gateway:
        channels = (await gateway.get("channels")).json()["channels"]
    assert [channel["channelId"] for channel in channels] == ["default", *(f"C{number}" for number in range(999))]


async def test_a_session_that_does_not_greet_is_asked_again_without_a_revert() -> None:
    greeting = [{"type": "toast", "title": "Hello"}]
    async with speaking(turn("Hello"), greeting=greeting) as (url, heard), serving_gateway(upstream=url) as gateway:
        for _ in range(2):
            await gateway.ask("Hi")
    assert [message["type"] for message in heard] == ["prompt", "prompt"]


TOO_LARGE = ['{"type":"error","errorText":"The answer became too large."}', "[DONE]"]


@pytest.mark.parametrize(
    "answer",
    [
        turn("Hello", "x" * 200_000, "Later"),
        [*turn()[:1], {"type": "message.updated", "data": finished()["data"] | {"content": "x" * 200_000}}],
    ],
)
async def test_a_text_above_the_limit_of_an_answer_is_not_delivered(answer: list[Frame]) -> None:
    settings = GatewaySettings(enabled=True, log=100_000)
    async with speaking(answer) as (url, _), serving_gateway(settings, upstream=url) as gateway:
        body = await gateway.ask("Hi")
    assert last_two(body) == TOO_LARGE
    assert "xxx" not in body
    assert {part["type"] for part in parts(body)} <= {"step-start", "text"}


async def test_clients_that_read_nothing_are_given_up_once_they_hold_too_much() -> None:
    """Long before their patience is over, and one that reads is not."""
    settings = GatewaySettings(enabled=True, behind_in_all=1_000_000, patience=3600.0, idle=3600.0)
    # More than the buffers of the system take in.
    text = "x" * 16_000_000
    async with (
        speaking(turn(text)) as (url, _),
        serving_gateway(settings, upstream=url, send_buffer=65_536) as gateway,
        gateway.asking("One", chat="c1"),
        gateway.asking("Two", chat="c2"),
    ):
        assert [part for part in await gateway.parts("Three", chat="c3") if part["type"] == "text"] == [text_part(text)]
        while await gateway.metric(FAILED) != 2:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_large_frames_go_to_clients_a_few_at_a_time() -> None:
    """Clients that read nothing are given up one after the other, as long as somebody waits for them."""
    settings = GatewaySettings(
        enabled=True, patience=3600.0, idle=3600.0, sockets=SocketLimits(frames_in_all=4_000_000)
    )
    # More than the buffers of the system take in.
    text = "x" * 14_000_000
    async with (
        speaking(turn(text)) as (url, _),
        serving_gateway(settings, upstream=url, send_buffer=65_536) as gateway,
        AsyncExitStack() as stack,
    ):
        for chat in "abc":
            await stack.enter_async_context(gateway.asking(f"Hi {chat}", chat=chat))
        while await gateway.metric(FAILED) != 2:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        answer = await gateway.parts("Hi", chat="d")
    assert [part for part in answer if part["type"] == "text"] == [text_part(text)]


async def test_nothing_of_an_answer_waits_for_the_garbage_collector() -> None:
    async with speaking(turn("Hello")) as (url, _), serving_gateway(upstream=url) as gateway:
        await gateway.ask("Warm up", chat="c1")
        gc.collect()
        # An agent of another test may be stuck in its thread.
        before = {id(thing) for thing in gc.get_objects() if type(thing) is Turn}
        gc.disable()
        try:
            await gateway.ask("Hi", chat="c2")
            while await gateway.metric("adapter_ws_open"):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            left = [
                thing for thing in gc.get_objects() if type(thing) in (Turn, SessionSocket) and id(thing) not in before
            ]
        finally:
            gc.enable()
    assert left == []
