"""Open Harness flows: a message runs the flow, wakes it or goes to the node that waits for it."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeAlias, TypeGuard, runtime_checkable

from usechat.agents import CountsUnused
from usechat.agents.chat import Chat
from usechat.agents.pushed import Pushed
from usechat.errors import AgentError, FlowError
from usechat.protocol.messages import UIMessage
from usechat.protocol.writer import MessageWriter
from usechat.sources.open_harness import OpenHarnessMapper, TransportOptions
from usechat.turns.pump import Unused

__all__ = ["OpenHarnessAgent", "Runtime", "RuntimeMaker", "is_runtime"]

_Event: TypeAlias = dict[str, Any]
_Key: TypeAlias = tuple[str, str]

_log = logging.getLogger("usechat")

_OPTIONS: Final = TransportOptions()
_OVER: Final = ("complete", "aborted")
# With one of these events a message may end while the runtime goes on.
_ENDS: Final = {f"{who}:{how}" for who in ("flow", "agent") for how in ("complete", "paused", "aborted")}
# How long a flow that was aborted may take to end.
_WIND_DOWN: Final = 1.0


class _Snapshot(Protocol):
    @property
    def status(self) -> str: ...


class Runtime(Protocol):
    """One run of a flow, here or elsewhere. Events and commands are Open Harness's, as JSON-shaped dicts.

    A runtime may also have `unused` and `room`, which are set to a counter of events that could not be used and to a
    function that waits until its events were shown, and `async aclose()`, for when it is not needed any more.
    """

    async def run(self, input: Mapping[str, Any] | None = None) -> _Snapshot:  # noqa: A002
        """Run until the flow is complete, paused or aborted; a paused run goes on.

        Raises:
            FlowError: the run is over already, or the flow cannot go on.
        """
        ...

    def dispatch(self, command: dict[str, Any]) -> None:
        """Take a command: `send`, `reply`, `abort`, `resume`, `pause` or `stop`.

        Raises:
            FlowError: the command is not one, or cannot be taken.
        """
        ...

    def on_event(self, listener: Callable[[dict[str, Any]], None]) -> Callable[[], None]:
        """Give the listener each event from now on; the result ends that."""
        ...

    def snapshot(self) -> _Snapshot:
        """What the run is now; its `status` is `idle`, `running`, `paused`, `aborted` or `complete`."""
        ...

    @property
    def waiting(self) -> Sequence[str]:
        """The run ids of the nodes that wait for a message, in the order of their start, as far as that is known."""
        ...


RuntimeMaker: TypeAlias = Callable[[], Runtime]


@runtime_checkable
class _WaitsForRoom(Protocol):
    room: Callable[[], Awaitable[None]] | None


def is_runtime(thing: object) -> TypeGuard[Runtime]:
    names = ("run", "dispatch", "on_event", "snapshot")
    return not isinstance(thing, type) and all(callable(getattr(thing, name, None)) for name in names)


class OpenHarnessAgent:
    """Drives the runtimes of chats, which outlive their turns.

    `runtime` is a function that makes a new one for each run, or a single runtime for a single run. `unused` is the
    counter that the runtimes share with whoever moves the events.
    """

    def __init__(self, runtime: Runtime | RuntimeMaker, options: TransportOptions = _OPTIONS) -> None:
        self.unused = Unused()
        self._runtime = runtime
        self._options = options
        # By the user as well, since a server that keeps no chats lets two users choose the same id.
        self._runs: dict[_Key, _FlowRun] = {}

    def mapper(self, writer: MessageWriter) -> OpenHarnessMapper:
        return OpenHarnessMapper(writer, self._options)

    async def events(self, chat: Chat) -> AsyncGenerator[_Event, None]:
        """Give the runtime the last message, if it is the user's, and follow the run to its end or its next pause.

        Raises:
            AgentError: the runtime cannot take the message or go on.
        """
        key: _Key = (chat.user or "", chat.id)
        last = None
        try:
            run = await self._run_for(key, chat)
            if run is None:
                chat.write.finish()
                return
            async for event in await run.show(chat):
                last = event.get("type")
                yield event
        except asyncio.CancelledError:
            self._stop(key, chat)
            raise
        except GeneratorExit:
            # Unless the last event has ended the message, a stop, a limit of the turn or a failure did.
            if chat.stopping.is_set() or last not in _ENDS:
                self._stop(key, chat)
            raise
        finally:
            if key in self._runs:
                self._runs[key].hide()
                self._drop_if_over(key, self._runs[key])

    async def aclose(self, grace: float) -> None:
        """Give the flows that still run `grace` seconds, then abort them; a flow that is paused is let go as it is."""
        runs = list(self._runs.values())
        await _ended(runs, grace)
        for run in runs:
            if run.status == "running":
                run.abort()
        await _ended(runs, _WIND_DOWN)
        for key, run in list(self._runs.items()):
            self._drop(key, run)
        if callable(self._runtime):
            await asyncio.gather(*(run.aclose() for run in runs))

    def _stop(self, key: _Key, chat: Chat) -> None:
        # A newer message of the same chat goes on with the run that it finds.
        if chat.stopped != "replaced" and key in self._runs:
            self._runs[key].abort()

    async def _run_for(self, key: _Key, chat: Chat) -> "_FlowRun | None":
        """The run that takes the turn; None if there is nothing to do."""
        anew = chat.trigger == "regenerate-message"
        if _prompt(chat) is None:
            if anew:
                raise AgentError("There is no message to answer.")
            return self._runs.get(key)
        messages = await chat.history()
        run = self._runs.get(key)
        if run is not None and not self._drop_if_over(key, run):
            if not anew and run.precedes(messages):
                return run
            if not callable(self._runtime):
                raise AgentError("This runtime runs only once, so it cannot answer again.")
            run.abort()
            self._drop(key, run)
        return self._begin(key)

    def _begin(self, key: _Key) -> "_FlowRun":
        if not callable(self._runtime) and self._runs:
            raise AgentError("The runtime is at work for another chat.")
        runtime = self._runtime() if callable(self._runtime) else self._runtime
        run = self._runs[key] = _FlowRun(runtime, partial(self._drop_if_over, key))
        if isinstance(runtime, CountsUnused):
            runtime.unused = self.unused
        if isinstance(runtime, _WaitsForRoom):
            runtime.room = run.room
        return run

    def _drop_if_over(self, key: _Key, run: "_FlowRun") -> bool:
        is_over = run.is_over
        if is_over:
            self._drop(key, run)
        return is_over

    def _drop(self, key: _Key, run: "_FlowRun") -> None:
        if self._runs.get(key) is run:
            del self._runs[key]
            run.leave()


class _FlowRun:
    """A runtime at work for a chat; at any time one turn, or none, is shown what it does."""

    def __init__(self, runtime: Runtime, on_end: Callable[["_FlowRun"], object]) -> None:
        self._runtime = runtime
        self._on_end = on_end
        self._prompted = ""
        self._flow_name = ""
        self._agents: dict[str, None] = {}
        self._shown: Pushed[_Event] | None = None
        self.task: asyncio.Task[BaseException | None] | None = None
        self.leave = runtime.on_event(self._hear)

    @property
    def status(self) -> str:
        return self._runtime.snapshot().status

    @property
    def is_over(self) -> bool:
        """Whether nothing more can come: the run has ended, or whatever ran it has, or it was never begun."""
        status = self.status
        if self.task is None:
            return status in (*_OVER, "idle")
        return status in _OVER or (status == "running" and self.task.done())

    def precedes(self, messages: Sequence[UIMessage]) -> bool:
        """Whether the last message follows the one that the run was prompted with, which an edit takes away."""
        return any(message.id == self._prompted for message in messages[:-1])

    async def show(self, chat: Chat) -> Pushed[_Event]:
        """Prompt the run, and give what happens from now on, with what the run fails with at its end."""
        prompt = _prompt(chat)
        if prompt is not None and self.status == "paused" and self.task is not None:
            # A run says that it is paused before its nodes have stopped.
            await asyncio.wait([self.task])
        self._shown = shown = Pushed[_Event]()
        if self.status == "running":
            # The mapper cannot know of a flow that began before it.
            shown.push({"type": "flow:resumed", "flowName": self._flow_name})
        if prompt is not None:
            self._give(prompt, chat.messages)
        return shown

    def hide(self, error: BaseException | None = None) -> None:
        """Let the turn end, with this error if it is one."""
        shown, self._shown = self._shown, None
        if shown is not None:
            shown.end(error)

    async def room(self) -> None:
        """Wait until the turn has taken most of what it is shown."""
        if self._shown is not None:
            await self._shown.room()

    def abort(self) -> None:
        try:
            self._runtime.dispatch({"type": "abort", "resumable": False})
        # The turn is over in any case.
        except Exception:  # noqa: BLE001
            _log.exception("a runtime could not be aborted")

    async def aclose(self) -> None:
        close: Callable[[], Any] | None = getattr(self._runtime, "aclose", None)
        if close is not None:
            await close()

    def _give(self, message: UIMessage, messages: Sequence[UIMessage]) -> None:
        """Give the runtime the message in the way that its status asks for."""
        text = message.text
        if not text:
            raise AgentError("The message has no text.")
        match self.status:
            case "idle":
                said = [{"role": one.role, "text": one.text} for one in messages]
                self._start({"message": text, "messages": said})
            case "paused":
                self._dispatch({"type": "resume", "message": text})
                self._start(None)
            case "running":
                self._dispatch({"type": "send", "message": text, "runId": self._inbox()})
            case _:
                raise AgentError("The run has ended, so it takes no more messages.")
        self._prompted = message.id

    def _start(self, given: dict[str, Any] | None) -> None:
        self.task = asyncio.create_task(_run(self._runtime, given))
        self.task.add_done_callback(self._ran)

    def _ran(self, task: asyncio.Task[BaseException | None]) -> None:
        error = FlowError("The run was cancelled.") if task.cancelled() else task.result()
        if error is not None and not task.cancelled():
            # What the user reads of it says nothing, and the turn may be gone.
            _log.error("the run of a flow failed", exc_info=error)
        if isinstance(error, FlowError):
            error = AgentError("The runtime could not run the flow.")
        self.hide(error)
        self._on_end(self)

    def _dispatch(self, command: dict[str, Any]) -> None:
        try:
            self._runtime.dispatch(command)
        # A runtime of somebody else may raise anything, and none of it is for the user.
        except Exception as error:
            raise AgentError("The runtime did not take the message.") from error

    def _inbox(self) -> str:
        waiting = self._runtime.waiting
        if waiting:
            return waiting[-1]
        if not self._agents:
            raise AgentError("The flow is running, but no node of it takes messages now.")
        return next(reversed(self._agents))

    def _hear(self, event: _Event) -> None:
        self._note(event)
        if event.get("type") == "runtime:lost":
            self.hide()
        elif self._shown is not None and not self._shown.push(event):
            self.hide(AgentError("The flow said more than could be shown."))
            self.abort()

    def _note(self, event: _Event) -> None:
        run_id = event.get("runId", "")
        match event.get("type"):
            case "flow:start":
                self._flow_name = event.get("flowName", "")
            case "agent:start":
                self._agents.pop(run_id, None)
                self._agents[run_id] = None
            case "agent:complete" | "node:complete" | "node:error":
                self._agents.pop(run_id, None)
            case _:
                pass


def _prompt(chat: Chat) -> UIMessage | None:
    """The message to give to the runtime; None if the turn is only to follow the run."""
    return chat.messages[-1] if chat.messages and chat.messages[-1].role == "user" else None


async def _run(runtime: Runtime, given: dict[str, Any] | None) -> BaseException | None:
    try:
        await runtime.run(given)
    except asyncio.CancelledError:
        raise
    # A runtime of somebody else may raise anything, also to leave the process.
    except BaseException as error:  # noqa: BLE001
        return error
    return None


async def _ended(runs: Sequence[_FlowRun], within: float) -> None:
    tasks = [run.task for run in runs if run.task is not None]
    if tasks:
        await asyncio.wait(tasks, timeout=within)
