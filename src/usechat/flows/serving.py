"""Serves runtimes over the original's WebSocket, which sends a runtime's events and receives its commands.

Everything runs in the thread of the event loop. Each socket is a `_Client` with two tasks: `attend` reads commands, and
`write` sends the frames in `_unread`. Sending never waits: a client that leaves 8 MB unread is cut off.

A runtime is a `_Run`, of which there are two kinds:

- Named: `run` with an id of the run makes it, and clients that name the id join it. It ends with its run (complete,
  failed or aborted). A paused run without clients is also dropped when there are a thousand runs and a new one starts.
  When its last client leaves while it is running, it is aborted; while it is paused, it stays for a client that comes
  back.
- Shared: there is one, for all clients that name no run, as in the original. It stays when no client is connected.
  When its run is over, the next `run` replaces it; tasks that it still has are in `_old` until they end.

`_Run.tasks` are its calls of `runtime.run`. A run may end before them, since the runtime emits its end first. So a
named run is forgotten when its last task ends and it is not paused, or, if it is aborted while paused, at
`flow:aborted`.
"""

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

from usechat.errors import FlowError
from usechat.flows.remote import RUNS_HEADER
from usechat.flows.scheduling import Command, Event
from usechat.integrations.open_harness.agent import Runtime

__all__ = ["serve_runtime"]

_log = logging.getLogger("usechat")

# A command may bring the messages of a whole chat.
_MAX_COMMAND: Final = 16 * 1024 * 1024
_MAX_UNREAD: Final = 8 * 1024 * 1024
# The most runs that run or are paused, and the longest id of one.
_MAX_RUNS: Final = 1000
_NAME: Final = 64
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
    """Serve runtimes, and give the URL; with port 0, of a free port.

    The command `run`, which the original does not have, makes a runtime and runs it. With an id of the run in the
    envelope, as `RemoteRuntime` sends it, only sockets that name the id get the run's events and can command it. When
    the last of them is gone, a run that is not paused is aborted. All sockets without an id share one runtime, as in
    the original, and `run` makes a new one when the run before is over. There is no sign-in, so listen on this machine
    only, unless something else guards the port. Browser pages are refused, except those of the `origins`.

    Raises:
        FlowError: the runtime cannot be made.
        OSError: the port is taken.
    """
    served = _Served(make_runtime)

    def check_path(connection: ServerConnection, request: Request) -> Response | None:
        return None if request.path.partition("?")[0] == path else connection.respond(404, "There is nothing here.\n")

    def name_runs(_connection: ServerConnection, _request: Request, response: Response) -> None:
        response.headers[RUNS_HEADER] = "1"

    server = await serve(
        served.attend,
        host,
        port,
        process_request=check_path,
        process_response=name_runs,
        origins=[None, *map(Origin, origins)],
        max_size=_MAX_COMMAND,
        compression=None,
        close_timeout=_CLOSE_SECONDS,
    )
    try:
        host, port = next(iter(server.sockets)).getsockname()[:2]
        yield f"ws://[{host}]:{port}{path}" if ":" in host else f"ws://{host}:{port}{path}"
    finally:
        server.close()
        await served.close(server)


class _Client:
    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection
        self._unread: deque[bytes] = deque()
        self._size = 0
        self._arrived = asyncio.Event()

    def send(self, frame: bytes) -> None:
        """Queue a frame, and cut off a client that reads too slowly."""
        self._unread.append(frame)
        self._size += len(frame)
        self._arrived.set()
        if self._size > _MAX_UNREAD and len(self._unread) > 1:
            _log.warning("a client of a runtime reads too slowly, so it was cut off")
            self.cut_off()

    def cut_off(self) -> None:
        self._unread.clear()
        self._size = 0
        # A closing handshake would wait until the client has read everything before it.
        self._connection.transport.abort()

    async def write(self) -> None:
        # The reader sees that the connection is closed, too.
        with suppress(ConnectionClosed):
            while True:
                await self._arrived.wait()
                self._arrived.clear()
                while self._unread:
                    frame = self._unread.popleft()
                    self._size -= len(frame)
                    await self._connection.send(frame, text=True)


