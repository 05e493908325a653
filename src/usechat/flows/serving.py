"""A runtime for others: the original's WebSocket, at which they hear its events and give it commands."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, cast

import msgspec
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Origin

from usechat.agents.open_harness import Runtime
from usechat.errors import FlowError
from usechat.flows.scheduling import Command, Event

__all__ = ["serve_runtime"]

_log = logging.getLogger("usechat")

# A command may bring the messages of a whole chat.
_MAX_COMMAND: Final = 16 * 1024 * 1024
_MAX_UNREAD: Final = 8 * 1024 * 1024
_CLOSE_SECONDS: Final = 2.0


@asynccontextmanager
async def serve_runtime(
    make_runtime: Callable[[], Runtime],
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    path: str = "/ws",
    origins: Collection[str] = (),
) -> AsyncGenerator[str, None]:
    """Serve a runtime, and give its URL; with port 0, of a free port.

    All sockets hear and command the same runtime. The command `run`, which the original does not have, runs it, and
    makes a new one if the run before is over. Whoever reaches the port may do all that, so it is for this machine only
    unless something else guards it. Pages of browsers are refused, except those of the `origins`.

    Raises:
        FlowError: the runtime cannot be made.
        OSError: the port is taken.
    """
    served = _Served(make_runtime)

    def check_path(connection: ServerConnection, request: Request) -> Response | None:
        return None if request.path.partition("?")[0] == path else connection.respond(404, "There is nothing here.\n")

    server = await serve(
        served.attend,
        host,
        port,
        process_request=check_path,
        origins=[None, *map(Origin, origins)],
        max_size=_MAX_COMMAND,
        compression=None,
        close_timeout=_CLOSE_SECONDS,
    )
    try:
        yield _url(server, path)
    finally:
        server.close()
        await served.close(server)


def _url(server: Server, path: str) -> str:
    host, port = next(iter(server.sockets)).getsockname()[:2]
    return f"ws://[{host}]:{port}{path}" if ":" in host else f"ws://{host}:{port}{path}"


class _Client:
    """A socket, and what it has not read yet."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection
        self._unread: deque[bytes] = deque()
        self._size = 0
        self._arrived = asyncio.Event()

    def tell(self, frame: bytes) -> None:
        """Send a frame when it can be; a client that lets too much of them gather is cut off."""
        self._unread.append(frame)
        self._size += len(frame)
        self._arrived.set()
        if self._size > _MAX_UNREAD and len(self._unread) > 1:
            _log.warning("a client of a runtime reads too slowly, so it was cut off")
            self.cut_off()

    def cut_off(self) -> None:
        self._unread.clear()
        self._size = 0
        # A closing handshake would have to wait for what is on its way.
        self._connection.transport.abort()

    async def write(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._unread:
                frame = self._unread.popleft()
                self._size -= len(frame)
                await self._connection.send(frame, text=True)


class _Served:
    """The runtime of the moment, its runs, and its clients."""

    def __init__(self, make_runtime: Callable[[], Runtime]) -> None:
        self._make_runtime = make_runtime
        self._clients: set[_Client] = set()
        self._runs: set[asyncio.Task[None]] = set()
        self._flow_name = ""
        self._is_open = False
        self._ignored = False
        self._adopt()

    async def attend(self, connection: ServerConnection) -> None:
        client = _Client(connection)
        self._clients.add(client)
        writing = asyncio.create_task(_until_closed(client))
        try:
            with suppress(ConnectionClosed):
                while True:
                    self._hear(client, await connection.recv(decode=False))
        finally:
            self._clients.discard(client)
            writing.cancel()

    async def close(self, server: Server) -> None:
        """End what runs, and see the clients off."""
        self._leave()
        for run in self._runs:
            run.cancel()
        await asyncio.gather(*self._runs, return_exceptions=True)
        try:
            async with asyncio.timeout(_CLOSE_SECONDS * 2):
                await server.wait_closed()
        # The closing handshake has no end of its own if a client takes nothing.
        except TimeoutError:
            for client in self._clients:
                client.cut_off()
            await server.wait_closed()

    def _adopt(self) -> None:
        self._runtime = self._make_runtime()
        self._leave = self._runtime.on_event(self._tell)

    def _hear(self, client: _Client, frame: bytes) -> None:
        try:
            message = msgspec.json.decode(frame)
        except (msgspec.DecodeError, RecursionError):
            message = None
        match message:
            case {"type": "command", "command": {"type": str()} as command}:
                self._take(client, command)
            case _ if not self._ignored:
                self._ignored = True
                _log.warning("a client of a runtime sent a frame without a command; such frames are ignored")
            case _:
                pass

    def _take(self, client: _Client, command: Command) -> None:
        kind = command["type"]
        try:
            self._do(command)
        except FlowError as error:
            _log.warning("the command %.20r of a client was refused: %s", kind, error)
        # Whatever a runtime raises must not cost the client its connection.
        except Exception:  # noqa: BLE001
            _log.exception("the command %.20r of a client failed", kind)
        else:
            return
        client.tell(msgspec.json.encode({"type": "refused", "command": kind}))

    def _do(self, command: Command) -> None:
        match command:
            case {"type": "run"}:
                self._start(_read_input(command))
            case {"type": "resume"}:
                self._resume(command)
            case _:
                self._runtime.dispatch(command)

    def _start(self, value: dict[str, Any] | None) -> None:
        status = self._runtime.snapshot().status
        if status in ("running", "paused"):
            raise FlowError(f"The runtime is {status}.", remedy="Abort its run before.")
        if status != "idle":
            leave = self._leave
            self._adopt()
            leave()
        self._go(value)

    def _resume(self, command: Command) -> None:
        if self._runtime.snapshot().status == "running":
            raise FlowError("The runtime is running.", remedy="Resume it when it is paused.")
        self._runtime.dispatch(command)
        # The original leaves it to whoever dispatched the command.
        self._go(None)

    def _go(self, value: dict[str, Any] | None) -> None:
        run = asyncio.create_task(self._drive(self._runtime, value))
        self._runs.add(run)
        run.add_done_callback(self._runs.discard)

    async def _drive(self, runtime: Runtime, value: dict[str, Any] | None) -> None:
        try:
            await runtime.run(value)
        # The clients have nothing but events to know it by, and whatever it was is not for them.
        except Exception:  # noqa: BLE001
            _log.exception("a run for others failed")
            if runtime is self._runtime and self._is_open:
                about = {"flowName": self._flow_name, "status": "failed", "timestamp": time.time_ns() // 1_000_000}
                self._tell({"type": "flow:complete", **about})

    def _tell(self, event: Event) -> None:
        match event["type"]:
            case "flow:start" | "flow:resumed":
                self._is_open = True
                self._flow_name = event.get("flowName", self._flow_name)
            case "flow:complete" | "flow:paused" | "flow:aborted":
                self._is_open = False
            case _:
                pass
        frame = msgspec.json.encode({"type": "event", "event": event})
        for client in tuple(self._clients):
            client.tell(frame)


def _read_input(command: Command) -> dict[str, Any] | None:
    value = command.get("input")
    if not isinstance(value, dict | None):
        raise FlowError("The input of a run is not an object.")
    return cast("dict[str, Any] | None", value)


async def _until_closed(client: _Client) -> None:
    # The reader finds that it is closed, too.
    with suppress(ConnectionClosed):
        await client.write()
