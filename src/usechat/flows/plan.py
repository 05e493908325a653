"""A flow made ready to run: checked as a whole, its edges sorted by node, its expressions compiled."""

from collections.abc import Callable
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Any, Final, Literal, TypeVar

from msgspec import Struct

from usechat.errors import FlowError
from usechat.flows.expressions import Condition, ExpressionError, Template, condition, object_template, template
from usechat.flows.spec import Edge, Flow, Node

__all__ = ["Plan", "PlannedEdge", "PlannedNode"]

_T = TypeVar("_T")
# What expressions call the run's input and its state.
_TAKEN: Final = ("flow", "state")


class PlannedEdge(Struct, frozen=True):
    edge: Edge
    key: str
    path: str
    when: Condition
    items: Template | None

    @property
    def loops(self) -> bool:
        return self.edge.max_iterations is not None


class PlannedNode(Struct, frozen=True):
    """`incoming` and `outgoing` are in the order of the file."""

    node: Node
    path: str
    when: Condition
    input: Template
    gate: Literal["any", "all"]
    incoming: list[PlannedEdge]
    outgoing: list[PlannedEdge]


class Plan:
    """The nodes of a flow by id, in the order of the file."""

    def __init__(self, flow: Flow) -> None:
        """Check the flow as a whole.

        Raises:
            FlowError: it could not run.
        """
        self.flow = flow
        self._check_nodes()
        self._check_edges()
        self._check_cycles()
        self.edges = [self._plan_edge(number, edge) for number, edge in enumerate(flow.edges)]
        self.nodes = {node.id: self._plan_node(number, node) for number, node in enumerate(flow.nodes)}

    def _check_nodes(self) -> None:
        seen: set[str] = set()
        for number, node in enumerate(self.flow.nodes):
            path = f"nodes[{number}].id"
            if node.id in seen:
                raise self.flow.error(path, f"Two nodes have the id {node.id!r}.", "Give one of them another id.")
            if node.id in _TAKEN:
                problem = f"Expressions know {node.id!r} as something else."
                raise self.flow.error(path, problem, "Give the node another id.")
            seen.add(node.id)

    def _check_edges(self) -> None:
        ids = {node.id for node in self.flow.nodes}
        keys: set[str] = set()
        for number, edge in enumerate(self.flow.edges):
            path = f"edges[{number}]"
            for name, end in (("from", edge.source), ("to", edge.target)):
                if end not in ids:
                    remedy = f"Name one of: {', '.join(sorted(ids)) or 'none yet'}."
                    raise self.flow.error(f"{path}.{name}", f"There is no node {end!r}.", remedy)
            if edge.key in keys:
                problem = f"Two edges are called {edge.key!r}."
                raise self.flow.error(path, problem, "Give one of them an `id` of its own.")
            keys.add(edge.key)

    def _check_cycles(self) -> None:
        before: dict[str, set[str]] = {node.id: set() for node in self.flow.nodes}
        for edge in self.flow.edges:
            if edge.max_iterations is None:
                before[edge.target].add(edge.source)
        try:
            TopologicalSorter(before).prepare()
        except CycleError as error:
            around: list[str] = error.args[1]
            raise self._cycle(around) from None

    def _cycle(self, around: list[str]) -> FlowError:
        ends = set(pairwise(around))
        numbers = [n for n, edge in enumerate(self.flow.edges) if (edge.source, edge.target) in ends]
        problem = f"The nodes wait for each other: {' -> '.join(around)}."
        return self.flow.error(
            f"edges[{numbers[-1]}]", problem, "Give the edge that leads back a `maxIterations`, or remove it."
        )

    def _plan_edge(self, number: int, edge: Edge) -> PlannedEdge:
        path = f"edges[{number}]"
        when = self._compiled(f"{path}.when", lambda: condition(edge.when))
        items = None
        if edge.for_each is not None:
            binding = edge.for_each.items
            if not (binding.strip().startswith("{{") and binding.strip().endswith("}}")):
                problem = f"`in` must be a binding, but it is {binding!r}."
                raise self.flow.error(f"{path}.forEach.in", problem, f"Write '{{{{ {binding} }}}}'.")
            items = self._compiled(f"{path}.forEach.in", lambda: template(binding))
        return PlannedEdge(edge, edge.key, path, when, items)

    def _plan_node(self, number: int, node: Node) -> PlannedNode:
        path = f"nodes[{number}]"
        when = self._compiled(f"{path}.when", lambda: condition(node.when))
        members = {name: self._member(f"{path}.input.{name}", value) for name, value in node.input.items()}
        incoming = [planned for planned in self.edges if planned.edge.target == node.id]
        outgoing = [planned for planned in self.edges if planned.edge.source == node.id]
        return PlannedNode(node, path, when, object_template(members), self._gate(incoming), incoming, outgoing)

    def _member(self, path: str, value: Any) -> Template:
        return self._compiled(path, lambda: template(value))

    def _gate(self, incoming: list[PlannedEdge]) -> Literal["any", "all"]:
        gate = None
        for planned in incoming:
            gate = gate or planned.edge.gate
            if planned.edge.gate not in (None, gate):
                problem = f"The edges to {planned.edge.target!r} do not agree whether `any` or `all` of them open it."
                raise self.flow.error(f"{planned.path}.gate", problem, "Give them the same `gate`.")
        return gate or "all"

    def _compiled(self, path: str, compiling: Callable[[], _T]) -> _T:
        try:
            return compiling()
        except ExpressionError as error:
            raise self.flow.error(path, str(error), error.remedy) from error
