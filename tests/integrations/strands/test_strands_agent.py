"""The driver without the framework: what it refuses. `frameworks/` runs it with the real package."""

from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from usechat import Chat, create_app
from usechat.integrations import agent_of
from usechat.integrations.strands import StrandsAgent

pytestmark = pytest.mark.anyio


class Agent:
    """An agent of Strands, by what is known of it without importing it."""

    callback_handler = None

    def __call__(self, prompt: str) -> str:
        return prompt

    async def stream_async(self, prompt: Any) -> AsyncGenerator[dict[str, Any], None]:
        yield {}

    def take_snapshot(self) -> None: ...

    def add_hook(self) -> None: ...


Agent.__module__ = "strands.agent.agent"


class Researcher(Agent):
    pass


@pytest.mark.parametrize("agent", [Agent(), Researcher()])
async def test_an_agent_that_all_chats_would_share_is_refused_with_the_line_to_write(agent: Any) -> None:
    sentence = r"holds one conversation, so every turn needs a new one: create_app\(StrandsAgent\(lambda chat: Agent"
    with pytest.raises(TypeError, match=sentence):
        create_app(agent)
    with pytest.raises(TypeError, match=sentence):
        StrandsAgent(agent)


async def test_a_function_that_is_wrapped_is_an_agent() -> None:
    agent = StrandsAgent(lambda _: Agent())
    assert agent_of(agent) is agent


async def failure_of(make: Any, caplog: pytest.LogCaptureFixture) -> str:
    app = create_app(StrandsAgent(make))
    body = {"id": "c", "message": {"id": "u", "role": "user", "parts": [{"type": "text", "text": "Hi"}]}}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as client:
        answer = await client.post("/api/chat", json=body)
    assert '"type":"error"' in answer.text
    [failure] = [record.exc_info[1] for record in caplog.records if record.exc_info]
    return str(failure)


async def test_what_makes_no_agent_fails_the_turn(caplog: pytest.LogCaptureFixture) -> None:
    def make(chat: Chat) -> str:
        return chat.text

    assert await failure_of(make, caplog) == (
        "What is given to StrandsAgent must return a strands.Agent of strands-agents 1.41 or newer, not a str."
    )
