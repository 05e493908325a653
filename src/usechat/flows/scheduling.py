"""Which node is next, and what follows from its end: the rules of the original's scheduler, without its waiting."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias, cast

from msgspec import UNSET, Struct, UnsetType

from usechat.errors import FlowError
from usechat.flows.expressions import ExpressionError, Scope
from usechat.flows.overlap import Overlap
from usechat.flows.plan import Plan, PlannedEdge, PlannedNode

__all__ = ["Command", "Event", "RunSnapshot", "RunStatus", "Schedule", "skipped_output"]

Event: TypeAlias = dict[str, Any]
Command: TypeAlias = dict[str, Any]
RunStatus: TypeAlias = Literal["idle", "running", "paused", "aborted", "complete"]
NodeStatus: TypeAlias = Literal["pending", "running", "done", "failed"]
EdgeStatus: TypeAlias = Literal["pending", "fired", "skipped"]


class RunSnapshot(Struct, kw_only=True, rename="camel"):
    """All that a run is at one moment; as JSON it has the original's names.

    `input`, `node_runs`, the run ids of the nodes that are running or were interrupted, and `answers`, what the nodes
    that have asked were told, None until somebody answers, are beside the original's fields: without them a run could
    not go on in another process.
    """

    run_id: str
    status: RunStatus = "idle"
    input: dict[str, Any] = {}
    outputs: dict[str, Any] = {}
    state: dict[str, Any] = {}
    node_status: dict[str, NodeStatus] = {}
    edge_status: dict[str, EdgeStatus] = {}
    loop_counters: dict[str, int] = {}
    inbox: list[Command] = []
    agent_sessions: dict[str, str] = {}
    node_runs: dict[str, str] | UnsetType = UNSET
    answers: dict[str, str | None] | UnsetType = UNSET


def skipped_output(reason: Literal["edge", "when"]) -> dict[str, Any]:
    """What stands for the output of a node that was not run."""
    return {"skipped": True, "reason": reason}


class Schedule:
    """The plan of a flow and how far its run has come; it waits for nothing and emits nothing itself."""

    def __init__(self, plan: Plan, overlap: Overlap, run: RunSnapshot) -> None:
        self.plan = plan
        self._overlap = overlap
        self.run = run
        # A run that was stored may be older than its flow.
        for node_id in plan.nodes:
            run.node_status.setdefault(node_id, "pending")
        for planned in plan.edges:
            run.edge_status.setdefault(planned.key, "pending")
            run.loop_counters.setdefault(planned.key, 0)

    def ready(self) -> PlannedNode | None:
        """The first node of the file that waits for nothing any more, and may run beside those that are running."""
        ahead = [name for name, status in self.run.node_status.items() if status == "running"]
        for node in self._pending():
            if self._decided(node):
                if all(self._overlap.may_overlap(name, node.node.id) for name in ahead):
                    return node
                ahead.append(node.node.id)
        return None

    def stalled(self) -> bool:
        return any(self._pending())

    def scope(self, extra: Mapping[str, Any] | None = None, **variables: Any) -> Scope:
        """What expressions see at this moment."""
        names = {**self.run.outputs, "flow": {"input": self.run.input}, "state": self.run.state, **(extra or {})}
        return Scope(names, variables)

    async def skipped(self, node: PlannedNode) -> Literal["edge", "when"] | None:
        """Why the node is not to be run; None if it is. For a `forEach`, `when` is asked for each item instead.

        Raises:
            FlowError: its condition failed.
        """
        statuses = [self.run.edge_status[planned.key] for planned in node.incoming if not planned.loops]
        if node.gate == "all" and "skipped" in statuses:
            return "edge"
        if node.gate == "any" and statuses and "fired" not in statuses:
            return "edge"
        if self.for_each(node) is None and not await self.wanted(node, self.scope()):
            return "when"
        return None

    async def wanted(self, node: PlannedNode, scope: Scope) -> bool:
        """Whether the node's own condition holds.

        Raises:
            FlowError: the condition failed.
        """
        try:
            return await node.when(scope)
        except ExpressionError as error:
            raise self._failed(f"{node.path}.when", error) from error

    def for_each(self, node: PlannedNode) -> PlannedEdge | None:
        """The edge that runs the node for each of its items, if one has fired.

        Raises:
            FlowError: there are two.
        """
        found = [planned for planned in node.incoming if planned.items and self._fired(planned)]
        if len(found) > 1:
            problem = f"Multiple forEach edges fired into node {node.node.id!r}."
            raise self.plan.flow.error(found[1].path, problem, "Let their conditions exclude each other.")
        return found[0] if found else None

    async def items(self, planned: PlannedEdge) -> list[Any]:
        """What a `forEach` goes through.

        Raises:
            FlowError: it is not an array.
        """
        path = f"{planned.path}.forEach.in"
        try:
            found = await planned.items(self.scope()) if planned.items is not None else UNSET
        except ExpressionError as error:
            raise self._failed(path, error) from error
        if not isinstance(found, list):
            remedy = "Write [ … ] around the expression if it may find a single value."
            raise self.plan.flow.error(path, f"forEach expects array at {planned.key}.", remedy)
        return cast("list[Any]", found)

    async def decide(self, node: PlannedNode, output: Any) -> list[bool | FlowError]:
        """Whether the edges that go out of the node fire after this output; the last may be why there are no more.

        Conditions take time, and nothing changes meanwhile: what is decided is done by `skip` or `leave`.
        """
        scope = self.scope({node.node.id: output})
        decided: list[bool | FlowError] = []
        for planned in node.outgoing:
            try:
                decided.append(await planned.when(scope))
            except ExpressionError as error:
                return [*decided, self._failed(f"{planned.path}.when", error)]
        return decided

    def skip(
        self, node: PlannedNode, reason: Literal["edge", "when"], decided: list[bool | FlowError]
    ) -> Iterator[Event]:
        """Take the node as done without running it; what follows it is looked at all the same."""
        node_id = node.node.id
        self.run.node_status[node_id] = "done"
        self.run.outputs[node_id] = skipped_output(reason)
        yield {"type": "node:skipped", "nodeId": node_id, "reason": reason}
        yield from self.leave(node, decided)

    def leave(self, node: PlannedNode, decided: list[bool | FlowError]) -> Iterator[Event]:
        """Fire the edges that go out of a node that is over, as was decided, and give their events.

        Raises:
            FlowError: a condition failed, or a loop has reached its cap.
        """
        for planned, fires in zip(node.outgoing, decided, strict=False):
            if isinstance(fires, FlowError):
                raise fires
            self.run.edge_status[planned.key] = "fired" if fires else "skipped"
            if fires:
                yield from self._fire(planned)

    def _fire(self, planned: PlannedEdge) -> Iterator[Event]:
        edge = planned.edge
        named = {} if edge.id is None else {"edgeId": edge.id}
        again = self.run.node_status[edge.target] in ("done", "failed")
        if again:
            self.run.node_status[edge.target] = "pending"
        yield {"type": "edge:fire", **named, "from": edge.source, "to": edge.target}
        if not again or edge.max_iterations is None:
            return
        self.run.loop_counters[planned.key] += 1
        count = self.run.loop_counters[planned.key]
        yield {"type": "loop:iterate", **named, "iteration": count}
        if count >= edge.max_iterations:
            problem = f"Loop edge {edge.source} -> {edge.target} exceeded {edge.max_iterations}."
            raise self.plan.flow.error(planned.path, problem, "Let its condition end the loop, or raise the cap.")

    def _pending(self) -> Iterator[PlannedNode]:
        return (node for name, node in self.plan.nodes.items() if self.run.node_status[name] == "pending")

    def _decided(self, node: PlannedNode) -> bool:
        return all(planned.loops or self.run.edge_status[planned.key] != "pending" for planned in node.incoming)

    def _fired(self, planned: PlannedEdge) -> bool:
        return self.run.edge_status[planned.key] == "fired"

    def _failed(self, path: str, error: ExpressionError) -> FlowError:
        return self.plan.flow.error(path, str(error), "Let the expression allow for such values.")
