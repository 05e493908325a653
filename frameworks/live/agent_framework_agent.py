"""Microsoft Agent Framework, with OpenAI's Responses, which keep the conversation of a run."""

import os
from typing import Any

from agent_framework import Agent, FunctionTool, tool
from agent_framework.openai import OpenAIChatClient
from openai import AsyncOpenAI

import effects
from usechat.integrations.agent_framework import show_sub_agent

__all__ = ["agent", "make"]

LOCATION = FunctionTool(
    name="get_location", description="Where the user is.", func=None, input_model={"type": "object", "properties": {}}
)


def make(client_type: Any) -> Agent:
    openai = AsyncOpenAI(base_url=f"{os.environ['PROVIDER_URL']}/v1", api_key="none", max_retries=0)
    client = client_type(model="fake", async_client=openai)
    helper = Agent(client=client, name="helper", description="Helps.")
    tools = [
        *(tool(one) for one in (effects.get_weather, effects.boom, effects.wait)),
        tool(effects.pay, approval_mode="always_require"),
        LOCATION,
        helper.as_tool(arg_name="question", stream_callback=show_sub_agent),
    ]
    return Agent(client=client, name="main", tools=tools)


agent = make(OpenAIChatClient)
