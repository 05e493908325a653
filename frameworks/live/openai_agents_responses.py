"""The OpenAI Agents SDK with its Responses model."""

import os

from openai import AsyncOpenAI

from agents import ModelSettings, OpenAIResponsesModel
from live.openai_agents_tools import make_agent

__all__ = ["agent"]

client = AsyncOpenAI(base_url=f"{os.environ['PROVIDER_URL']}/v1", api_key="none", max_retries=0)
settings = ModelSettings(store=False, response_include=["reasoning.encrypted_content"])
agent = make_agent(OpenAIResponsesModel("fake", client), settings)
