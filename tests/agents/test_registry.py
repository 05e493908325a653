from typing import Any

import pytest

from usechat.agents.chat import Chat
from usechat.agents.open_harness import OpenHarnessAgent
from usechat.agents.plain import PlainAgent
from usechat.agents.registry import agent_of
from usechat.flows import FlowRuntime
from usechat.transports.open_harness import OpenHarnessChatTransport

pytestmark = pytest.mark.anyio

FLOW: dict[str, Any] = {"name": "empty", "nodes": [{"id": "a", "type": "echo", "input": {}}], "edges": []}


def function(chat: Chat) -> str:
    return "Hi"


async def test_each_thing_has_its_agent() -> None:
    runtime = FlowRuntime(FLOW, {})
    transport = OpenHarnessChatTransport(runtime)
    assert agent_of(transport) is agent_of(transport.agent) is transport.agent
    assert isinstance(agent_of(runtime), OpenHarnessAgent)
    assert isinstance(agent_of(function), PlainAgent)


@pytest.mark.parametrize("thing", [FlowRuntime, OpenHarnessAgent, PlainAgent, "Hi", None, lambda: "Hi"])
async def test_what_is_no_agent_is_refused(thing: object) -> None:
    with pytest.raises(TypeError, match="is not an agent: give a function that takes the chat"):
        agent_of(thing)
