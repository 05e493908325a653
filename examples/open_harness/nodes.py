"""The nodes of a flow without a model: a researcher who thinks and looks things up, and a summarizer.

Ask about a library: asyncio, httpx or msgspec. Ask about anything else to see a tool that fails, and write "fail" to
see a flow that fails. The archive never answers in time, and the flow continues without it.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any, Final

from usechat.events import AgentEvent, Reasoning, ToolCall, ToolError, ToolResult
from usechat.flows import NodeContext, NodeFunction, agent_node
from usechat.turns.chat import Chat

__all__ = ["nodes"]

_SHELF: Final = {
    "asyncio": "asyncio runs coroutines in one thread. It is part of Python.",
    "httpx": "httpx makes HTTP requests, with and without async.",
    "msgspec": "msgspec reads and writes JSON by the types of a program.",
}


async def researcher(chat: Chat) -> AsyncIterator[AgentEvent]:
    """Thinks, looks up each thing that is named, and reports."""
    yield Reasoning("Which things are named in the question? ")
    things = re.findall(r"[a-z]{3,}", chat.text.lower())
    if "fail" in things:
        raise RuntimeError("The researcher was asked to fail.")
    known = [thing for thing in things if thing in _SHELF] or things[-1:] or ["nothing"]
    yield Reasoning(f"I look up {', '.join(known)}.")
    for number, thing in enumerate(known):
        yield ToolCall(f"look-up-{number}", "look_up", {"name": thing})
        await asyncio.sleep(0.2)
        if thing in _SHELF:
            yield ToolResult(f"look-up-{number}", {"text": _SHELF[thing]})
        else:
            yield ToolError(f"look-up-{number}", f"There is nothing about {thing} on the shelf.")
    yield " ".join(_SHELF.get(thing, f"Nobody knows {thing}.") for thing in known)


async def summarizer(chat: Chat) -> AsyncIterator[AgentEvent]:
    """Says the first sentence, word by word."""
    yield "In short: "
    for word in re.split(r"(?<= )", chat.text.partition(".")[0] + "."):
        await asyncio.sleep(0.05)
        yield word


async def archive(_context: NodeContext, _input: dict[str, Any]) -> None:
    """Takes longer than the flow waits."""
    await asyncio.Event().wait()


nodes: dict[str, NodeFunction] = {
    "researcher": agent_node(researcher),
    "archive": archive,
    "summarizer": agent_node(summarizer),
}
