"""A run of a flow in a chat.

A run outlives the turns of its chat, which come one at a time. Everything here runs in the thread of the event loop.

- `task` is the call of `runtime.run`. It ends when the run is paused or over. The runtime emits `flow:paused` before
  its nodes have stopped, so `show` waits for the task before it resumes the run.
- `status` is the runtime's, with one exception: a stored run that is `running` has lost its process. It counts as
  paused until `_start` (`_interrupted`).
- `_shown` is the queue of the current turn, if there is one. `show` opens it and gives the run the turn's message: an
  idle run starts with it, a paused run is resumed with it, and a running one sends it to a node. `hide` ends the queue:
  the turn is over, the task has ended, the connection to a remote runtime is lost, or 10,000 events are unread.
"""

import asyncio
import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol, TypeAlias, TypeGuard

from usechat.errors import AgentError, FlowError, RuntimeBusyError
from usechat.integrations.event_queue import EventQueue
from usechat.protocol.messages import UIMessage
from usechat.turns.chat import Chat

__all__ = ["FlowRun", "Runtime", "is_runtime", "prompt_of"]

_Event: TypeAlias = dict[str, Any]

_log = logging.getLogger("usechat")

_OVER: Final = ("complete", "aborted")
_BUSY: Final = "The runtime is busy with another chat."
# How long closing a runtime may take.
_CLOSE_SECONDS: Final = 5.0
# The `id` of each runtime that has a chat, which is unique because each of them is alive.
_IN_USE: Final = set[int]()


class _Snapshot(Protocol):
    @property
    def run_id(self) -> str: ...

    @property
    def status(self) -> str: ...


class Runtime(Protocol):
    """One run of a flow, in this process or another. Events and commands are Open Harness's, as JSON-shaped dicts.

    A runtime may also have:

    - `unused`, which the agent sets to a counter of events that could not be mapped
    - `drain`, which the agent sets to a function that waits until the page has read most events
    - `async load()`, for a stored run
    - `async aclose()`, which the agent calls when the run is over
    """

    async def run(self, input: Mapping[str, Any] | None = None) -> _Snapshot:  # noqa: A002
        """Run until the flow is complete, paused or aborted; a paused run continues.

        Raises:
            FlowError: the run is over already, or the flow cannot go on.
        """
        ...

    def dispatch(self, command: dict[str, Any]) -> None:
        """Execute a command: `send`, `reply`, `abort`, `resume`, `pause` or `stop`.

        Raises:
            FlowError: there is no such command, or the run refuses it.
        """
        ...

    def on_event(self, listener: Callable[[dict[str, Any]], None]) -> Callable[[], None]:
        """Call the listener with each event from now on; the result removes it."""
        ...

    def snapshot(self) -> _Snapshot:
        """The state of the run; its `status` is `idle`, `running`, `paused`, `aborted` or `complete`."""
        ...

    @property
    def waiting(self) -> Sequence[str]:
        """The run ids of the nodes that are known to wait for a message, in the order of their start."""
        ...


def is_runtime(thing: object) -> TypeGuard[Runtime]:
    names = ("run", "dispatch", "on_event", "snapshot")
    return not isinstance(thing, type) and all(callable(getattr(thing, name, None)) for name in names)


