"""A runtime elsewhere, over the original's WebSocket."""

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, Self
from weakref import WeakValueDictionary

import msgspec
from msgspec import Struct

from usechat.errors import FlowError, RuntimeBusyError
from usechat.flows.envelope import HEADER, command_frame
from usechat.flows.listeners import Listeners
from usechat.flows.reconnecting import ReconnectingSocket
from usechat.flows.remote_call import Call
from usechat.flows.scheduling import Command, Event, RunSnapshot, RunStatus

__all__ = ["RemoteRuntime"]

_log = logging.getLogger("usechat")

_MAX_EVENT: Final = 4 * 1024 * 1024
_COMMANDS: Final = ("send", "reply", "abort", "resume", "pause", "stop")
_LAST_WORDS: Final = ("agent:paused", "agent:aborted")
_LOST: Final = "The connection to the remote runtime was lost, so the run was interrupted."
_NOT_STARTED: Final = "The remote runtime did not start."
_REFUSED: Final = "The remote runtime did not take the command."
_BUSY: Final = "The remote runtime is at work for another run."


# Who uses a runtime that does not tell one run from another, by its address.
_CLAIMS: Final = WeakValueDictionary[str, "RemoteRuntime"]()


class _Asked(Struct, frozen=True):
    """What the other side was asked for and has not begun yet."""

    command: Literal["run", "resume"]
    before: RunStatus


