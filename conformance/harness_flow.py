"""The flow of the test server: a researcher who does what the user says, and a summarizer."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Final

from agents import SECRET, hold
from usechat.events import AgentEvent, Reasoning, ToolCall, ToolError, ToolResult
from usechat.flows import FlowRuntime, NodeContext, agent_node
from usechat.integrations.open_harness.translator import TransportOptions
from usechat.transports import OpenHarnessChatTransport
from usechat.turns.chat import Chat

__all__ = ["harness_transport"]

FLOW: Final[dict[str, Any]] = {
    "name": "research",
    "nodes": [
        {"id": "researcher", "type": "researcher", "input": {"prompt": "{{ flow.input.message }}"}},
        {"id": "asker", "type": "asker", "input": {}, "when": "flow.input.message = 'ask'"},
        {"id": "summarizer", "type": "summarizer", "input": {"prompt": "{{ researcher.text }}"}},
    ],
    "edges": [{"from": "researcher", "to": "asker"}, {"from": "asker", "to": "summarizer"}],
}


async def researcher(chat: Chat) -> AsyncGenerator[AgentEvent, None]:
    yield Reasoning("Let me see.")
    yield ToolCall("a", "search", {"query": chat.text})
    yield ToolResult("a", ["tides"])
    yield ToolCall("b", "search", {"query": "moon"})
    yield ToolError("b", "no moon")
    if chat.text == "fail":
        raise RuntimeError(SECRET)
    yield "The sea rises."
    command, _, chat_id = chat.text.partition(" ")
    if command == "hold":
        await hold(chat_id)


async def summarizer(chat: Chat) -> AsyncGenerator[AgentEvent, None]:
    yield f"In short: {chat.text}"


class _Runtime(FlowRuntime):
    """A runtime whose asker pauses its own run."""

    def __init__(self) -> None:
        nodes = {"researcher": agent_node(researcher), "asker": self._ask, "summarizer": agent_node(summarizer)}
        super().__init__(FLOW, nodes)

    async def _ask(self, context: NodeContext, _input: dict[str, Any]) -> dict[str, Any]:
        if context.resume_message is None:
            context.emit({"type": "agent:text", "content": "Which sea?"})
            self.dispatch({"type": "pause"})
            await asyncio.Event().wait()
        context.emit({"type": "agent:text", "content": f"The {context.resume_message}."})
        return {}


def harness_transport() -> OpenHarnessChatTransport:
    return OpenHarnessChatTransport(_Runtime, TransportOptions(send_flow_metadata=True, send_node_outputs=True))
