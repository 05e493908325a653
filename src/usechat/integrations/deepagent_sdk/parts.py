"""DeepAgent: the side events, each of which becomes a data part of its name.

The TypeScript types of the data parts are made from these classes (`usechat types deep-agent`). Numbers are those of
JavaScript, so they are floats here; a whole one stays whole on the wire.
"""

from typing import Any, Final, Literal, NotRequired, TypeAlias, TypedDict, get_args, get_type_hints

__all__ = [
    "NOISY",
    "SIDE_EVENTS",
    "TOLD",
    "ApprovalAnswered",
    "ApprovalAsked",
    "CheckpointLoaded",
    "CheckpointSaved",
    "ExecuteFinish",
    "ExecuteStart",
    "FetchUrlFinish",
    "FetchUrlStart",
    "FileEdited",
    "FileRead",
    "FileWriteStart",
    "FileWritten",
    "Glob",
    "Grep",
    "HttpRequestFinish",
    "HttpRequestStart",
    "Ls",
    "SideEvent",
    "StepCall",
    "SubagentFinish",
    "SubagentStart",
    "SubagentStep",
    "Todo",
    "TodosChanged",
    "WebSearchFinish",
    "WebSearchStart",
]


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
    """Somebody else than the page is asked whether the call may be carried out; a transient part."""

    approvalId: str
    toolCallId: str


class ApprovalAnswered(TypedDict):
    approvalId: str
    approved: bool
    toolCallId: str


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

TOLD: Final[dict[str, Any]] = {"approval-requested": ApprovalAsked, "approval-response": ApprovalAnswered}
"""The data parts of what is answered while a run goes on."""

NOISY: Final = frozenset({"ls", "glob", "grep", "file-read"})
"""Those of which there may be very many, and which say little once they are over."""
