"""Flows from YAML files, with the line of each place for whoever has to mend one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import yaml

from usechat.errors import FlowError
from usechat.flows.plan import Plan
from usechat.flows.spec import Flow, FlowFile, line_of, read_flow

__all__ = ["load_flow", "parse_flow"]


def load_flow(path: str | Path) -> Flow:
    """Read a flow from a YAML file.

    Raises:
        FlowError: it is not a flow, or not one that could run; the error has the file, the line and the remedy.
        OSError: the file cannot be read.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        remedy = "Save the file as UTF-8."
        raise FlowError("The file is not UTF-8.", remedy=remedy, file=str(path), line=1) from error
    return parse_flow(text, file=str(path))


def parse_flow(text: str, *, file: str = "flow") -> Flow:
    """Read a flow from the text of a YAML file; `file` is how errors call it.

    Raises:
        FlowError: it is not a flow, or not one that could run.
    """
    lines: dict[str, int] = {"": 1}
    try:
        flow = read_flow(_read_yaml(text, lines))
    except FlowError as error:
        line = error.line or line_of(lines, error.path)
        raise FlowError(error.problem, remedy=error.remedy, path=error.path, file=file, line=line) from error.__cause__
    members = {name: getattr(flow, name) for name in Flow.__struct_fields__}
    read = FlowFile(**members, file=file, lines=lines)
    Plan(read)
    return read


def _read_yaml(text: str, lines: dict[str, int]) -> Any:
    try:
        # The types of the library do not say what these methods take and give.
        loader = cast("Any", yaml.SafeLoader(text))
        document = loader.get_single_node()
        if document is None:
            raise FlowError("The file is empty.", remedy="Write a flow: `name`, `nodes` and `edges`.")
        lines.update(_places(document, ""))
        # YAML knows dates and sets, JSON does not.
        return msgspec.to_builtins(loader.construct_document(document), str_keys=True)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = f"This is not YAML: {error.problem or error.context}."
        line = mark.line + 1 if mark is not None else None
        raise FlowError(problem, remedy="Correct the indentation, quotes or brackets there.", line=line) from error
    except (yaml.YAMLError, RecursionError, TypeError, ValueError) as error:
        raise FlowError(f"This is not YAML: {error}.", remedy="Write the flow as plain YAML.") from error


def _places(node: Any, path: str) -> Iterator[tuple[str, int]]:
    """The line of each place in the document."""
    if isinstance(node, yaml.MappingNode):
        yield from _members(node, path)
    elif isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(cast("list[yaml.Node]", node.value)):
            yield f"{path}[{number}]", item.start_mark.line + 1
            yield from _places(item, f"{path}[{number}]")


def _members(node: yaml.MappingNode, path: str) -> Iterator[tuple[str, int]]:
    names: set[str] = set()
    for key, value in cast("list[tuple[yaml.Node, yaml.Node]]", node.value):
        name, line = str(key.value), key.start_mark.line + 1
        if name in names:
            raise FlowError(f"`{name}` stands here twice.", remedy="Remove one of the two.", line=line)
        names.add(name)
        child = f"{path}.{name}" if path else name
        yield child, line
        yield from _places(value, child)
