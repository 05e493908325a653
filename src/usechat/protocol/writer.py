"""The writer of one assistant message: it opens and closes parts and steps, so that nobody else has to."""

from collections.abc import Callable, Iterable
from typing import Any, Final

from msgspec import UNSET, UnsetType

from usechat.protocol.canonical import canonical
from usechat.protocol.chunks import (
    Abort,
    Chunk,
    Custom,
    Data,
    Error,
    File,
    Finish,
    FinishReason,
    MessageMetadata,
    ReasoningFile,
    ReasoningStart,
    ResetStep,
    SourceDocument,
    SourceUrl,
    Start,
    TextDelta,
    TextStart,
    ToolApprovalRequest,
    ToolInputAvailable,
    ToolInputDelta,
    ToolInputError,
    ToolInputStart,
    ToolOutputAvailable,
    ToolOutputDenied,
    ToolOutputError,
)
from usechat.protocol.clients import CLIENTS, ClientName, Release
from usechat.protocol.closing import End, closing, with_input
from usechat.protocol.codec import clean_chunk
from usechat.protocol.lanes import Kind, Lanes
from usechat.protocol.messages import UIMessage, is_tool_call
from usechat.protocol.metadata import sendable
from usechat.protocol.rules import local_error
from usechat.protocol.state import CLOSED, Call, StreamState
from usechat.protocol.steps import Steps
from usechat.protocol.tables import UNFINISHED
from usechat.protocol.values import VALUE_LIMIT, mend, plain
from usechat.protocol.wire_ids import ApprovalId, ApprovalIds, CallIds

__all__ = ["MessageWriter"]

_CONTENT: Final = (TextStart, ReasoningStart, ToolInputStart, ToolInputAvailable, ToolInputError)
_WHOLE: Final = (SourceUrl, SourceDocument, File, ReasoningFile, Custom)


