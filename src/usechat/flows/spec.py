"""A flow: Open Harness's format as Structs, and the plan that runs it.

`read_flow` checks the fields. `Plan` checks the flow as a whole, sorts its edges by node and compiles its expressions.
"""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar, cast

import msgspec
from msgspec import Meta, Struct, field

from usechat.errors import FlowError
from usechat.flows.expressions import (
    OPERATORS,
    Check,
    Condition,
    ExpressionError,
    Parsed,
    Template,
    condition,
    template,
)

__all__ = [
    "Edge",
    "Flow",
    "FlowFile",
    "FlowState",
    "ForEach",
    "Node",
    "Plan",
    "PlannedEdge",
    "PlannedNode",
    "Policy",
    "Retry",
    "When",
    "line_of",
    "nearest",
    "read_flow",
    "suggestion",
]

_Name: TypeAlias = Annotated[str, Meta(min_length=1)]
_Milliseconds: TypeAlias = Annotated[int, Meta(ge=0)]
_Count: TypeAlias = Annotated[int, Meta(ge=1)]
When: TypeAlias = str | dict[str, Any]

_FIELD: Final = re.compile(r"Object missing required field `(.*)`\.")
# The fields whose values are the author's own.
_FREE: Final = ("input", "ui", "initial", "schema")
# The names of the run's input and its state in expressions.
_TAKEN: Final = ("flow", "state")
_T = TypeVar("_T")

_log = logging.getLogger("usechat")


class _Written(Struct, frozen=True, kw_only=True, rename="camel"):
    pass


class Retry(_Written, frozen=True, kw_only=True):
    max_attempts: _Count
    backoff_ms: _Milliseconds = 0


class Policy(_Written, frozen=True, kw_only=True):
    """Retries, the timeout of each attempt, and whether the run continues if the node fails."""

    retry: Retry | None = None
    timeout_ms: _Count | None = None
    continue_on_error: bool = False


class Node(_Written, frozen=True, kw_only=True):
    """`input` may contain bindings; `ui` is for editors and is not read."""

    id: _Name
    type: _Name
    input: dict[str, Any]
    when: When | None = None
    policy: Policy = Policy()
    ui: dict[str, Any] | None = None


class ForEach(_Written, frozen=True, kw_only=True):
    """`items` (`in` in the file) is a binding to an array; `name` (`as`) is the name of an item in bindings."""

    items: _Name = field(name="in")
    name: _Name = field(name="as")


class Edge(_Written, frozen=True, kw_only=True):
    """An edge with `max_iterations` may lead back to an earlier node, and its target does not wait for it."""

    source: _Name = field(name="from")
    target: _Name = field(name="to")
    id: _Name | None = None
    when: When | None = None
    gate: Literal["any", "all"] | None = None
    for_each: ForEach | None = None
    max_iterations: _Count | None = None

    @property
    def key(self) -> str:
        return self.id or f"{self.source}->{self.target}"


class FlowState(_Written, frozen=True, kw_only=True):
    initial: dict[str, Any]
    schema: Any = None


class Flow(_Written, frozen=True, kw_only=True):
    name: _Name
    nodes: list[Node]
    edges: list[Edge]
    version: str | int | float | None = None
    state: FlowState | None = None

    def error(self, path: str, problem: str, remedy: str) -> FlowError:
        """The error for a problem at a path such as `nodes[0].when`."""
        return FlowError(problem, remedy=remedy, path=path)


class FlowFile(Flow, frozen=True, kw_only=True):
    """A flow that knows the line of each of its paths."""

    file: str
    lines: dict[str, int]

    def error(self, path: str, problem: str, remedy: str) -> FlowError:
        return FlowError(problem, remedy=remedy, path=path, file=self.file, line=line_of(self.lines, path))


def read_flow(flow: Any, *, place: Callable[[str], str] = str) -> Flow:
    """Check the fields of a flow: Structs, or JSON-shaped dicts.

    Unknown fields are ignored, as in the original, and logged; `place` turns a path into its name in the log.

    Raises:
        FlowError: a field is missing, or of a wrong type.
    """
    if isinstance(flow, FlowFile):
        return flow
    data = msgspec.to_builtins(flow, str_keys=True)
    read = _convert(data)
    for path, name, known in _unknown(data, msgspec.to_builtins(read)):
        meant = nearest(name, known)
        hint = f"Did you mean `{meant}`?" if meant else f"The fields are {', '.join(known)}."
        _log.warning("%s: The unknown field `%s` is ignored. %s", place(path), name, hint)
    return read


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.5) -> str | None:
    """The known name that was probably meant."""
    return next(iter(get_close_matches(name, list(known), 1, cutoff)), None)


