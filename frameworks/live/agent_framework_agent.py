"""Microsoft Agent Framework, with OpenAI's Responses."""

import os

from agent_framework import Agent, FunctionTool, tool
from agent_framework.openai import OpenAIChatClient

import effects
from usechat.integrations.agent_framework import show_sub_agent

__all__ = ["agent"]


def client() -> OpenAIChatClient:
    from openai import AsyncOpenAI

    url = f"{os.environ['PROVIDER_URL']}/v1"
    return OpenAIChatClient(model="fake", async_client=AsyncOpenAI(base_url=url, api_key="none", max_retries=0))


TOOLS = [
    *(tool(one) for one in (effects.get_weather, effects.boom, effects.wait)),
    tool(effects.pay, approval_mode="always_require"),
    FunctionTool(
        name="get_location",
        description="Where the user is.",
        func=None,
        input_model={"type": "object", "properties": {}},
    ),
]
helper = Agent(client=client(), name="helper", description="Helps.")
agent = Agent(
    client=client(), name="main", tools=[*TOOLS, helper.as_tool(arg_name="question", stream_callback=show_sub_agent)]
)
