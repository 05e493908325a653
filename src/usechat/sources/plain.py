"""What a plain agent yields: text, and these few events; any chunk may be yielded as it is."""

from typing import Any, Final, TypeAlias, cast, get_args

from msgspec import UNSET, Struct, UnsetType

from usechat.errors import MappingError
from usechat.protocol.chunks import Chunk
from usechat.protocol.writer import MessageWriter

__all__ = ["PlainEvent", "PlainMapper", "Reasoning", "ToolCall", "ToolError", "ToolResult"]


class Reasoning(Struct, frozen=True):
    text: str


class ToolCall(Struct, frozen=True):
    """A call with its whole input; one without a result waits for the browser, and the turn ends with it."""

    id: str
    name: str
    input: Any
    title: str | UnsetType = UNSET


class ToolResult(Struct, frozen=True):
    """The result of a call; a preliminary one is replaced by the next."""

    id: str
    output: Any
    preliminary: bool = False


class ToolError(Struct, frozen=True):
    """A call that failed; the user sees the text."""

    id: str
    text: str


PlainEvent: TypeAlias = str | Reasoning | ToolCall | ToolResult | ToolError | Chunk

_CHUNKS: Final = cast("tuple[type[Chunk], ...]", get_args(Chunk))


class PlainMapper:
    def __init__(self, writer: MessageWriter) -> None:
        self._writer = writer

    def map(self, event: PlainEvent) -> list[Chunk]:
        """The chunks of one event.

        Raises:
            MappingError: it is nothing that an agent may yield.
            LocalProtocolError: it is illegal here.
        """
        match event:
            case str():
                return self._writer.text(event)
            case Reasoning():
                return self._writer.reasoning(event.text)
            case ToolCall():
                return self._writer.tool_input(event.id, event.name, event.input, title=event.title)
            case ToolResult():
                return self._writer.tool_output(event.id, event.output, preliminary=event.preliminary)
            case ToolError():
                return self._writer.tool_error(event.id, event.text)
            case _ if isinstance(event, _CHUNKS):
                return self._writer.send(event)
            case _:
                raise MappingError(f"An agent cannot yield a value of type {type(event).__name__}.")
