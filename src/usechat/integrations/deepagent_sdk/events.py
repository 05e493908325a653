"""DeepAgent: what its agents yield, as dicts with the names of the original, and how a field of one is read.

The side events become data parts of their names. The TypeScript types of these parts are made from the classes here
(`usechat types deep-agent`). Numbers are those of JavaScript, so they are floats; a whole one stays whole on the wire.
The events that the original does not have are `reasoning`, `tool-input-start`, `tool-input-delta`, `usage`, `source`
and `batch`.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, Literal, NotRequired, TypeAlias, TypedDict, cast, get_args, get_type_hints

import msgspec

from usechat.errors import MappingError
from usechat.protocol.values import plain

__all__ = [
    "ANSWERS",
    "BATCH",
    "CRITICAL",
    "EVENTS",
    "NOISY",
    "SIDE_EVENTS",
    "TALK",
    "TOOLS",
    "DeepAgentEvent",
    "Event",
    "StepCall",
    "Todo",
    "error_text",
    "identifier_in",
    "is_abort",
    "kind_of",
    "read_side_event",
    "text_in",
    "unknown",
    "unusable",
]

Event: TypeAlias = Mapping[str, Any]

_TOOL_FAILED: Final = "The tool failed."
# How many characters of a tool's error are shown.
_ERROR_LENGTH: Final = 4_000
_ABORTS: Final = frozenset({"AbortError", "CancelledError"})
_WITH_CONTENT: Final = frozenset({"file-write-start", "file-written"})
_CONTENT_LIMIT: Final = 64 * 1024
_FIELD: Final = re.compile(r"(?:missing required field `|at `\$\.)(\w+)")


class StepCall(TypedDict):
    toolName: str
    args: NotRequired[Any]
    result: NotRequired[Any]


class _OfCall(TypedDict):
    toolCallId: NotRequired[str]


class Todo(TypedDict):
    id: NotRequired[str]
    content: str
    status: Literal["pending", "in_progress", "completed", "cancelled"]


class TodosChanged(_OfCall):
    type: Literal["todos-changed"]
    todos: list[Todo]


class FileWriteStart(_OfCall):
    type: Literal["file-write-start"]
    path: str
    content: str
    truncated: NotRequired[bool]


class FileWritten(_OfCall):
    type: Literal["file-written"]
    path: str
    content: str
    truncated: NotRequired[bool]


class FileEdited(_OfCall):
    type: Literal["file-edited"]
    path: str
    occurrences: float


class FileRead(_OfCall):
    type: Literal["file-read"]
    path: str
    lines: float


class Ls(_OfCall):
    type: Literal["ls"]
    path: str
    count: float


class Glob(_OfCall):
    type: Literal["glob"]
    pattern: str
    count: float


class Grep(_OfCall):
    type: Literal["grep"]
    pattern: str
    count: float


class ExecuteStart(_OfCall):
    type: Literal["execute-start"]
    command: str
    sandboxId: NotRequired[str]


class ExecuteFinish(_OfCall):
    type: Literal["execute-finish"]
    command: str
    exitCode: float | None
    truncated: bool
    sandboxId: NotRequired[str]


class WebSearchStart(_OfCall):
    type: Literal["web-search-start"]
    query: str


class WebSearchFinish(_OfCall):
    type: Literal["web-search-finish"]
    query: str
    resultCount: float


class HttpRequestStart(_OfCall):
    type: Literal["http-request-start"]
    url: str
    method: str


class HttpRequestFinish(_OfCall):
    type: Literal["http-request-finish"]
    url: str
    statusCode: float


class FetchUrlStart(_OfCall):
    type: Literal["fetch-url-start"]
    url: str


class FetchUrlFinish(_OfCall):
    type: Literal["fetch-url-finish"]
    url: str
    success: bool


class SubagentStart(_OfCall):
    type: Literal["subagent-start"]
    name: str
    task: str


class SubagentFinish(_OfCall):
    type: Literal["subagent-finish"]
    name: str
    result: str


class SubagentStep(_OfCall):
    type: Literal["subagent-step"]
    stepIndex: float
    toolCalls: list[StepCall]


class CheckpointSaved(TypedDict):
    type: Literal["checkpoint-saved"]
    threadId: str
    step: float


class CheckpointLoaded(TypedDict):
    type: Literal["checkpoint-loaded"]
    threadId: str
    step: float
    messagesCount: float


class ApprovalAsked(TypedDict):
    """Somebody other than the page is asked whether the call may be carried out; a transient part."""

    approvalId: str
    toolCallId: str


class ApprovalAnswered(TypedDict):
    approvalId: str
    approved: bool
    toolCallId: str


class Text(TypedDict):
    """A piece of the answer."""

    type: Literal["text"]
    text: str


class StepStart(TypedDict):
    type: Literal["step-start"]
    stepNumber: NotRequired[float]


class StepFinish(TypedDict):
    type: Literal["step-finish"]
    stepNumber: NotRequired[float]
    toolCalls: NotRequired[list[StepCall]]


class ToolCall(TypedDict):
    type: Literal["tool-call"]
    toolName: str
    toolCallId: str
    args: NotRequired[Any]


class ToolResult(TypedDict):
    """The result of a call. If it failed, that is the error: `{name, message}`, a text or an exception."""

    type: Literal["tool-result"]
    toolName: str
    toolCallId: str
    result: NotRequired[Any]
    isError: NotRequired[bool]


class ApprovalRequested(TypedDict):
    type: Literal["approval-requested"]
    approvalId: str
    toolCallId: str
    toolName: str
    args: NotRequired[Any]


class ApprovalResponse(TypedDict):
    type: Literal["approval-response"]
    approvalId: str
    approved: bool


class TextSegment(TypedDict):
    """A text that was said before. Only the original's terminal yields it, and a page does not show it."""

    type: Literal["text-segment"]
    text: NotRequired[str]


