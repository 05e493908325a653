"""DeepAgent: what its agents yield, as dicts with the names of the original, and the events that we add to them.

Those that the original has not are `reasoning`, `tool-input-start`, `tool-input-delta`, `usage` and `source`.
"""

from typing import Any, Final, Literal, NotRequired, TypeAlias, TypedDict, get_args, get_type_hints

from usechat.integrations.deepagent_sdk.parts import SideEvent, StepCall

__all__ = [
    "CRITICAL",
    "EVENTS",
    "TALK",
    "TOOLS",
    "ApprovalRequested",
    "ApprovalResponse",
    "DeepAgentEvent",
    "Done",
    "ErrorEvent",
    "Reasoning",
    "Source",
    "StepFinish",
    "StepStart",
    "Text",
    "TextSegment",
    "ToolCall",
    "ToolInputDelta",
    "ToolInputStart",
    "ToolResult",
    "Usage",
    "UserMessage",
]


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
    """The result of a call; of one that failed it is the error, as `{name, message}`, a text or an exception."""

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
    """A text that was said before; only the original's terminal yields it, and a page is shown nothing."""

    type: Literal["text-segment"]
    text: NotRequired[str]


class UserMessage(TypedDict):
    """What the user said; only the original's terminal yields it, and a page is shown nothing."""

    type: Literal["user-message"]
    content: NotRequired[str]


class Done(TypedDict):
    """The end of the run; of its state and its messages a page is shown nothing."""

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
"""What is shown of these and the side events in production, where not everything is."""
