"""The test server of graphs: an agent that sends letters if it may, looks at the weather without asking, and rests."""

import asyncio
from collections import Counter
from typing import Any

from langchain_core.messages import BaseMessage
from starlette.requests import Request
from starlette.routing import BaseRoute, Route

from backend import serve
from support.frameworks import HumanInTheLoopMiddleware, InMemorySaver, create_agent, get_stream_writer, tool
from support.scripted_model import Reply, ScriptedModel, calls, says
from usechat.protocol.clients import CLIENTS
from usechat.server.elements import elements_route
from usechat.server.endpoint import ChatEndpoint
from usechat.turns.settings import ChatSettings

_sent = Counter[str]()


@tool
async def send(to: str) -> str:
    """Send a letter; the result says how often it was sent."""
    _sent[to] += 1
    return f"sent {_sent[to]} time"


@tool
async def weather(city: str) -> dict[str, Any]:
    """Look outside."""
    return {"city": city, "celsius": 12}


@tool
async def rest() -> str:
    """Tell that it rests, until somebody stops it."""
    get_stream_writer()({"type": "data-rests", "data": True})
    return str(await asyncio.Event().wait())


def _reply(messages: list[BaseMessage]) -> Reply:
    last = messages[-1]
    match last.content:
        case "rest in a tool":
            return [*says("I rest."), *calls("rest", "rest", {})]
        case "rest in the model":
            return [*says("I rest."), asyncio.Event()]
        case "What was said?":
            return says(" | ".join(f"{message.type} {message.content}" for message in messages))
        case _:
            pass
    if last.type == "human":
        to = str(last.content)
        asks: Reply = [*says("May I?"), *calls("send", "send", {"to": to})]
        return [*asks, *calls("look", "weather", {"city": to}, 1)] if to.startswith("both") else asks
    results = [message.content for message in messages[-2:] if message.type == "tool" and message.name == "send"]
    return says(f"I was told: {results[0]}")


def _whose(request: Request) -> str:
    return request.headers["authorization"]


def _routes() -> list[BaseRoute]:
    gate = HumanInTheLoopMiddleware({"send": {"allowed_decisions": ["approve", "edit", "reject"]}})
    model = ScriptedModel(replies=_reply)
    routes: list[BaseRoute] = []
    for client in CLIENTS:
        graph = create_agent(model, [send, weather, rest], middleware=[gate], checkpointer=InMemorySaver())
        routes += ChatEndpoint(graph, settings=ChatSettings(client=client)).routes(f"/{client}/graph")
    graph = create_agent(model, [send, weather, rest], middleware=[gate], checkpointer=InMemorySaver())
    routes.append(Route("/portable/elements", elements_route(graph, thread_id=_whose), methods=["POST"]))
    return routes


if __name__ == "__main__":
    serve(_routes())
