"""Parts of a message while they stream: their deltas are joined when somebody looks at the message."""

from typing import Any, TypeAlias

from msgspec import UNSET, Struct

from usechat.protocol.chunks import ToolInputStart
from usechat.protocol.messages import tool_name
from usechat.protocol.partial import parse_partial

__all__ = ["OpenInput", "OpenText", "Part", "continued_input", "settle_input", "settle_text"]

Part: TypeAlias = dict[str, Any]


class OpenText(Struct):
    part: Part
    pending: list[str]


class OpenInput(Struct):
    """A tool input that streams, or did: a client takes more of it at any time. `begun` is how the call began.

    The deltas go to `part`, which was found in the step with this number; None once another chunk has changed it.
    """

    begun: ToolInputStart
    part: Part | None
    step: int
    text: str
    pending: list[str]


def continued_input(part: Part) -> OpenInput:
    """The input of a continued message's part that an earlier stream began."""
    begun = ToolInputStart(
        part["toolCallId"],
        tool_name(part),
        dynamic=part["type"] == "dynamic-tool",
        title=part.get("title", UNSET),
        tool_metadata=part.get("toolMetadata", UNSET),
        input_encoding=part.get("inputEncoding", UNSET),
    )
    return OpenInput(begun, part, 0, part.get("rawInput", ""), [])


def settle_text(open_text: OpenText) -> None:
    if open_text.pending:
        open_text.part["text"] += "".join(open_text.pending)
        open_text.pending.clear()


def settle_input(open_input: OpenInput) -> None:
    part = open_input.part
    if part is None or not open_input.pending:
        return
    open_input.text += "".join(open_input.pending)
    open_input.pending.clear()
    part["rawInput"] = open_input.text
    part.pop("input", None)
    is_text = open_input.begun.input_encoding == "text"
    value = open_input.text if is_text else parse_partial(open_input.text)
    if value is not UNSET:
        part["input"] = value
