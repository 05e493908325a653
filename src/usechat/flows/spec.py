"""A flow as it is written: Open Harness's format, as Structs."""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Final, Literal, TypeAlias, cast

import msgspec
from msgspec import Meta, Struct, field

from usechat.errors import FlowError

__all__ = [
    "Edge",
    "Flow",
    "FlowFile",
    "FlowState",
    "ForEach",
    "Node",
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
# The names in a condition that is a tree.
_TREE: Final = ["equals", "not", "and", "or"]

_log = logging.getLogger("usechat")


class _Written(Struct, frozen=True, kw_only=True, rename="camel"):
    pass


class Retry(_Written, frozen=True, kw_only=True):
    max_attempts: _Count
    backoff_ms: _Milliseconds = 0


class Policy(_Written, frozen=True, kw_only=True):
    """What happens around a node: a timeout counts for each attempt, and cancels it."""

    retry: Retry | None = None
    timeout_ms: _Count | None = None
    continue_on_error: bool = False


class Node(_Written, frozen=True, kw_only=True):
    """`input` may hold bindings; `ui` is the editor's and is not read."""

    id: _Name
    type: _Name
    input: dict[str, Any]
    when: When | None = None
    policy: Policy = Policy()
    ui: dict[str, Any] | None = None


class ForEach(_Written, frozen=True, kw_only=True):
    """`items` (`in` in the file) is a binding that gives an array; `name` (`as`) is what bindings call one of them."""

    items: _Name = field(name="in")
    name: _Name = field(name="as")


class Edge(_Written, frozen=True, kw_only=True):
    """An edge with `max_iterations` may lead back, and is not waited for."""

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
        """Make the error that says what is wrong at a path such as `nodes[0].when`."""
        return FlowError(problem, remedy=remedy, path=path)


class FlowFile(Flow, frozen=True, kw_only=True):
    """A flow that knows the line of each of its paths."""

    file: str
    lines: dict[str, int]

    def error(self, path: str, problem: str, remedy: str) -> FlowError:
        return FlowError(problem, remedy=remedy, path=path, file=self.file, line=line_of(self.lines, path))


def read_flow(flow: Any, *, place: Callable[[str], str] = str) -> Flow:
    """Check the fields of a flow that was made in Python, as Structs or as JSON-shaped dicts.

    An unknown field is left out, as in the original, and logged; `place` says how the log calls its path.

    Raises:
        FlowError: a field is missing, or of a wrong type.
    """
    if isinstance(flow, FlowFile):
        return flow
    data = msgspec.to_builtins(flow, str_keys=True)
    read = _convert(data)
    for path, name, known in _unknown(data, msgspec.to_builtins(read)):
        meant = nearest(name, known)
        hint = f"did you mean `{meant}`?" if meant else f"there are {', '.join(known)}."
        _log.warning("%s: There is no field `%s` here, and it is not read; %s", place(path), name, hint)
    return read


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.5) -> str | None:
    """The known name that was probably meant."""
    return next(iter(get_close_matches(name, list(known), 1, cutoff)), None)


def suggestion(name: str, known: Iterable[str]) -> str:
    """The remedy for a name that is not known."""
    meant = nearest(name, known)
    return f"Did you mean {meant!r}?" if meant else f"Name one of: {', '.join(sorted(known)) or 'none yet'}."


def _convert(data: Any) -> Flow:
    try:
        return msgspec.convert(data, Flow)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$")
        problem, remedy = f"{problem}.", "Write a value of that kind; a text that looks like a number needs quotes."
        missing = _FIELD.fullmatch(problem)
        if missing is not None:
            problem, remedy = f"The field `{missing[1]}` is missing.", "Add it."
        raise FlowError(problem, remedy=remedy, path=path.strip(".`")) from error


_Unknown: TypeAlias = tuple[str, str, list[str]]


def _unknown(data: Any, read: Any, path: str = "") -> Iterator[_Unknown]:
    """The path and the name of each field that was not read, and the names of those that can be."""
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
        if name not in _TREE:
            yield f"{path}.{name}", name, _TREE
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
