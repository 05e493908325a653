"""Parts of a message while they stream: their deltas are joined when somebody looks at the message."""

from typing import Any, TypeAlias

from msgspec import UNSET, Struct

from usechat.protocol.partial import parse_partial

__all__ = ["OpenInput", "OpenText", "Part", "settle_input", "settle_text"]

Part: TypeAlias = dict[str, Any]


class OpenText(Struct):
    part: Part
    pending: list[str]


class OpenInput(Struct):
    """A tool input while it streams. Its deltas are joined and parsed when somebody looks at the message."""

    part: Part
    text: str
    pending: list[str]


def settle_text(open_text: OpenText) -> None:
    if open_text.pending:
        open_text.part["text"] += "".join(open_text.pending)
        open_text.pending.clear()


def settle_input(open_input: OpenInput) -> None:
    if not open_input.pending:
        return
    open_input.text += "".join(open_input.pending)
    open_input.pending.clear()
    part = open_input.part
    part["rawInput"] = open_input.text
    part.pop("input", None)
    is_text = part.get("inputEncoding") == "text"
    value = open_input.text if is_text else parse_partial(open_input.text)
    if value is not UNSET:
        part["input"] = value
