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
from usechat.flows.envelope import HEADER, event_frame, refusal_frame
from usechat.flows.scheduling import Command, Event

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
    envelope, as `RemoteRuntime` gives it, only those who name the id hear and command the run; when none of them is
    left, a run that is not paused is aborted. All sockets that give no id hear and command one runtime, as in the
    original, and `run` makes a new one of it when the run before is over. Whoever reaches the port may do all that, so
    it is for this machine only unless something else guards it. Pages of browsers are refused, except those of the
    `origins`.

    Raises:
        FlowError: the runtime cannot be made.
        OSError: the port is taken.
    """
    served = _Served(make_runtime)

    def check_path(connection: ServerConnection, request: Request) -> Response | None:
        return None if request.path.partition("?")[0] == path else connection.respond(404, "There is nothing here.\n")

    def tell_of_runs(_connection: ServerConnection, _request: Request, response: Response) -> None:
        response.headers[HEADER] = "1"

    server = await serve(
        served.attend,
        host,
        port,
        process_request=check_path,
        process_response=tell_of_runs,
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


class _Run:
    """A runtime at work, and the clients that hear it; `name` is the id that they gave its run."""

    def __init__(
        self, runtime: Runtime, clients: set[_Client], name: str = "", ended: Callable[[], None] | None = None
    ):
        self.runtime = runtime
        self.clients = clients
        self.tasks: set[asyncio.Task[None]] = set()
        self._name = name
        self._ended = ended
        self._flow_name = ""
        self._is_open = False
        self.leave = runtime.on_event(self._tell)

    @property
    def status(self) -> str:
        return self.runtime.snapshot().status

    def take(self, command: Command) -> None:
        """Do what a command asks for.

        Raises:
            FlowError: it cannot be done.
        """
        match command:
            case {"type": "run"}:
                self._go(_read_input(command))
            case {"type": "resume"}:
                if self.status == "running":
                    raise FlowError("The runtime is running.", remedy="Resume it when it is paused.")
                self.runtime.dispatch(command)
                # The original leaves it to whoever dispatched the command.
                self._go(None)
            case _:
                self.runtime.dispatch(command)

    def abandon(self) -> None:
        """Abort the run, since nobody hears it any more and nobody will."""
        if self.status == "running":
            try:
                self.runtime.dispatch({"type": "abort", "resumable": False})
            # A runtime of somebody else may raise anything.
            except Exception:  # noqa: BLE001
                _log.exception("a run that nobody hears could not be aborted")

    def _go(self, value: dict[str, Any] | None) -> None:
        task = asyncio.create_task(self._drive(value))
        self.tasks.add(task)
        task.add_done_callback(self._ran)

    def _ran(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not self.tasks and self._ended is not None and self.status != "paused":
            self._ended()

    async def _drive(self, value: dict[str, Any] | None) -> None:
        try:
            await self.runtime.run(value)
        # The clients have nothing but events to know it by, and whatever it was is not for them.
        except Exception:  # noqa: BLE001
            _log.exception("a run for others failed")
            if self._is_open:
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
        frame = event_frame(event, self._name)
        for client in tuple(self.clients):
            client.tell(frame)
        if event["type"] == "flow:aborted" and not self.tasks and self._ended is not None:
            # It was paused, so nothing of it is left to end.
            self._ended()


class _Served:
    """The runs that have an id, the one runtime for all clients that give none, and the clients."""

    def __init__(self, make_runtime: Callable[[], Runtime]) -> None:
        self._make_runtime = make_runtime
        # Made before it is needed, to see that it can be.
        self._spare: Runtime | None = make_runtime()
        self._clients: set[_Client] = set()
        # Those that have named no run, as the original's clients.
        self._unnamed: set[_Client] = set()
        self._shared: _Run | None = None
        self._named: dict[str, _Run] = {}
        self._old: set[asyncio.Task[None]] = set()
        self._ignored = False

    async def attend(self, connection: ServerConnection) -> None:
        client = _Client(connection)
        self._clients.add(client)
        self._unnamed.add(client)
        writing = asyncio.create_task(_until_closed(client))
        try:
            with suppress(ConnectionClosed):
                while True:
                    self._hear(client, await connection.recv(decode=False))
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
        """End what runs, and see the clients off."""
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
        # The closing handshake has no end of its own if a client takes nothing.
        except TimeoutError:
            for client in self._clients:
                client.cut_off()
            await server.wait_closed()

    def _hear(self, client: _Client, frame: bytes) -> None:
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
        # Whatever a runtime raises must not cost the client its connection.
        except Exception:  # noqa: BLE001
            _log.exception("the command %.20r of a client failed", kind)
        else:
            return
        client.tell(refusal_frame(kind, name))

    def _shared_for(self, command: Command) -> _Run:
        """The runtime for those who name no run; to run it when its run is over takes a new one."""
        shared = self._shared
        if command["type"] == "run" and shared is not None:
            _read_input(command)
            if shared.status in ("running", "paused"):
                raise FlowError(f"The runtime is {shared.status}.", remedy="Abort its run before.")
            if shared.status != "idle":
                shared.leave()
                self._keep(shared.tasks)
                shared = None
        if shared is None:
            shared = self._shared = _Run(self._new_runtime(), self._unnamed)
        return shared

    def _new_runtime(self) -> Runtime:
        spare, self._spare = self._spare, None
        return self._make_runtime() if spare is None else spare

    def _keep(self, tasks: set[asyncio.Task[None]]) -> None:
        self._old |= tasks
        for task in tasks:
            task.add_done_callback(self._old.discard)

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
        self._make_room()
        run = self._named[name] = _Run(self._new_runtime(), {client}, name, lambda: self._forget(name))
        return run

    def _make_room(self) -> None:
        if len(self._named) < _MAX_RUNS:
            return
        # Whoever paused it may come back, but not for ever.
        left = (name for name, run in self._named.items() if run.status == "paused" and not run.clients)
        name = next(left, None)
        if name is None:
            raise FlowError("Too many runs are running.", remedy="Try again later.")
        self._forget(name)

    def _forget(self, name: str) -> None:
        self._named.pop(name).leave()


def _read_input(command: Command) -> dict[str, Any] | None:
    value = command.get("input")
    if not isinstance(value, dict | None):
        raise FlowError("The input of a run is not an object.")
    return cast("dict[str, Any] | None", value)


async def _until_closed(client: _Client) -> None:
    # The reader finds that it is closed, too.
    with suppress(ConnectionClosed):
        await client.write()
