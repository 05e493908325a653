"""The part of a tool call, as the client sets its fields with each chunk of the call."""

from typing import Any, Final, TypeAlias

from msgspec import UNSET

from usechat.protocol.chunks import (
    ToolInputAvailable,
    ToolInputError,
    ToolInputStart,
    ToolOutputAvailable,
    ToolOutputError,
)
from usechat.protocol.open_parts import Part

__all__ = ["ToolInput", "ToolOutput", "put_call", "set_field", "update_call"]

ToolInput: TypeAlias = ToolInputStart | ToolInputAvailable | ToolInputError
ToolOutput: TypeAlias = ToolOutputAvailable | ToolOutputError

# The client sets these anew with every chunk of a call, so one that the chunk does not carry is gone.
_PER_CHUNK: Final = ("input", "output", "errorText", "rawInput", "inputEncoding", "preliminary")


def put_call(parts: list[Part], part: Part | None, chunk: ToolInput, state: str) -> Part:
    """Set the part of the call, or add one to the parts where the call has none."""
    if part is None:
        dynamic = chunk.dynamic is True
        part = {"type": "dynamic-tool" if dynamic else f"tool-{chunk.tool_name}", "toolCallId": chunk.tool_call_id}
        parts.append(part)
    if part["type"] == "dynamic-tool":
        part["toolName"] = chunk.tool_name
    else:
        part["type"] = f"tool-{chunk.tool_name}"
    if not isinstance(chunk, ToolInputError):
        set_field(part, "title", chunk.title)
    update_call(part, chunk, state, {})
    return part


def update_call(part: Part, chunk: ToolInput | ToolOutput, state: str, fields: Part) -> None:
    """Set the state and the fields of a part that the call has."""
    part["state"] = state
    for name in _PER_CHUNK:
        part.pop(name, None)
        set_field(part, name, fields.get(name, UNSET))
    set_field(part, "providerExecuted", chunk.provider_executed)
    set_field(part, "toolMetadata", chunk.tool_metadata)
    side = "resultProviderMetadata" if state.startswith("output-") else "callProviderMetadata"
    set_field(part, side, chunk.provider_metadata)


def set_field(part: Part, name: str, value: Any) -> None:
    if value is not UNSET:
        part[name] = value
