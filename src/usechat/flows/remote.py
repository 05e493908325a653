"""A runtime in another process, over the original's WebSocket.

Two state machines, one on top of the other. Everything runs in the thread of the event loop; the locks are asyncio's,
and only keep two calls of the same method apart.

`_Socket` is closed, open, or waiting to reconnect. One task, `_keeper`, owns the connection: it reads it, and when it
is lost it waits and connects again as long as `reconnects` is set. `connected` is true exactly while `_unsent`, the
queue of the writing task, is there. `open`, under the lock `_opening`, replaces the keeper; `leave` and `close` end it.
Whatever ends a connection, the keeper calls `on_lost` once for it.

`RemoteRuntime` knows its run only from events: `_run` is the snapshot that they add up to.

- `run` and `resume` are requests. `_asked` has the request until an event shows that it was accepted (`flow:start`,
  `flow:resumed`, or any end), the other side refuses it, or the call of `run` gives up after `start_timeout`. While a
  `run` is asked, events of the run before it are dropped.
- `_call` is the one call of `run` that waits (`_running` keeps others out): for `started`, then for `ended`.
- When the connection is lost, the other side repeats nothing. A run that was running or asked for is `aborted` here,
  listeners get `runtime:lost`, and `_call` fails. `_uncertain` is set until the next event about the flow or a node: if
  that is a node's event, the other side still has the run, and it is `running` again.
- The socket reconnects from the start of a run to its end, also while it is paused, and always after `connect`
  (`_stays`). When a run is over, the runtime leaves it, unless `_stays`.

An original serves one run to all of its sockets. For each such address, `_CLAIMS` has the one `RemoteRuntime` of this
process that may use it: from before its first request until its socket is closed and will not reconnect.
"""

import asyncio
import ipaddress
import logging
import secrets
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Literal, Self
from weakref import WeakValueDictionary

import msgspec
from msgspec import Struct
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidURI, WebSocketException
from websockets.uri import parse_uri

from usechat.errors import FlowError, RuntimeBusyError
from usechat.flows.scheduling import Command, Event, RunSnapshot, RunStatus
from usechat.flows.store import Listeners

__all__ = ["RUNS_HEADER", "RemoteRuntime", "pauses"]

_log = logging.getLogger("usechat")

RUNS_HEADER: Final = "x-usechat-runs"
"""The header of a server that tells runs apart by a field `run` in each frame."""

# A larger frame ends the connection. A larger event is dropped: no single output is worth a run.
_MAX_FRAME: Final = 64 * 1024 * 1024
_MAX_EVENT: Final = 4 * 1024 * 1024
_MAX_UNSENT: Final = 1000
_CLOSE_SECONDS: Final = 2.0

_COMMANDS: Final = ("send", "reply", "abort", "resume", "pause", "stop")
# An agent emits these after its run was paused or aborted.
_LAST_WORDS: Final = ("agent:paused", "agent:aborted")
_LOST: Final = "The connection to the remote runtime was lost, so the run was interrupted."
_NOT_STARTED: Final = "The remote runtime did not start."
_REFUSED: Final = "The remote runtime refused the command."
_BUSY: Final = "The remote runtime is busy with another run."

_CLAIMS: Final = WeakValueDictionary[str, "RemoteRuntime"]()


class _Asked(Struct, frozen=True):
    """A request that the other side has not accepted yet, and the status before it."""

    command: Literal["run", "resume"]
    before: RunStatus


