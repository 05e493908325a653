"""A model that streams and calls tools, several at a time, through the official `openai` package.

`OPENAI_BASE_URL` and `OPENAI_MODEL` select another OpenAI-compatible server and model.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any, Final
from zoneinfo import ZoneInfo

from openai import AsyncOpenAI

from usechat import AgentEvent, Chat, ToolCall, ToolError, ToolInputError, ToolResult, to_openai
from usechat.integrations.openai import openai_events

MODEL: Final = os.environ.get("OPENAI_MODEL", "gpt-5-mini")
ROUNDS: Final = 10

# A server of your own may need no key, but the package insists on one.
client: Final = AsyncOpenAI(api_key=os.environ.get("OPENAI_API_KEY", "none"))


async def local_time(zone: str) -> str:
    return datetime.now(ZoneInfo(zone)).isoformat(timespec="minutes")


FUNCTIONS: Final = {"local_time": local_time}
TOOLS: Final[list[Any]] = [
    {
        "type": "function",
        "function": {
            "name": "local_time",
            "description": "The time in a zone of the tz database, such as Europe/Berlin.",
            "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}, "required": ["zone"]},
        },
    }
]


async def agent(chat: Chat) -> AsyncIterator[AgentEvent]:
    for _ in range(ROUNDS):
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=to_openai(await chat.model_messages()),
            tools=TOOLS,
            stream=True,
            stream_options={"include_usage": True},
        )
        calls: list[ToolCall | ToolInputError] = []
        async for event in openai_events(stream):
            yield event
            # Arguments that are no JSON are an error that the model reads, so that it can try again.
            if isinstance(event, ToolCall | ToolInputError):
                calls.append(event)
        if not calls:
            return
        for result in await asyncio.gather(*(run(call) for call in calls if isinstance(call, ToolCall))):
            yield result


async def run(call: ToolCall) -> ToolResult | ToolError:
    try:
        return ToolResult(call.id, await FUNCTIONS[call.name](**call.input))
    except (LookupError, OSError, TypeError, ValueError):
        return ToolError(call.id, f"{call.name} cannot be called with these arguments.")
