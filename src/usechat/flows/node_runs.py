"""The nodes of a run that are on their way: attempts, time limits, interruptions, inboxes.

A node that runs is one `Invocation` (a `forEach` node is one after another), with a run id and an inbox of its own. Its
function runs in a task of its own, which ends in one of three ways:

- `Done` or `Failed`: the function returned or raised, or its time was up. A node with attempts left runs again, with a
  new `NodeContext` and the same run id. Otherwise its inbox and its run id are gone.
- `Stopped`: the run was paused or aborted, or another node failed. The inbox and the run id stay, for when the run
  is resumed. A paused node may still return an output.

`interrupt` cancels the function's task. A function that has not ended after `_WIND_DOWN` seconds is abandoned: its
context is closed, its task stays in `_ABANDONED`, and the run goes on without it.

Everything here runs in the thread of the event loop. `interrupt`, `inbox` and `recover` do not wait, so the runtime
may call them at any time between two steps of a node.
"""

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, TypeAlias

from msgspec import UNSET, Struct

from usechat.flows.expressions import ExpressionError, Scope
from usechat.flows.nodes import AgentFunction, CancelReason, Inbox, NodeContext, NodeFunction, as_json
from usechat.flows.plan import PlannedEdge, PlannedNode
from usechat.flows.scheduling import Command, Event, Schedule
from usechat.flows.spec import Policy

__all__ = ["RESUME_MESSAGE", "Done", "Ended", "Failed", "NodeRuns", "Stopped"]

RESUME_MESSAGE: Final = "continue"
"""The resume message of a run that goes on without one."""

_log = logging.getLogger("usechat")
# How many seconds a node may go on after it was cancelled before the run goes on without it.
_WIND_DOWN: Final = 1.0
_ABANDONED: Final[set[asyncio.Task[None]]] = set()


class Done(Struct, frozen=True):
    output: Any


class Failed(Struct, frozen=True):
    error: str


class Stopped(Struct, frozen=True):
    """The node was interrupted; `output` is what a paused one returned all the same, or UNSET."""

    output: Any = UNSET


_Outcome: TypeAlias = Done | Failed | Stopped


class Ended(Struct, frozen=True):
    """How a node ended, and the event that the runtime has yet to emit for it."""

    outcome: _Outcome
    run_id: str
    event: Event | None