class _Call:
    """A call of `run`. `halted` says that it was aborted, paused or stopped; then the timer `patience` ends it."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.halted = False
        self.patience: asyncio.TimerHandle | None = None
        self.started: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[RunSnapshot] = loop.create_future()

    def start(self) -> None:
        if not self.started.done():
            self.started.set_result(None)

    def end(self, snapshot: RunSnapshot) -> None:
        self.start()
        if not self.ended.done():
            self.ended.set_result(snapshot)

    def fail(self, error: FlowError) -> None:
        waits = self.ended if self.started.done() else self.started
        if not waits.done():
            waits.set_exception(error)


class RemoteRuntime:
    """The runtime that `url` (`ws://host:port/ws`) serves.

    It connects when you call `run`, and disconnects when that run is over. After `connect`, or as a context manager, it
    stays connected until `aclose`. It reconnects whenever the connection is lost, after `first_pause` seconds and then
    twice as long each time, up to `longest_pause`. The other side repeats nothing, so losing the connection during a
    run ends that run here: `run` raises, and the listeners get one `{"type": "runtime:lost"}`. If events of the run
    arrive after that, the listeners get them.

    Each run has an id of ours in the envelope, and events of other runs are dropped. An original has no such ids, and
    all of its sockets see the same run. In this process, one object at a time may be connected to an original: another
    one is refused until the run of the first is over, or, if that one stays connected, until it is closed.
    """

    def __init__(
        self, url: str, *, start_timeout: float = 10.0, first_pause: float = 0.25, longest_pause: float = 30.0
    ) -> None:
        """Prepare the runtime.

        Raises:
            FlowError: it is not the URL of a WebSocket.
        """
        self._socket = _Socket(url, self._receive, self._lost, first_pause, longest_pause)
        self._start_timeout = start_timeout
        self._listeners = Listeners()
        self._name = ""
        self._run = RunSnapshot(run_id=str(uuid.uuid4()))
        self._uncertain = True
        self._asked: _Asked | None = None
        self._call: _Call | None = None
        self._running = asyncio.Lock()
        self._ignored: set[str] = set()
        self._stays = False

    @property
    def connected(self) -> bool:
        return self._socket.connected

    @property
    def waiting(self) -> Sequence[str]:
        """Always empty: no event says that a node waits."""
        return ()

    async def connect(self) -> None:
        """Connect, and stay connected from now on.

        Raises:
            FlowError: the remote runtime cannot be reached, or is an original that is busy with another run. It does
                not try again.
        """
        await self._socket.open()
        try:
            self._claim()
        except FlowError:
            await self._socket.close()
            raise
        self._socket.reconnects = self._stays = True

    async def aclose(self) -> None:
        """Disconnect; an open run ends as if the connection were lost."""
        self._stays = False
        await self._socket.close()
        self._release()

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def on_event(self, listener: Callable[[Event], None]) -> Callable[[], None]:
        """Call the listener with each event from now on; the result removes it. Its errors are logged and ignored."""
        return self._listeners.add(listener)

    def snapshot(self) -> RunSnapshot:
        """What the events add up to: the status, and the statuses and outputs of nodes. The run id is ours."""
        return msgspec.convert(msgspec.to_builtins(self._run), RunSnapshot)

    async def run(self, input: Mapping[str, Any] | None = None) -> RunSnapshot:  # noqa: A002
        """Run until the flow is complete, paused or aborted.

        A paused run is resumed, and a running one is awaited; otherwise a new run starts with the input. The original's
        socket has no command that starts a run: ours, `{"type": "run", "input"}`, works with `serve_runtime`.

        Raises:
            FlowError: the remote runtime cannot be reached, is an original that is busy with another run, does not
                start, does not stop, or was lost.
        """
        async with self._running:
            self._call = call = _Call()
            try:
                await self._socket.open()
                self._claim()
                self._begin(input, call)
                await self._started(call)
                return await call.ended
            finally:
                self._call = None
                if call.patience is not None:
                    call.patience.cancel()
                if not call.ended.done():
                    self._unask()
                self._leave_if_over()

    def dispatch(self, command: Command) -> None:
        """Send a command. Only events show its effect.

        Raises:
            FlowError: there is no such command, it lacks its `runId`, or there is no connection or no run.
        """
        kind = command.get("type")
        if kind not in _COMMANDS:
            raise FlowError(f"There is no command {kind!r}.")
        if kind in ("send", "reply") and not command.get("runId"):
            raise FlowError("Runtime command missing runId.", remedy="Name the invocation of a node.")
        call = self._call
        if kind in ("abort", "pause", "stop") and call is not None:
            call.halted = True
            if call.patience is None:
                loop = asyncio.get_running_loop()
                call.patience = loop.call_later(self._start_timeout, self._interrupt, "did not stop its run in time")
            if not self.connected:
                return
        self._send(command)
        if kind == "resume" and self._run.status != "running":
            self._ask("resume")

    def _claim(self) -> None:
        """Claim the address for this object before its first request, unless the other side tells runs apart."""
        if not self._names_runs and _CLAIMS.setdefault(self._socket.address, self) is not self:
            raise RuntimeBusyError(_BUSY, remedy="Try again when that run is over.")

    def _release(self) -> None:
        if _CLAIMS.get(self._socket.address) is self:
            del _CLAIMS[self._socket.address]

    @property
    def _names_runs(self) -> bool:
        return self._socket.header(RUNS_HEADER) is not None

    def _begin(self, value: Mapping[str, Any] | None, call: _Call) -> None:
        if call.halted:
            raise FlowError("The run was stopped before it started.")
        self._socket.reconnects = True
        if self._run.status == "paused":
            self._send({"type": "resume"})
            self._ask("resume")
        elif self._run.status != "running":
            self._name = str(uuid.uuid4())
            self._send({"type": "run", "input": dict(value or {})})
            self._ask("run")

    def _ask(self, command: Literal["run", "resume"]) -> None:
        self._asked = _Asked(command, self._run.status)
        if command == "resume":
            self._run.status = "running"

    def _unask(self) -> None:
        if self._asked is not None:
            self._run.status = self._asked.before
            self._asked = None

    async def _started(self, call: _Call) -> None:
        if self._asked is None:
            call.start()
        try:
            async with asyncio.timeout(self._start_timeout):
                await call.started
        except TimeoutError:
            remedy = "If it is not a runtime of usechat, start the run on its side."
            raise FlowError(_NOT_STARTED, remedy=remedy) from None

    def _send(self, command: Command) -> None:
        if self._names_runs and not self._name:
            raise FlowError("There is no run yet.", remedy="Call run() first.")
        about = {"run": self._name} if self._names_runs else {}
        try:
            frame = msgspec.json.encode({"type": "command", **about, "command": command})
        except (TypeError, ValueError, RecursionError) as error:
            raise FlowError("The command cannot be written as JSON.", remedy="Send plain values.") from error
        self._socket.send(frame)

    def _receive(self, frame: bytes) -> None:
        if len(frame) > _MAX_EVENT:
            self._ignore("is too large")
            return
        try:
            message = msgspec.json.decode(frame)
        except (msgspec.DecodeError, RecursionError):
            self._ignore("is not JSON")
            return
        match message:
            case {"type": "event", "event": {"type": str()} as event}:
                if self._is_ours(message.get("run")) and not self._is_of_before(event["type"]):
                    self._take(event)
            case {"type": "refused", "command": str(command)}:
                if self._is_ours(message.get("run")):
                    self._take_refusal(command)
            case _:
                self._ignore("has no event")

    def _ignore(self, what: str) -> None:
        if what not in self._ignored:
            self._ignored.add(what)
            _log.warning("a frame of a remote runtime %s; it and others like it are ignored", what)

    def _is_ours(self, run: object) -> bool:
        """Whether a frame with this id of a run, or without an id from an original, is for us."""
        if self._names_runs:
            return run == self._name != ""
        return _CLAIMS.get(self._socket.address) is self

    def _is_of_before(self, kind: str) -> bool:
        """Whether the event belongs to another run than the one that was asked for."""
        asked = self._asked
        if asked is None or asked.command != "run" or kind == "flow:start":
            return False
        halted = self._call is not None and self._call.halted
        return not (halted and kind in ("flow:aborted", "flow:paused"))

    def _take_refusal(self, command: str) -> None:
        _log.warning("a remote runtime refused the command %.20r", command)
        if self._asked is not None and self._asked.command == command:
            self._unask()
            if self._call is not None:
                self._call.fail(FlowError(_REFUSED, remedy="It may be busy with another run. Try again later."))

    def _take(self, event: Event) -> None:
        """Change the snapshot, then the waiting call, then call the listeners."""
        call = self._call
        match event["type"]:
            case "flow:start" | "flow:resumed" as kind:
                if kind == "flow:start":
                    self._run = RunSnapshot(run_id=self._name or str(uuid.uuid4()))
                self._run.status = "running"
                self._asked, self._uncertain = None, False
                if call is not None:
                    call.start()
            case "flow:complete" | "flow:paused" | "flow:aborted" as kind:
                ends: dict[str, RunStatus] = {"flow:complete": "complete", "flow:paused": "paused"}
                self._run.status = ends.get(kind, "aborted")
                self._asked, self._uncertain = None, False
                if call is not None:
                    call.end(self.snapshot())
                else:
                    self._leave_if_over()
            case kind if kind not in _LAST_WORDS and isinstance(event.get("nodeId"), str):
                if self._uncertain:
                    self._run.status = "running"
                self._uncertain = False
                _update_node(self._run, event["nodeId"], event)
            case _:
                pass
        self._listeners.notify(event)

    def _lost(self) -> None:
        self._uncertain = True
        if self._run.status == "running" or self._asked is not None:
            self._interrupt("was lost in a run")
        if not self._socket.reconnects:
            self._release()

    def _interrupt(self, how: str) -> None:
        """End the run here, because this side can no longer follow it."""
        _log.warning("a remote runtime %s", how)
        self._asked = None
        self._run.status = "aborted"
        self._socket.reconnects = self._stays
        self._listeners.notify({"type": "runtime:lost"})
        if self._call is not None:
            self._call.fail(FlowError(_LOST, remedy="Start a new run."))

    def _leave_if_over(self) -> None:
        if not self._stays and self._run.status not in ("running", "paused"):
            self._socket.leave()


def _update_node(run: RunSnapshot, node_id: str, event: Event) -> None:
    match event["type"]:
        case "node:start":
            run.node_status[node_id] = "running"
        case "node:complete":
            run.node_status[node_id] = "done"
            run.outputs[node_id] = event.get("output")
        case "node:error":
            run.node_status[node_id] = "failed"
            run.outputs[node_id] = {"error": event.get("error")}
        case "node:skipped":
            run.node_status[node_id] = "done"
            run.outputs[node_id] = {"skipped": True, "reason": event.get("reason")}
        case _:
            pass


def pauses(first: float, longest: float) -> Iterator[float]:
    """The seconds to wait before each attempt: twice as long each time, with jitter."""
    pause = min(first, longest)
    while True:
        yield pause * secrets.SystemRandom().uniform(0.5, 1)
        pause = min(pause * 2, longest)


class _Socket:
    """One connection at a time. URLs of the same server and path have the same `address`."""

    def __init__(
        self,
        url: str,
        on_frame: Callable[[bytes], None],
        on_lost: Callable[[], None],
        first_pause: float,
        longest_pause: float,
    ) -> None:
        try:
            self.address = _address(url)
        except (InvalidURI, ValueError):
            # Without the URL and its cause, which may contain a password.
            raise FlowError("The URL of a remote runtime is wrong.", remedy="Write ws://host:port/ws.") from None
        self.reconnects = False
        self._url = url
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._first_pause = first_pause
        self._longest_pause = longest_pause
        self._opening = asyncio.Lock()
        self._unsent: asyncio.Queue[bytes] | None = None
        self._headers: Mapping[str, str] = {}
        self._keeper: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        return self._unsent is not None

    def header(self, name: str) -> str | None:
        """A header of the server's response to the last connection."""
        return self._headers.get(name)

    async def open(self) -> None:
        """Connect now, unless it is connected.

        Raises:
            FlowError: the server cannot be reached, or does not speak WebSocket.
        """
        async with self._opening:
            if self.connected:
                return
            # The old keeper may be waiting for its next attempt.
            await self._end_keeper()
            connection = None
            try:
                connection = await self._connect()
            finally:
                if connection is not None or self.reconnects:
                    self._keeper = asyncio.create_task(self._keep(connection))
            if connection is None:
                raise FlowError("The remote runtime cannot be reached.", remedy="Start it, or correct its URL.")
            # A task that is cancelled before its first step would not close the connection.
            await asyncio.sleep(0)

    def send(self, frame: bytes) -> None:
        """Send a frame after those before it.

        Raises:
            FlowError: there is no connection, or the other side has not read the last thousand frames.
        """
        if self._unsent is None:
            raise FlowError("The remote runtime is not connected.", remedy="Try again when it is.")
        try:
            self._unsent.put_nowait(frame)
        except asyncio.QueueFull:
            raise FlowError("The remote runtime reads no commands.", remedy="Try again later.") from None

    def leave(self) -> None:
        """Close the socket soon, and do not reconnect."""
        self.reconnects = False
        self._unsent = None
        if self._keeper is not None:
            # Not at once, since `on_frame` may have called this in the keeper itself.
            asyncio.get_running_loop().call_soon(self._keeper.cancel)

    async def close(self) -> None:
        self.reconnects = False
        async with self._opening:
            await self._end_keeper()

    async def _end_keeper(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])

    async def _connect(self) -> ClientConnection | None:
        try:
            return await connect(self._url, max_size=_MAX_FRAME, compression=None, close_timeout=_CLOSE_SECONDS)
        except (OSError, WebSocketException, UnicodeError) as error:
            _log.info("a remote runtime cannot be reached: %s", type(error).__name__)
            return None

    async def _keep(self, connection: ClientConnection | None) -> None:
        clock = asyncio.get_running_loop().time
        waits = pauses(self._first_pause, self._longest_pause)
        while True:
            if connection is not None:
                began = clock()
                await self._use(connection)
                # A connection that was lost at once counts as a failed attempt.
                if clock() - began >= self._longest_pause:
                    waits = pauses(self._first_pause, self._longest_pause)
            if not self.reconnects:
                return
            await asyncio.sleep(next(waits))
            connection = await self._connect()

    async def _use(self, connection: ClientConnection) -> None:
        self._headers = {} if connection.response is None else connection.response.headers
        self._unsent = unsent = asyncio.Queue[bytes](_MAX_UNSENT)
        writing = asyncio.create_task(_write(connection, unsent))
        try:
            while True:
                self._on_frame(await connection.recv(decode=False))
        except ConnectionClosed as closed:
            _log.info("the connection to a remote runtime was lost: %s", type(closed).__name__)
        finally:
            self._unsent = None
            writing.cancel()
            self._on_lost()
            await _close(connection)


def _address(url: str) -> str:
    uri = parse_uri(url)
    host = uri.host.casefold()
    with suppress(ValueError):
        host = "localhost" if ipaddress.ip_address(host).is_loopback else host
    return f"{host} {uri.port} {uri.path}"


async def _write(connection: ClientConnection, unsent: asyncio.Queue[bytes]) -> None:
    # The reader sees that the connection is closed, too.
    with suppress(ConnectionClosed):
        while True:
            await connection.send(await unsent.get(), text=True)


async def _close(connection: ClientConnection) -> None:
    try:
        async with asyncio.timeout(_CLOSE_SECONDS * 2):
            await connection.close()
    # The closing handshake has no timeout of its own if the other side reads nothing.
    except TimeoutError:
        connection.transport.abort()