class FlowRun:
    """The run of a chat, and the turn that shows it, if there is one.

    `prompted` is the id of the last message that a stored run got. The agent sets `in_turn` during a turn.
    """

    def __init__(self, runtime: Runtime, on_end: Callable[["FlowRun"], object], prompted: str | None = None) -> None:
        """Take the runtime.

        Raises:
            AgentError: it is busy with another chat.
        """
        if id(runtime) in _IN_USE:
            _log.error(
                "a runtime that is busy with one chat was refused to another: give OpenHarnessChatTransport a function "
                "that makes a new runtime each time"
            )
            raise AgentError(_BUSY)
        self.task: asyncio.Task[BaseException | None] | None = None
        self.in_turn = False
        self._runtime = runtime
        self._on_end = on_end
        self._prompted = prompted
        self._interrupted = prompted is not None
        self.flow_name = ""
        self._agents: dict[str, None] = {}
        # How many characters of its open block each node has said, by run id and kind, and how many of them before this
        # turn. A mapper cannot know this, because it has only one message.
        self._said: dict[tuple[str, str], int] = {}
        self._before: dict[tuple[str, str], int] = {}
        self._shown: EventQueue[_Event] | None = None
        self._ended = asyncio.Event()
        self._unsubscribe = runtime.on_event(self._on_event)
        _IN_USE.add(id(runtime))
        # Also without `leave`, when the event loop is gone.
        self._release = weakref.finalize(self, _IN_USE.discard, id(runtime))

    def leave(self) -> None:
        """Release the runtime for another chat."""
        self._unsubscribe()
        self._release()

    @property
    def id(self) -> str:
        return self._runtime.snapshot().run_id

    @property
    def status(self) -> str:
        status = self._runtime.snapshot().status
        return "paused" if self._interrupted and status == "running" else status

    @property
    def has_stopped(self) -> bool:
        """Whether nothing runs, so that everything is stored unless the store failed."""
        return self.task is None or self.task.done()

    @property
    def is_parked(self) -> bool:
        """Whether it is paused, can be loaded from its store again, and has no turn."""
        if self.status != "paused" or self.in_turn or not self.has_stopped or not hasattr(self._runtime, "load"):
            return False
        return self.task is None or (not self.task.cancelled() and self.task.result() is None)

    @property
    def takes_messages(self) -> bool:
        """Whether it runs, and one of its nodes would get a message."""
        return self.status == "running" and bool(self._runtime.waiting or self._agents)

    @property
    def awaits_message(self) -> bool:
        """Whether it runs, and one of its nodes waits for a message."""
        return self.status == "running" and bool(self._runtime.waiting)

    @property
    def is_over(self) -> bool:
        """Whether no more events can come: the run or its task has ended, or the run was never started."""
        status = self.status
        if self.task is None:
            return status in (*_OVER, "idle")
        return status in _OVER or (status == "running" and self.task.done())

    def precedes(self, messages: Sequence[UIMessage]) -> bool:
        """Whether the chat still has the message that prompted the run, which an edit removes."""
        return any(message.id == self._prompted for message in messages[:-1])

    async def show(self, chat: Chat) -> EventQueue[_Event]:
        """Give the run the turn's message, and return its events from now on; the queue ends with the run's error."""
        prompt = prompt_of(chat)
        if prompt is not None and self.status == "paused" and self.task is not None:
            await asyncio.wait([self.task])
        self._shown = shown = EventQueue[_Event]()
        self._before = dict(self._said)
        if prompt is not None:
            self._give(prompt, chat.messages)
        return shown

    def hide(self, error: BaseException | None = None) -> None:
        """End the events of the turn, with this error if there is one."""
        shown, self._shown = self._shown, None
        if shown is not None:
            shown.end(error)

    async def drain(self) -> None:
        """Wait until the turn has read most events."""
        if self._shown is not None:
            await self._shown.drain()

    def abort(self, *, resumable: bool = False) -> bool:
        """Abort the run; False if the runtime raised an error."""
        try:
            # After a shutdown, the next message does not answer a question of the nodes that were interrupted.
            reason = {"reason": "shutdown"} if resumable else {}
            self._runtime.dispatch({"type": "abort", "resumable": resumable, **reason})
        # The turn ends in any case.
        except Exception:  # noqa: BLE001
            _log.exception("a runtime could not be aborted")
            return False
        return True

    async def end(self, within: float) -> None:
        """Abort the run, and wait up to `within` seconds for its end."""
        self._ended.clear()
        if not self.abort():
            return
        if self.task is not None:
            await asyncio.wait([self.task], timeout=within)
        if self.status == "paused":
            # A runtime elsewhere has yet to emit that it is aborted.
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), within)

    async def aclose(self) -> None:
        close: Callable[[], Any] | None = getattr(self._runtime, "aclose", None)
        if close is None:
            return
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await close()
        # A runtime that is not ours may raise anything, and the run is over anyway.
        except Exception:  # noqa: BLE001
            _log.exception("a runtime could not be closed")

    def _give(self, message: UIMessage, messages: Sequence[UIMessage]) -> None:
        """Start, resume or prompt the runtime with the message, depending on its status."""
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
        self._interrupted = False
        self.task = asyncio.create_task(_run(self._runtime, given))
        self.task.add_done_callback(self._ran)

    def _ran(self, task: asyncio.Task[BaseException | None]) -> None:
        error = FlowError("The run was cancelled.") if task.cancelled() else task.result()
        if isinstance(error, RuntimeBusyError):
            error = AgentError(_BUSY)
        elif error is not None and not task.cancelled():
            # The user does not see it, and the turn may be over.
            _log.error("the run of a flow failed", exc_info=error)
        if isinstance(error, FlowError):
            error = AgentError("The runtime could not run the flow.")
        self.hide(error)
        self._on_end(self)

    def _dispatch(self, command: dict[str, Any]) -> None:
        try:
            self._runtime.dispatch(command)
        # A runtime that is not ours may raise anything, and none of it is for the user.
        except Exception as error:
            raise AgentError("The runtime refused the message.") from error

    def _inbox(self) -> str:
        waiting = self._runtime.waiting
        if waiting:
            return waiting[-1]
        if not self._agents:
            raise AgentError("The flow is running, but no node of it takes messages now.")
        return next(reversed(self._agents))

    def _on_event(self, event: _Event) -> None:
        kind, run_id = event.get("type"), event.get("runId", "")
        match kind:
            case "flow:start":
                self.flow_name = event.get("flowName", "")
            case "agent:start":
                self._agents.pop(run_id, None)
                self._agents[run_id] = None
            case "agent:complete" | "node:complete" | "node:error":
                self._agents.pop(run_id, None)
            case "flow:complete" | "flow:aborted" | "runtime:lost":
                self._ended.set()
            case _:
                pass
        event = self._unsaid(event)
        if kind == "runtime:lost":
            self.hide()
        elif self._shown is not None and not self._shown.push(event):
            self.hide(AgentError("The flow was faster than the page could read, so it was stopped."))
            self.abort()

    def _unsaid(self, event: _Event) -> _Event:
        """The event without the part of its block that an earlier turn has shown."""
        match event:
            case {
                "type": "agent:text:delta" | "agent:thinking:delta" as kind,
                "runId": str(run_id),
                "content": str(text),
            }:
                block = run_id, kind.removesuffix(":delta")
                self._said[block] = self._said.get(block, 0) + len(text)
            case {"type": "agent:text" | "agent:thinking" as kind, "runId": str(run_id), "content": str(text)}:
                self._said.pop((run_id, kind), None)
                before = self._before.pop((run_id, kind), 0)
                return {**event, "content": text[before:]} if before else event
            case {"type": "agent:start" | "agent:error" | "node:complete" | "node:error", "runId": str(run_id)}:
                for kind in ("agent:text", "agent:thinking"):
                    self._said.pop((run_id, kind), None)
                    self._before.pop((run_id, kind), None)
            case _:
                pass
        return event


def prompt_of(chat: Chat) -> UIMessage | None:
    """The user's message for the runtime; None if the turn only follows the run."""
    return chat.messages[-1] if chat.messages and chat.messages[-1].role == "user" else None


async def _run(runtime: Runtime, given: dict[str, Any] | None) -> BaseException | None:
    try:
        await runtime.run(given)
    except asyncio.CancelledError:
        raise
    # A runtime that is not ours may raise anything, even SystemExit.
    except BaseException as error:  # noqa: BLE001
        return error
    return None
