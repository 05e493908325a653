"""Flows from YAML files, with the line of each place, for error messages."""

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

import msgspec
import yaml

from usechat.errors import FlowError
from usechat.flows.spec import Flow, FlowFile, Plan, line_of, read_flow

__all__ = ["load_flow", "parse_flow"]

# Values of a file with all aliases written out.
_MAX_VALUES: Final = 100_000
_MAX_DEPTH: Final = 100
# Below this, a float holds every whole number exactly.
_EXACT: Final = 2**53
_QUOTED: Final = re.compile(r"""'(?:[^']|'')*'|"(?:[^"\\]|\\.)*\"""")

_TAG: Final = "tag:yaml.org,2002:"
# How YAML 1.2 (its core schema) reads unquoted text: the pattern of each type, and its first characters. PyYAML reads
# YAML 1.1, in which `yes`, `12:30` and `2026-01-02` are not text.
_PLAIN: Final[dict[str, tuple[re.Pattern[str], str]]] = {
    "null": (re.compile(r"~|null|Null|NULL|"), "~nN"),
    "bool": (re.compile(r"true|True|TRUE|false|False|FALSE"), "tTfF"),
    "int": (re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"), "-+0123456789"),
    "float": (
        re.compile(
            r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
        ),
        "-+.0123456789",
    ),
    # Not in YAML 1.2, but in many files.
    "merge": (re.compile("<<"), "<"),
}

_log = logging.getLogger("usechat")


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
    """Read a flow from the text of a YAML file; `file` is its name in errors.

    What may be a mistake is logged.

    Raises:
        FlowError: it is not a flow, or not one that could run.
    """
    lines: dict[str, int] = {"": 1}
    try:
        flow = read_flow(_read_yaml(text, lines), place=lambda path: f"{file}:{line_of(lines, path)}")
    except FlowError as error:
        line = error.line or line_of(lines, error.path)
        raise FlowError(error.problem, remedy=error.remedy, path=error.path, file=file, line=line) from error.__cause__
    members = {name: getattr(flow, name) for name in Flow.__struct_fields__}
    read = FlowFile(**members, file=file, lines=lines)
    for path, sentence in Plan(read).oddities:
        _log.warning("%s:%d: %s", file, line_of(lines, path), sentence)
    return read


def _read_yaml(text: str, lines: dict[str, int]) -> Any:
    try:
        # PyYAML has no types for these methods.
        loader = cast("Any", _Loader(text))
        document = loader.get_single_node()
        if document is None:
            raise FlowError("The file is empty.", remedy="Write a flow: `name`, `nodes` and `edges`.")
        lines.update(_places(document, "", text))
        # YAML has dates and sets, JSON does not.
        return msgspec.to_builtins(loader.construct_document(document), str_keys=True)
    except yaml.MarkedYAMLError as error:
        raise _not_yaml(error, text.splitlines()) from error
    except (yaml.YAMLError, RecursionError, TypeError, ValueError) as error:
        raise FlowError(f"This is not YAML: {error}.", remedy="Write the flow as plain YAML.") from error


class _Loader(yaml.SafeLoader):
    """Reads YAML 1.2, and counts values with aliases written out: a few aliases of aliases make billions of values."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._count = 0
        self._depth = 0
        self._sizes: dict[int, int] = {}

    def construct_object(self, node: Any, deep: bool = False) -> Any:  # noqa: FBT001, FBT002
        try:
            return cast("Any", super()).construct_object(node, deep)
        # PyYAML does not check that the text fits the tag.
        except (AttributeError, KeyError, ValueError) as error:
            problem = f"this is not a valid {str(node.tag).replace(_TAG, '!!')}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error

    def compose_node(self, parent: Any, index: Any) -> Any:
        # PyYAML has no types for these methods.
        loader = cast("Any", self)
        alias, line = loader.check_event(yaml.AliasEvent), loader.peek_event().start_mark.line + 1
        before = self._count
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            problem = f"Values are nested more than {_MAX_DEPTH} levels deep."
            raise FlowError(problem, remedy="Nest them less deeply.", line=line)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if not alias:
            self._count += 1
            self._sizes[id(node)] = self._count - before
        elif id(node) in self._sizes:
            self._count += self._sizes[id(node)]
        else:
            raise FlowError("An alias is inside the value that it repeats.", remedy="Write the value out.", line=line)
        if self._count > _MAX_VALUES:
            problem = f"With all aliases written out, the file has more than {_MAX_VALUES:,} values."
            raise FlowError(problem, remedy="Use fewer aliases.", line=line)
        return node


def _construct_bool(_loader: _Loader, node: yaml.ScalarNode) -> bool:
    return {"true": True, "false": False}[node.value.lower()]


def _construct_number(_loader: _Loader, node: yaml.ScalarNode) -> int | float:
    text = cast("str", node.value)
    if text.startswith(("0o", "0x")):
        return int(text, 0)
    if _PLAIN["int"][0].fullmatch(text):
        return int(text)
    if not _PLAIN["float"][0].fullmatch(text):
        raise ValueError(text)
    number = float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    # JSON and JavaScript have one kind of number: 3.0 is 3.
    return int(number) if number.is_integer() and abs(number) < _EXACT else number


def _construct_text(_loader: _Loader, node: yaml.ScalarNode) -> str:
    return cast("str", node.value)


def _prepare() -> None:
    # PyYAML has no types for these methods.
    loader = cast("Any", _Loader)
    # Without those of YAML 1.1.
    loader.yaml_implicit_resolvers = {}
    for name, (pattern, first) in _PLAIN.items():
        # PyYAML only matches the beginning.
        whole = re.compile(f"(?:{pattern.pattern})$(?!\\n)")
        loader.add_implicit_resolver(_TAG + name, whole, [*first, ""] if name == "null" else list(first))
    loader.add_constructor(f"{_TAG}bool", _construct_bool)
    loader.add_constructor(f"{_TAG}int", _construct_number)
    loader.add_constructor(f"{_TAG}float", _construct_number)
    # Used only for `<<` as a value: as a field name it is merged.
    loader.add_constructor(f"{_TAG}merge", _construct_text)


_prepare()


def _not_yaml(error: yaml.MarkedYAMLError, lines: list[str]) -> FlowError:
    for mark in (error.problem_mark, error.context_mark):
        if mark is not None and mark.line < len(lines) and "{{" in _QUOTED.sub("", lines[mark.line]):
            return FlowError("This binding needs quotes.", remedy="Write the whole text in quotes.", line=mark.line + 1)
    mark = error.problem_mark or error.context_mark
    problem = f"This is not YAML: {error.problem or error.context}."
    line = mark.line + 1 if mark is not None else None
    return FlowError(problem, remedy="Correct the indentation, quotes or brackets there.", line=line)


def _places(node: Any, path: str, text: str) -> Iterator[tuple[str, int]]:
    """The line of each place in the document."""
    if isinstance(node, yaml.MappingNode):
        yield from _members(node, path, text)
    elif isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(cast("list[yaml.Node]", node.value)):
            yield f"{path}[{number}]", item.start_mark.line + 1
            yield from _places(item, f"{path}[{number}]", text)


def _members(node: yaml.MappingNode, path: str, text: str) -> Iterator[tuple[str, int]]:
    names: set[str] = set()
    for key, value in cast("list[tuple[yaml.Node, yaml.Node]]", node.value):
        name, line = str(key.value), key.start_mark.line + 1
        if isinstance(key, yaml.MappingNode):
            # In YAML, `{{ name }}` is an object with an object as its field name.
            written = text[node.start_mark.index : node.end_mark.index]
            problem = f"This binding needs quotes: {written}."
            quote = "'" if '"' in written else '"'
            raise FlowError(problem, remedy=f"Write {quote}{written}{quote}.", line=line)
        if key.tag in (f"{_TAG}bool", f"{_TAG}null"):
            written = text[key.start_mark.index : key.end_mark.index] or "nothing"
            problem = f"A field name must be a string, not {written}."
            raise FlowError(problem, remedy="Write it in quotes.", line=line)
        if name in names:
            raise FlowError(f"The field `{name}` is given twice.", remedy="Remove one of the two.", line=line)
        names.add(name)
        child = f"{path}.{name}" if path else name
        yield child, line
        yield from _places(value, child, text)
