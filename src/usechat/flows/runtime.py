"""The runtime: it starts what the schedule says is ready, and tells what happens."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from usechat.errors import FlowError
from usechat.flows.context import NodeFunction, as_json, uses_state
from usechat.flows.invocation import Done, Failed, Stopped
from usechat.flows.journal import Journal
from usechat.flows.node_runs import RESUME_MESSAGE, Ended, NodeRuns
from usechat.flows.nodes import BUILT_IN, check_nodes
from usechat.flows.overlap import Overlap
from usechat.flows.plan import Plan, PlannedNode
from usechat.flows.scheduling import Command, Event, RunSnapshot, Schedule, skipped_output
from usechat.flows.spec import Flow, read_flow
from usechat.flows.store import RunStore
from usechat.turns.pump import Unused

__all__ = ["FlowRuntime"]


class FlowRuntime:
    """One run of a flow.

    `nodes` are the node types beside `constant` and `echo`. With a `store`, a run that was paused, or whose process
    died, goes on in another runtime that is given its `run_id`: nodes that were done are not run again, those that
    were running are. Up to `concurrency` nodes run at the same time; 1 keeps the order of the file. `unused` counts the
    events of its agents that could not be used; another counter may be put in its place. `room` may be set to a
    function that waits until the events were shown: agents that say much wait for it.

    All methods belong to the thread of the event loop. `run` may be called again after a pause.
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
            raise ValueError("At least one node must be able to run.")
        self._plan = Plan(read_flow(flow))
        self._functions = {**BUILT_IN, **nodes}
        check_nodes(self._plan.flow, self._functions)
        self._overlap = Overlap(self._plan, lambda kind: uses_state(self._functions[kind]))
        if run_id is not None and store is None:
            raise FlowError("A run cannot be resumed without a store.", remedy="Give the store that has kept it.")
        self.unused = Unused()
        self.room: Callable[[], Awaitable[None]] | None = None
        self._store = store
        self._to_load = run_id
        self._concurrency = concurrency
        initial = self._plan.flow.state.initial if self._plan.flow.state else {}
        self._journal = Journal(run_id or str(uuid.uuid4()), store)
        self._adopt(RunSnapshot(run_id=self._journal.run_id, state=as_json(initial)))
        self._one_at_a_time = asyncio.Lock()
        self._halted = False
        self._failed = False

    @property
    def waiting(self) -> list[str]:
        """The run ids of the nodes that wait for a command in their inbox, in the order of their start."""
        return self._nodes.waiting()

    def on_event(self, listener: Callable[[Event], None]) -> Callable[[], None]:
        """Give the listener each event from now on; the result ends that. One that raises is logged and ignored."""
        return self._journal.subscribe(listener)

    def snapshot(self) -> RunSnapshot:
        """A copy of all that the run is now; of a run in the store, only after `load` or `run`."""
        self._run.inbox = self._nodes.unread()
        self._run.node_runs = self._nodes.run_ids or UNSET
        # That nobody has asked is news only in a paused run.
        self._run.answers = self._nodes.answers if self._nodes.answers or self._run.status == "paused" else UNSET
        copy = msgspec.convert(msgspec.to_builtins(self._run), RunSnapshot)
        copy.node_status.update(dict.fromkeys(self._nodes.interrupted, "running"))
        return copy

    async def load(self) -> None:
        """Load the run that is to be resumed; `run` does it if nobody did.

        Raises:
            FlowError: the store has no such run.
        """
        if self._to_load is None or self._store is None:
            return
        stored = await self._store.load_snapshot(self._to_load)
        if stored is None:
            raise FlowError(f"No snapshot found for runId {self._to_load}.", remedy="Start a new run.")
        self._to_load = None
        message = self._nodes.resume_message
        self._adopt(stored)
        self._nodes.resume_message = message

    async def run(self, input: Mapping[str, Any] | None = None) -> RunSnapshot:  # noqa: A002
        """Run the flow until it is complete, paused or aborted; a run that was begun goes on.

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
                self._nodes.resume_message = None
                self._save()
                await self._journal.settled()
            return self.snapshot()

    async def aclose(self) -> None:
        """Wait until all that has happened is stored.

        Raises:
            Exception: what the store raised.
        """
        await self._journal.settled()

    def dispatch(self, command: Command) -> None:
        """Take a command.

        After `pause`, or an `abort` that is `resumable`, the message of `resume` is for all nodes that were running,
        unless the `reason` of the abort is `shutdown`: then, as after a crash, it is for agents only.

        Raises:
            FlowError: there is no such command, it lacks its `runId`, or the run is over or not loaded.
        """
        if self._to_load is not None and command.get("type") != "resume":
            raise FlowError("The run is not loaded yet.", remedy="Await load() before.")
        match command:
            case {"type": "send" | "reply"}:
                self._deliver(command)
            case {"type": "abort"}:
                # Who only ends for a while does not mean to answer.
                asks = [] if command.get("reason") == "shutdown" else self._nodes.running()
                self._halt(command, resumable=command.get("resumable") is True, asks=asks)
            case {"type": "pause"}:
                self._halt(command, resumable=True, asks=self._nodes.running())
            case {"type": "stop"}:
                self._halt(command, resumable=False)
            case {"type": "resume"}:
                self._resume(command)
            case _:
                raise FlowError(f"There is no command {command.get('type')!r}.")

    def _adopt(self, run: RunSnapshot) -> None:
        self._run = run
        self._schedule = Schedule(self._plan, self._overlap, run)
        self._nodes = NodeRuns(
            self._functions,
            self._schedule,
            emit=self._emit,
            dispatch=self.dispatch,
            pause=lambda name: self._halt({"type": "pause"}, resumable=True, asks=[name]),
            halting=lambda: self._halted or self._failed,
            unused=lambda: self.unused,
            room=self._wait_for_room,
        )

    def _begin(self, value: Mapping[str, Any] | None) -> None:
        fresh = self._run.status == "idle"
        if fresh or value is not None:
            self._run.input = as_json(dict(value or {}))
        self._halted = self._failed = False
        self._nodes.recover()
        self._run.status = "running"
        self._emit({"type": "flow:start", "flowName": self._plan.flow.name} if fresh else {"type": "flow:resumed"})

    async def _drive(self) -> None:
        tasks: dict[asyncio.Task[Ended], PlannedNode] = {}
        try:
            while True:
                chosen = await self._choose(self._concurrency - len(tasks))
                # Before anything else happens it is stored which nodes are done, so that none of them runs again, and
                # which are about to run.
                self._save()
                await self._journal.settled()
                tasks |= {asyncio.create_task(self._nodes.run(node)): node for node in chosen}
                if not tasks:
                    break
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in tasks if task.done()]:
                    await _whole(self._settle_and_save(tasks.pop(task), task.result()))
        finally:
            # With what was told so far, even if the nodes that are left take their time.
            self._save()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self._end()

    async def _choose(self, room: int) -> list[PlannedNode]:
        """Take the next nodes that are ready, and skip those that are not to be run."""
        chosen: list[PlannedNode] = []
        while len(chosen) < room and not self._halted and not self._failed:
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
                self._nodes.forget(node.node.id)
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

    async def _settle_and_save(self, node: PlannedNode, ended: Ended) -> None:
        try:
            await self._settle(node, ended)
        finally:
            # Before anything else happens: the events of a node that is over may be stored at any moment from now on.
            self._save()

    async def _settle(self, node: PlannedNode, ended: Ended) -> None:
        name, told = node.node.id, [] if ended.event is None else [ended.event]
        match ended.outcome:
            case Done(output):
                decided = await self._schedule.decide(node, output)
                self._run.node_status[name] = "done"
                self._run.outputs[name] = output
                self._emit_all(told, self._schedule.leave(node, decided))
            case Failed(error) if node.node.policy.continue_on_error:
                decided = await self._schedule.decide(node, {"error": error})
                self._note_failure(name, error)
                self._emit_all(told, self._schedule.leave(node, decided))
            case Failed(error):
                self._note_failure(name, error)
                self._emit_all(told)
                self._failed = True
                self._nodes.interrupt("abort")
            case Stopped() if self._failed and not self._halted:
                error = "The node was cancelled because another node failed."
                self._note_failure(name, error)
                self._emit({"type": "node:error", "nodeId": name, "runId": ended.run_id, "error": error})
            case Stopped(output):
                if output is not UNSET:
                    self._run.outputs[name] = output

    def _note_failure(self, name: str, error: str) -> None:
        self._nodes.run_ids.pop(name, None)
        self._nodes.forget(name)
        self._run.node_status[name] = "failed"
        self._run.outputs[name] = {"error": error}

    def _deliver(self, command: Command) -> None:
        run_id = command.get("runId")
        if not isinstance(run_id, str) or not run_id:
            self._received(command)
            raise FlowError("Runtime command missing runId.", remedy="Name the invocation of a node.")
        self._nodes.inbox(run_id).put(as_json(command))
        self._received(command)
        self._save()

    def _halt(self, command: Command, *, resumable: bool, asks: Iterable[str] = ()) -> None:
        """Pause or end the run; the message that a paused one goes on with is for the nodes that `asks` names."""
        self._received(command)
        if self._run.status in ("complete", "aborted") or (resumable and self._run.status == "paused"):
            return
        self._halted = True
        self._run.status = "paused" if resumable else "aborted"
        self._nodes.answers.update(dict.fromkeys(asks))
        self._emit({"type": "flow:paused" if resumable else "flow:aborted"})
        self._nodes.interrupt("pause" if resumable else "abort")
        self._save()

    def _resume(self, command: Command) -> None:
        self._received(command)
        if self._run.status in ("complete", "aborted"):
            raise self._not_resumable()
        message = command.get("message")
        self._nodes.resume_message = message if isinstance(message, str) and message else RESUME_MESSAGE
        self._run.status = "running"
        self._emit({"type": "flow:resumed"})

    def _not_resumable(self) -> FlowError:
        return FlowError(f"Run {self._run.run_id} is not resumable.", remedy="Start a new run of the flow.")

    async def _wait_for_room(self) -> None:
        await asyncio.sleep(0)
        if self.room is not None:
            await self.room()

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
            # An error in the last of them does not undo the others.
            self._journal.emit(events)


async def _whole(settling: Coroutine[None, None, None]) -> None:
    """Wait for it, also if the run is cancelled meanwhile: a node that is over is not to run again."""
    task = asyncio.create_task(settling)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
