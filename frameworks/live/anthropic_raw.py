"""The raw Anthropic SDK."""

import os
from collections.abc import AsyncGenerator
from typing import Any

from anthropic import AsyncAnthropic

from live.raw_tools import SCHEMAS, answered, run_all
from usechat import AgentEvent, Chat, ToolCall, to_anthropic
from usechat.integrations.anthropic import anthropic_events

__all__ = ["agent"]

client = AsyncAnthropic(base_url=os.environ["PROVIDER_URL"], api_key="none", max_retries=0)
TOOLS: list[Any] = [
    {"name": schema["name"], "description": schema["description"], "input_schema": schema["parameters"]}
    for schema in SCHEMAS
]


async def agent(chat: Chat) -> AsyncGenerator[AgentEvent, None]:
    async for event in answered(chat):
        yield event
    while True:
        stream = client.messages.stream(
            model="fake", max_tokens=1000, tools=TOOLS, **to_anthropic(await chat.model_messages())
        )
        calls = list[ToolCall]()
        async for event in anthropic_events(stream):
            yield event
            if isinstance(event, ToolCall):
                calls.append(event)
        async for event in run_all(calls):
            yield event
        if not calls or any(call.name in ("pay", "get_location") for call in calls):
            return
