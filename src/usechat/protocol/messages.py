"""The messages of a chat as the client keeps and POSTs them, and what each part must look like."""

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from usechat.errors import RequestError

__all__ = [
    "IDENTIFIER",
    "MESSAGE_ID",
    "TOOL_CALL_ID",
    "Role",
    "UIMessage",
    "is_tool_call",
    "one_of",
    "read_message",
    "shape",
    "tool_name",
]

Role = Literal["system", "user", "assistant"]


class UIMessage(msgspec.Struct):
    """A message of the chat. Its parts are the client's JSON, with any fields of newer clients."""

    id: str
    role: Role
    parts: list[dict[str, Any]]
    metadata: Any | UnsetType = UNSET

    @property
    def text(self) -> str:
        # Joined without a separator, as the SDK's own pages do: a break could fall inside a word.
        return "".join(part["text"] for part in self.parts if part["type"] == "text")


def is_tool_call(part: Mapping[str, Any]) -> bool:
    kind: str = part["type"]
    return kind == "dynamic-tool" or kind.startswith("tool-")


def tool_name(part: Mapping[str, Any]) -> str:
    """The name of the tool that this part calls."""
    kind: str = part["type"]
    return part["toolName"] if kind == "dynamic-tool" else kind.removeprefix("tool-")


# A check returns None, or what is wrong: the path below the value and the rest of a sentence (".id is missing").
_Check = Callable[[Any], str | None]


def _of(kind: type, words: str) -> _Check:
    return lambda value: None if isinstance(value, kind) else f" must be {words}"


def _identifier(pattern: str, words: str) -> _Check:
    matches = re.compile(pattern).fullmatch

    def check(value: Any) -> str | None:
        return None if isinstance(value, str) and matches(value) else f" must be {words} without control characters"

    return check


def one_of(choices: Collection[str]) -> _Check:
    """Make the check that a value is one of these strings."""

    def check(value: Any) -> str | None:
        return None if isinstance(value, str) and value in choices else f" must be one of {', '.join(choices)}"

    return check


def shape(required: Mapping[str, _Check], optional: Mapping[str, _Check]) -> _Check:
    """Make the check that a value is an object with these fields. Optional ones may be null, and more are allowed."""

    def check(value: Any) -> str | None:
        if problem := _OBJECT(value):
            return problem
        for name, field in required.items():
            if problem := field(value[name]) if name in value else " is missing":
                return f".{name}{problem}"
        for name, field in optional.items():
            if value.get(name) is not None and (problem := field(value[name])):
                return f".{name}{problem}"
        return None

    return check


def _tool(required: Mapping[str, _Check]) -> _Check:
    common = shape({"toolCallId": TOOL_CALL_ID, "state": one_of(_TOOL_STATES), **required}, _TOOL_OPTIONAL)
    return lambda part: common(part) or _TOOL_STATES[part["state"]](part)


def _part(part: Any) -> str | None:
    if problem := _TYPED(part):
        return problem
    name: str = part["type"]
    check = _PARTS.get(name) or _PART_FAMILIES.get(name[:5])
    return check(part) if check else None


def _each_part(parts: Any) -> str | None:
    if problem := _LIST(parts):
        return problem
    return next((f"[{n}]{problem}" for n, part in enumerate(parts) if (problem := _part(part))), None)


_OBJECT = _of(dict, "an object")
_LIST = _of(list, "a list")
_STRING = _of(str, "a string")
_BOOLEAN = _of(bool, "true or false")
# Some gateways pack a model's signature into the id of a call.
TOOL_CALL_ID = _identifier(r"[^\x00-\x1f\x7f-\x9f]{1,8192}", "a string of 1 to 8192 characters")
IDENTIFIER = _identifier(r"[^\x00-\x1f\x7f-\x9f]{1,512}", "a string of 1 to 512 characters")
MESSAGE_ID = _identifier(r"[^\x00-\x1f\x7f-\x9f]{0,512}", "a string of at most 512 characters")

_ROLE = one_of(("system", "user", "assistant"))
_MESSAGE = shape({"id": MESSAGE_ID, "role": _ROLE, "parts": _LIST}, {})
_MESSAGE_WITHOUT_ID = shape({"role": _ROLE, "parts": _LIST}, {"id": MESSAGE_ID})
_OLD_MESSAGE = shape({"role": _ROLE, "content": _STRING}, {"id": MESSAGE_ID})