class RemoteRuntime:
    """The runtime that `url` (`ws://host:port/ws`) serves, as far as its events tell of it.

    It connects when it is run, and leaves when that run is over. After `connect`, or as a context manager, it is there
    until `aclose`, and connects again whenever the connection is lost, after `first_pause` seconds and then twice as
    long each time, up to `longest_pause`. The other side repeats nothing, so a connection that is lost in a run is the
    end of that run here: `run` raises, and the listeners get one `{"type": "runtime:lost"}`. If it goes on elsewhere
    and tells so, they hear of it again.

    Each run has an id of ours in the envelope, and what is told of others is not heard. An original knows no such id,
    and all of its sockets see the same run. In this process, one object at a time may be connected to it: another one
    is refused until the run of the first is over, or, if that one stays connected, until it is closed.
    """

    def __init__(
        self, url: str, *, start_timeout: float = 10.0, first_pause: float = 0.25, longest_pause: float = 30.0
    ) -> None:
        """Prepare the runtime.

        Raises:
            FlowError: the URL is not one of a WebSocket.
        """
        self._socket = ReconnectingSocket(
            url, hear=self._hear, lost=self._lose, first_pause=first_pause, longest_pause=longest_pause
        )
        self._start_timeout = start_timeout
        self._listeners = Listeners()
        self._name = ""
        self._run = RunSnapshot(run_id=str(uuid.uuid4()))
        self._unsure = True
        self._asked: _Asked | None = None
        self._call: Call | None = None
        self._one_at_a_time = asyncio.Lock()
        self._ignored: set[str] = set()
        self._stays = False

    @property
    def connected(self) -> bool:
        return self._socket.connected

    @property
    def waiting(self) -> Sequence[str]:
        """Always empty: no event tells that a node waits."""
        return ()

    async def connect(self) -> None:
        """Connect, and stay connected from now on.

        Raises:
            FlowError: the remote runtime cannot be reached, or is an original that another run has. Nothing is tried
                again then.
        """
        await self._socket.open()
        try:
            self._claim()
        except FlowError:
            await self._socket.close()
            raise
        self._socket.lasting = self._stays = True

    async def aclose(self) -> None:
        """Leave; a run that is open here ends as if the connection were lost."""
        self._stays = False
        await self._socket.close()
        self._release()

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def on_event(self, listener: Callable[[Event], None]) -> Callable[[], None]:
        """Give the listener each event from now on; the result ends that. One that raises is logged and ignored."""
        return self._listeners.add(listener)

    def snapshot(self) -> RunSnapshot:
        """What the events have told: the status, and the statuses and outputs of nodes; the run id is made up here."""
        return msgspec.convert(msgspec.to_builtins(self._run), RunSnapshot)

    async def run(self, input: Mapping[str, Any] | None = None) -> RunSnapshot:  # noqa: A002
        """Run until the flow is complete, paused or aborted.

        A run that is paused goes on, and one that runs is waited for; else a new one is started with the input. The
        original's socket has no command for that: ours, `{"type": "run", "input"}`, is one that `serve_runtime` knows.

        Raises:
            FlowError: the remote runtime cannot be reached, is an original that another run has, does not start, does
                not stop, or was lost.
        """
        async with self._one_at_a_time:
            self._call = call = Call()
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
        """Send a command. What comes of it only the events tell.

        Raises:
            FlowError: there is no such command, it lacks its `runId`, or there is no connection or no run.
        """
        kind = command.get("type")
        if kind not in _COMMANDS:
            raise FlowError(f"There is no command {kind!r}.")
        if kind in ("send", "reply") and not command.get("runId"):
            raise FlowError("Runtime command missing runId.", remedy="Name the invocation of a node.")
        if kind in ("abort", "pause", "stop") and self._call is not None:
            self._halt(self._call)
            if not self.connected:
                return
        self._send(command)
        if kind == "resume" and self._run.status != "running":
            self._ask("resume")

    def _claim(self) -> None:
        """Take the address for this object alone, before anything is asked, unless the other side tells runs apart."""
        if not self._names_runs and _CLAIMS.setdefault(self._socket.address, self) is not self:
            raise RuntimeBusyError(_BUSY, remedy="Try again when that is over.")

    def _release(self) -> None:
        if _CLAIMS.get(self._socket.address) is self:
            del _CLAIMS[self._socket.address]

    @property
    def _names_runs(self) -> bool:
        return self._socket.header(HEADER) is not None

    def _is_ours(self, run: object) -> bool:
        """Whether a frame about this run, or of a runtime that names none, is for us."""
        if self._names_runs:
            return run == self._name != ""
        return _CLAIMS.get(self._socket.address) is self

    def _halt(self, call: Call) -> None:
        call.halted = True
        if call.patience is None:
            loop = asyncio.get_running_loop()
            call.patience = loop.call_later(self._start_timeout, self._interrupt, "did not stop its run in time")

    def _begin(self, value: Mapping[str, Any] | None, call: Call) -> None:
        if call.halted:
            raise FlowError("The run was stopped before it started.")
        self._socket.lasting = True
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

    async def _started(self, call: Call) -> None:
        if self._asked is None:
            call.start()
        try:
            async with asyncio.timeout(self._start_timeout):
                await call.started
        except TimeoutError:
            remedy = "Start the run where the runtime is, if it is not one of usechat."
            raise FlowError(_NOT_STARTED, remedy=remedy) from None

    def _unask(self) -> None:
        if self._asked is not None:
            self._run.status = self._asked.before
            self._asked = None

    def _send(self, command: Command) -> None:
        if self._names_runs and not self._name:
            raise FlowError("There is no run yet.", remedy="Run it before.")
        try:
            frame = command_frame(command, self._name if self._names_runs else "")
        except (TypeError, ValueError, RecursionError) as error:
            raise FlowError("The command cannot be written as JSON.", remedy="Send plain values.") from error
        self._socket.send(frame)

    def _hear(self, frame: bytes) -> None:
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
                if self._is_ours(message.get("run")):
                    self._take(event)
            case {"type": "refused", "command": str(command)}:
                if self._is_ours(message.get("run")):
                    self._hear_refusal(command)
            case _:
                self._ignore("has no event")

    def _ignore(self, what: str) -> None:
        if what not in self._ignored:
            self._ignored.add(what)
            _log.warning("a frame of a remote runtime %s; it and others like it are ignored", what)

    def _hear_refusal(self, command: str) -> None:
        _log.warning("a remote runtime refused the command %.20r", command)
        if self._asked is not None and self._asked.command == command:
            self._unask()
            if self._call is not None:
                self._call.fail(FlowError(_REFUSED, remedy="It may be busy with another run."))

    def _take(self, event: Event) -> None:
        if self._is_of_before(event["type"]):
            return
        self._note(event)
        self._advance(event["type"])
        self._listeners.tell(event)

    def _is_of_before(self, kind: str) -> bool:
        """Whether the event belongs to another run than the one that was asked for."""
        asked = self._asked
        if asked is None or asked.command != "run" or kind == "flow:start":
            return False
        halted = self._call is not None and self._call.halted
        return not (halted and kind in ("flow:aborted", "flow:paused"))

    def _advance(self, kind: str) -> None:
        match kind:
            case "flow:start" | "flow:resumed":
                self._asked = None
                if self._call is not None:
                    self._call.start()
            case "flow:complete" | "flow:paused" | "flow:aborted":
                self._asked = None
                if self._call is not None:
                    self._call.end(self.snapshot())
                else:
                    self._leave_if_over()
            case _:
                pass

    def _note(self, event: Event) -> None:
        run = self._run
        match event:
            case {"type": "flow:start"}:
                self._run = RunSnapshot(run_id=self._name or str(uuid.uuid4()), status="running")
            case {"type": "flow:resumed"}:
                run.status = "running"
            case {"type": "flow:paused"}:
                run.status = "paused"
            case {"type": "flow:aborted"}:
                run.status = "aborted"
            case {"type": "flow:complete"}:
                run.status = "complete"
            case {"type": str(kind), "nodeId": str(node_id)} if kind not in _LAST_WORDS:
                if self._unsure:
                    run.status = "running"
                _note_node(run, node_id, event)
            case _:
                return
        self._unsure = False

    def _lose(self) -> None:
        self._unsure = True
        if self._run.status == "running" or self._asked is not None:
            self._interrupt("was lost in a run")
        if not self._socket.lasting:
            self._release()

    def _interrupt(self, how: str) -> None:
        """End the run here: as far as anybody here can know, it will not be finished."""
        _log.warning("a remote runtime %s", how)
        self._asked = None
        self._run.status = "aborted"
        self._socket.lasting = self._stays
        self._listeners.tell({"type": "runtime:lost"})
        if self._call is not None:
            self._call.fail(FlowError(_LOST, remedy="Start a new run."))

    def _leave_if_over(self) -> None:
        if not self._stays and self._run.status not in ("running", "paused"):
            self._socket.leave()


def _note_node(run: RunSnapshot, node_id: str, event: Event) -> None:
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
