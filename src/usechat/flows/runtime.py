"""The runtime: it starts the nodes that the schedule says are ready, and emits what happens.

Everything here runs in the thread of the event loop. One call of `run` at a time drives the run (`_one_at_a_time`), in
rounds: choose the nodes that are ready, store the snapshot, start a task for each chosen node, wait for the first task
to end, and settle it. Commands come in between, by `dispatch`, which never waits.

A run is `idle`, `running`, then `paused`, `aborted` or `complete`; only a paused one can go on. The rounds end when no
node is left, when an error of the flow (`FlowError`) makes the run `complete`, or by one of two flags:

- `_halted`: a command or a node paused or aborted the run. `_halt` changes its status, emits its event and interrupts
  its nodes at once; `run` returns when their tasks have ended.
- `_failed`: a node failed and no policy allows for it. The other nodes are interrupted, and the run ends as `complete`
  with the event's status `failed`.

What is stored, and when: `_save` hands a snapshot to the journal, which writes it together with the events before it.
`_drive` waits until that is written before it starts nodes: the store knows of each node that runs, and a node that it
knows as done runs again only in a loop. `_settle` may take time, so it goes on even if the run is cancelled meanwhile
(`_whole`).

A node that runs is one `_Invocation` (a `forEach` node is one after another), with a run id and an inbox of its own.
Its function runs in a task of its own, which ends in one of three ways:

- `_Done` or `_Failed`: the function returned or raised, or its time was up. A node with attempts left runs again, with
  a new `NodeContext` and the same run id. Otherwise its inbox and its run id are gone.
- `_Stopped`: the run was paused or aborted, or another node failed. The inbox and the run id stay, for when the run is
  resumed. A paused node may still return an output.

`_interrupt` cancels the function's task. A function that has not ended after `_WIND_DOWN` seconds is
abandoned: its context is closed, its task stays in `_ABANDONED`, and the run goes on without it.
"""

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import UNSET, Struct

from usechat.errors import FlowError
from usechat.flows.expressions import ExpressionError, Scope
from usechat.flows.nodes import (
    BUILT_IN,
    RESUME_MESSAGE,
    AgentFunction,
    CancelReason,
    Inbox,
    NodeContext,
    NodeFunction,
    State,
    as_json,
    check_nodes,
    uses_state,
)
from usechat.flows.scheduling import Command, Event, Overlap, RunSnapshot, Schedule, skipped_output
from usechat.flows.spec import Flow, Plan, PlannedEdge, PlannedNode, Policy, read_flow
from usechat.flows.store import Journal, RunStore
from usechat.turns.pump import Unused

__all__ = ["FlowRuntime"]

_log = logging.getLogger("usechat")
# Seconds that a cancelled node may take to end before the run continues without it.
_WIND_DOWN: Final = 1.0
_ABANDONED: Final[set[asyncio.Task[None]]] = set()


class _Done(Struct, frozen=True):
    output: Any


class _Failed(Struct, frozen=True):
    error: str


class _Stopped(Struct, frozen=True):
    """The node was interrupted; `output` is what it returned after a pause, or UNSET."""

    output: Any = UNSET


_Outcome: TypeAlias = _Done | _Failed | _Stopped


class _Ended(Struct, frozen=True):
    """How a node ended, and the event that the runtime still has to emit for it."""

    outcome: _Outcome
    run_id: str
    event: Event | None


class _Invocation:
    """One node with one input, from its first attempt to its last."""

    def __init__(self, node: NodeFunction, new_context: Callable[[], NodeContext], policy: Policy) -> None:
        self._node = node
        self._new_context = new_context
        self._policy = policy
        self._context = new_context()
        self._interrupted = asyncio.Event()

    def interrupt(self, reason: CancelReason) -> None:
        """Cancel the node; what it returns from now on counts only after a pause."""
        self._interrupted.set()
        self._context.cancel.cancel(reason)

    async def run(self, value: dict[str, Any]) -> _Outcome:
        """Run the node until it succeeds, has no attempt left, or is interrupted."""
        retry = self._policy.retry
        left = retry.max_attempts if retry else 1
        while True:
            outcome = await self._attempt(value)
            left -= 1
            if not isinstance(outcome, _Failed) or not left:
                return outcome
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._interrupted.wait(), retry.backoff_ms / 1000 if retry else 0)
            if self._interrupted.is_set():
                return _Stopped()
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
                _log.warning("node %s has not ended %g s after it was cancelled", context.node_id, _WIND_DOWN)
                # The event loop has only a weak reference to it.
                _ABANDONED.add(task)
                task.add_done_callback(_ABANDONED.discard)
        return ended[0] if ended else self._outcome(None)

    async def _call(self, value: dict[str, Any], ended: list[_Outcome]) -> None:
        try:
            output = as_json(await self._node(self._context, as_json(value)))
            ended.append(self._outcome(_Done(output)))
        except asyncio.CancelledError:
            raise
        # A SystemExit or KeyboardInterrupt that leaves a task ends the event loop.
        except BaseException as error:  # noqa: BLE001
            _log.warning("node %s failed", self._context.node_id, exc_info=error)
            ended.append(self._outcome(_Failed(_text(error))))

    def _outcome(self, result: _Done | _Failed | None) -> _Outcome:
        match self._context.cancel.reason:
            case "timeout":
                return _Failed(f"Node execution timed out after {self._policy.timeout_ms}ms")
            case "pause":
                return _Stopped(result.output if isinstance(result, _Done) else UNSET)
            case "abort":
                return _Stopped()
            case None:
                return result or _Failed("The node cancelled itself.")


