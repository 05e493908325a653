"""Interrupts of LangGraph: calls that wait for an approval, or a value that some node waits for."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypedDict, cast

from msgspec import Struct

from usechat.integrations.langgraph.messages import field, text_of

__all__ = ["DECISIONS", "Action", "Interrupt", "InterruptData", "read_interrupt"]

DECISIONS: Final = ("approve", "edit", "reject", "respond")


class Action(Struct, frozen=True):
    """A tool call that waits. Its id says which one is meant, or else its name and arguments."""

    approval_id: str
    name: str
    args: Any
    allowed: Sequence[str]
    reason: str = ""
    call_id: str = ""


class Interrupt(Struct, frozen=True):
    """What a graph waits for: the decisions on its `actions`, given together if `batched`, or any answer to `value`."""

    id: str
    value: Any
    actions: Sequence[Action] = ()
    batched: bool = False


class InterruptData(TypedDict):
    """The data of a `data-interrupt` part, which the body's `resume: {id: …}` answers."""

    id: str
    value: Any


def read_interrupt(raw: Any) -> Interrupt:
    """The interrupt; one whose value is not that of LangChain's human-in-the-loop middleware has no actions."""
    interrupt_id, value = text_of(field(raw, "id")), field(raw, "value")
    match value:
        case {"action_requests": [_, *_] as requests, "review_configs": list()}:
            configs = cast("list[Any]", value["review_configs"])
            actions = tuple(_requested(interrupt_id, cast("list[Any]", requests), configs))
            return Interrupt(interrupt_id, value, actions, batched=True)
        case {"type": "tool_approval", "tool_call_id": str(call_id), "name": str(name)}:
            asked = cast("Mapping[str, Any]", value)
            allowed = tuple(_named(field(raw, "response_schema"))) or DECISIONS
            action = Action(
                interrupt_id, name, asked.get("args") or {}, allowed, text_of(asked.get("description")), call_id
            )
            return Interrupt(interrupt_id, asked, (action,))
        case _:
            return Interrupt(interrupt_id, value)


def _requested(interrupt_id: str, requests: Sequence[Any], configs: Sequence[Any]) -> Iterator[Action]:
    for index, request in enumerate(requests):
        config = configs[index] if index < len(configs) else None
        yield Action(
            f"{interrupt_id}:{index}",
            text_of(field(request, "name")),
            field(request, "args") or {},
            tuple(field(config, "allowed_decisions") or DECISIONS),
            text_of(field(request, "description")),
        )


def _named(schema: Any) -> Iterator[str]:
    """The decisions that a JSON schema allows: a single one, or one for each of its definitions."""
    definitions = cast("Mapping[str, Any]", field(schema, "$defs") or {})
    for each in (schema, *definitions.values()):
        name = field(field(field(each, "properties"), "type"), "const")
        if name in DECISIONS:
            yield name
