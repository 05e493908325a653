"""What an agent can say: the one vocabulary of all integrations, and of every generator that a user writes.

An agent yields text as `str`, these events, or chunks of the protocol as objects or dicts. `EventMapper` turns them
into chunks and keeps track of open calls, repeated texts, sub-agents and usage. So an integration only translates. If
one seems to need records of its own, this vocabulary lacks something.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from msgspec import Struct

from usechat.protocol import chunks

__all__ = [
    "AgentEvent",
    "ApprovalRequest",
    "ApprovalResponse",
    "Data",
    "DataBatch",
    "Document",
    "EndCalls",
    "EndPart",
    "File",
    "Finish",
    "Handoff",
    "Mapper",
    "Pause",
    "Reasoning",
    "Source",
    "Step",
    "StructuredOutput",
    "SubAgent",
    "Text",
    "ToolCall",
    "ToolDenied",
    "ToolError",
    "ToolInputDelta",
    "ToolInputError",
    "ToolInputStart",
    "ToolOutputDelta",
    "ToolProgress",
    "ToolResult",
    "Translator",
    "Usage",
]

ProviderMetadata: TypeAlias = chunks.ProviderMetadata


class Text(Struct, frozen=True):
    """Text of the answer, like a plain `str`.

    Texts with different keys never mix: use one key for each speaker or message that streams at the same time. `whole`
    marks a text that a framework repeats after its deltas: only the rest that was not said under the key is sent, and
    the part ends. A text with `metadata` of the provider also ends its part. `block` marks one of several whole texts
    under the key: the next one is a new text, even if it is equal, and its deltas may come before this one.
    """

    text: str
    key: str = ""
    whole: bool = False
    metadata: ProviderMetadata | None = None
    block: bool = False


class Reasoning(Struct, frozen=True):
    """Reasoning of the model, with the same fields as `Text`; a signature goes into `metadata`."""

    text: str
    key: str = ""
    whole: bool = False
    metadata: ProviderMetadata | None = None
    block: bool = False


class EndPart(Struct, frozen=True):
    """End the text or reasoning part under the key; what follows is a new part, even if it repeats the old one."""

    key: str = ""


class ToolInputStart(Struct, frozen=True):
    """Start a tool call. Its arguments follow as `ToolInputDelta`, and then whole as `ToolCall`."""

    id: str
    name: str
    title: str | None = None
    provider_executed: bool = False
    dynamic: bool = False
    key: str = ""


class ToolInputDelta(Struct, frozen=True):
    """A piece of the JSON of a call's arguments."""

    id: str
    delta: str


class ToolCall(Struct, frozen=True):
    """A call with its whole input. A repeated call is sent once.

    A call without a result at the end of the turn is for the browser: the page answers it, and the next turn continues.
    A `hidden` call is shown only if it needs an approval, or if it is repeated without `hidden`.
    """

    id: str
    name: str
    input: Any
    title: str | None = None
    provider_executed: bool = False
    dynamic: bool = False
    metadata: ProviderMetadata | None = None
    key: str = ""
    hidden: bool = False


class ToolInputError(Struct, frozen=True):
    """A call whose arguments could not be parsed; the user sees the text."""

    id: str
    name: str
    input: Any
    text: str
    key: str = ""


class ToolProgress(Struct, frozen=True):
    """A preliminary result of a call; the next one replaces it."""

    id: str
    output: Any


class ToolOutputDelta(Struct, frozen=True):
    """A piece of a tool's output while it works. All pieces so far are the call's preliminary result.

    Pieces of text become one text, others a list. The result is sent more rarely as it grows.
    """

    id: str
    delta: Any


class ToolResult(Struct, frozen=True):
    """The result of a call. The first result or error of a call counts. With a `name`, a missing call is added.

    Some frameworks do not say which call a result belongs to. With an empty `id`, it belongs to the oldest call under
    the `key` that has this `name` and no result.
    """

    id: str
    output: Any
    name: str = ""
    provider_executed: bool = False
    key: str = ""


class ToolError(Struct, frozen=True):
    """The failure of a call, with the same fields as `ToolResult`; the user sees the text."""

    id: str
    text: str
    name: str = ""
    provider_executed: bool = False
    key: str = ""


class EndCalls(Struct, frozen=True):
    """Fail the calls under the key that have no result with this text, except those that wait for the user."""

    text: str
    key: str = ""


class ToolDenied(Struct, frozen=True):
    """The user refused the call, and it does not run."""

    id: str


class ApprovalRequest(Struct, frozen=True):
    """Ask the user whether a call may run; the answer is in `chat.approvals` of the next turn.

    An empty `id` gets a new one. An empty `call_id` asks about every call of the turn that has no result.
    """

    id: str = ""
    call_id: str = ""
    reason: str = ""


