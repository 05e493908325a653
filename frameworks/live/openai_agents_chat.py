"""The OpenAI Agents SDK with its Chat Completions model."""

import os

from openai import AsyncOpenAI

from agents import ModelSettings, OpenAIChatCompletionsModel
from live.openai_agents_tools import make_agent

__all__ = ["agent"]

client = AsyncOpenAI(base_url=f"{os.environ['PROVIDER_URL']}/v1", api_key="none", max_retries=0)
agent = make_agent(OpenAIChatCompletionsModel("fake", client), ModelSettings(include_usage=True))
