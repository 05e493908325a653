"""The writer of one assistant message, which opens and closes parts and steps for its caller.

The first delta of a lane opens a part. What cannot follow the part in its lane closes it: the other kind of text, a
tool call, `end_part`, a step, the end. A step begins with the first content, and again when one is *due*: if the
current step has results of our own tools and no call without a result, or if `step` was called. No step is due while
an input streams, because the newest clients make a second part of an input that continues in another step. A source,
file or custom part goes into the open step, even after its results.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, TypeAlias, cast, get_args

from msgspec import UNSET, UnsetType, structs

from usechat.protocol import chunks as c
from usechat.protocol.clients import CLIENTS, ClientName, Release
from usechat.protocol.codec import clean_chunk
from usechat.protocol.messages import IDENTIFIER, TOOL_CALL_ID, UIMessage, is_tool_call
from usechat.protocol.rules import local_error
from usechat.protocol.state import CLOSED, Call, StreamState, closing, closing_parts, with_input
from usechat.protocol.tables import UNFINISHED
from usechat.protocol.values import UNLIMITED, VALUE_LIMIT, canonical, mend, plain

__all__ = ["MessageWriter"]

_ApprovalId: TypeAlias = Callable[[str, Call, Any], str]
_Kind: TypeAlias = Literal["text", "reasoning"]
_STARTS: Final = {"text": c.TextStart, "reasoning": c.ReasoningStart}
_DELTAS: Final = {"text": c.TextDelta, "reasoning": c.ReasoningDelta}
_ENDS: Final = {"text": c.TextEnd, "reasoning": c.ReasoningEnd}

_CONTENT: Final = (c.TextStart, c.ReasoningStart, c.ToolInputStart, c.ToolInputAvailable, c.ToolInputError)
_WHOLE: Final = (c.SourceUrl, c.SourceDocument, c.File, c.ReasoningFile, c.Custom)
_DECIDES_STEP: Final = frozenset[type[c.Chunk]](
    (c.StartStep, c.ToolOutputDenied, *get_args(c.ToolInput), *get_args(c.ToolOutput))
)


class MessageWriter:
    """Writes one message. Every method returns the chunks that it caused, in the form that the client takes.

    `continues` is the assistant message that the turn continues: the writer uses its id and knows its open calls.
    The text of one lane never mixes with the text of another. A tool call belongs to the lane that made it.
    A tool call gets another id on the wire if the message already has its id, or if no request could bring the id back.
    A call with the id, name and input of a call in `continues` that has no result yet is that call, for example one
    that the user approved.
    `approval_id` makes the wire id of an approval from the agent's id, the call, and its input as it was shown.
    """

    def __init__(
        self,
        message_id: str,
        *,
        new_id: Callable[[], str],
        client: ClientName = "portable",
        continues: UIMessage | None = None,
        value_limit: int = VALUE_LIMIT,
        approval_id: _ApprovalId | None = None,
    ) -> None:
        parts = () if continues is None else continues.parts
        self.message_id = message_id if continues is None else continues.id
        self.continues = continues
        self.state = StreamState(self.message_id, parts)
        self.client = CLIENTS[client]
        self.state.first_release = Release(5, 0) in self.client.oldest
        # The sub-agents and hidden calls that work without a call of the message. It is a dict, because an empty set
        # takes three times as much memory.
        self.working: dict[str, None] = {}
        self._new_id = new_id
        self._fit = self.client.fit
        self._limit = value_limit
        self._written: list[c.Chunk] = []
        self._lanes = _Lanes(new_id)
        self._step_asked = False
        self._step_due = self.state.has_results()
        # The wire id of each call that the agent named.
        self._wire_ids: dict[str, str] = {}
        self._inputs = {part["toolCallId"]: part["input"] for part in parts if is_tool_call(part) and "input" in part}
        self._approval_ids = None if approval_id is None else _ApprovalIds(approval_id, parts)
        # The lane and the part of the last text delta, until the writer does anything else.
        self._open_text = self.state.text
        self._flow_lane: str | None = None
        self._flow_id = ""

    def start(self, metadata: Any = UNSET) -> list[c.Chunk]:
        """Begin the message, with its first metadata. Otherwise the first other call begins it."""
        if self.state.phase != "new":
            return self._take() if metadata is UNSET else self.metadata(metadata)
        self._put(c.Start(self.message_id, _sendable(metadata, self._limit, "start")))
        return self._take()

    def text(self, delta: str, lane: str = "") -> list[c.Chunk]:
        # The fast path: nearly every delta continues the part of the last one, and then the state does not change.
        if lane == self._flow_lane and delta and (delta.isascii() or mend(delta) is delta):
            flow = self._flow_id
            if flow in self._open_text:
                return [c.TextDelta(flow, delta)]
        return self._write("text", delta, lane)

    def flow(self, delta: str) -> str | None:
        """The id of the text part, if `text` would add this delta to it and do nothing else."""
        if self._flow_lane == "" and delta and (delta.isascii() or mend(delta) is delta):
            return self._flow_id if self._flow_id in self._open_text else None
        return None

    def reasoning(self, delta: str, lane: str = "") -> list[c.Chunk]:
        return self._write("reasoning", delta, lane)

    def begin_reasoning(self, lane: str = "") -> list[c.Chunk]:
        """Begin reasoning that may have no text, only what its provider needs of it, unless the lane has it open."""
        self._content()
        self._put_all(self._lanes.enter("reasoning", lane))
        return self._take()

    def end_part(self, *, lane: str = "", metadata: c.ProviderMetadata | UnsetType = UNSET) -> list[c.Chunk]:
        """End the lane's open text or reasoning. What follows is a part of its own.

        `metadata` is the provider's, such as the signature of its reasoning. It is dropped if no part is open.
        """
        self._put_all(self._lanes.leave(lane, metadata))
        return self._take()

    def tool_input_start(
        self,
        call_id: str,
        name: str,
        *,
        lane: str = "",
        dynamic: bool = False,
        provider_executed: bool | UnsetType = UNSET,
        title: str | UnsetType = UNSET,
        metadata: c.ProviderMetadata | UnsetType = UNSET,
    ) -> list[c.Chunk]:
        metadata = _provider_metadata(metadata, "tool-input-start")
        call_id = self._begin_call(call_id, lane)
        self._put(c.ToolInputStart(call_id, mend(name), provider_executed, dynamic or UNSET, title, metadata))
        return self._take()

    def tool_input_delta(self, call_id: str, delta: str) -> list[c.Chunk]:
        call_id = self._wire_id(call_id)
        delta = self._whole(f"call {call_id}", delta)
        if delta:
            self._put(c.ToolInputDelta(call_id, delta))
        return self._take()

    def tool_input(
        self,
        call_id: str,
        name: str,
        value: Any,
        *,
        lane: str = "",
        dynamic: bool = False,
        provider_executed: bool | UnsetType = UNSET,
        title: str | UnsetType = UNSET,
        metadata: c.ProviderMetadata | UnsetType = UNSET,
    ) -> list[c.Chunk]:
        """The whole input of a call, whether its beginning was streamed or not."""
        value = plain(value, self._limit)
        if self._has_open(call_id, name, value):
            return self._take()
        metadata = _provider_metadata(metadata, "tool-input-available")
        call = self._streaming_or_new(call_id, name, lane, dynamic=dynamic)
        dynamic = call.dynamic
        self._put(c.ToolInputAvailable(call.id, call.name, value, provider_executed, dynamic or UNSET, title, metadata))
        return self._take()

    def tool_input_error(
        self, call_id: str, name: str, value: Any, error_text: str, *, lane: str = "", dynamic: bool = False
    ) -> list[c.Chunk]:
        """An input that the tool could not be called with; `value` is the wrong input, of any shape."""
        call = self._streaming_or_new(call_id, name, lane, dynamic=dynamic)
        value = plain(value, self._limit)
        self._put(c.ToolInputError(call.id, call.name, value, mend(error_text), dynamic=call.dynamic or UNSET))
        return self._take()

    def tool_output(
        self,
        call_id: str,
        output: Any,
        *,
        preliminary: bool = False,
        provider_executed: bool | UnsetType = UNSET,
        metadata: c.ProviderMetadata | UnsetType = UNSET,
    ) -> list[c.Chunk]:
        """The result of a call. The next result replaces a preliminary one."""
        metadata = _provider_metadata(metadata, "tool-output-available")
        call_id, dynamic = self._before_result(call_id)
        output = plain(output, self._limit)
        self._put(c.ToolOutputAvailable(call_id, output, provider_executed, dynamic, preliminary or UNSET, metadata))
        return self._take()

    def tool_error(
        self,
        call_id: str,
        error_text: str,
        *,
        provider_executed: bool | UnsetType = UNSET,
        metadata: c.ProviderMetadata | UnsetType = UNSET,
    ) -> list[c.Chunk]:
        metadata = _provider_metadata(metadata, "tool-output-error")
        call_id, dynamic = self._before_result(call_id)
        self._put(c.ToolOutputError(call_id, mend(error_text), provider_executed, dynamic, metadata))
        return self._take()

    def tool_denied(self, call_id: str) -> list[c.Chunk]:
        """The tool does not run: because the user refused, or, written as an error, because the server denied it."""
        call = self._call(call_id)
        if call is None or call.state != "refused":
            return self.tool_error(call_id, "The call was denied.")
        self._put(c.ToolOutputDenied(call.id))
        return self._take()

    def approval_request(
        self,
        call_id: str,
        *,
        approval_id: str | None = None,
        reason: str | UnsetType = UNSET,
        signature: str | UnsetType = UNSET,
    ) -> list[c.Chunk]:
        approval_id = self._new_id() if approval_id is None else approval_id
        return self.send(c.ToolApprovalRequest(approval_id, self._wire_id(call_id), signature, reason))

    def wire_id(self, call_id: str) -> str:
        """The id of the call on the page."""
        return mend(self._wire_id(call_id))

    def source_url(self, url: str, *, title: str | UnsetType = UNSET, source_id: str | None = None) -> list[c.Chunk]:
        return self.send(c.SourceUrl(source_id or self._new_id(), url, title))

    def source_document(
        self, title: str, media_type: str, *, filename: str | UnsetType = UNSET, source_id: str | None = None
    ) -> list[c.Chunk]:
        return self.send(c.SourceDocument(source_id or self._new_id(), media_type, title, filename))

    def file(self, url: str, media_type: str) -> list[c.Chunk]:
        return self.send(c.File(url, media_type))

    def data(
        self,
        name: str,
        value: Any,
        *,
        id: str | UnsetType = UNSET,  # noqa: A002
        transient: bool = False,
    ) -> list[c.Chunk]:
        """Data of the app, as `data-<name>`. With an id, it replaces the part with the same id."""
        return self.send(c.Data(name, value, id, transient or UNSET))

    def metadata(self, value: Any) -> list[c.Chunk]:
        self._put(c.MessageMetadata(_sendable(value, self._limit, "message-metadata")))
        return self._take()

    def step(self, *, lazy: bool = False) -> list[c.Chunk]:
        """Begin a new step as soon as no tool input streams, unless the current step is still empty.

        A `lazy` step begins with its first content.
        """
        self._step_asked = self.state.shown == self.state.step or self.state.phase != "step"
        self._consider_step()
        self._flow_lane = None
        if self._step_due and not lazy:
            self._next_step()
        return self._take()

    def send(self, chunk: c.Chunk) -> list[c.Chunk]:
        """Write a chunk, with its values as plain JSON.

        Raises:
            LocalProtocolError: The chunk is illegal here, or no form of it suits the client.
        """
        chunk = clean_chunk(chunk, self._limit)
        if isinstance(chunk, c.Start):
            return self.start(chunk.message_metadata)
        if isinstance(chunk, c.MessageMetadata):
            return self.metadata(chunk.message_metadata)
        if isinstance(chunk, c.Finish):
            return self._end(c.Finish(chunk.finish_reason, _sendable(chunk.message_metadata, self._limit, "finish")))
        if isinstance(chunk, c.Abort | c.Error):
            return self._end(chunk)
        if isinstance(chunk, c.ToolInputAvailable) and self._has(chunk.tool_call_id, chunk.tool_name, chunk.input):
            return self._take()
        if isinstance(chunk, _CONTENT):
            self._content()
        elif isinstance(chunk, _WHOLE):
            self._first_step()
        elif isinstance(chunk, c.ToolApprovalRequest):
            self._check_whole(chunk)
        self._put(chunk)
        if isinstance(chunk, c.ResetStep):
            self._lanes.forget()
        return self._take()

    def finish(self, reason: c.FinishReason = "stop", metadata: Any = UNSET) -> list[c.Chunk]:
        """End the message. With `tool-calls`, calls that wait for the browser or for an approval stay open."""
        return self.send(c.Finish(reason, metadata))

    def abort(self, reason: str | UnsetType = UNSET) -> list[c.Chunk]:
        """End the message because it was stopped."""
        return self.send(c.Abort(reason))

    def fail(self, error_text: str) -> list[c.Chunk]:
        """End the message with an error. The user sees its text."""
        return self._end(c.Error(mend(error_text)))

    def _put(self, chunk: c.Chunk) -> None:
        """Write a chunk. All chunks go through here, except text deltas on the fast path."""
        if self._approval_ids is not None:
            chunk = self._approval_ids.on_wire(chunk, self.state.calls)
        self._flow_lane = None
        if self.state.phase == "new" and not isinstance(chunk, c.Start):
            self._put(c.Start(self.message_id))
        fitted = self._fit(chunk, self.state)
        self.state.apply(chunk)
        self._written += fitted
        if type(chunk) in _DECIDES_STEP:
            self._consider_step()

    def _put_all(self, chunks: Iterable[c.Chunk]) -> None:
        for chunk in chunks:
            self._put(chunk)

    def _take(self) -> list[c.Chunk]:
        # If a call raises, the next call returns the chunks that it had already written.
        written, self._written = self._written, []
        return written

    def _write(self, kind: _Kind, delta: str, lane: str) -> list[c.Chunk]:
        delta = self._whole(f"{kind} {lane}", delta)
        if not delta:
            return self._take()
        self._content()
        self._put_all(self._lanes.enter(kind, lane))
        chunk = self._lanes.delta(lane, delta)
        self._put(chunk)
        if kind == "text" and not self._lanes.halves:
            self._flow_lane, self._flow_id = lane, chunk.id
        return self._take()

    def _whole(self, owner: str, text: str) -> str:
        if text.isascii() and not self._lanes.halves:
            return text
        self._flow_lane = None
        return self._lanes.whole(owner, text)

    def _content(self) -> None:
        """Begin a step if one is due or none is open."""
        if self._step_due:
            self._next_step()
        elif self.state.phase != "step":
            self._first_step()

    def _first_step(self) -> None:
        """Begin a step if none is open, for a part that may also follow results."""
        # The results for open calls of a continued message belong before its next step.
        between = self.state.phase in ("new", "open") and not (self.state.text or self.state.reasoning)
        if between and not self.state.open_here():
            self._put(c.StartStep())

    def _next_step(self) -> None:
        """End all parts and the current step, and begin another."""
        self._put_all(self._lanes.leave_all())
        self._put_all(closing_parts(self.state))
        if self.state.phase == "step":
            self._put(c.FinishStep())
        self._step_asked = False
        self._put(c.StartStep())

    def _consider_step(self) -> None:
        streaming = any(call.state in UNFINISHED for call in self.state.here)
        self._step_due = not streaming and (self._step_asked or self.state.has_results())

    def _wire_id(self, call_id: str) -> str:
        return self._wire_ids.get(call_id, call_id)

    def _call(self, call_id: str) -> Call | None:
        return self.state.calls.get(self._wire_id(call_id))

    def _begin_call(self, call_id: str, lane: str) -> str:
        """Choose the wire id of a new call. From now on the agent's id means this call, not an earlier one."""
        self._content()
        self._put_all(self._lanes.leave(lane))
        wire_id = mend(call_id)
        while wire_id in self.state.calls or TOOL_CALL_ID(wire_id) is not None:
            wire_id = self._new_id()
        self._wire_ids[call_id] = wire_id
        return wire_id

    def _streaming_or_new(self, call_id: str, name: str, lane: str, *, dynamic: bool) -> Call:
        call = self._call(call_id)
        if call is not None and call.state in UNFINISHED:
            return call
        return Call(self._begin_call(call_id, lane), mend(name), dynamic, self.state.step)

    def _has_open(self, call_id: str, name: str, value: Any) -> bool:
        call = self._call(call_id)
        return call is not None and call.state not in CLOSED and self._has(call.id, name, value)

    def _has(self, call_id: str, name: str, value: Any) -> bool:
        """Whether the continued message has this call. The browser may have changed the spelling of numbers."""
        call = self.state.calls.get(call_id)
        if call is None or call.name != name or call_id not in self._inputs:
            return False
        return canonical(self._inputs[call_id]) == canonical(value)

    def _before_result(self, call_id: str) -> tuple[str, bool | UnsetType]:
        call = self._call(call_id)
        if call is None:
            return self._wire_id(call_id), UNSET
        self._put_all(with_input(call, self.state.step))
        return call.id, call.dynamic or UNSET

    def _check_whole(self, chunk: c.ToolApprovalRequest) -> None:
        # Clients show it, but v5 gets the request as a data part, which would leave the call streaming.
        call = self.state.calls.get(chunk.tool_call_id)
        if call is not None and call.state in UNFINISHED:
            problem = f"The approval request is for the call {call.id!r:.60}, whose input is not whole."
            raise local_error("call-order", "tool-approval-request", problem)

    def _end(self, last: c.End) -> list[c.Chunk]:
        self._put_all(self._lanes.leave_all())
        self._put_all(closing(self.state, last))
        return self._take()


