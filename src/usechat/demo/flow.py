"""An Open Harness flow in the real runtime. flow.yaml has its nodes and edges; this file has what the nodes do."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from usechat.demo import paced
from usechat.errors import AgentError
from usechat.events import AgentEvent, Reasoning, StructuredOutput, ToolCall, ToolError, ToolResult
from usechat.flows import FlowRuntime, agent_node, load_flow
from usechat.integrations.open_harness.translator import TransportOptions
from usechat.server.page import PageAgent, PagePrompt
from usechat.transports import OpenHarnessChatTransport
from usechat.turns.chat import Chat

__all__ = ["PAGE", "make_agent"]

PAGE: Final = PageAgent(
    path="/api/flow",
    name="Open Harness flow",
    about="A flow of four nodes in the Open Harness runtime. Two of them run at the same time.",
    prompts=(
        PagePrompt("Plan a day in Lisbon", "Steps, two at a time"),
        PagePrompt("Plan a day in Atlantis", "A step that fails"),
        PagePrompt("Plan a day on the moon", "A flow that fails"),
    ),
)

_Events: TypeAlias = AsyncGenerator[AgentEvent, None]

_WEATHER: Final = {"Lisbon": {"sky": "clear", "celsius": 24, "wind": "3 Bft"}}


def make_agent(pace: float) -> OpenHarnessChatTransport:
    """Make the transport. Its nodes write one word every `pace` seconds, and each run has its own runtime."""
    flow = load_flow(Path(__file__).with_name("flow.yaml"))
    functions = {"planner": _plan, "weather": _ask_for_weather, "sights": _look_for_sights, "writer": _write}
    nodes = {name: agent_node(partial(_run, function, pace)) for name, function in functions.items()}
    options = TransportOptions(send_flow_metadata=True)
    return OpenHarnessChatTransport(lambda: FlowRuntime(flow, nodes, concurrency=2), options)


def _run(function: Callable[[Chat, float], _Events], pace: float, chat: Chat) -> _Events:
    return paced(function(chat, pace), pace)


async def _plan(chat: Chat, _pace: float) -> _Events:
    yield Reasoning("Where do they want to go? What should they see, and what should they wear?")
    place = chat.text.split()[-1].strip("?!.") if chat.text else "Lisbon"
    if place == "moon":
        raise AgentError("Nobody sails to the moon.")
    yield f"A day in {place}: I ask for the weather and the sights."
    yield StructuredOutput({"place": place})


async def _ask_for_weather(chat: Chat, pace: float) -> _Events:
    yield ToolCall("weather", "get_weather", {"place": chat.text})
    await asyncio.sleep(12 * pace)
    found = _WEATHER.get(chat.text)
    if found is None:
        yield ToolError("weather", f"There is no weather station in {chat.text}.")
        raise AgentError("The weather is not known.")
    yield ToolResult("weather", found)


async def _look_for_sights(chat: Chat, pace: float) -> _Events:
    yield ToolCall("sights", "find_sights", {"place": chat.text, "most": 3})
    await asyncio.sleep(20 * pace)
    yield ToolResult("sights", ["the harbour", "the old town", "the lighthouse"])


async def _write(chat: Chat, _pace: float) -> _Events:
    known = _WEATHER.get(chat.text)
    weather = "Nobody knows the weather." if known is None else f"It is {known['sky']} with {known['celsius']} °C."
    letter = (
        f"### A day in {chat.text}\n\n{weather}\n\n"
        "1. **Morning**: coffee at the harbour.\n2. **Noon**: the old town.\n3. **Evening**: the lighthouse.\n"
    )
    yield letter