class _Run:
    """A runtime and the clients that get its events; `name` is the id of its run, if it has one."""

    def __init__(
        self, runtime: Runtime, clients: set[_Client], name: str = "", on_end: Callable[[], None] = lambda: None
    ) -> None:
        self.runtime = runtime
        self.clients = clients
        self.tasks: set[asyncio.Task[None]] = set()
        self._name = name
        self._on_end = on_end
        self._flow_name = ""
        self._is_open = False
        self.leave = runtime.on_event(self._send)

    @property
    def status(self) -> str:
        return self.runtime.snapshot().status

    def take(self, command: Command) -> None:
        """Execute a command.

        Raises:
            FlowError: the runtime refuses it.
        """
        match command:
            case {"type": "run"}:
                self._go(_read_input(command))
            case {"type": "resume"}:
                if self.status == "running":
                    raise FlowError("The runtime is running.", remedy="Resume it when it is paused.")
                self.runtime.dispatch(command)
                # In the original, the caller of `dispatch` does that.
                self._go(None)
            case _:
                self.runtime.dispatch(command)

    def abandon(self) -> None:
        """Abort the run, since its last client left."""
        if self.status == "running":
            try:
                self.runtime.dispatch({"type": "abort", "resumable": False})
            # A runtime that is not ours may raise anything.
            except Exception:  # noqa: BLE001
                _log.exception("a run without clients could not be aborted")

    def _go(self, value: dict[str, Any] | None) -> None:
        task = asyncio.create_task(self._drive(value))
        self.tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not self.tasks and self.status != "paused":
            self._on_end()

    async def _drive(self, value: dict[str, Any] | None) -> None:
        try:
            await self.runtime.run(value)
        # Clients that saw the run begin get an event. The error itself is not for them.
        except Exception:  # noqa: BLE001
            _log.exception("a served run failed")
            if self._is_open:
                about = {"flowName": self._flow_name, "status": "failed", "timestamp": time.time_ns() // 1_000_000}
                self._send({"type": "flow:complete", **about})

    def _send(self, event: Event) -> None:
        match event["type"]:
            case "flow:start" | "flow:resumed":
                self._is_open = True
                self._flow_name = event.get("flowName", self._flow_name)
            case "flow:complete" | "flow:paused" | "flow:aborted":
                self._is_open = False
            case _:
                pass
        frame = _frame("event", self._name, event=event)
        for client in tuple(self.clients):
            client.send(frame)
        if event["type"] == "flow:aborted" and not self.tasks:
            self._on_end()


class _Served:
    def __init__(self, make_runtime: Callable[[], Runtime]) -> None:
        self._make_runtime = make_runtime
        # Made now, so that a mistake shows when the server starts.
        self._spare: Runtime | None = make_runtime()
        self._clients: set[_Client] = set()
        # The clients that have named no run, as the original's do.
        self._unnamed: set[_Client] = set()
        self._shared: _Run | None = None
        self._named: dict[str, _Run] = {}
        self._old: set[asyncio.Task[None]] = set()
        self._ignored = False

    async def attend(self, connection: ServerConnection) -> None:
        client = _Client(connection)
        self._clients.add(client)
        self._unnamed.add(client)
        writing = asyncio.create_task(client.write())
        try:
            with suppress(ConnectionClosed):
                while True:
                    self._receive(client, await connection.recv(decode=False))
        finally:
            self._clients.discard(client)
            self._unnamed.discard(client)
            writing.cancel()
            for run in tuple(self._named.values()):
                if client in run.clients:
                    run.clients.discard(client)
                    if not run.clients:
                        run.abandon()

    async def close(self, server: Server) -> None:
        """Cancel the runs, and close the connections."""
        runs = [*self._named.values(), *([] if self._shared is None else [self._shared])]
        for run in runs:
            run.leave()
        tasks = [task for run in runs for task in run.tasks] + list(self._old)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            async with asyncio.timeout(_CLOSE_SECONDS * 2):
                await server.wait_closed()
        # The closing handshake has no timeout of its own if a client reads nothing.
        except TimeoutError:
            for client in self._clients:
                client.cut_off()
            await server.wait_closed()

    def _receive(self, client: _Client, frame: bytes) -> None:
        try:
            message = msgspec.json.decode(frame)
        except (msgspec.DecodeError, RecursionError):
            message = None
        match message:
            case {"type": "command", "run": str(name), "command": {"type": str()} as command} if 0 < len(name) <= _NAME:
                self._unnamed.discard(client)
                self._take(client, command, name)
            case {"type": "command", "command": {"type": str()} as command} if "run" not in message:
                self._take(client, command)
            case _ if not self._ignored:
                self._ignored = True
                _log.warning("a client of a runtime sent a frame without a command; such frames are ignored")
            case _:
                pass

    def _take(self, client: _Client, command: Command, name: str = "") -> None:
        kind = command["type"]
        try:
            run = self._run_of(client, command, name) if name else self._shared_for(command)
            run.take(command)
        except FlowError as error:
            _log.warning("the command %.20r of a client was refused: %s", kind, error)
        # Whatever a runtime raises, the client keeps its connection.
        except Exception:  # noqa: BLE001
            _log.exception("the command %.20r of a client failed", kind)
        else:
            return
        # The original has no such frame.
        client.send(_frame("refused", name, command=kind))

    def _shared_for(self, command: Command) -> _Run:
        """The runtime for clients that name no run; a `run` after its run is over makes a new one."""
        shared = self._shared
        if command["type"] == "run" and shared is not None:
            _read_input(command)
            if shared.status in ("running", "paused"):
                raise FlowError(f"The runtime is {shared.status}.", remedy="Abort its run first.")
            if shared.status != "idle":
                shared.leave()
                self._old |= shared.tasks
                for task in shared.tasks:
                    task.add_done_callback(self._old.discard)
                shared = None
        if shared is None:
            shared = self._shared = _Run(self._new_runtime(), self._unnamed)
        return shared

    def _new_runtime(self) -> Runtime:
        spare, self._spare = self._spare, None
        return self._make_runtime() if spare is None else spare

    def _run_of(self, client: _Client, command: Command, name: str) -> _Run:
        run = self._named.get(name)
        if command["type"] != "run":
            if run is None:
                raise FlowError("There is no such run.")
            run.clients.add(client)
            return run
        if run is not None:
            raise FlowError("There is such a run already.")
        _read_input(command)
        if len(self._named) >= _MAX_RUNS:
            left = (old for old, run in self._named.items() if run.status == "paused" and not run.clients)
            oldest = next(left, None)
            if oldest is None:
                raise FlowError("Too many runs are running.", remedy="Try again later.")
            self._forget(oldest)
        run = self._named[name] = _Run(self._new_runtime(), {client}, name, lambda: self._forget(name))
        return run

    def _forget(self, name: str) -> None:
        self._named.pop(name).leave()


def _read_input(command: Command) -> dict[str, Any] | None:
    value = command.get("input")
    if not isinstance(value, dict | None):
        raise FlowError("The input of a run is not an object.")
    return cast("dict[str, Any] | None", value)


def _frame(kind: str, run: str, **fields: Any) -> bytes:
    return msgspec.json.encode({"type": kind, **({"run": run} if run else {}), **fields})
