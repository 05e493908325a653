"""A program as a user writes it; `make test` has strict type checkers read it, with nothing but what is installed."""

# pyright: reportUnnecessaryTypeIgnoreComment=true

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

from starlette.applications import Starlette

from usechat import (
    AgentEvent,
    Chat,
    ChatEndpoint,
    ChatSettings,
    Data,
    DeepAgent,
    Document,
    File,
    GatewaySettings,
    Reasoning,
    SessionDirectory,
    Source,
    ToolCall,
    ToolError,
    ToolResult,
    UIMessage,
    create_app,
    sessions_gateway,
    to_anthropic,
    to_openai,
)
from usechat.flows import FlowRuntime
from usechat.protocol.chunks import Error
from usechat.transports import OpenHarnessChatTransport


async def agent(chat: Chat) -> AsyncIterator[AgentEvent]:
    messages: list[UIMessage] = await chat.history()
    yield f"{len(messages)} messages, the last one: {messages[-1].text}"
    yield Reasoning("Let me see.")
    yield ToolCall("call-1", "weather", {"city": "Oslo"}, title="Weather")
    yield ToolResult("call-1", {"degrees": 12})
    yield ToolError("call-2", "No such city.")
    yield Data("data-note", {"seen": True})
    yield Source("https://docs.example")
    yield Document("Notes", "text/plain")
    yield File("data:,", "text/plain")
    yield {"type": "data-own", "data": None}
    chat.write.data("progress", {"done": 1}, id="p", transient=True)
    chat.write.approval_request("call-1", reason="It costs money.")
    for_a_model: list[dict[str, Any]] = await chat.model_messages()
    chat.write.metadata({"openai": len(to_openai(for_a_model)), "anthropic": len(to_anthropic(for_a_model))})
    for answer in chat.tool_results:
        yield answer.tool
    for approval in chat.approvals:
        yield "yes" if approval.approved else approval.reason or "no"
    chat.state = {"turns": 1 if chat.state is None else chat.state["turns"] + 1}
    if chat.user is None:
        yield Error("Nobody is signed in.")
    with chat.hold():
        await asyncio.sleep(0)


def sync_agent(chat: Chat) -> Iterator[AgentEvent]:
    yield chat.text


async def short_agent(chat: Chat) -> str:
    return chat.text.upper()


apps: list[Starlette] = [create_app(each, cors=["http://localhost:5173"]) for each in (agent, sync_agent, short_agent)]


def gateway(directory: SessionDirectory) -> Starlette:
    settings = GatewaySettings(enabled=True, idle=60.0)
    return sessions_gateway(upstream="ws://localhost:8787", directory=directory, settings=settings)


apps.append(create_app(agent, settings=ChatSettings(conflict="queue")))


class Graph:
    """As a compiled graph of LangGraph looks to a type checker."""

    async def astream(self, given: object, config: object = None, *, stream_mode: str = "") -> AsyncIterator[object]:
        yield given

    async def aget_state(self, config: object, *, subgraphs: bool = False) -> object:
        return config

    async def aget_state_history(self, config: object) -> AsyncIterator[object]:
        yield config


class Streams:
    async def stream_with_events(self, *, messages: object, state: object) -> AsyncIterator[dict[str, object]]:
        yield {}


def every_kind(transport: OpenHarnessChatTransport, runtime: FlowRuntime, deep: DeepAgent) -> list[Starlette]:
    return [
        create_app(Graph()),
        create_app(Streams()),
        create_app(transport),
        create_app(runtime),
        create_app(deep),
        create_app(lambda chat: chat.text),
    ]


def nothing_that_is_no_agent() -> list[object]:
    # Each line is an error to a type checker, and where it is none, what it is told to ignore is missed.
    return [
        create_app(42),  # type: ignore[arg-type]
        create_app("hello:agent"),  # type: ignore[arg-type]
        create_app(None),  # type: ignore[arg-type]
        ChatEndpoint(42),  # type: ignore[arg-type]
    ]