class _Lanes:
    """The open part of each lane. The methods return the chunks to write."""

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self._open: dict[str, tuple[_Kind, str]] = {}
        self.halves: dict[str, str] = {}

    def whole(self, owner: str, text: str) -> str:
        """Hold back half a character at the end of a delta until the owner's next delta brings the other half."""
        text = self.halves.pop(owner, "") + text
        if text and "\ud800" <= text[-1] <= "\udbff":
            self.halves[owner] = text[-1]
            text = text[:-1]
        return mend(text)

    def enter(self, kind: _Kind, lane: str) -> list[c.Chunk]:
        """Begin a part of this kind, unless the lane has one open."""
        if lane in self._open and self._open[lane][0] == kind:
            return []
        ended = self.leave(lane)
        self._open[lane] = (kind, self._new_id())
        return [*ended, _STARTS[kind](self._open[lane][1])]

    def delta(self, lane: str, text: str) -> c.TextDelta | c.ReasoningDelta:
        kind, id_ = self._open[lane]
        return _DELTAS[kind](id_, text)

    def leave(self, lane: str, metadata: c.ProviderMetadata | UnsetType = UNSET) -> list[c.Chunk]:
        """End the open part of the lane, with the provider's metadata.

        Raises:
            LocalProtocolError: The metadata is not an object of objects. The part stays open.
        """
        if lane not in self._open:
            return []
        kind, id_ = self._open[lane]
        end = _ENDS[kind](id_, _provider_metadata(metadata, f"{kind}-end"))
        del self._open[lane]
        lost = self.halves.pop(f"{kind} {lane}", None)
        return [_DELTAS[kind](id_, "\ufffd"), end] if lost else [end]

    def leave_all(self) -> list[c.Chunk]:
        return [chunk for lane in list(self._open) for chunk in self.leave(lane)]

    def forget(self) -> None:
        """Nothing is open any more."""
        self._open.clear()
        self.halves.clear()


