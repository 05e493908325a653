"""The nodes of a run that are on their way: their invocations and their inboxes."""

import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from msgspec import UNSET, Struct

from usechat.flows.context import CancelReason, Inbox, NodeContext, NodeFunction, State
from usechat.flows.expressions import ExpressionError, Scope
from usechat.flows.invocation import Done, Failed, Invocation, Outcome, Stopped
from usechat.flows.nodes import AgentFunction
from usechat.flows.plan import PlannedEdge, PlannedNode
from usechat.flows.scheduling import Command, Event, Schedule
from usechat.turns.pump import Unused

__all__ = ["RESUME_MESSAGE", "Ended", "NodeRuns"]

RESUME_MESSAGE: Final = "continue"
"""What a node that has asked is told when its run goes on and nobody said anything else."""


class Ended(Struct, frozen=True):
    """How a node ended, and the event that is still to be told of it."""

    outcome: Outcome
    run_id: str
    event: Event | None


class NodeRuns:
    """Runs the nodes of one schedule, once or for each item; `halting` asks whether to begin another one.

    `interrupted` are the nodes that were running when an earlier run ended, and that did not run again yet; `run_ids`
    has the last run id of each node that is not over. `answers` has those that have asked and are not over: what they
    were told, or None until the run goes on.
    """

    def __init__(
        self,
        functions: Mapping[str, NodeFunction],
        schedule: Schedule,
        *,
        emit: Callable[[Mapping[str, Any]], None],
        dispatch: Callable[[Command], None],
        pause: Callable[[str], None],
        halting: Callable[[], bool],
        unused: Callable[[], Unused],
        room: Callable[[], Awaitable[None]],
    ) -> None:
        self.resume_message: str | None = None
        self._functions = functions
        self._schedule = schedule
        self._emit = emit
        self._dispatch = dispatch
        self._pause = pause
        self._halting = halting
        self._unused = unused
        self._room = room
        self.interrupted: set[str] = set()
        self.run_ids: dict[str, str] = {} if schedule.run.node_runs is UNSET else dict(schedule.run.node_runs)
        self.answers = self._stored_answers()
        self._invocations: dict[str, Invocation] = {}
        self._inboxes: dict[str, Inbox] = {}
        for command in schedule.run.inbox:
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
        # To an agent anything may be said, also if nobody asked.
        given = asked or [name for name in self.interrupted if self._is_agent(name)]
        self.answers.update(dict.fromkeys(given, self.resume_message or RESUME_MESSAGE))
        unread = {command["runId"] for command in self.unread()}
        # The original keeps no run ids: with it, the only inbox that was not read is that of the interrupted node.
        if len(self.interrupted) == len(unread) == 1:
            self.run_ids.setdefault(*self.interrupted, *unread)

    async def run(self, node: PlannedNode) -> Ended:
        """Run the node to its end.

        Raises:
            FlowError: what it is to be run for each of is not an array, or its condition failed.
        """
        edge = self._schedule.for_each(node)
        if edge is not None:
            return await self._run_items(node, edge)
        run_id, message = self._identify(node)
        return await self._invoke(node, run_id, self._schedule.scope(), message)

    def _identify(self, node: PlannedNode) -> tuple[str, str | None]:
        name = node.node.id
        if name not in self.interrupted:
            return str(uuid.uuid4()), None
        self.interrupted.discard(name)
        run_id = self.run_ids.get(name)
        # Only for the sake of what was sent to it, and not read, does a node keep its run id.
        if run_id is None or not self.inbox(run_id).pending():
            run_id = str(uuid.uuid4())
        message = self.answers.get(name)
        if message is not None:
            command = {"type": "send", "runId": run_id, "message": message}
            # A node that is told the same again, since it was interrupted again, may have left it unread.
            if command not in self.inbox(run_id).pending():
                self._dispatch(command)
        return run_id, message

    def _stored_answers(self) -> dict[str, str | None]:
        run = self._schedule.run
        if run.answers is not UNSET:
            return dict(run.answers)
        # The original pauses only when it is told to from outside, and gives the message to whatever ran then.
        paused = run.node_status.items() if run.status == "paused" else ()
        return {name: None for name, status in paused if status == "running"}

    def _is_agent(self, name: str) -> bool:
        return isinstance(self._functions[self._schedule.plan.nodes[name].node.type], AgentFunction)

    async def _run_items(self, node: PlannedNode, edge: PlannedEdge) -> Ended:
        self.forget(node.node.id)
        iterations: list[dict[str, Any]] = []
        items = await self._schedule.items(edge)
        for number, item in enumerate(items):
            scope = self._item_scope(edge, item, number, len(items))
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

    def _item_scope(self, edge: PlannedEdge, item: Any, number: int, count: int) -> Scope:
        name = edge.edge.for_each.name if edge.edge.for_each else ""
        return self._schedule.scope(
            {name: item}, iteration=number, first=number == 0, last=number == count - 1, maxIterations=count
        )

    async def _invoke(self, node: PlannedNode, run_id: str, scope: Scope, message: str | None) -> Ended:
        if self._halting():
            return Ended(Stopped(), run_id, None)

        def new_context() -> NodeContext:
            return NodeContext(
                node_id=node.node.id,
                run_id=run_id,
                emit=self._emit,
                state=State(self._schedule.run.state),
                inbox=self.inbox(run_id),
                sessions=self._schedule.run.agent_sessions,
                resume_message=message,
                unused=self._unused(),
                room=self._room,
                pause=lambda: self._pause(node.node.id),
            )

        invocation = Invocation(self._functions[node.node.type], new_context, node.node.policy)
        self._invocations[run_id] = invocation
        self.run_ids[node.node.id] = run_id
        self._emit({"type": "node:start", "nodeId": node.node.id, "runId": run_id})
        try:
            outcome = await invocation.run(await node.input(scope))
        except ExpressionError as error:
            outcome = Failed(str(error))
        finally:
            del self._invocations[run_id]
        return self._ended(node, run_id, outcome)

    def _ended(self, node: PlannedNode, run_id: str, outcome: Outcome) -> Ended:
        if isinstance(outcome, Stopped):
            return Ended(outcome, run_id, None)
        del self._inboxes[run_id], self.run_ids[node.node.id]
        self.forget(node.node.id)
        kind = "node:complete" if isinstance(outcome, Done) else "node:error"
        event = {"type": kind, "nodeId": node.node.id, "runId": run_id, **_result(outcome)}
        return Ended(outcome, run_id, event)


def _result(outcome: Done | Failed) -> dict[str, Any]:
    return {"output": outcome.output} if isinstance(outcome, Done) else {"error": outcome.error}
