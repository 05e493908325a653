"""What a message of LangChain holds, be it an object of the framework or the JSON of one."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

import msgspec

from usechat.protocol.values import plain

__all__ = [
    "Block",
    "blocks_of",
    "called_by",
    "field",
    "is_command",
    "messages_of",
    "output_of",
    "result_in",
    "text_of",
]

Block: TypeAlias = Mapping[str, Any]

_TOOLS: Final = ("tool_call", "tool_call_chunk", "invalid_tool_call")
_FALLBACKS: Final = (("tool_call_chunks", "tool_call_chunk"), ("tool_calls", "tool_call"))


def field(value: Any, name: str) -> Any:
    """A field of a message, a command or an interrupt; None if it has none."""
    return cast("dict[str, Any]", value).get(name) if isinstance(value, dict) else getattr(value, name, None)


def text_of(value: object) -> str:
    """The value if it is a text, as a plain `str`: the framework also has texts of a class of its own."""
    if type(value) is str:
        return value
    return plain(value) if isinstance(value, str) else ""


def blocks_of(message: Any) -> Iterator[Block]:
    """The content in LangChain's standard blocks, with the tool calls among them."""
    blocks = field(message, "content_blocks")
    if blocks is not None:
        yield from blocks
        return
    # The JSON of a message has no such property.
    content = field(message, "content")
    has_calls = False
    for block in cast("list[Any]", content) if isinstance(content, list) else [content]:
        if isinstance(block, str):
            yield {"type": "text", "text": block}
        elif isinstance(block, Mapping):
            has_calls = has_calls or cast("Block", block).get("type") in _TOOLS
            yield cast("Block", block)
    for name, kind in _FALLBACKS:
        calls = () if has_calls else field(message, name) or ()
        yield from ({**call, "type": kind} for call in calls)
        has_calls = has_calls or bool(calls)


def output_of(message: Any) -> Any:
    """What a tool message says, with its structure if its text is that of a JSON object or array."""
    content = field(message, "content")
    match content:
        case [{"type": "text", "text": str(text)}]:
            content = text
        case _:
            pass
    if isinstance(content, str) and content[:1] in ("{", "["):
        try:
            return msgspec.json.decode(content)
        except (msgspec.DecodeError, RecursionError):
            pass
    return content


def messages_of(update: Any) -> Iterator[Any]:
    """The messages that a node's update holds, under any key."""
    values = cast("Mapping[str, Any]", update).values() if isinstance(update, Mapping) else ()
    for value in values:
        items = cast("Sequence[Any]", value) if isinstance(value, list | tuple) else (value,)
        yield from (item for item in items if field(item, "type") in ("ai", "AIMessageChunk", "tool"))


def called_by(given: Any) -> tuple[str, str] | None:
    """The tool and the id of the call that a task carries out, by what it was given; None if it is another node's.

    LangGraph 1.1 puts the state beside the call.
    """
    match given:
        case [{"type": "tool_call", "name": str(name), "id": str(call_id)}] | {
            "tool_call": {"type": "tool_call", "name": str(name), "id": str(call_id)}
        }:
            return name, call_id
        case _:
            return None


def is_command(value: Any) -> bool:
    """Whether a tool gave LangGraph's `Command`, which changes the state."""
    if isinstance(value, Mapping):
        return "update" in value and "goto" in value
    return hasattr(value, "update") and hasattr(value, "goto")


def result_in(output: Any, call_id: str) -> Any:
    """The message in what a tool gave that answers this call; None if the tool gave no messages.

    A tool that changes the state gives a command, or a list of commands and messages.
    """
    items = cast("Sequence[Any]", output) if isinstance(output, list | tuple) else (output,)
    for item in items:
        messages = messages_of(field(item, "update")) if is_command(item) else (item,)
        for message in messages:
            if field(message, "type") == "tool" and field(message, "tool_call_id") in (call_id, None, ""):
                return message
    return None
