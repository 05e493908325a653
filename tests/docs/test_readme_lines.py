"""The tables of the README: each of their lines is run, or stands in a guide whose programs are."""

import re
import runpy
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Final

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Route

from support.frameworks import create_agent, create_deep_agent
from support.loopback import USECHAT, ask, free_port, parts, running, serving, until
from support.scripted_model import ScriptedModel, says
from usechat import Chat, ChatEndpoint, create_app, sessions_gateway
from usechat.flows import FlowRuntime, load_flow
from usechat.transports import OpenHarnessChatTransport

ROOT: Final = Path(__file__).parents[2]
HARNESS: Final = ROOT / "examples" / "open_harness"
README: Final = (ROOT / "README.md").read_text(encoding="utf-8")
GUIDES: Final = ROOT / "docs" / "guides"
ROW: Final = re.compile(r"^\| (.+?) \| `(.+?)`.* \|$", re.MULTILINE)

AGENT: Final = """\
async def agent(chat):
    yield f"You said: {chat.text}"
"""


def table(heading: str) -> dict[str, str]:
    """The line in each row, by the first words of the row."""
    section = README.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return dict(ROW.findall(section))


AGENTS: Final = table("Agent frameworks")
FRAMEWORKS: Final = table("Web frameworks")


async def agent(chat: Chat) -> AsyncGenerator[str, None]:
    yield f"You said: {chat.text}"


class Events:
    """An agent as DeepAgent is one."""

    async def stream_with_events(self, **_given: Any) -> AsyncGenerator[dict[str, Any], None]:
        yield {"type": "text", "text": "Hello, events"}
        yield {"type": "done", "state": {}}


def said_by(app: Any, path: str = "/api/chat") -> str:
    with serving(app) as url:
        return parts(ask(url + path).text)[-1]["text"]


# What the README names in each line, and what the app then says.
APPS: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "an async or sync generator, a coroutine, a function": ({"agent": agent}, "You said: Hello"),
    "LangGraph, LangChain": (
        {"graph": create_agent(ScriptedModel(replies=[says("Hello, graph")]), [])},
        "Hello, graph",
    ),
    "deepagents": (
        {
            "create_deep_agent": create_deep_agent,
            "model": ScriptedModel(replies=[says("Hello, deepagents")]),
            "tools": [],
        },
        "Hello, deepagents",
    ),
    "DeepAgent, or any object with `stream_with_events`": ({"deep_agent": Events()}, "Hello, events"),
    "Open Harness flows": (
        {
            "FlowRuntime": FlowRuntime,
            "OpenHarnessChatTransport": OpenHarnessChatTransport,
            "flow": load_flow(str(HARNESS / "flow.yaml")),
            "nodes": runpy.run_path(str(HARNESS / "nodes.py"))["nodes"],
        },
        "In short: Nobody knows hello.",
    ),
}
# The lines of the other rows stand in these guides, whose frameworks are tried in frameworks/.
IN_GUIDES: Final = {
    "OpenAI, or a server with an OpenAI-compatible API": "openai.md",
    "Anthropic": "anthropic.md",
    "anything that speaks AG-UI: CrewAI, Mastra, Haystack, …": "ag-ui.md",
    "LlamaIndex": "llama-index.md",
    "Pydantic AI": "pydantic-ai.md",
    "OpenAI Agents SDK": "openai-agents.md",
    "Agno": "agno.md",
    "Google ADK": "google-adk.md",
    "Claude Agent SDK": "claude-agent.md",
    "Microsoft Agent Framework": "agent-framework.md",
    "Strands": "strands.md",
}


@pytest.mark.parametrize("row", APPS)
def test_an_agent_is_served_by_its_line(row: str) -> None:
    names, said = APPS[row]
    assert said_by(eval(AGENTS[row], {"create_app": create_app, **names})) == said  # noqa: S307


def test_sessions_are_served_by_their_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app = eval(AGENTS["Agent Ops sessions"], {"sessions_gateway": sessions_gateway})  # noqa: S307
    assert [route.path for route in app.routes] == ["/api/sessions", "/healthz", "/readyz", "/metrics"]
    assert {*APPS, *IN_GUIDES, "Agent Ops sessions"} == {*AGENTS}


@pytest.mark.parametrize("row", IN_GUIDES)
def test_an_agent_is_served_as_in_its_guide(row: str) -> None:
    guide = (GUIDES / IN_GUIDES[row]).read_text(encoding="utf-8")
    assert f"{AGENTS[row]}\n" in guide.replace(":\n        yield event", ": yield event")


def test_an_agent_is_served_without_a_framework(tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text(AGENT, encoding="utf-8")
    port = free_port()
    program, *arguments = FRAMEWORKS["none"].split()
    assert program == "usechat"
    with running([*USECHAT, *arguments], tmp_path, USECHAT_PORT=str(port)) as process:
        answers: list[str] = []
        url = f"http://127.0.0.1:{port}/api/chat"
        until(lambda: bool(answers.append(ask(url).text) or answers[-1]), process)
    assert parts(answers[-1])[-1]["text"] == "You said: Hello"


MADE: Final[dict[str, tuple[str, Any, str]]] = {
    "any ASGI server": ("", None, "/api/chat"),
    "Starlette": ("", None, "/api/chat"),
    "FastAPI": ("", FastAPI, "/api/chat"),
    "an existing app": ("", Starlette, "/agent/api/chat"),
    "a route of your own": ("async def route(request):\n    ", Starlette, "/own"),
}


@pytest.mark.parametrize("row", MADE)
def test_a_framework_serves_an_agent_by_its_line(row: str) -> None:
    begin, make, path = MADE[row]
    names: dict[str, Any] = {"agent": agent, "create_app": create_app, "ChatEndpoint": ChatEndpoint}
    names |= {"Starlette": Starlette, "endpoint": ChatEndpoint(agent)}
    if make is not None:
        names["app"] = make()
    exec(begin + FRAMEWORKS[row], names)  # noqa: S102
    app = names["app"]
    if "route" in names:
        app.router.routes.append(Route(path, names["route"], methods=["POST"]))
    assert said_by(app, path) == "You said: Hello"


def test_django_is_as_in_its_guide() -> None:
    assert FRAMEWORKS["Django"] in (GUIDES / "django.md").read_text(encoding="utf-8")
    assert {*MADE, "none", "Django"} == {*FRAMEWORKS}


def test_the_pictures_are_there() -> None:
    pictures = re.findall(r'(?:src|srcset)="([^"]+)"', README)
    assert [(ROOT / picture).read_bytes()[1:4] for picture in pictures] == [b"PNG", b"PNG"]