class _Invocation:
    """A node on its way with one input."""

    def __init__(self, node: NodeFunction, new_context: Callable[[], NodeContext], policy: Policy) -> None:
        self._node = node
        self._new_context = new_context
        self._policy = policy
        self._context = new_context()
        self._interrupted = asyncio.Event()

    def interrupt(self, reason: CancelReason) -> None:
        """End the node; what it returns now counts only if it is paused."""
        self._interrupted.set()
        self._context.cancel.cancel(reason)

    async def run(self, value: dict[str, Any]) -> _Outcome:
        """Run the node until it succeeds, has no attempt left, or is interrupted."""
        retry = self._policy.retry
        left = retry.max_attempts if retry else 1
        while True:
            outcome = await self._attempt(value)
            left -= 1
            if not isinstance(outcome, Failed) or not left:
                return outcome
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._interrupted.wait(), retry.backoff_ms / 1000 if retry else 0)
            if self._interrupted.is_set():
                return Stopped()
            self._context = self._new_context()

    async def _attempt(self, value: dict[str, Any]) -> _Outcome:
        context, limit, loop = self._context, self._policy.timeout_ms, asyncio.get_running_loop()
        # The outcome is not the task's result: a task that is cancelled after its last step would have none.
        ended: list[_Outcome] = []
        task = loop.create_task(self._call(value, ended))
        given_up = loop.create_future()
        context.cancel.on_cancel(task.cancel)
        context.cancel.on_cancel(lambda: loop.call_later(_WIND_DOWN, given_up.set_result, None))
        timer = limit and loop.call_later(limit / 1000, context.cancel.cancel, "timeout")
        try:
            await asyncio.wait({task, given_up}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            # The run itself is cancelled, and must not leave its node behind.
            task.cancel()
            await asyncio.wait({task}, timeout=_WIND_DOWN)
            raise
        finally:
            if timer:
                timer.cancel()
            context.close()
            if not task.done():
                _log.warning("node %s goes on although it was cancelled, and is left to itself", context.node_id)
                # The event loop alone would not keep it.
                _ABANDONED.add(task)
                task.add_done_callback(_ABANDONED.discard)
        return ended[0] if ended else self._outcome(None)

    async def _call(self, value: dict[str, Any], ended: list[_Outcome]) -> None:
        try:
            output = as_json(await self._node(self._context, as_json(value)))
            ended.append(self._outcome(Done(output)))
        except asyncio.CancelledError:
            raise
        # A task that raises what is meant to end the process ends at least its event loop.
        except BaseException as error:  # noqa: BLE001
            _log.warning("node %s failed", self._context.node_id, exc_info=error)
            ended.append(self._outcome(Failed(_text(error))))

    def _outcome(self, result: Done | Failed | None) -> _Outcome:
        match self._context.cancel.reason:
            case "timeout":
                return Failed(f"Node execution timed out after {self._policy.timeout_ms}ms")
            case "pause":
                return Stopped(result.output if isinstance(result, Done) else UNSET)
            case "abort":
                return Stopped()
            case None:
                return result or Failed("The node cancelled itself.")


def _text(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    # The text of an error is the node author's code, too.
    except BaseException:  # noqa: BLE001
        return type(error).__name__


class _NewContext(Protocol):
    def __call__(self, node_id: str, run_id: str, inbox: Inbox, resume_message: str | None) -> NodeContext: ...


class NodeRuns:
    """Runs the nodes of one schedule, once or for each item; `halting` asks whether to begin another one.

    `interrupted` are the nodes that were running when an earlier run ended, and that did not run again yet; `run_ids`
    has the last run id of each node that is not over. `answers` has the nodes that have asked and are not over: each
    with its resume message, or None until the run goes on.
    """

    def __init__(
        self,
        functions: Mapping[str, NodeFunction],
        schedule: Schedule,
        *,
        emit: Callable[[Mapping[str, Any]], None],
        dispatch: Callable[[Command], None],
        halting: Callable[[], bool],
        new_context: _NewContext,
    ) -> None:
        self.resume_message: str | None = None
        self._functions = functions
        self._schedule = schedule
        self._emit = emit
        self._dispatch = dispatch
        self._halting = halting
        self._new_context = new_context
        self.interrupted: set[str] = set()
        run = schedule.run
        self.run_ids: dict[str, str] = {} if run.node_runs is UNSET else dict(run.node_runs)
        # The original pauses only by a command, and gives the message to all nodes that ran then.
        paused = run.node_status.items() if run.status == "paused" else ()
        asked: dict[str, str | None] = {name: None for name, status in paused if status == "running"}
        self.answers = asked if run.answers is UNSET else dict(run.answers)
        self._invocations: dict[str, _Invocation] = {}
        self._inboxes: dict[str, Inbox] = {}
        for command in run.inbox:
            if "runId" in command:
                self.inbox(command["runId"]).put(command)

    def inbox(self, run_id: str) -> Inbox:
        return self._inboxes.setdefault(run_id, Inbox())

    def unread(self) -> list[Command]:
        return [command for inbox in self._inboxes.values() for command in inbox.pending()]

    def waiting(self) -> list[str]:
        return [run_id for run_id in self._invocations if self._inboxes[run_id].waiting]

    def interrupt(self, reason: CancelReason) -> None:
        for invocation in tuple(self._invocations.values()):
            invocation.interrupt(reason)

    def running(self) -> list[str]:
        return [name for name, run_id in self.run_ids.items() if run_id in self._invocations]

    def forget(self, name: str) -> None:
        """The node is over, or begins from its beginning."""
        self.interrupted.discard(name)
        self.answers.pop(name, None)

    def recover(self) -> None:
        """Let the nodes that an earlier run was interrupted in run again, those that have asked with the message."""
        status = self._schedule.run.node_status
        running = {name for name in status if status[name] == "running"}
        status.update(dict.fromkeys(running, "pending"))
        self.interrupted |= running & self._schedule.plan.nodes.keys()
        asked = [name for name, answer in self.answers.items() if answer is None]
        # An agent takes any message, also one that it did not ask for.
        given = asked or [name for name in self.interrupted if self._is_agent(name)]
        self.answers.update(dict.fromkeys(given, self.resume_message or RESUME_MESSAGE))
        unread = {command["runId"] for command in self.unread()}
        # The original keeps no run ids: with it, the only inbox that was not read is that of the interrupted node.
        if len(self.interrupted) == len(unread) == 1:
            self.run_ids.setdefault(*self.interrupted, *unread)

    async def run(self, node: PlannedNode) -> Ended:
        """Run the node to its end."""
        edge = self._schedule.for_each(node)
        if edge is not None:
            return await self._run_items(node, edge)
        run_id, message = self._identify(node.node.id)
        return await self._invoke(node, run_id, self._schedule.scope(), message)

    def _identify(self, name: str) -> tuple[str, str | None]:
        """The run id of the node, and its resume message."""
        if name not in self.interrupted:
            return str(uuid.uuid4()), None
        self.interrupted.discard(name)
        run_id = self.run_ids.get(name)
        # A node keeps its run id only for the commands in its inbox that it has not read.
        if run_id is None or not self.inbox(run_id).pending():
            run_id = str(uuid.uuid4())
        message = self.answers.get(name)
        if message is not None:
            command = {"type": "send", "runId": run_id, "message": message}
            # A node that was interrupted again may have left the same message unread.
            if command not in self.inbox(run_id).pending():
                self._dispatch(command)
        return run_id, message

    def _is_agent(self, name: str) -> bool:
        return isinstance(self._functions[self._schedule.plan.nodes[name].node.type], AgentFunction)

    async def _run_items(self, node: PlannedNode, edge: PlannedEdge) -> Ended:
        self.forget(node.node.id)
        iterations: list[dict[str, Any]] = []
        items = await self._schedule.items(edge)
        for number, item in enumerate(items):
            name = edge.edge.for_each.name if edge.edge.for_each else ""
            place = {"first": number == 0, "last": number == len(items) - 1, "maxIterations": len(items)}
            scope = self._schedule.scope({name: item}, iteration=number, **place)
            if not await self._schedule.wanted(node, scope):
                iterations.append({"item": item, "skipped": True})
                continue
            ended = await self._invoke(node, str(uuid.uuid4()), scope, None)
            if ended.event is None or isinstance(ended.outcome, Stopped):
                return ended
            self._emit(ended.event)
            if isinstance(ended.outcome, Failed) and not node.node.policy.continue_on_error:
                return Ended(ended.outcome, ended.run_id, None)
            iterations.append({"item": item, **_result(ended.outcome)})
        return Ended(Done({"iterations": iterations}), "", None)

    async def _invoke(self, node: PlannedNode, run_id: str, scope: Scope, message: str | None) -> Ended:
        if self._halting():
            return Ended(Stopped(), run_id, None)
        name, inbox = node.node.id, self.inbox(run_id)
        invocation = _Invocation(
            self._functions[node.node.type],
            lambda: self._new_context(name, run_id, inbox, message),
            node.node.policy,
        )
        self._invocations[run_id] = invocation
        self.run_ids[name] = run_id
        self._emit({"type": "node:start", "nodeId": name, "runId": run_id})
        try:
            outcome = await invocation.run(await node.input(scope))
        except ExpressionError as error:
            outcome = Failed(str(error))
        finally:
            del self._invocations[run_id]
        if isinstance(outcome, Stopped):
            return Ended(outcome, run_id, None)
        del self._inboxes[run_id], self.run_ids[name]
        self.forget(name)
        kind = "node:complete" if isinstance(outcome, Done) else "node:error"
        return Ended(outcome, run_id, {"type": kind, "nodeId": name, "runId": run_id, **_result(outcome)})


def _result(outcome: Done | Failed) -> dict[str, Any]:
    return {"output": outcome.output} if isinstance(outcome, Done) else {"error": outcome.error}