class MessageWriter:
    """Writes one message; every method returns the chunks that it caused, in the form that the client takes.

    `continues` is the assistant message that the turn goes on with: its id is used again and its open calls are known.
    What is written to one lane never mixes with the text of another; a tool call belongs to the lane that made it.
    A tool call id that the message has already, or that could not come back in a request, gets another one on the wire.
    The same call again, by its id, name and input, is one of `continues` that has no result yet, such as one that the
    user approved.
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
        approval_id: ApprovalId | None = None,
    ) -> None:
        parts = () if continues is None else continues.parts
        self.message_id = message_id if continues is None else continues.id
        self.state = StreamState(self.message_id, parts)
        self.client = CLIENTS[client]
        self.state.first_release = Release(5, 0) in self.client.oldest
        self._new_id = new_id
        self._fit = self.client.fit
        self._limit = value_limit
        self._written: list[Chunk] = []
        self._lanes = Lanes(new_id)
        self._steps = Steps(self.state, self._lanes)
        self._call_ids = CallIds(new_id)
        self._inputs = {part["toolCallId"]: part["input"] for part in parts if is_tool_call(part) and "input" in part}
        self._approval_ids = None if approval_id is None else ApprovalIds(approval_id, parts)
        # The lane and the text part of the last call, until anything else happens.
        self._open_text = self.state.text
        self._flow_lane: str | None = None
        self._flow_id = ""

    def start(self, metadata: Any = UNSET) -> list[Chunk]:
        """Begin the message, with the first of its metadata; the first other call does it if nobody did."""
        if self.state.phase == "new":
            self._put(Start(self.message_id, sendable(metadata, self._limit, "start")))
        elif metadata is not UNSET:
            self._put(MessageMetadata(sendable(metadata, self._limit, "message-metadata")))
        return self._take()

    def text(self, delta: str, lane: str = "") -> list[Chunk]:
        # Nearly all calls go on where the last one stopped; then the delta changes nothing in the state.
        if lane == self._flow_lane and delta and (delta.isascii() or mend(delta) is delta):
            flow = self._flow_id
            if flow in self._open_text:
                return [TextDelta(flow, delta)]
        return self._write("text", delta, lane)

    def flow(self, delta: str) -> str | None:
        """The id of the text part to which a call of `text` would add this delta and do nothing else."""
        if self._flow_lane == "" and delta and (delta.isascii() or mend(delta) is delta):
            return self._flow_id if self._flow_id in self._open_text else None
        return None

    def reasoning(self, delta: str, lane: str = "") -> list[Chunk]:
        return self._write("reasoning", delta, lane)

    def end_part(self, *, lane: str = "") -> list[Chunk]:
        """End the lane's open text or reasoning, so that what follows is a part of its own."""
        self._put_all(self._lanes.leave(lane))
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
    ) -> list[Chunk]:
        call_id = self._begin_call(call_id, lane)
        self._put(ToolInputStart(call_id, mend(name), provider_executed, _true_or_unset(dynamic), title))
        return self._take()

    def tool_input_delta(self, call_id: str, delta: str) -> list[Chunk]:
        call_id = self._call_ids.wire_id(call_id)
        delta = self._whole(f"call {call_id}", delta)
        if delta:
            self._put(ToolInputDelta(call_id, delta))
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
    ) -> list[Chunk]:
        """The whole input of a call, whether its beginning was streamed or not."""
        value = plain(value, self._limit)
        if self._has_open(call_id, name, value):
            return self._take()
        call = self._streaming_or_new(call_id, name, lane, dynamic=dynamic)
        self._put(ToolInputAvailable(call.id, call.name, value, provider_executed, _true_or_unset(call.dynamic), title))
        return self._take()

    def tool_input_error(
        self, call_id: str, name: str, value: Any, error_text: str, *, lane: str = "", dynamic: bool = False
    ) -> list[Chunk]:
        """An input that the tool could not be called with; `value` is what was given, of whatever shape."""
        call = self._streaming_or_new(call_id, name, lane, dynamic=dynamic)
        value = plain(value, self._limit)
        self._put(ToolInputError(call.id, call.name, value, mend(error_text), dynamic=_true_or_unset(call.dynamic)))
        return self._take()

    def tool_output(self, call_id: str, output: Any, *, preliminary: bool = False) -> list[Chunk]:
        """The result of a call; a preliminary one is replaced by the next."""
        call_id, dynamic = self._before_result(call_id)
        output = plain(output, self._limit)
        self._put(ToolOutputAvailable(call_id, output, dynamic=dynamic, preliminary=_true_or_unset(preliminary)))
        return self._take()

    def tool_error(self, call_id: str, error_text: str) -> list[Chunk]:
        call_id, dynamic = self._before_result(call_id)
        self._put(ToolOutputError(call_id, mend(error_text), dynamic=dynamic))
        return self._take()

    def tool_denied(self, call_id: str) -> list[Chunk]:
        """The call is not carried out: after the user's refusal, or, as an error, by a decision of the server."""
        call = self.state.calls.get(self._call_ids.wire_id(call_id))
        if call is None or call.state != "refused":
            return self.tool_error(call_id, "The call was denied.")
        self._put(ToolOutputDenied(call.id))
        return self._take()

    def approval_request(
        self,
        call_id: str,
        *,
        approval_id: str | None = None,
        reason: str | UnsetType = UNSET,
        signature: str | UnsetType = UNSET,
    ) -> list[Chunk]:
        approval_id = self._new_id() if approval_id is None else approval_id
        return self.send(ToolApprovalRequest(approval_id, self._call_ids.wire_id(call_id), signature, reason))

    def wire_id(self, call_id: str) -> str:
        """The id that a page knows the call by."""
        return mend(self._call_ids.wire_id(call_id))

    def source_url(self, url: str, *, title: str | UnsetType = UNSET, source_id: str | None = None) -> list[Chunk]:
        return self.send(SourceUrl(source_id or self._new_id(), url, title))

    def source_document(
        self, title: str, media_type: str, *, filename: str | UnsetType = UNSET, source_id: str | None = None
    ) -> list[Chunk]:
        return self.send(SourceDocument(source_id or self._new_id(), media_type, title, filename))

    def file(self, url: str, media_type: str) -> list[Chunk]:
        return self.send(File(url, media_type))

    def data(
        self,
        name: str,
        value: Any,
        *,
        id: str | UnsetType = UNSET,  # noqa: A002
        transient: bool = False,
    ) -> list[Chunk]:
        """Data of the app's own, as `data-<name>`; with an id it replaces the part that has the same one."""
        return self.send(Data(name, value, id, _true_or_unset(transient)))

    def metadata(self, value: Any) -> list[Chunk]:
        self._put(MessageMetadata(sendable(value, self._limit, "message-metadata")))
        return self._take()

    def step(self) -> list[Chunk]:
        """Begin a new step, as soon as no tool input is streaming."""
        self._steps.ask()
        if self._steps.due:
            self._put_all(self._steps.next_step())
        return self._take()

    def send(self, chunk: Chunk) -> list[Chunk]:
        """Write a chunk as it is, with its values made plain.

        Raises:
            LocalProtocolError: the chunk is illegal here, or the client has no form of it.
        """
        chunk = clean_chunk(chunk, self._limit)
        if isinstance(chunk, Start):
            return self.start(chunk.message_metadata)
        if isinstance(chunk, MessageMetadata):
            return self.metadata(chunk.message_metadata)
        if isinstance(chunk, Finish):
            return self._end(Finish(chunk.finish_reason, sendable(chunk.message_metadata, self._limit, "finish")))
        if isinstance(chunk, Abort | Error):
            return self._end(chunk)
        if isinstance(chunk, ToolInputAvailable) and self._has(chunk.tool_call_id, chunk.tool_name, chunk.input):
            return self._take()
        if isinstance(chunk, _CONTENT):
            self._content()
        elif isinstance(chunk, _WHOLE):
            self._put_all(self._steps.before_part())
        elif isinstance(chunk, ToolApprovalRequest):
            self._check_whole(chunk)
        self._put(chunk)
        if isinstance(chunk, ResetStep):
            self._lanes.forget()
        return self._take()

    def finish(self, reason: FinishReason = "stop", metadata: Any = UNSET) -> list[Chunk]:
        """End the message; with `tool-calls`, calls that wait for the browser or for an approval stay open."""
        return self.send(Finish(reason, metadata))

    def abort(self, reason: str | UnsetType = UNSET) -> list[Chunk]:
        """End the message because somebody stopped it."""
        return self.send(Abort(reason))

    def fail(self, error_text: str) -> list[Chunk]:
        """End the message with an error, whose text the user sees."""
        return self._end(Error(mend(error_text)))

    def _put(self, chunk: Chunk) -> None:
        """Write a chunk: all go through here, but for a text delta that just flows on."""
        if self._approval_ids is not None:
            chunk = self._approval_ids.on_wire(chunk, self.state.calls)
        self._flow_lane = None
        if self.state.phase == "new" and not isinstance(chunk, Start):
            self._put(Start(self.message_id))
        fitted = self._fit(chunk, self.state)
        self.state.apply(chunk)
        self._written += fitted
        self._steps.after(chunk)

    def _put_all(self, chunks: Iterable[Chunk]) -> None:
        for chunk in chunks:
            self._put(chunk)

    def _take(self) -> list[Chunk]:
        # What was written before an error is kept here until the next call returns it.
        written, self._written = self._written, []
        return written

    def _write(self, kind: Kind, delta: str, lane: str) -> list[Chunk]:
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
        if self._steps.due or self.state.phase != "step":
            self._put_all(self._steps.before_content())

    def _begin_call(self, call_id: str, lane: str) -> str:
        self._content()
        self._put_all(self._lanes.leave(lane))
        return self._call_ids.add(call_id, self.state.calls)

    def _streaming_or_new(self, call_id: str, name: str, lane: str, *, dynamic: bool) -> Call:
        call = self.state.calls.get(self._call_ids.wire_id(call_id))
        if call is not None and call.state in UNFINISHED:
            return call
        return Call(self._begin_call(call_id, lane), mend(name), dynamic, self.state.step)

    def _has_open(self, call_id: str, name: str, value: Any) -> bool:
        call = self.state.calls.get(self._call_ids.wire_id(call_id))
        return call is not None and call.state not in CLOSED and self._has(call.id, name, value)

    def _has(self, call_id: str, name: str, value: Any) -> bool:
        """Whether the message that is continued has this call; the browser may have spelled its numbers otherwise."""
        call = self.state.calls.get(call_id)
        if call is None or call.name != name or call_id not in self._inputs:
            return False
        return canonical(self._inputs[call_id]) == canonical(value)

    def _before_result(self, call_id: str) -> tuple[str, bool | UnsetType]:
        call_id = self._call_ids.wire_id(call_id)
        call = self.state.calls.get(call_id)
        if call is None:
            return call_id, UNSET
        self._put_all(with_input(call, self.state.step))
        return call_id, _true_or_unset(call.dynamic)

    def _check_whole(self, chunk: ToolApprovalRequest) -> None:
        # Clients show it, but v5 is asked by a data part, which would leave the call streaming.
        call = self.state.calls.get(chunk.tool_call_id)
        if call is not None and call.state in UNFINISHED:
            problem = f"An approval is asked for the call {call.id!r:.60}, whose input is not whole."
            raise local_error("call-order", "tool-approval-request", problem)

    def _end(self, last: End) -> list[Chunk]:
        self._put_all(self._lanes.leave_all())
        self._put_all(closing(self.state, last))
        return self._take()


def _true_or_unset(flag: bool) -> bool | UnsetType:  # noqa: FBT001
    return True if flag else UNSET
