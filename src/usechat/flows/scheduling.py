"""Which node runs next, and what follows from its end: the rules of the original's scheduler, without its tasks.

A run's position is in its `RunSnapshot`, which can be stored at any moment:

- A node is `pending`, `running`, then `done` or `failed`. A pending node that is skipped is done at once. An edge that
  fires into a node that is over makes it pending again: a round of a loop. A running node whose run was interrupted is
  pending again when the run is resumed.
- An edge is `pending` until its source is over for the first time. Then it is `fired` or `skipped`, as its condition
  was at the last end of its source.

A pending node is ready when no edge to it is pending; edges with `maxIterations` do not count. Of the nodes that are
ready, the first in the file is next. Another one may run beside it if `Overlap` says that their order cannot matter.

Conditions take time, so a node's end has two steps. `decide` evaluates the conditions of its edges and changes nothing.
`skip` or `leave` then changes the node and its edges without waiting, so no snapshot has half of it. The runtime
(`FlowRuntime`) calls all methods, one at a time.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeAlias, cast

from msgspec import UNSET, Struct, UnsetType

from usechat.errors import FlowError
from usechat.flows.expressions import ExpressionError, Scope
from usechat.flows.spec import Plan, PlannedEdge, PlannedNode

__all__ = ["Command", "Event", "Overlap", "RunSnapshot", "RunStatus", "Schedule", "skipped_output"]

Event: TypeAlias = dict[str, Any]
Command: TypeAlias = dict[str, Any]
RunStatus: TypeAlias = Literal["idle", "running", "paused", "aborted", "complete"]
NodeStatus: TypeAlias = Literal["pending", "running", "done", "failed"]
EdgeStatus: TypeAlias = Literal["pending", "fired", "skipped"]


class RunSnapshot(Struct, kw_only=True, rename="camel"):
    """The whole state of a run at one moment; as JSON it has the original's names.

    The original lacks three of the fields, without which a run could not continue in another process: `input` is the
    run's input; `node_runs` has the run ids of the nodes that are running or were interrupted; `answers` has the nodes
    that have asked, each with its resume message, or None until the run is resumed.
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
    """The output of a node that was skipped."""
    return {"skipped": True, "reason": reason}


class Overlap:
    """Says whether two nodes that could both run now may run at the same time.

    One at a time, the first node of the file that is ready would run next. So until both have run, only nodes before
    the later of the two in the file could run in between: those that one of the two leads to, through such nodes only.
    If nothing on the one side clashes with anything on the other, either order has the same result. Two nodes clash if
    an edge connects them, if an expression of one reads the other, or if both lead to the target of a loop, whose
    rounds depend on which comes first. In a flow with a state, functions that use the state clash with each other and
    with expressions that read it.
    """

    def __init__(self, plan: Plan, uses_state: Callable[[str], bool]) -> None:
        """Find the clashes; `uses_state` says whether the function of a node type may read or change the state."""
        self._place = {name: place for place, name in enumerate(plan.nodes)}
        self._targets = {name: [edge.edge.target for edge in node.outgoing] for name, node in plan.nodes.items()}
        self._clashes: dict[str, set[str]] = {name: set() for name in plan.nodes}
        for name, node in plan.nodes.items():
            sources = [edge.edge.source for edge in node.incoming]
            self._add_clashes(name, [*sources, *(read for read in plan.reads[name] if read in self._place)])
            if any(edge.loops for edge in node.incoming):
                for source in sources:
                    self._add_clashes(source, sources)
        readers = {name for name, reads in plan.reads.items() if "state" in reads}
        has_state = plan.flow.state is not None or bool(readers)
        self._functions = {name for name, node in plan.nodes.items() if has_state and uses_state(node.node.type)}
        self._users = self._functions | readers
        self._after: dict[str, set[str]] = {}
        self._known: dict[tuple[str, str], bool] = {}

    def may_overlap(self, one: str, other: str) -> bool:
        earlier, later = sorted((one, other), key=self._place.__getitem__)
        if (earlier, later) not in self._known:
            last = self._place[later]
            if later not in self._after:
                self._after[later] = set(self._following(later, last))
            beside = self._after[later]
            self._known[earlier, later] = not any(self._clash(name, beside) for name in self._following(earlier, last))
        return self._known[earlier, later]

    def _add_clashes(self, name: str, others: list[str]) -> None:
        for other in others:
            self._clashes[name].add(other)
            self._clashes[other].add(name)

    def _following(self, name: str, last: int) -> Iterator[str]:
        """The node, and all that it leads to through nodes that are not after `last` in the file."""
        found, unseen = {name}, [name]
        while unseen:
            yield unseen[-1]
            new = {target for target in self._targets[unseen.pop()] if self._place[target] <= last} - found
            found |= new
            unseen += new

    def _clash(self, name: str, others: set[str]) -> bool:
        if not self._clashes[name].isdisjoint(others):
            return True
        if name in self._functions:
            return not others.isdisjoint(self._users)
        return name in self._users and not others.isdisjoint(self._functions)


