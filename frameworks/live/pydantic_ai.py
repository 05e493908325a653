"""Pydantic AI, over the Responses API."""

import os
from typing import Any

from openai import AsyncOpenAI
from pydantic_ai import Agent, ModelRetry, RunContext
from pydantic_ai.exceptions import CallDeferred
from pydantic_ai.models.openai import OpenAIResponsesModel, OpenAIResponsesModelSettings
from pydantic_ai.providers.openai import OpenAIProvider

import effects
from usechat.integrations.pydantic_ai import show_sub_agent

__all__ = ["agent"]

client = AsyncOpenAI(base_url=f"{os.environ['PROVIDER_URL']}/v1", api_key="none", max_retries=0)
# Pydantic AI 2.40 has citations of OpenAI only among its raw annotations.
settings = OpenAIResponsesModelSettings(openai_include_raw_annotations=True)
model = OpenAIResponsesModel("gpt-5", provider=OpenAIProvider(openai_client=client), settings=settings)
agent = Agent(model, tools=[effects.get_weather, effects.wait])
helper = Agent(model, name="helper")


@agent.tool_plain
async def boom(reason: str) -> str:
    try:
        return await effects.boom(reason)
    except RuntimeError:
        # Any other exception ends the run.
        raise ModelRetry("The tool failed.") from None


@agent.tool_plain(requires_approval=True)
async def pay(amount: int) -> str:
    return await effects.pay(amount)


@agent.tool_plain
async def get_location() -> str:
    raise CallDeferred


@agent.tool(name="helper")
async def ask_helper(ctx: RunContext[Any], question: str) -> str:
    result = await helper.run(question, usage=ctx.usage, event_stream_handler=show_sub_agent)
    return result.output
