"""Serves the agent of one app: `python serve.py NAME FD HISTORY_URL`, until its standard input ends.

It runs in the environment of the framework, which has neither the tests nor their packages.
"""

import asyncio
import socket
import sys
import threading
from importlib import import_module

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from effects import EFFECTS
from usechat.protocol.clients import ClientName
from usechat.server.auth import BearerTokens
from usechat.server.endpoint import ChatEndpoint
from usechat.turns.settings import ChatSettings

__all__: list[str] = []


async def _effects(request: Request) -> Response:
    """What the tools have done in a chat, as soon as they have done it so often."""
    wanted = int(request.query_params.get("least", "0"))
    while len(EFFECTS) < wanted:
        await asyncio.sleep(0.01)
    return JSONResponse(EFFECTS)


def main(name: str, fd: int, history: str) -> None:
    """Serve the agent to clients of two profiles, to everybody and to users with tokens."""
    agent = import_module(f"live.{name}").agent
    routes: list[BaseRoute] = [Route("/effects", _effects)]
    clients: tuple[ClientName, ...] = ("portable", "latest")
    for client in clients:
        settings = ChatSettings(client=client)
        routes += ChatEndpoint(agent, history=history, settings=settings).routes(f"/{client}/agent")
        users = BearerTokens({"token-of-ann": "ann", "token-of-bob": "bob"})
        routes += ChatEndpoint(agent, history=f"{history}-users", settings=settings, authenticate=users).routes(
            f"/{client}/users"
        )
    server = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), log_level="warning", timeout_graceful_shutdown=1))

    def exit_when_left_alone() -> None:
        sys.stdin.read()
        server.should_exit = True

    threading.Thread(target=exit_when_left_alone, daemon=True).start()
    server.run(sockets=[socket.socket(fileno=fd)])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
