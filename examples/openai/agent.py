"""A model that streams and calls tools, several at a time, through the official `openai` package.

`OPENAI_BASE_URL` and `OPENAI_MODEL` select another OpenAI-compatible server and model.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any, Final
from zoneinfo import ZoneInfo

from openai import AsyncOpenAI

from usechat import Chat, ToolCall, ToolError, ToolResult, to_openai

MODEL: Final = os.environ.get("OPENAI_MODEL", "gpt-5-mini")
ROUNDS: Final = 10
SENT: Final[Any] = {"id": True, "type": True, "function": {"name", "arguments"}}

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


async def agent(chat: Chat) -> AsyncIterator[str | ToolCall | ToolResult | ToolError]:
    messages = to_openai(await chat.model_messages())
    for _ in range(ROUNDS):
        async with client.chat.completions.stream(model=MODEL, messages=messages, tools=TOOLS) as stream:
            async for event in stream:
                if event.type == "content.delta":
                    yield event.delta
            answer = stream.current_completion_snapshot.choices[0].message
        if not answer.tool_calls:
            return
        sent = [call.model_dump(include=SENT) for call in answer.tool_calls]
        messages.append({"role": "assistant", "content": answer.content, "tool_calls": sent})
        calls = [ToolCall(call.id, call.function.name, read(call.function.arguments)) for call in answer.tool_calls]
        for call in calls:
            yield call
        for result in await asyncio.gather(*map(run, calls)):
            yield result
            words = result.text if isinstance(result, ToolError) else result.output
            messages.append({"role": "tool", "tool_call_id": result.id, "content": words})


def read(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


async def run(call: ToolCall) -> ToolResult | ToolError:
    try:
        return ToolResult(call.id, await FUNCTIONS[call.name](**call.input))
    except (LookupError, OSError, TypeError, ValueError):
        return ToolError(call.id, f"{call.name} cannot be called with these arguments.")