class ApprovalResponse(Struct, frozen=True):
    """Somebody other than the page's user has answered, and the run goes on; a refused call is denied.

    The page was not asked. Clients of AI SDK 7 show the question and the answer.
    """

    id: str
    call_id: str
    approved: bool


class Pause(Struct, frozen=True):
    """The run waits for the user. Open calls that need no approval go on later, and show this text until then.

    Without a result they would keep a page from sending the user's answer.
    """

    text: str


class Usage(Struct, frozen=True, kw_only=True):
    """The usage of one model call, summed over the message into `metadata.usage`; None means unknown.

    `input_tokens` include tokens that were read from a cache or written to it. Of several usages with the same `key`,
    the last one counts, because some providers report a running total. `extra` holds other numbers to sum, such as a
    cost, each under its name in the metadata.
    """

    input_tokens: float | None = None
    output_tokens: float | None = None
    total_tokens: float | None = None
    cache_read_tokens: float | None = None
    cache_write_tokens: float | None = None
    reasoning_tokens: float | None = None
    model: str = ""
    key: str = ""
    extra: Mapping[str, float] | None = None


class Source(Struct, frozen=True):
    """A web page that the answer cites; each URL is shown once."""

    url: str
    title: str = ""


class Document(Struct, frozen=True):
    """A document that the answer cites; each is shown once."""

    title: str
    media_type: str
    filename: str = ""


class File(Struct, frozen=True):
    """A file that the agent made, as a URL or a data URL."""

    url: str
    media_type: str


class Data(Struct, frozen=True):
    """Data of your app, as `data-<name>`; with an id it replaces the part that has the same one.

    `call_id` is the call that it belongs to. An object then gets the field `toolCallId`, with the id that the page has
    for the call.
    """

    name: str
    data: Any
    id: str = ""
    transient: bool = False
    call_id: str = ""


class DataBatch(Struct, frozen=True):
    """Several objects in one part, `data-batch`: each is in `events`, with its name as `type`."""

    batch: tuple[Data, ...]
    transient: bool = False


class StructuredOutput(Struct, frozen=True):
    """The answer as a value: `structuredOutput` of a flow's node, and a `data-structured-output` part in a message."""

    value: Any


class Step(Struct, frozen=True):
    """Start a step: one model call with its text, its tool calls and their results.

    A `lazy` step starts with its first text or call, so an empty one is not shown.
    """

    lazy: bool = False


class SubAgent(Struct, frozen=True):
    """An event of a sub-agent, or its status.

    `show="data"` collects everything in one part, `data-subagent`, which is replaced in place. `"lanes"` shows its text
    and calls beside the answer, and `"off"` shows nothing. `call_id` is the call that it works for, `parent` the
    sub-agent that started it. The page always shows the approvals that it asks for.
    """

    id: str
    name: str
    event: "AgentEvent | None" = None
    status: Literal["running", "done", "failed", "waiting"] = "running"
    call_id: str = ""
    parent: str = ""
    show: Literal["data", "lanes", "off"] = "data"


class Handoff(Struct, frozen=True):
    """Another agent takes over the conversation, shown as `data-handoff`."""

    to: str
    from_: str = ""


class Finish(Struct, frozen=True):
    """The finish reason, which is sent after everything else; if calls wait, it is `tool-calls` instead."""

    reason: chunks.FinishReason = "stop"
    metadata: Any = None


AgentEvent: TypeAlias = (
    str
    | Text
    | Reasoning
    | EndPart
    | ToolInputStart
    | ToolInputDelta
    | ToolCall
    | ToolInputError
    | ToolProgress
    | ToolOutputDelta
    | ToolResult
    | ToolError
    | ToolDenied
    | EndCalls
    | ApprovalRequest
    | ApprovalResponse
    | Pause
    | Usage
    | Source
    | Document
    | File
    | Data
    | DataBatch
    | StructuredOutput
    | Step
    | SubAgent
    | Handoff
    | Finish
    | chunks.Chunk
    | dict[str, Any]
)
"""Everything an agent may yield. A chunk, as an object or as its dict on the wire, is sent as it is."""

_Event = TypeVar("_Event", contravariant=True)


class Translator(Protocol[_Event]):
    """Turns the events of one framework into `AgentEvent`s. It is pure: no I/O, no clock, no ids of its own."""

    def translate(self, event: _Event) -> Iterable[AgentEvent]:
        """What one event of the framework says.

        Raises:
            MappingError: the event is of no use.
        """
        ...

    def end(self) -> Iterable[AgentEvent]:
        """What follows when no more events come."""
        ...


class Mapper(Protocol[_Event]):
    """Turns events into chunks, by a writer that it was made with; it waits for nothing."""

    def map(self, event: _Event) -> Iterable[chunks.Chunk]:
        """The chunks of one event.

        Raises:
            MappingError: the event is of no use; nothing was written.
        """
        ...

    def end(self) -> Iterable[chunks.Chunk]:
        """What follows when no more events come; a message that is not ended by it ends well."""
        ...
