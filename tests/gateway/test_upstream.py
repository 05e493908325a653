"""What an upstream says that no session should: it costs nobody an answer, and no neighbour anything."""

import tracemalloc
from typing import Any

import pytest

from support.gateways import serving_gateway
from support.loopback import text_part
from support.upstreams import init, speaking, turn

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
