"""A flow as it is written: Open Harness's format, as Structs."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias

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
    "read_flow",
]

_Name: TypeAlias = Annotated[str, Meta(min_length=1)]
_Milliseconds: TypeAlias = Annotated[int, Meta(ge=0)]
_Count: TypeAlias = Annotated[int, Meta(ge=1)]
When: TypeAlias = str | dict[str, Any]

_FIELD: Final = re.compile(r"Object (missing required|contains unknown) field `(.*)`")


class _Written(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
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
    """A flow that knows where each of its places stands."""

    file: str
    lines: dict[str, int]

    def error(self, path: str, problem: str, remedy: str) -> FlowError:
        return FlowError(problem, remedy=remedy, path=path, file=self.file, line=line_of(self.lines, path))


def read_flow(flow: Any) -> Flow:
    """Check the fields of a flow that was made in Python, as Structs or as JSON-shaped dicts.

    Raises:
        FlowError: a field is missing, unknown, or of a wrong type.
    """
    return flow if isinstance(flow, FlowFile) else _convert(msgspec.to_builtins(flow, str_keys=True))


def _convert(data: Any) -> Flow:
    try:
        return msgspec.convert(data, Flow)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$")
        raise _explained(problem, path.strip(".`")) from error


def _explained(problem: str, path: str) -> FlowError:
    wrong = _FIELD.fullmatch(problem)
    if wrong is None:
        remedy = "Write a value of that kind; a text that looks like a number needs quotes."
        return FlowError(f"{problem}.", remedy=remedy, path=path)
    if wrong[1] == "missing required":
        return FlowError(f"The field `{wrong[2]}` is missing.", remedy="Add it.", path=path)
    inside = f"{path}.{wrong[2]}" if path else wrong[2]
    return FlowError(f"There is no field `{wrong[2]}` here.", remedy="Correct its name or remove it.", path=inside)


def line_of(lines: Mapping[str, int], path: str) -> int:
    """The line of a path, or of the nearest place around it."""
    while path not in lines:
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return lines[path]
