"""The server that the commands start: its signals, and clients that do not read what they were sent."""

import asyncio
import json
import socket
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp
from websockets.asyncio.client import connect

from support.hang import HANG_SECONDS
from support.loopback import message, running
from usechat.cli.listening import Server
from usechat.server.app import create_app
from usechat.server.responses import StreamLimits
from usechat.turns.chat import Chat

pytestmark = pytest.mark.anyio

MEGABYTE = 1024 * 1024
IMPATIENT = StreamLimits(keep_alive=0.02, patience=0.1, behind=64 * 1024)


class Swept(Server):
    """A server that looks after its connections only when its test says so."""

    async def main_loop(self) -> None:
        while not self.should_exit:  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    async def sweep(self) -> None:
        await self.on_tick(0)

    @property
    def transports(self) -> list[Any]:
        connections: set[Any] = self.server_state.connections
        return [connection.transport for connection in connections]


@asynccontextmanager
async def serving(app: ASGIApp) -> AsyncGenerator[tuple[Swept, int]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)
        server = Swept(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1, ws_ping_interval=None))
        running = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield server, listener.getsockname()[1]
        finally:
            server.should_exit = server.force_exit = True
            await running


@asynccontextmanager
async def connecting(port: int) -> AsyncGenerator[socket.socket]:
    """A connection that takes in little of what its test does not read."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
        yield connection


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(HANG_SECONDS):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def write_much(chat: Chat) -> AsyncGenerator[str, None]:
    for _ in range(8):
        yield "x" * MEGABYTE
    await chat.stopping.wait()


async def check_aborted(server: Swept) -> None:
    await until(lambda: all(transport.is_closing() for transport in server.transports))
    assert len(server.transports) == 1
    await server.sweep()
    assert len(server.transports) == 1
    await server.sweep()
    await until(lambda: not server.transports)


async def test_the_connection_of_a_reader_that_was_cut_is_aborted() -> None:
    body = json.dumps(message("Hello")).encode()
    head = (
        f"POST /api/chat HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    app = create_app(write_much, stream=IMPATIENT, grace=None)
    async with serving(app) as (server, port), connecting(port) as client:
        await asyncio.get_running_loop().sock_sendall(client, head.encode() + body)
        await until(lambda: len(server.transports) == 1)
        await check_aborted(server)


async def test_the_connection_of_a_websocket_that_was_cut_is_aborted() -> None:
    app = create_app(write_much, stream=IMPATIENT, grace=None)
    async with serving(app) as (server, port), connecting(port) as client:
        uri = f"ws://127.0.0.1:{port}/api/chat/ws"
        page = await connect(uri, sock=client, max_queue=1, compression=None, ping_interval=None)
        frame: dict[str, Any] = {"type": "send", "requestId": "1", "headers": {}, "body": {}, **message("Hello")}
        await page.send(json.dumps(frame))
        await check_aborted(server)
        page.transport.abort()


async def test_a_slow_client_that_goes_on_reading_gets_all_of_an_answer() -> None:
    async def much(_request: Request) -> Response:
        return Response(b"x" * 8 * MEGABYTE)

    loop = asyncio.get_running_loop()
    async with serving(Starlette(routes=[Route("/", much)])) as (server, port), connecting(port) as client:
        await loop.sock_sendall(client, b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        await until(lambda: any(transport.is_closing() for transport in server.transports))
        read = 0
        for _ in range(4):
            [transport] = server.transports
            unsent = transport.get_write_buffer_size()
            while transport.get_write_buffer_size() == unsent:
                read += len(await loop.sock_recv(client, 64 * 1024))
            await server.sweep()
        while piece := await loop.sock_recv(client, MEGABYTE):
            read += len(piece)
        assert read > 8 * MEGABYTE


SIGNALLED = """
import os
import signal
import socket
import sys

from usechat.cli.listening import serve


class Finalized:
    # What is raised in here is lost.
    def __del__(self):
        os.kill(os.getpid(), getattr(signal, sys.argv[1]))


class Finder:
    def find_spec(self, name, *_):
        if name == "uvloop":
            print("signalled", flush=True)
            Finalized()


async def app(scope, receive, send):
    await receive()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await send({"type": "lifespan.shutdown.complete"})


sys.meta_path.insert(0, Finder())
serve(app, socket.create_server(("127.0.0.1", 0)))
print("over", signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, flush=True)
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_that_comes_before_the_loop_runs_is_not_lost(tmp_path: Path, name: str) -> None:
    with running([sys.executable, "-c", SIGNALLED, name], tmp_path) as process:
        assert process.read_all() == b"signalled\nover True\n"
        assert process.wait()[0] == 0
