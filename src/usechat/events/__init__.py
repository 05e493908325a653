"""What an agent can say: the one vocabulary of all integrations, and of every generator that a user writes.

An agent yields text as `str`, these events, or chunks of the protocol as objects or dicts. `EventMapper` turns them
into chunks and keeps the books: which calls are open, what was said before, which sub-agent speaks, what the model
calls used. So an integration only translates. One that seems to need a book of its own shows what is missing here.
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
    """Text of the answer, as `str` is.

    Texts with different keys never mix: a key is one of several speakers or messages at the same time. `whole` is a
    text that a framework repeats after its deltas: what was said of it under the key is not said again, and the part
    ends. So does a part whose text brings `metadata` of the provider. A `block` is one of several whole texts under the
    key: the next one is another text, even if it is the same, and its deltas may come before this one.
    """

    text: str
    key: str = ""
    whole: bool = False
    metadata: ProviderMetadata | None = None
    block: bool = False


class Reasoning(Struct, frozen=True):
    """What the model thinks before it answers, with the same fields as `Text`; a signature goes into `metadata`."""

    text: str
    key: str = ""
    whole: bool = False
    metadata: ProviderMetadata | None = None
    block: bool = False


class EndPart(Struct, frozen=True):
    """The text or reasoning under the key is complete; what follows is a part of its own, also if it was said."""

    key: str = ""


class ToolInputStart(Struct, frozen=True):
    """A model begins a tool call; its arguments follow as `ToolInputDelta`, and whole as `ToolCall`."""

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
    """A call with its whole input. Said twice, it is written once.

    A call without a result when the turn ends is the browser's: the page answers it, and the next turn goes on. A
    `hidden` call is shown only if the user is asked about it, or if it comes again and is not hidden then.
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
    """A call whose arguments could not be read; the user sees the text."""

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
    """A piece of what a tool says while it works; all of them so far are the call's preliminary result.

    It is written more rarely as it grows: pieces of text as one text, others as a list.
    """

    id: str
    delta: Any


class ToolResult(Struct, frozen=True):
    """The result of a call. The first end of a call counts. With a `name`, a call that nobody announced is made up.

    Some frameworks do not say which call a result belongs to: with an empty `id`, it is that of the oldest call with
    the `name` under the `key` that has none.
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
    """The speaker of the key is done: its calls without a result fail with this text, unless the user was asked."""

    text: str
    key: str = ""


class ToolDenied(Struct, frozen=True):
    """The call is not carried out, because the user refused it."""

    id: str


class ApprovalRequest(Struct, frozen=True):
    """Ask the user whether a call may be carried out; the answer is in `chat.approvals` of the next turn.

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
    """The run waits for the user. Open calls that nobody was asked about go on later, and show this text until then.

    Without a result they would keep a page from sending the user's answer.
    """

    text: str


class Usage(Struct, frozen=True, kw_only=True):
    """What a model call used, summed over the message into `metadata.usage`; None is a count that nobody gave.

    `input_tokens` include those that were read from a cache or written to it. Of usages with the same `key`, the last
    one counts: some providers send a running total. `extra` are other numbers to sum, such as a cost, each under its
    name in the metadata.
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
    """A page that the answer is taken from; each address is shown once."""

    url: str
    title: str = ""


class Document(Struct, frozen=True):
    """A document that the answer is taken from; each is shown once."""

    title: str
    media_type: str
    filename: str = ""


class File(Struct, frozen=True):
    """A file that the agent made, by its address or as a data URL."""

    url: str
    media_type: str


class Data(Struct, frozen=True):
    """Data of the app's own, as `data-<name>`; with an id it replaces the part that has the same one.

    `call_id` is the call that it belongs to. An object then gets the field `toolCallId`, with the id that the page
    knows the call by.
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
    """A model is called: what it says, its calls and their results are a step of the message.

    A `lazy` step begins with the first thing that is said in it, so that one without any is not shown.
    """

    lazy: bool = False


class SubAgent(Struct, frozen=True):
    """What a sub-agent says, or what became of it.

    `show` puts it into one part, `data-subagent`, that is replaced in place (`data`), beside the answer as text and
    calls of its own (`lanes`), or nowhere (`off`). `call_id` is the call that it works for, `parent` the sub-agent
    that started it. An approval that it asks for is the message's own in any case.
    """

    id: str
    name: str
    event: "AgentEvent | None" = None
    status: Literal["running", "done", "failed", "waiting"] = "running"
    call_id: str = ""
    parent: str = ""
    show: Literal["data", "lanes", "off"] = "data"


class Handoff(Struct, frozen=True):
    """Another agent goes on with the conversation, shown as `data-handoff`."""

    to: str
    from_: str = ""


class Finish(Struct, frozen=True):
    """How the message ends once the agent has said everything; calls that wait make it `tool-calls`."""

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
"""All that an agent may yield. A chunk is written as it is: as an object, or as the dict that it is on the wire."""

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
