"""Agno: an agent with Claude, which wants its reasoning back, and a tool whose input the user gives."""

import os

from agno.agent import Agent
from agno.models.anthropic import Claude
from agno.tools import tool
from anthropic import AsyncAnthropic

from effects import pay
from live.agno_agent import TOOLS

__all__ = ["agent"]

client = AsyncAnthropic(base_url=os.environ["PROVIDER_URL"], api_key="none", max_retries=0)
asking = tool(requires_user_input=True, user_input_fields=["amount"])(pay)
tools = [asking if getattr(one, "name", "") == "pay" else one for one in TOOLS]
agent = Agent(name="main", model=Claude(id="fake", async_client=client), tools=tools, telemetry=False)
