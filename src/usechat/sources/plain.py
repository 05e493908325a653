"""What a plain agent yields: text, and these few events; any chunk may be yielded as it is."""

from typing import Any, Final, TypeAlias, cast, get_args

from msgspec import UNSET, Struct

from usechat.errors import AgentError, RemoteProtocolError
from usechat.protocol.chunks import Chunk
from usechat.protocol.codec import read_chunk
from usechat.protocol.values import VALUE_LIMIT, plain
from usechat.protocol.writer import MessageWriter

__all__ = [
    "STRUCTURED_OUTPUT",
    "PlainEvent",
    "PlainMapper",
    "Reasoning",
    "StructuredOutput",
    "ToolCall",
    "ToolError",
    "ToolResult",
]

STRUCTURED_OUTPUT: Final = "structured-output"
"""The name of the data part that a structured output is."""


class Reasoning(Struct, frozen=True):
    text: str


class ToolCall(Struct, frozen=True):
    """A call with its whole input; one without a result waits for the browser, and the turn ends with it."""

    id: str
    name: str
    input: Any
    title: str | None = None


class ToolResult(Struct, frozen=True):
    """The result of a call; a preliminary one is replaced by the next."""

    id: str
    output: Any
    preliminary: bool = False


class ToolError(Struct, frozen=True):
    """A call that failed; the user sees the text."""

    id: str
    text: str


class StructuredOutput(Struct, frozen=True):
    """The answer as a value: `structuredOutput` of a flow's node, and a `data-structured-output` part in a message."""

    value: Any


PlainEvent: TypeAlias = str | Reasoning | StructuredOutput | ToolCall | ToolResult | ToolError | Chunk | dict[str, Any]
"""Text, one of these events, or a chunk: as an object, or as the dict that it is on the wire."""

_CHUNKS: Final = cast("tuple[type[Chunk], ...]", get_args(Chunk))


class PlainMapper:
    def __init__(self, writer: MessageWriter) -> None:
        self._writer = writer

    def map(self, event: PlainEvent) -> list[Chunk]:
        """The chunks of one event.

        Raises:
            AgentError: it is nothing that an agent may yield.
            LocalProtocolError: it is illegal here.
        """
        match event:
            case str():
                return self._writer.text(event)
            case Reasoning():
                return self._writer.reasoning(event.text)
            case StructuredOutput():
                return self._writer.data(STRUCTURED_OUTPUT, event.value)
            case ToolCall():
                title = UNSET if event.title is None else event.title
                return self._writer.tool_input(event.id, event.name, event.input, title=title)
            case ToolResult():
                return self._writer.tool_output(event.id, event.output, preliminary=event.preliminary)
            case ToolError():
                return self._writer.tool_error(event.id, event.text)
            case dict():
                return self._writer.send(_chunk(event))
            case _ if isinstance(event, _CHUNKS):
                return self._writer.send(event)
            case _:
                raise AgentError(f"An agent cannot yield a value of type {type(event).__name__}.")

    def end(self) -> list[Chunk]:
        """Nothing: the agent has said what it had to say."""
        return []


def _chunk(event: dict[str, Any]) -> Chunk:
    try:
        return read_chunk(plain(event, VALUE_LIMIT)).chunk
    except RemoteProtocolError as error:
        raise AgentError(f"An agent cannot yield a dict that is no chunk. {error.problem}") from error
