"""DeepAgent: the TypeScript types of its data parts, made from the Python types."""

from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Any, Final, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

from usechat.events.mapper import SubAgentCall, SubAgentData
from usechat.integrations.deepagent_sdk.events import ANSWERS, SIDE_EVENTS, StepCall, Todo
from usechat.integrations.langgraph.interrupts import InterruptData

__all__ = ["GRAPH_PARTS", "deep_agent_parts", "deep_agent_types"]

GRAPH_PARTS: Final[dict[str, Any]] = {"subagent": SubAgentData, "interrupt": InterruptData}
"""The data parts of a graph, beside those that its nodes and its state name themselves."""

_HEAD: Final = """\
// Written by `usechat types deep-agent`. Copy it into your app:
//
//   import type { UIMessage } from "ai";
//   import type { DeepAgentDataParts, DeepAgentMetadata } from "./deep-agent";
//
//   const chat = useChat<UIMessage<DeepAgentMetadata, DeepAgentDataParts>>();

import type { LanguageModelUsage } from "ai";
"""
_EVENT: Final = """\
export type DeepAgentSideEvent = {
  [Name in keyof DeepAgentSideEvents]: { type: Name } & DeepAgentSideEvents[Name];
}[keyof DeepAgentSideEvents];
"""
_PARTS: Final = """\
/** Each data part by its name: `data-ls` has the data of `ls`. Some are only given to `onData`, and not kept. */
export type DeepAgentDataParts = DeepAgentSideEvents & {
%s  /** Several side events in one part, where they are put together. */
  batch: { events: DeepAgentSideEvent[] };
  /** The structured output of the run. */
  output: unknown;
  /** What a node of a graph wrote, if that was no data part itself. */
  custom: unknown;
};
"""
_METADATA: Final = """\
/** What all model calls of the message used. */
export type DeepAgentMetadata = { usage?: LanguageModelUsage };
"""
_NAMED: Final = {StepCall: "DeepAgentStepCall", Todo: "DeepAgentTodo", SubAgentCall: "DeepAgentSubAgentCall"}
_SIMPLE: Final[dict[Any, str]] = {str: "string", float: "number", bool: "boolean", NoneType: "null", Any: "unknown"}


def deep_agent_types() -> str:
    """One file of TypeScript, which exports `DeepAgentDataParts` and `DeepAgentMetadata`."""
    return "\n".join((_HEAD, deep_agent_parts(), _METADATA))


def deep_agent_parts() -> str:
    """The types of the data parts alone, which need no other."""
    side_events = f"export type DeepAgentSideEvents = {{\n{_fields(SIDE_EVENTS)}}};\n"
    return "\n".join((*_named(), side_events, _EVENT, _PARTS % _fields({**ANSWERS, **GRAPH_PARTS})))


def _named() -> Iterator[str]:
    for kind, name in _NAMED.items():
        yield f"export type {name} = {_object(kind)};\n"


def _fields(kinds: Mapping[str, Any]) -> str:
    return "".join(f"  {_key(name)}: {_object(kind)};\n" for name, kind in kinds.items())


def _object(kind: Any) -> str:
    hints = get_type_hints(kind, include_extras=True)
    fields = (_field(name, hint) for name, hint in hints.items() if name != "type")
    return f"{{ {'; '.join(fields)} }}"


def _field(name: str, hint: Any) -> str:
    if get_origin(hint) is NotRequired:
        return f"{name}?: {_type(get_args(hint)[0])}"
    return f"{name}: {_type(hint)}"


def _type(hint: Any) -> str:
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    if is_typeddict(hint):
        return _NAMED[hint]
    kind, inner = get_origin(hint), get_args(hint)
    if kind is list:
        return f"{_type(inner[0])}[]"
    if kind is Literal:
        return " | ".join(f'"{value}"' for value in inner)
    if kind in (Union, UnionType):
        return " | ".join(map(_type, inner))
    raise TypeError(f"{hint!r} has no form in TypeScript.")


def _key(name: str) -> str:
    return name if name.isidentifier() else f'"{name}"'