class UserMessage(TypedDict):
    """What the user said. Only the original's terminal yields it, and a page does not show it."""

    type: Literal["user-message"]
    content: NotRequired[str]


class Done(TypedDict):
    """The end of the run. A page does not show its state and its messages."""

    type: Literal["done"]
    state: NotRequired[Any]
    text: NotRequired[str]
    messages: NotRequired[Any]
    output: NotRequired[Any]
    usage: NotRequired[Any]


class ErrorEvent(TypedDict):
    """The end of a run that failed, or was aborted if the error is an `AbortError`."""

    type: Literal["error"]
    error: NotRequired[Any]


class Reasoning(TypedDict):
    type: Literal["reasoning"]
    text: str


class ToolInputStart(TypedDict):
    type: Literal["tool-input-start"]
    toolCallId: str
    toolName: str


class ToolInputDelta(TypedDict):
    type: Literal["tool-input-delta"]
    toolCallId: str
    delta: str


class Usage(TypedDict):
    """What one call of a model used, as the SDK's LanguageModelUsage; those of a run are summed."""

    type: Literal["usage"]
    inputTokens: NotRequired[float]
    inputTokenDetails: NotRequired[dict[str, Any]]
    outputTokens: NotRequired[float]
    outputTokenDetails: NotRequired[dict[str, Any]]
    totalTokens: NotRequired[float]


class Source(TypedDict):
    """A page that the answer is taken from."""

    type: Literal["source"]
    url: str
    title: NotRequired[str]


SideEvent: TypeAlias = (
    TodosChanged
    | FileWriteStart
    | FileWritten
    | FileEdited
    | FileRead
    | Ls
    | Glob
    | Grep
    | ExecuteStart
    | ExecuteFinish
    | WebSearchStart
    | WebSearchFinish
    | HttpRequestStart
    | HttpRequestFinish
    | FetchUrlStart
    | FetchUrlFinish
    | SubagentStart
    | SubagentFinish
    | SubagentStep
    | CheckpointSaved
    | CheckpointLoaded
)

SIDE_EVENTS: Final[dict[str, Any]] = {get_args(get_type_hints(kind)["type"])[0]: kind for kind in get_args(SideEvent)}
"""Each side event by its name."""

ANSWERS: Final[dict[str, Any]] = {"approval-requested": ApprovalAsked, "approval-response": ApprovalAnswered}
"""The data parts of what is answered while a run goes on."""

