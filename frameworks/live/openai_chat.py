"""The raw OpenAI SDK with Chat Completions."""

import os
from collections.abc import AsyncGenerator
from typing import Any

from openai import AsyncOpenAI

from live.raw_tools import SCHEMAS, answered, run_all
from usechat import AgentEvent, Chat, ToolCall, to_openai
from usechat.integrations.openai import openai_events

__all__ = ["agent"]

client = AsyncOpenAI(base_url=f"{os.environ['PROVIDER_URL']}/v1", api_key="none", max_retries=0)
TOOLS: list[Any] = [{"type": "function", "function": schema} for schema in SCHEMAS]


async def agent(chat: Chat) -> AsyncGenerator[AgentEvent, None]:
    async for event in answered(chat):
        yield event
    while True:
        stream = await client.chat.completions.create(
            model="fake",
            messages=to_openai(await chat.model_messages()),
            tools=TOOLS,
            stream=True,
            stream_options={"include_usage": True},
        )
        calls = list[ToolCall]()
        async for event in openai_events(stream):
            yield event
            if isinstance(event, ToolCall):
                calls.append(event)
        async for event in run_all(calls):
            yield event
        if not calls or any(call.name in ("pay", "get_location") for call in calls):
            return
