"""Agno: an agent with Claude, which wants its reasoning back."""

import os

from agno.agent import Agent
from agno.models.anthropic import Claude
from anthropic import AsyncAnthropic

from live.agno_agent import TOOLS

__all__ = ["agent"]

client = AsyncAnthropic(base_url=os.environ["PROVIDER_URL"], api_key="none", max_retries=0)
agent = Agent(name="main", model=Claude(id="fake", async_client=client), tools=TOOLS, telemetry=False)