BATCH: Final = "batch"
"""The type of an event that holds several side events."""

NOISY: Final = frozenset({"ls", "glob", "grep", "file-read"})
"""The side events that come in large numbers and say little once they are over."""

DeepAgentEvent: TypeAlias = (
    Text
    | StepStart
    | StepFinish
    | ToolCall
    | ToolResult
    | ApprovalRequested
    | ApprovalResponse
    | TextSegment
    | UserMessage
    | Done
    | ErrorEvent
    | Reasoning
    | ToolInputStart
    | ToolInputDelta
    | Usage
    | Source
    | SideEvent
)

EVENTS: Final = frozenset(get_args(get_type_hints(kind)["type"])[0] for kind in get_args(DeepAgentEvent))
"""The names of all events."""

TOOLS: Final = frozenset({"tool-call", "tool-result", "tool-input-start", "tool-input-delta"})
TALK: Final = frozenset({"text", "reasoning"}) | TOOLS
"""What an answer consists of."""

CRITICAL: Final = TALK | {"todos-changed", "subagent-start", "subagent-finish"}
"""What `events="critical"` shows."""


def kind_of(event: object) -> str | None:
    """The type of an event; None if it has none or is no event."""
    kind = cast("Event", event).get("type") if isinstance(event, Mapping) else None
    return kind if isinstance(kind, str) else None


def text_in(event: Event, name: str) -> str:
    """The text of a field; a framework's may be of a class of its own.

    Raises:
        MappingError: it is none.
    """
    value = event.get(name)
    if not isinstance(value, str):
        raise unusable(event, name)
    return value if type(value) is str else str.__str__(value)


def identifier_in(event: Event, name: str) -> str:
    """A text that is not empty.

    Raises:
        MappingError: it is none.
    """
    if not (value := text_in(event, name)):
        raise unusable(event, name)
    return value


def error_text(error: object) -> str:
    """What the user reads of a tool's error: what the event says itself, but not what an exception says."""
    if isinstance(error, Mapping):
        error = cast("Mapping[str, object]", error).get("message")
    return str.__str__(error)[:_ERROR_LENGTH] if isinstance(error, str) and error else _TOOL_FAILED


def is_abort(error: object) -> bool:
    """Whether a run ended with this error because somebody stopped it."""
    name = cast("Mapping[str, object]", error).get("name") if isinstance(error, Mapping) else type(error).__name__
    return isinstance(name, str) and name in _ABORTS


def unusable(event: Event, name: str) -> MappingError:
    return MappingError(f"A DeepAgent event `{event['type']}` has no usable `{name}`.")


def unknown(event: object) -> MappingError:
    if (kind := kind_of(event)) is not None:
        return MappingError(f"DeepAgent has no event of the type {kind!r:.60}.")
    return MappingError("A DeepAgent event has no type.")


def read_side_event(event: Event) -> dict[str, Any]:
    """The fields of a side event as plain values, without its type; long content of a file is cut and marked.

    Raises:
        MappingError: it lacks what every event of its type has.
    """
    name: str = event["type"]
    fields = {key: value for key, value in event.items() if key != "type"}
    if name in _WITH_CONTENT and isinstance(fields.get("content"), str):
        fields |= _cut(str.__str__(fields["content"]))
    data: dict[str, Any] = plain(fields)
    try:
        msgspec.convert({**data, "type": name}, SIDE_EVENTS[name])
    except msgspec.ValidationError as error:
        # Its text may quote a value.
        field = _FIELD.search(str(error))
        raise unusable(event, field[1] if field else "") from None
    return data


def _cut(content: str) -> dict[str, Any]:
    # No character has more than four bytes, so most contents need not be encoded.
    if len(content) * 4 <= _CONTENT_LIMIT or len(encoded := content.encode(errors="replace")) <= _CONTENT_LIMIT:
        return {"content": content}
    kept = encoded[:_CONTENT_LIMIT].decode(errors="ignore")
    return {"content": f"{kept}… [{len(content) - len(kept)} more characters left out]", "truncated": True}