class Schedule:
    """The plan of a flow and the position of its run. It returns events and emits none.

    Its methods raise a `FlowError` if an expression fails, or if the flow turns out to be wrong.
    """

    def __init__(self, plan: Plan, overlap: Overlap, run: RunSnapshot) -> None:
        self.plan = plan
        self._overlap = overlap
        self.run = run
        # A stored run may be older than its flow.
        for node_id in plan.nodes:
            run.node_status.setdefault(node_id, "pending")
        for planned in plan.edges:
            run.edge_status.setdefault(planned.key, "pending")
            run.loop_counters.setdefault(planned.key, 0)

    def ready(self) -> PlannedNode | None:
        """The first node in the file that is ready and may run beside those that are running."""
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
        """Why to skip the node, or None to run it. In a `forEach`, its `when` counts for each item instead."""
        statuses = [self.run.edge_status[planned.key] for planned in node.incoming if not planned.loops]
        if node.gate == "all" and "skipped" in statuses:
            return "edge"
        if node.gate == "any" and statuses and "fired" not in statuses:
            return "edge"
        if self.for_each(node) is None and not await self.wanted(node, self.scope()):
            return "when"
        return None

    async def wanted(self, node: PlannedNode, scope: Scope) -> bool:
        """Whether the node's own condition holds."""
        try:
            return await node.when(scope)
        except ExpressionError as error:
            raise self._failed(f"{node.path}.when", error) from error

    def for_each(self, node: PlannedNode) -> PlannedEdge | None:
        """The `forEach` edge that has fired into the node, if one has."""
        found = [edge for edge in node.incoming if edge.items and self.run.edge_status[edge.key] == "fired"]
        if len(found) > 1:
            problem = f"Multiple forEach edges fired into node {node.node.id!r}."
            raise self.plan.flow.error(found[1].path, problem, "Let their conditions exclude each other.")
        return found[0] if found else None

    async def items(self, planned: PlannedEdge) -> list[Any]:
        """The items of a `forEach` edge."""
        path = f"{planned.path}.forEach.in"
        try:
            found = None if planned.items is None else await planned.items(self.scope())
        except ExpressionError as error:
            raise self._failed(path, error) from error
        if not isinstance(found, list):
            remedy = "Put the expression in [ … ] if it may return a single value."
            raise self.plan.flow.error(path, f"forEach expects array at {planned.key}.", remedy)
        return cast("list[Any]", found)

    async def decide(self, node: PlannedNode, output: Any) -> list[bool | FlowError]:
        """Whether each outgoing edge of the node fires after this output; an error ends the list."""
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
        """Mark the node as done without running it, then fire its edges, and return the events."""
        node_id = node.node.id
        self.run.node_status[node_id] = "done"
        self.run.outputs[node_id] = skipped_output(reason)
        yield {"type": "node:skipped", "nodeId": node_id, "reason": reason}
        yield from self.leave(node, decided)

    def leave(self, node: PlannedNode, decided: list[bool | FlowError]) -> Iterator[Event]:
        """Fire the outgoing edges of a node that is over, as decided, and return the events."""
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
            remedy = "Let its condition end the loop, or raise `maxIterations`."
            raise self.plan.flow.error(planned.path, problem, remedy)

    def _pending(self) -> Iterator[PlannedNode]:
        return (node for name, node in self.plan.nodes.items() if self.run.node_status[name] == "pending")

    def _decided(self, node: PlannedNode) -> bool:
        return all(planned.loops or self.run.edge_status[planned.key] != "pending" for planned in node.incoming)

    def _failed(self, path: str, error: ExpressionError) -> FlowError:
        return self.plan.flow.error(path, str(error), "Make the expression handle such values.")
