import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from usechat.flows import FlowRuntime
from usechat.integrations import EXTRAS, INTEGRATIONS, agent_of
from usechat.integrations.open_harness.agent import OpenHarnessAgent
from usechat.integrations.plain import PlainAgent
from usechat.transports import OpenHarnessChatTransport
from usechat.turns.chat import Chat

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


def test_the_packages_of_a_framework_are_in_the_extra_of_its_integration() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
    assert set(EXTRAS.values()) <= set(project["optional-dependencies"])
    assert (EXTRAS["langchain_core"], EXTRAS["deepagents"]) == ("langgraph", "deepagents")


def test_no_integration_imports_its_framework() -> None:
    places = [place for row in INTEGRATIONS.values() for place in (row.agent, row.log) if place]
    imports = "; ".join(f"import {place.partition(':')[0]}" for place in places)
    frameworks = sorted({package for row in INTEGRATIONS.values() for package in row.packages})
    assert "langgraph" in frameworks
    program = f"import sys; {imports}; print(*sorted(set(sys.modules) & set({frameworks})))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
