"""What an upstream says that no session should: it costs nobody an answer, and no neighbour anything."""

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