def _text(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    # `__str__` is the node author's code, too.
    except BaseException:  # noqa: BLE001
        return type(error).__name__


def _result(outcome: _Done | _Failed) -> dict[str, Any]:
    return {"output": outcome.output} if isinstance(outcome, _Done) else {"error": outcome.error}


class FlowRuntime:
    """One run of a flow.

    `nodes` are the node types beside `constant` and `echo`. With a `store`, a run that was paused, or whose process
    died, continues in another runtime with the same `run_id`: nodes that were done do not run again, nodes that were
    running do. Up to `concurrency` nodes run at the same time; 1 keeps the order of the file. `unused` counts the
    events of its agents that could not be mapped; you may replace the counter. Set `drain` to a function that waits
    until the page has read most events: agents await it every 16 events.

    Call all methods in the thread of the event loop. Call `run` again after a pause.
    """

    def __init__(
        self,
        flow: Flow | Mapping[str, Any],
        nodes: Mapping[str, NodeFunction],
        store: RunStore | None = None,
        *,
        run_id: str | None = None,
        concurrency: int = 1,
    ) -> None:
        """Prepare the run.

        Raises:
            FlowError: the flow could not run, or a run is to be resumed without a store.
            ValueError: the concurrency is less than 1.
        """
        if concurrency < 1:
            raise ValueError(f"concurrency is {concurrency}: at least one node must be able to run.")
        self._plan = Plan(read_flow(flow))
        self._functions = {**BUILT_IN, **nodes}
        check_nodes(self._plan.flow, self._functions)
        self._overlap = Overlap(self._plan, lambda kind: uses_state(self._functions[kind]))
        if run_id is not None and store is None:
            raise FlowError("A run cannot be resumed without a store.", remedy="Pass the store that has the run.")
        self.unused = Unused()
        self.drain: Callable[[], Awaitable[None]] | None = None
        self._store = store
        self._to_load = run_id
        self._concurrency = concurrency
        initial = self._plan.flow.state.initial if self._plan.flow.state else {}
        self._journal = Journal(run_id or str(uuid.uuid4()), store)
        self._adopt(RunSnapshot(run_id=self._journal.run_id, state=as_json(initial)))
        self._resume_message = RESUME_MESSAGE
        self._one_at_a_time = asyncio.Lock()
        self._halted = False
        self._failed = False

    @property
    def waiting(self) -> list[str]:
        """The run ids of the nodes that wait for a command in their inbox, in the order of their start."""
        return [run_id for run_id in self._invocations if self._inboxes[run_id].waiting]

    def on_event(self, listener: Callable[[Event], None]) -> Callable[[], None]:
        """Call the listener with each event from now on; the result removes it. Its errors are logged and ignored."""
        return self._journal.listeners.add(listener)

    def snapshot(self) -> RunSnapshot:
        """A copy of the run's whole state; a stored run has it only after `load` or `run`."""
        self._run.inbox = self._unread()
        self._run.node_runs = self._run_ids or UNSET
        # That no node has asked matters only in a paused run.
        self._run.answers = self._answers if self._answers or self._run.status == "paused" else UNSET
        copy = msgspec.convert(msgspec.to_builtins(self._run), RunSnapshot)
        copy.node_status.update(dict.fromkeys(self._interrupted, "running"))
        return copy

    async def load(self) -> None:
        """Load the stored run; `run` does it if you did not.

        Raises:
            FlowError: the store has no such run.
        """
        if self._to_load is None or self._store is None:
            return
        stored = await self._store.load_snapshot(self._to_load)
        if stored is None:
            raise FlowError(f"No snapshot found for runId {self._to_load}.", remedy="Start a new run.")
        self._to_load = None
        self._adopt(stored)

    async def run(self, input: Mapping[str, Any] | None = None) -> RunSnapshot:  # noqa: A002
        """Run the flow until it is complete, paused or aborted; a paused or interrupted run continues.

        Raises:
            FlowError: the run is over already, or the flow cannot go on: a loop has reached its cap, a condition
                failed, or no node is ready. The run is over then.
        """
        async with self._one_at_a_time:
            await self.load()
            if self._run.status in ("complete", "aborted"):
                raise self._not_resumable()
            self._begin(input)
            try:
                await self._drive()
            except FlowError:
                self._run.status = "complete"
                raise
            finally:
                self._resume_message = RESUME_MESSAGE
                self._save()
                await self._journal.settled()
            return self.snapshot()

    async def aclose(self) -> None:
        """Wait until everything is stored.

        Raises:
            Exception: what the store raised.
        """
        await self._journal.settled()

    def dispatch(self, command: Command) -> None:
        """Take a command.

        After `pause` or a `resumable` `abort`, the message of `resume` is for all nodes that were running. If the
        `reason` of the abort is `shutdown`, it is for agents only, as after a crash.

        Raises:
            FlowError: there is no such command, it lacks its `runId`, or the run is over or not loaded.
        """
        if self._to_load is not None and command.get("type") != "resume":
            raise FlowError("The run is not loaded yet.", remedy="Await load() first.")
        match command:
            case {"type": "send" | "reply"}:
                self._deliver(command)
            case {"type": "abort"}:
                # A process that shuts down asks nobody for a message.
                asks = [] if command.get("reason") == "shutdown" else self._running()
                self._halt(command, resumable=command.get("resumable") is True, asks=asks)
            case {"type": "pause"}:
                self._halt(command, resumable=True, asks=self._running())
            case {"type": "stop"}:
                self._halt(command, resumable=False)
            case {"type": "resume"}:
                self._resume(command)
            case _:
                raise FlowError(f"There is no command {command.get('type')!r}.")

    def _adopt(self, run: RunSnapshot) -> None:
        self._run = run
        self._schedule = Schedule(self._plan, self._overlap, run)
        # The nodes that were running when an earlier call of `run` ended, and have not run again yet.
        self._interrupted: set[str] = set()
        # The last run id of each node that is not over.
        self._run_ids: dict[str, str] = {} if run.node_runs is UNSET else dict(run.node_runs)
        # The nodes that have asked and are not over: each with its resume message, or None until the run is resumed.
        # The original pauses only by a command, and the message is for all nodes that were running then.
        paused = run.node_status.items() if run.status == "paused" else ()
        asked: dict[str, str | None] = {name: None for name, status in paused if status == "running"}
        self._answers = asked if run.answers is UNSET else dict(run.answers)
        self._invocations: dict[str, _Invocation] = {}
        self._inboxes: dict[str, Inbox] = {}
        for command in run.inbox:
            if "runId" in command:
                self._inbox(command["runId"]).put(command)

    def _new_context(self, node_id: str, run_id: str, inbox: Inbox, resume_message: str | None) -> NodeContext:
        return NodeContext(
            node_id=node_id,
            run_id=run_id,
            emit=self._emit,
            state=State(self._run.state),
            inbox=inbox,
            sessions=self._run.agent_sessions,
            resume_message=resume_message,
            unused=self.unused,
            drain=self._drain,
            pause=lambda: self._halt({"type": "pause"}, resumable=True, asks=[node_id]),
        )

    def _begin(self, value: Mapping[str, Any] | None) -> None:
        fresh = self._run.status == "idle"
        if fresh or value is not None:
            self._run.input = as_json(dict(value or {}))
        self._halted = self._failed = False
        self._recover(self._resume_message)
        self._run.status = "running"
        self._emit({"type": "flow:start", "flowName": self._plan.flow.name} if fresh else {"type": "flow:resumed"})

    async def _drive(self) -> None:
        tasks: dict[asyncio.Task[_Ended], PlannedNode] = {}
        try:
            while True:
                chosen = await self._choose(self._concurrency - len(tasks))
                self._save()
                await self._journal.settled()
                tasks |= {asyncio.create_task(self._run_node(node)): node for node in chosen}
                if not tasks:
                    break
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in tasks if task.done()]:
                    await _whole(self._settle(tasks.pop(task), task.result()))
        finally:
            # Before the other nodes end, which may take a while.
            self._save()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self._end()

    async def _choose(self, most: int) -> list[PlannedNode]:
        """Choose up to `most` nodes that are ready, and skip those whose edges or condition say so."""
        chosen: list[PlannedNode] = []
        while len(chosen) < most and not self._halted and not self._failed:
            node = self._schedule.ready()
            if node is None:
                break
            reason = await self._schedule.skipped(node)
            decided = [] if reason is None else await self._schedule.decide(node, skipped_output(reason))
            if self._halted:
                break
            if reason is None:
                self._run.node_status[node.node.id] = "running"
                chosen.append(node)
            else:
                self._forget(node.node.id)
                self._emit_all(self._schedule.skip(node, reason, decided))
                self._save()
        return chosen

    def _end(self) -> None:
        if self._halted:
            return
        if not self._failed and self._schedule.stalled():
            raise FlowError("Execution stalled: no ready nodes.", remedy="Start a new run of the flow.")
        self._run.status = "complete"
        status = "failed" if self._failed else "complete"
        self._emit({"type": "flow:complete", "flowName": self._plan.flow.name, "status": status})

    async def _settle(self, node: PlannedNode, ended: _Ended) -> None:
        name, events = node.node.id, [] if ended.event is None else [ended.event]
        try:
            match ended.outcome:
                case _Done(output):
                    decided = await self._schedule.decide(node, output)
                    self._run.node_status[name] = "done"
                    self._run.outputs[name] = output
                    self._emit_all(events, self._schedule.leave(node, decided))
                case _Failed(error) if node.node.policy.continue_on_error:
                    decided = await self._schedule.decide(node, {"error": error})
                    self._note_failure(name, error)
                    self._emit_all(events, self._schedule.leave(node, decided))
                case _Failed(error):
                    self._note_failure(name, error)
                    self._emit_all(events)
                    self._failed = True
                    self._interrupt("abort")
                case _Stopped() if self._failed and not self._halted:
                    error = "The node was cancelled because another node failed."
                    self._note_failure(name, error)
                    self._emit({"type": "node:error", "nodeId": name, "runId": ended.run_id, "error": error})
                case _Stopped(output):
                    if output is not UNSET:
                        self._run.outputs[name] = output
        finally:
            # At once, because the journal may write the events of the node at any moment from now on.
            self._save()

    def _note_failure(self, name: str, error: str) -> None:
        self._run_ids.pop(name, None)
        self._forget(name)
        self._run.node_status[name] = "failed"
        self._run.outputs[name] = {"error": error}

    def _inbox(self, run_id: str) -> Inbox:
        return self._inboxes.setdefault(run_id, Inbox())

    def _unread(self) -> list[Command]:
        return [command for inbox in self._inboxes.values() for command in inbox.pending()]

    def _interrupt(self, reason: CancelReason) -> None:
        for invocation in tuple(self._invocations.values()):
            invocation.interrupt(reason)

    def _running(self) -> list[str]:
        return [name for name, run_id in self._run_ids.items() if run_id in self._invocations]

    def _forget(self, name: str) -> None:
        """Drop what is kept for a node that is over or starts again from its first item."""
        self._interrupted.discard(name)
        self._answers.pop(name, None)

    def _recover(self, message: str) -> None:
        """Make interrupted nodes pending again, and give the message to those that have asked."""
        status = self._run.node_status
        running = {name for name in status if status[name] == "running"}
        status.update(dict.fromkeys(running, "pending"))
        self._interrupted |= running & self._plan.nodes.keys()
        asked = [name for name, answer in self._answers.items() if answer is None]
        # An agent takes any message, also one that it did not ask for.
        given = asked or [name for name in self._interrupted if self._is_agent(name)]
        self._answers.update(dict.fromkeys(given, message))
        unread = {command["runId"] for command in self._unread()}
        # The original stores no run ids: there, the only unread inbox is that of the interrupted node.
        if len(self._interrupted) == len(unread) == 1:
            self._run_ids.setdefault(*self._interrupted, *unread)

    async def _run_node(self, node: PlannedNode) -> _Ended:
        """Run the node to its end."""
        edge = self._schedule.for_each(node)
        if edge is not None:
            return await self._run_items(node, edge)
        run_id, message = self._identify(node.node.id)
        return await self._invoke(node, run_id, self._schedule.scope(), message)

    def _identify(self, name: str) -> tuple[str, str | None]:
        """The run id of the node, and its resume message."""
        if name not in self._interrupted:
            return str(uuid.uuid4()), None
        self._interrupted.discard(name)
        run_id = self._run_ids.get(name)
        # A node keeps its run id only for the commands in its inbox that it has not read.
        if run_id is None or not self._inbox(run_id).pending():
            run_id = str(uuid.uuid4())
        message = self._answers.get(name)
        if message is not None:
            command = {"type": "send", "runId": run_id, "message": message}
            # A node that was interrupted again may have left the same message unread.
            if command not in self._inbox(run_id).pending():
                self._deliver(command)
        return run_id, message

    def _is_agent(self, name: str) -> bool:
        return isinstance(self._functions[self._plan.nodes[name].node.type], AgentFunction)

    async def _run_items(self, node: PlannedNode, edge: PlannedEdge) -> _Ended:
        self._forget(node.node.id)
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
            if ended.event is None or isinstance(ended.outcome, _Stopped):
                return ended
            self._emit(ended.event)
            if isinstance(ended.outcome, _Failed) and not node.node.policy.continue_on_error:
                return _Ended(ended.outcome, ended.run_id, None)
            iterations.append({"item": item, **_result(ended.outcome)})
        return _Ended(_Done({"iterations": iterations}), "", None)

    async def _invoke(self, node: PlannedNode, run_id: str, scope: Scope, message: str | None) -> _Ended:
        if self._halted or self._failed:
            return _Ended(_Stopped(), run_id, None)
        name, inbox = node.node.id, self._inbox(run_id)
        new_context = partial(self._new_context, name, run_id, inbox, message)
        invocation = _Invocation(self._functions[node.node.type], new_context, node.node.policy)
        self._invocations[run_id] = invocation
        self._run_ids[name] = run_id
        self._emit({"type": "node:start", "nodeId": name, "runId": run_id})
        try:
            outcome = await invocation.run(await node.input(scope))
        except ExpressionError as error:
            outcome = _Failed(str(error))
        finally:
            del self._invocations[run_id]
        if isinstance(outcome, _Stopped):
            return _Ended(outcome, run_id, None)
        del self._inboxes[run_id], self._run_ids[name]
        self._forget(name)
        kind = "node:complete" if isinstance(outcome, _Done) else "node:error"
        return _Ended(outcome, run_id, {"type": kind, "nodeId": name, "runId": run_id, **_result(outcome)})

    def _deliver(self, command: Command) -> None:
        run_id = command.get("runId")
        if not isinstance(run_id, str) or not run_id:
            self._received(command)
            raise FlowError("Runtime command missing runId.", remedy="Name the invocation of a node.")
        self._inbox(run_id).put(as_json(command))
        self._received(command)
        self._save()

    def _halt(self, command: Command, *, resumable: bool, asks: Iterable[str] = ()) -> None:
        """Pause or abort the run; the message that resumes it is for the nodes in `asks`."""
        self._received(command)
        if self._run.status in ("complete", "aborted") or (resumable and self._run.status == "paused"):
            return
        self._halted = True
        self._run.status = "paused" if resumable else "aborted"
        self._answers.update(dict.fromkeys(asks))
        self._emit({"type": "flow:paused" if resumable else "flow:aborted"})
        self._interrupt("pause" if resumable else "abort")
        self._save()

    def _resume(self, command: Command) -> None:
        self._received(command)
        if self._run.status in ("complete", "aborted"):
            raise self._not_resumable()
        message = command.get("message")
        self._resume_message = message if isinstance(message, str) and message else RESUME_MESSAGE
        self._run.status = "running"
        self._emit({"type": "flow:resumed"})

    def _not_resumable(self) -> FlowError:
        return FlowError(f"Run {self._run.run_id} is not resumable.", remedy="Start a new run of the flow.")

    async def _drain(self) -> None:
        await asyncio.sleep(0)
        if self.drain is not None:
            await self.drain()

    def _save(self) -> None:
        if self._store is not None:
            self._journal.save(self.snapshot())

    def _received(self, command: Command) -> None:
        self._emit({"type": "command:received", "command": command})

    def _emit(self, payload: Mapping[str, Any]) -> None:
        self._journal.emit([payload])

    def _emit_all(self, *groups: Iterable[Event]) -> None:
        events: list[Event] = []
        try:
            for group in groups:
                events.extend(group)
        finally:
            # An error in the last group does not undo the others.
            self._journal.emit(events)


async def _whole(settling: Coroutine[None, None, None]) -> None:
    """Finish the coroutine even if the run is cancelled meanwhile: a node that is over must not run again."""
    task = asyncio.create_task(settling)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
