"""Echoes the user with reasoning, a tool call and streamed words, without a model or an API key."""

import asyncio

from usechat import Chat, Reasoning, ToolCall, ToolResult


async def agent(chat: Chat):
    yield Reasoning("Somebody said something. I count its words and say it back.")
    call = "count"
    yield ToolCall(call, "count_words", {"text": chat.text})
    yield ToolResult(call, {"words": len(chat.text.split())})
    for word in f"You said: {chat.text}".split(" "):
        yield f"{word} "
        await asyncio.sleep(0.05)
