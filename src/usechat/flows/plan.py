"""A flow made ready to run: checked as a whole, its edges sorted by node, its expressions compiled."""

import re
from collections.abc import Callable, Iterable
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Final, Literal, TypeVar

from msgspec import Struct

from usechat.flows.expressions import Check, Condition, ExpressionError, Parsed, Template, condition, template
from usechat.flows.spec import Edge, Flow, Node, nearest, suggestion

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
    """The nodes of a flow by id, in the order of the file.

    `reads` has the names that the expressions read which are evaluated when a node is run and left. `oddities` are
    paths, and what may be a mistake there.
    """

    def __init__(self, flow: Flow) -> None:
        """Check the flow as a whole; if it could not run, raise a `FlowError`."""
        self.flow = flow
        self.oddities: list[tuple[str, str]] = []
        self._check_nodes()
        self._check_edges()
        self._check_cycles()
        self.reads: dict[str, set[str]] = {node.id: set() for node in flow.nodes}
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
                    raise self.flow.error(f"{path}.{name}", f"There is no node {end!r}.", suggestion(end, ids))
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
            ends = set(pairwise(around))
            last = max(n for n, edge in enumerate(self.flow.edges) if (edge.source, edge.target) in ends)
            problem = f"The nodes wait for each other: {' -> '.join(around)}."
            remedy = "Give the edge that leads back a `maxIterations`, or remove it."
            raise self.flow.error(f"edges[{last}]", problem, remedy) from None

    def _plan_edge(self, number: int, edge: Edge) -> PlannedEdge:
        path = f"edges[{number}]"
        when = self._compiled(edge.source, f"{path}.when", lambda check: condition(edge.when, check))
        items = None
        if edge.for_each is not None:
            binding = edge.for_each.items
            if not (binding.strip().startswith("{{") and binding.strip().endswith("}}")):
                problem = f"`in` must be a binding, but it is {binding!r}."
                raise self.flow.error(f"{path}.forEach.in", problem, f"Write '{{{{ {binding} }}}}'.")
            items = self._compiled(edge.target, f"{path}.forEach.in", lambda check: template(binding, check))
        return PlannedEdge(edge, edge.key, path, when, items)

    def _plan_node(self, number: int, node: Node) -> PlannedNode:
        path = f"nodes[{number}]"
        incoming = [planned for planned in self.edges if planned.edge.target == node.id]
        items = [planned.edge.for_each.name for planned in incoming if planned.edge.for_each]
        when = self._compiled(node.id, f"{path}.when", lambda check: condition(node.when, check), *items)
        filled = self._compiled(node.id, f"{path}.input", lambda check: template(node.input, check), *items)
        outgoing = [planned for planned in self.edges if planned.edge.source == node.id]
        return PlannedNode(node, path, when, filled, self._gate(incoming), incoming, outgoing)

    def _gate(self, incoming: list[PlannedEdge]) -> Literal["any", "all"]:
        gate = None
        for planned in incoming:
            gate = gate or planned.edge.gate
            if planned.edge.gate not in (None, gate):
                problem = f"The edges to {planned.edge.target!r} do not agree whether `any` or `all` of them open it."
                raise self.flow.error(f"{planned.path}.gate", problem, "Give them the same `gate`.")
        return gate or "all"

    def _compiled(self, reader: str, path: str, compiling: Callable[[Check], _T], *items: str) -> _T:
        """Compile what the node `reader` evaluates, which may also name the `items` of a `forEach`."""

        def check(parsed: Parsed) -> None:
            self._check_names(path, parsed, items)
            everything = (*self.reads, "state") if parsed.whole else ()
            self.reads[reader].update((name for name, _ in parsed.heads), everything)

        try:
            return compiling(check)
        except ExpressionError as error:
            raise self.flow.error(path + error.place, str(error), error.remedy) from error

    def _check_names(self, path: str, parsed: Parsed, items: Iterable[str]) -> None:
        ids = [*(node.id for node in self.flow.nodes), *items]
        for name, inner in sorted(parsed.heads, key=str):
            if name in ids:
                continue
            if name not in _TAKEN:
                raise ExpressionError(f"There is no node {name!r}.", remedy=_remedy(name, ids))
            if name == "flow" and inner not in (None, "input"):
                remedy = f"Write flow.input.{inner} for what the run was given."
                raise ExpressionError(f"`flow` has an `input`, and no {inner!r}.", remedy=remedy)
            if name == "state" and inner is not None:
                self._check_state(path, inner)

    def _check_state(self, path: str, name: str) -> None:
        initial = self.flow.state.initial if self.flow.state else {}
        meant = nearest(name, initial, cutoff=0.8)
        # A node may put there what it likes.
        if name not in initial and meant is not None:
            self.oddities.append((path, f"The state has no {name!r} at first; did you mean {meant!r}?"))


def _remedy(name: str, ids: list[str]) -> str:
    parts = [known for known in ids if not known.isidentifier() and name in re.split(r"\W+", known)]
    if parts:
        return f"Write `{parts[0]}`, with the backticks, if that is meant."
    return suggestion(name, [*ids, *_TAKEN])
