"""Agno: an agent without a database."""

import os
from collections.abc import AsyncIterator
from typing import Any

from agno.agent import Agent
from agno.models.openai import OpenAILike
from agno.tools import tool

from effects import boom, get_weather, pay, wait

__all__ = ["TOOLS", "agent", "model"]


def model() -> OpenAILike:
    return OpenAILike(id="fake", base_url=f"{os.environ['PROVIDER_URL']}/v1", api_key="none", max_retries=0)


async def helper(question: str) -> AsyncIterator[Any]:
    """Ask another agent."""
    other = Agent(name="helper", model=model(), telemetry=False)
    async for event in other.arun(question, stream=True, stream_events=True):
        yield event


@tool(external_execution=True)
def get_location() -> str:
    """Ask the browser where the user is."""
    return ""


TOOLS = [get_weather, boom, tool(requires_confirmation=True)(pay), wait, helper, get_location]
agent = Agent(name="main", model=model(), tools=TOOLS, telemetry=False)