_TYPED = shape({"type": _STRING}, {})
_METADATA: dict[str, _Check] = {"providerMetadata": _OBJECT}
_STREAMED: dict[str, _Check] = {"state": _STRING, **_METADATA}

# JSON drops what is undefined, so `input`, `output` and `data` are never required.
_TOOL_OPTIONAL: dict[str, _Check] = {
    "title": _STRING,
    "providerExecuted": _BOOLEAN,
    "preliminary": _BOOLEAN,
    "callProviderMetadata": _OBJECT,
    "resultProviderMetadata": _OBJECT,
    "toolMetadata": _OBJECT,
}
_APPROVAL_OPTIONAL: dict[str, _Check] = {"reason": _STRING, "isAutomatic": _BOOLEAN, "signature": _STRING}
_ASKED = shape({"id": IDENTIFIER}, _APPROVAL_OPTIONAL)
_ANSWERED = shape({"id": IDENTIFIER, "approved": _BOOLEAN}, _APPROVAL_OPTIONAL)
_PERHAPS_ANSWERED = shape({"id": IDENTIFIER}, {"approved": _BOOLEAN, **_APPROVAL_OPTIONAL})
_TOOL_STATES: dict[str, _Check] = {
    "input-streaming": shape({}, {}),
    "input-available": shape({}, {}),
    "approval-requested": shape({"approval": _ASKED}, {}),
    "approval-responded": shape({"approval": _ANSWERED}, {}),
    "output-available": shape({}, {"approval": _PERHAPS_ANSWERED}),
    "output-error": shape({"errorText": _STRING}, {"approval": _PERHAPS_ANSWERED}),
    # A server may deny a call without asking, or before anybody answers. The client posts the part back.
    "output-denied": shape({}, {"approval": _PERHAPS_ANSWERED}),
}

# A type that neither table has comes from a newer client and stays unchanged.
_PARTS: dict[str, _Check] = {
    "text": shape({"text": _STRING}, {"citations": _LIST, **_STREAMED}),
    "reasoning": shape({"text": _STRING}, {"id": _STRING, **_STREAMED}),
    "file": shape(
        {"mediaType": _STRING, "url": _STRING}, {"filename": _STRING, "providerReference": _OBJECT, **_METADATA}
    ),
    "reasoning-file": shape({"mediaType": _STRING, "url": _STRING}, _METADATA),
    "custom": shape({"kind": _STRING}, _METADATA),
    "steering-message": shape({"id": _STRING, "parts": _each_part}, {}),
    "source-url": shape({"sourceId": _STRING, "url": _STRING}, {"title": _STRING, **_METADATA}),
    "source-document": shape(
        {"sourceId": _STRING, "mediaType": _STRING, "title": _STRING}, {"filename": _STRING, **_METADATA}
    ),
    "step-start": shape({}, {}),
    "dynamic-tool": _tool({"toolName": _STRING}),
}
_PART_FAMILIES: dict[str, _Check] = {"tool-": _tool({}), "data-": shape({}, {"id": _STRING})}


def read_message(message: Any, path: str, *, max_parts: int, needs_id: bool = True) -> UIMessage:
    """Check a message that was decoded from JSON; `path` names it in error messages.

    A message of the old form never needs an id. A missing id becomes "".

    Raises:
        RequestError: The message or a part of it is wrong.
    """
    if problem := _message_problem(message, max_parts, _MESSAGE if needs_id else _MESSAGE_WITHOUT_ID):
        raise RequestError(f"{path}{problem}.")
    if _is_old(message):
        return UIMessage(message.get("id") or "", message["role"], [{"type": "text", "text": message["content"]}])
    return UIMessage(message.get("id") or "", message["role"], message["parts"], message.get("metadata", UNSET))


def _is_old(message: Any) -> bool:
    return message.get("parts") is None and "content" in message


def _message_problem(message: Any, max_parts: int, check: _Check) -> str | None:
    if problem := _OBJECT(message):
        return problem
    if _is_old(message):
        return _OLD_MESSAGE(message)
    return check(message) or _parts_problem(message["parts"], message["role"], max_parts)


def _parts_problem(parts: list[Any], role: Role, most: int) -> str | None:
    if not parts and role != "assistant":
        return ".parts must not be empty"
    if len(parts) > most:
        return f".parts must not hold more than {most:,} parts"
    problem = _each_part(parts)
    return f".parts{problem}" if problem else None
