"""Which nodes of a flow may run at the same time: those whose order cannot change what the flow does."""

import re
from collections.abc import Callable, Iterator
from typing import Any, Final, cast

from usechat.flows.plan import Plan, PlannedNode

__all__ = ["Overlap"]

# The first name of each path in an expression. What stands after a dot is a field, unless one of the next comes before.
_NAME: Final = re.compile(r"(?<![\w.$])(?:`([^`]*)`|([^\W\d]\w*))")
# What may find any name at all: the context itself, wildcards, the parent operator and bound context variables.
_ANY_NAME: Final = re.compile(r"\$(?!\w)|\*\*|@|\.\s*%|(?:^|\b(?:and|or|in)\b|[^\w\s)\]}\"'`.])\s*[*%]")


class Overlap:
    """Tells of two nodes, both of which could run now, whether they may run at the same time.

    With one node at a time, the first of the file that is ready is next. Until both of the two have run, only nodes that
    stand before the later one can come between: those that the two lead to, by edges from one to the next of such
    nodes. If nothing on the one side clashes with anything on the other, either order gives the same result. Two nodes
    clash if an edge connects them, an expression of one names the other, or both change how often a loop was
    gone through. In a flow with a state, functions that use the state clash with each other and with
    expressions that read it.
    """

    def __init__(self, plan: Plan, uses_state: Callable[[str], bool]) -> None:
        """Look at the flow; `uses_state` says of a node type whether its function may read or change the state."""
        names = list(plan.nodes)
        self._place = {name: place for place, name in enumerate(names)}
        self._targets = {name: [edge.edge.target for edge in plan.nodes[name].outgoing] for name in names}
        texts = {name: list(_expressions(node)) for name, node in plan.nodes.items()}
        reads = {name: _names(texts[name]) if _is_plain(texts[name]) else {*names, "state"} for name in names}
        self._clashes = {name: {name, *self._targets[name], *reads[name]} for name in names}
        for node in plan.nodes.values():
            if any(edge.loops for edge in node.incoming):
                for edge in node.incoming:
                    self._clashes[edge.edge.source].update(other.edge.source for other in node.incoming)
        has_state = plan.flow.state is not None or any("state" in _names(text) for text in texts.values())
        self._functions = {name for name in names if has_state and uses_state(plan.nodes[name].node.type)}
        self._readers = {name for name in names if has_state and "state" in reads[name]}
        self._known: dict[tuple[str, str], bool] = {}

    def may_overlap(self, one: str, other: str) -> bool:
        if (one, other) not in self._known:
            last = max(self._place[one], self._place[other])
            left, right = self._following(one, last), self._following(other, last)
            self._known[one, other] = not (self._clash(left, right) or self._clash(right, left))
        return self._known[one, other]

    def _following(self, name: str, last: int) -> set[str]:
        """The node, and all that it leads to by way of nodes that do not stand after the last."""
        found, unseen = {name}, [name]
        while unseen:
            new = {target for target in self._targets[unseen.pop()] if self._place[target] <= last} - found
            found |= new
            unseen += new
        return found

    def _clash(self, some: set[str], others: set[str]) -> bool:
        if some & self._functions and others & (self._functions | self._readers):
            return True
        return any(self._clashes[name] & others for name in some)


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
            yield from _each(when, _conditions)
        case _:
            pass


def _bindings(value: Any) -> Iterator[str]:
    match value:
        case str():
            for opened in value.split("{{")[1:]:
                yield opened.rpartition("}}")[0] or opened
        case dict() | list():
            yield from _each(value, _bindings)
        case _:
            pass


def _each(value: dict[str, Any] | list[Any], texts: Callable[[Any], Iterator[str]]) -> Iterator[str]:
    children = value.values() if isinstance(value, dict) else cast("list[Any]", value)
    for child in children:
        yield from texts(child)
