"""The Claude Agent SDK with its own CLI, which speaks to the fake provider."""

import json
import os
from collections.abc import Awaitable, Callable
from typing import Any

from claude_agent_sdk import AgentDefinition, ClaudeAgentOptions, create_sdk_mcp_server, tool

from effects import boom, get_weather, pay, wait
from usechat.integrations.claude_agent import ClaudeAgent

__all__ = ["agent"]

INPUTS: dict[Callable[..., Awaitable[Any]], dict[str, type]] = {
    get_weather: {"city": str},
    boom: {"reason": str},
    pay: {"amount": int},
    wait: {},
}


def declared(function: Callable[..., Awaitable[Any]], fields: dict[str, type]) -> Any:
    @tool(function.__name__, function.__doc__ or "", fields)
    async def call(given: dict[str, Any]) -> dict[str, Any]:
        result = await function(**given)
        return {"content": [{"type": "text", "text": result if isinstance(result, str) else json.dumps(result)}]}

    return call


tools = create_sdk_mcp_server("tools", "1.0.0", [declared(function, fields) for function, fields in INPUTS.items()])
options = ClaudeAgentOptions(
    model="fake-model",
    system_prompt="You help.",
    mcp_servers={"tools": tools},
    tools=["Agent"],
    allowed_tools=["Agent", "mcp__tools__get_weather", "mcp__tools__boom", "mcp__tools__wait"],
    agents={"helper": AgentDefinition(description="Helps.", prompt="You are the helper.", tools=[])},
    setting_sources=[],
    env={
        "ANTHROPIC_BASE_URL": os.environ["PROVIDER_URL"],
        "ANTHROPIC_API_KEY": "none",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_RETRIES": "0",
    },
)
agent = ClaudeAgent(options, approve=["pay"])