class _ApprovalIds:
    """The wire ids of approvals, from the app's own function. The agent keeps using its own ids.

    `parts` are those of the message that is continued.
    """

    def __init__(self, approval_id: _ApprovalId, parts: Iterable[Mapping[str, Any]]) -> None:
        self._make = approval_id
        self._inputs: dict[str, Any] = {part["toolCallId"]: part.get("input") for part in parts if is_tool_call(part)}
        self._wire_ids: dict[str, str] = {}

    def on_wire(self, chunk: c.Chunk, calls: Mapping[str, Call]) -> c.Chunk:
        """The chunk with the wire id of its approval, if it has one.

        Raises:
            LocalProtocolError: No client could send the id back.
        """
        match chunk:
            case c.ToolInputAvailable():
                self._inputs[chunk.tool_call_id] = chunk.input
            case c.ToolApprovalRequest() if chunk.tool_call_id in calls:
                return structs.replace(chunk, approval_id=self._add(chunk.approval_id, calls[chunk.tool_call_id]))
            case c.ToolApprovalResponse():
                wire_id = self._wire_ids.get(chunk.approval_id, chunk.approval_id)
                return structs.replace(chunk, approval_id=wire_id)
            case _:
                pass
        return chunk

    def _add(self, approval_id: str, call: Call) -> str:
        wire_id = self._make(approval_id, call, self._inputs.get(call.id))
        if problem := IDENTIFIER(wire_id):
            raise local_error("shape", "tool-approval-request", f"The id of an approval on the wire{problem}.")
        self._wire_ids[approval_id] = wire_id
        return wire_id


def _sendable(value: Any, limit: int, name: str) -> Any:
    """The metadata as plain JSON, or UNSET. `name` is the type of its chunk.

    Raises:
        LocalProtocolError: It is not an object.
    """
    metadata = UNSET if value is UNSET else plain(value, limit)
    if metadata is UNSET or metadata is None or isinstance(metadata, dict):
        return cast("Any", metadata)
    # The client merges metadata as objects, and throws on anything else.
    raise local_error("shape", name, "The metadata of a message must be an object.")


def _provider_metadata(value: c.ProviderMetadata | UnsetType, name: str) -> c.ProviderMetadata | UnsetType:
    """The provider's metadata as plain JSON, or UNSET. `name` is the type of its chunk.

    Raises:
        LocalProtocolError: It is not an object of objects.
    """
    if value is UNSET:
        return UNSET
    # Without a limit: a value that is cut short becomes a text, and no client takes a text for an object.
    metadata = plain(value, UNLIMITED)
    if isinstance(metadata, dict) and all(isinstance(each, dict) for each in cast("dict[str, Any]", metadata).values()):
        return cast("c.ProviderMetadata", metadata)
    raise local_error("shape", name, "Provider metadata must be an object with an object for each provider.")
