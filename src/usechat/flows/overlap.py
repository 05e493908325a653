"""Which nodes of a flow may run at the same time: those whose order cannot change what the flow does."""

import re
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias, cast

from usechat.flows.plan import Plan, PlannedNode

__all__ = ["Overlap"]

_Nested: TypeAlias = dict[str, Any] | list[Any]

# The first name of each path in an expression. What stands after a dot is a field, unless one of the next comes before.
_NAME: Final = re.compile(r"(?<![\w.$])(?:`([^`]*)`|([^\W\d]\w*))")
# What may find any name at all: the context itself, wildcards, the parent operator and bound context variables.
_ANY_NAME: Final = re.compile(r"\$(?!\w)|\*\*|@|\.\s*%|(?:^|\b(?:and|or|in)\b|[^\w\s)\]}\"'`.])\s*[*%]")


class Overlap:
    """Tells of two nodes, both of which could run now, whether they may run at the same time.

    With one node at a time, the first node of the file that is ready is next. So until both of the two have run, only
    nodes that stand before the later one come between: those that one of the two leads to, by way of such nodes. If
    nothing on the one side clashes with anything on the other, either order gives the same result. Two nodes clash if
    an edge connects them, if an expression of one names the other, or if both lead to the target of a loop, whose
    rounds count for the first. In a flow with a state, functions that use it clash with each other and with
    expressions that read it.
    """

    def __init__(self, plan: Plan, uses_state: Callable[[str], bool]) -> None:
        """Look at the flow; `uses_state` says of a node type whether its function may read or change the state."""
        names = list(plan.nodes)
        self._place = {name: place for place, name in enumerate(names)}
        self._targets = {name: [edge.edge.target for edge in plan.nodes[name].outgoing] for name in names}
        texts = {name: list(_expressions(node)) for name, node in plan.nodes.items()}
        reads = {name: _names(texts[name]) if _is_plain(texts[name]) else {*names, "state"} for name in names}
        self._clashes: dict[str, set[str]] = {name: set() for name in names}
        for name, node in plan.nodes.items():
            sources = [edge.edge.source for edge in node.incoming]
            self._add_clashes(name, [*sources, *(read for read in reads[name] if read in self._place)])
            if any(edge.loops for edge in node.incoming):
                for source in sources:
                    self._add_clashes(source, sources)
        has_state = plan.flow.state is not None or any("state" in _names(text) for text in texts.values())
        self._functions = {name for name in names if has_state and uses_state(plan.nodes[name].node.type)}
        self._users = self._functions | {name for name in names if has_state and "state" in reads[name]}
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
        """The node, and all that it leads to by way of nodes that do not stand after the last."""
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


def _expressions(node: PlannedNode) -> Iterator[str]:
    """What is evaluated when the node is run and left."""
    yield from _conditions(node.node.when)
    yield from _bindings(node.node.input)
    for edge in node.incoming:
        yield from _bindings(edge.edge.for_each.items if edge.edge.for_each else None)
    for edge in node.outgoing:
        yield from _conditions(edge.edge.when)


def _names(texts: list[str]) -> set[str]:
    return {quoted or plain for text in texts for quoted, plain in _NAME.findall(text)}


def _is_plain(texts: list[str]) -> bool:
    return not any(_ANY_NAME.search(text) for text in texts)


def _conditions(when: Any) -> Iterator[str]:
    match when:
        case str():
            yield when
        case {"equals": {"var": str(var)}}:
            yield var
        case dict() | list():
            yield from _each(cast("_Nested", when), _conditions)
        case _:
            pass


def _bindings(value: Any) -> Iterator[str]:
    match value:
        case str():
            for opened in value.split("{{")[1:]:
                yield opened.rpartition("}}")[0] or opened
        case dict() | list():
            yield from _each(cast("_Nested", value), _bindings)
        case _:
            pass


def _each(value: _Nested, texts: Callable[[Any], Iterator[str]]) -> Iterator[str]:
    for child in value.values() if isinstance(value, dict) else value:
        yield from texts(child)