def suggestion(name: str, known: Iterable[str]) -> str:
    """The remedy for an unknown name."""
    meant = nearest(name, known)
    return f"Did you mean {meant!r}?" if meant else f"Use one of: {', '.join(sorted(known)) or 'none yet'}."


def _convert(data: Any) -> Flow:
    try:
        return msgspec.convert(data, Flow)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$")
        problem, remedy = f"{problem}.", "Write a value of that type. Text that looks like a number needs quotes."
        missing = _FIELD.fullmatch(problem)
        if missing is not None:
            problem, remedy = f"The field `{missing[1]}` is missing.", "Add it."
        raise FlowError(problem, remedy=remedy, path=path.strip(".`")) from error


_Unknown: TypeAlias = tuple[str, str, list[str]]


def _unknown(data: Any, read: Any, path: str = "") -> Iterator[_Unknown]:
    """The path and the name of each unknown field, and the names that are known there."""
    if isinstance(data, list):
        for number, (item, one) in enumerate(zip(cast("list[Any]", data), read, strict=True)):
            yield from _unknown(item, one, f"{path}[{number}]")
    if not isinstance(data, dict):
        return
    for name, value in cast("dict[str, Any]", data).items():
        child = f"{path}.{name}" if path else name
        if name not in read:
            yield child, name, list(read)
        elif name == "when":
            yield from _unknown_in_tree(value, child)
        elif name not in _FREE:
            yield from _unknown(value, read[name], child)


def _unknown_in_tree(when: Any, path: str) -> Iterator[_Unknown]:
    if isinstance(when, list):
        for number, item in enumerate(cast("list[Any]", when)):
            yield from _unknown_in_tree(item, f"{path}[{number}]")
    if not isinstance(when, dict):
        return
    for name, value in cast("dict[str, Any]", when).items():
        if name not in OPERATORS:
            yield f"{path}.{name}", name, list(OPERATORS)
        elif name != "equals":
            yield from _unknown_in_tree(value, f"{path}.{name}")
        elif isinstance(value, dict):
            for inner in set(cast("dict[str, Any]", value)) - {"var", "value"}:
                yield f"{path}.equals.{inner}", inner, ["var", "value"]


def line_of(lines: Mapping[str, int], path: str) -> int:
    """The line of a path, or of the nearest place around it."""
    while path not in lines:
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return lines[path]


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

    `reads` has, for each node, the names that its expressions and those of its outgoing edges read. `oddities` are
    paths, each with what may be a mistake there.
    """

    def __init__(self, flow: Flow) -> None:
        """Check the flow as a whole, and raise a `FlowError` if it could not run."""
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
                problem = f"The id {node.id!r} is reserved for expressions."
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
                problem = f"The edges to {planned.edge.target!r} have different gates."
                raise self.flow.error(f"{planned.path}.gate", problem, "Give them the same `gate`.")
        return gate or "all"

    def _compiled(self, reader: str, path: str, compiling: Callable[[Check], _T], *items: str) -> _T:
        """Compile an expression of the node `reader`, which may also use the `items` of a `forEach` by name."""

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
                remedy = f"Write flow.input.{inner} for a field of the run's input."
                raise ExpressionError(f"`flow` has no {inner!r}, only `input`.", remedy=remedy)
            if name == "state" and inner is not None:
                self._check_state(path, inner)

    def _check_state(self, path: str, name: str) -> None:
        initial = self.flow.state.initial if self.flow.state else {}
        meant = nearest(name, initial, cutoff=0.8)
        # A node may add any name to the state later.
        if name not in initial and meant is not None:
            self.oddities.append((path, f"The initial state has no {name!r}. Did you mean {meant!r}?"))


def _remedy(name: str, ids: list[str]) -> str:
    parts = [known for known in ids if not known.isidentifier() and name in re.split(r"\W+", known)]
    if parts:
        return f"If you mean `{parts[0]}`, write it with the backticks."
    return suggestion(name, [*ids, *_TAKEN])
