"""The test server: `python backend.py FD` serves the agents on that listening socket until its stdin ends."""

import asyncio
import gc
import os
import socket
import sys
import threading
from collections import defaultdict
from typing import Any, Final

import uvicorn
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from agents import agent, let_go, seen
from harness_flow import harness_transport
from pages import Endpoint
from usechat.protocol.clients import CLIENTS, ClientName
from usechat.protocol.messages import UIMessage
from usechat.protocol.requests import Limits
from usechat.server.auth import BearerTokens
from usechat.server.endpoint import ChatEndpoint
from usechat.server.responses import StreamLimits
from usechat.stores import Outcome
from usechat.stores.memory import MemoryTurnStore
from usechat.turns import TurnLimits
from usechat.turns.settings import ChatSettings

__all__ = ["ANN", "BOB", "BODY_LIMIT", "serve"]

ANN: Final = "token-of-ann"
BOB: Final = "token-of-bob"
BODY_LIMIT: Final = 2_000


class _Ends:
    """How the turns of one message ended."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.any = asyncio.Event()


_ends: defaultdict[str, _Ends] = defaultdict(_Ends)


async def _note_end(outcome: Outcome, message: UIMessage) -> None:
    if len(_ends) > 100:
        # What a test asks for is among the last ones.
        del _ends[next(iter(_ends))]
    ends = _ends[message.id]
    ends.outcomes.append(outcome)
    ends.any.set()


async def _show_seen(request: Request) -> Response:
    return JSONResponse(seen(request.path_params["chat"]))


async def _show_ends(request: Request) -> Response:
    ends = _ends[request.path_params["message"]]
    await ends.any.wait()
    return JSONResponse(ends.outcomes)


async def _let_go(request: Request) -> Response:
    let_go(request.path_params["chat"])
    return Response(status_code=204)


async def _show_burden(request: Request) -> Response:
    """What the process holds, after it has thrown away what nobody needs."""
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as pages:  # noqa: ASYNC230
        resident = int(pages.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    burden: dict[str, Any] = {
        "tasks": len(asyncio.all_tasks()),
        "threads": threading.active_count(),
        "files": len(os.listdir("/proc/self/fd")),
        "objects": len(gc.get_objects()),
        "resident": resident,
    }
    return JSONResponse(burden)


def _endpoints(client: ClientName) -> dict[Endpoint, ChatEndpoint]:
    settings = ChatSettings(client=client, on_end=_note_end)
    return {
        "plain": ChatEndpoint(agent, settings=settings),
        "users": ChatEndpoint(agent, settings=settings, authenticate=BearerTokens({ANN: "ann", BOB: "bob"})),
        "reject": ChatEndpoint(agent, settings=replace(settings, conflict="reject")),
        "brief": ChatEndpoint(agent, settings=settings, store=MemoryTurnStore(keep=0)),
        "named": ChatEndpoint(agent, settings=replace(settings, event_names=True)),
        "hasty": ChatEndpoint(agent, settings=replace(settings, turn=TurnLimits(linger=0))),
        "lively": ChatEndpoint(agent, settings=settings, stream=StreamLimits(keep_alive=0.02)),
        "small": ChatEndpoint(agent, settings=settings, limits=Limits(body=BODY_LIMIT)),
        "flow": ChatEndpoint(harness_transport(), settings=settings),
    }


def _routes() -> list[BaseRoute]:
    routes: list[BaseRoute] = [
        Route("/seen/{chat}", _show_seen),
        Route("/ends/{message}", _show_ends),
        Route("/go/{chat}", _let_go, methods=["POST"]),
        Route("/burden", _show_burden),
    ]
    for client in CLIENTS:
        for name, endpoint in _endpoints(client).items():
            routes += endpoint.routes(f"/{client}/{name}")
    return routes


def _exit_when_left_alone(server: uvicorn.Server) -> None:
    sys.stdin.read()
    server.should_exit = True


def serve(routes: list[BaseRoute]) -> None:
    """Serve these on the socket that the arguments name."""
    config = uvicorn.Config(Starlette(routes=routes), log_level="warning", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    threading.Thread(target=_exit_when_left_alone, args=[server], daemon=True).start()
    server.run(sockets=[socket.socket(fileno=int(sys.argv[1]))])


if __name__ == "__main__":
    serve(_routes())
