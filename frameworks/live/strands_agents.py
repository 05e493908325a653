"""Strands, with Anthropic's model and Strands' own approvals; 1.41 lacks both, in part."""

import os
from collections.abc import AsyncGenerator
from typing import Any

from strands import Agent, tool
from strands.hooks import BeforeToolCallEvent
from strands.models.anthropic import AnthropicModel
from strands.models.model import Model
from strands.models.openai import OpenAIModel

import effects
from usechat import Chat
from usechat.integrations.strands import StrandsAgent

try:
    from strands.vended_interventions.hitl import HumanInTheLoop
except ModuleNotFoundError:
    HumanInTheLoop = None

__all__ = ["agent"]

URL = os.environ["PROVIDER_URL"]


def model() -> Model:
    if HumanInTheLoop is None:
        # Anthropic's model of 1.41 fails when it reads a citation.
        return OpenAIModel(client_args={"base_url": f"{URL}/v1", "api_key": "none", "max_retries": 0}, model_id="fake")
    client = {"base_url": URL, "api_key": "none", "max_retries": 0}
    return AnthropicModel(client_args=client, model_id="fake", max_tokens=1000)


@tool
async def helper(question: str) -> AsyncGenerator[Any, None]:
    """Ask another agent."""
    async for event in Agent(name="helper", model=model(), callback_handler=None).stream_async(question):
        yield event
    yield "The helper has answered."


TOOLS = [tool(one) for one in (effects.get_weather, effects.boom, effects.pay, effects.wait)]


def ask(event: BeforeToolCallEvent) -> None:
    if event.tool_use["name"] == "pay" and event.interrupt("approval", reason="May it pay?") != "y":
        event.cancel_tool = "The user said no."


def make(chat: Chat) -> Agent:
    asks: dict[str, Any] = {"hooks": [ask]}
    if HumanInTheLoop is not None:
        asks = {"interventions": [HumanInTheLoop(allowed_tools=["*", "!pay"])]}
    return Agent(model=model(), tools=[*TOOLS, helper], **asks)


agent = StrandsAgent(make)
