"""The writer of one assistant message: it opens and closes parts and steps, so that nobody else has to."""

from typing import Any, Final

from msgspec import UNSET, UnsetType

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
from usechat.protocol.codec import clean_chunk
from usechat.protocol.pen import Pen, true_or_unset
from usechat.protocol.state import Call
from usechat.protocol.values import mend, plain

__all__ = ["MessageWriter"]

_CONTENT: Final = (TextStart, ReasoningStart, ToolInputStart, ToolInputAvailable, ToolInputError)
_WHOLE: Final = (SourceUrl, SourceDocument, File, ReasoningFile, Custom)


class MessageWriter(Pen):
    """Writes one message; every method returns the chunks that it caused, in the form that the client takes.

    `continues` is the assistant message that the turn goes on with: its id is used again and its open calls are known.
    What is written to one lane never mixes with the text of another; a tool call belongs to the lane that made it.
    A tool call id that the message has already, or that could not come back in a request, gets another one on the wire.
    """

    def start(self, metadata: Any = UNSET) -> list[Chunk]:
        """Begin the message, with the first of its metadata; the first other call does it if nobody did."""
        if self.state.phase == "new":
            self._put(Start(self.message_id, self._metadata(metadata, "start")))
        elif metadata is not UNSET:
            self._put(MessageMetadata(self._metadata(metadata, "message-metadata")))
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
        self._prepare_call(lane)
        call_id = self._fresh(call_id)
        self._put(ToolInputStart(call_id, mend(name), provider_executed, true_or_unset(dynamic), title))
        return self._take()

    def tool_input_delta(self, call_id: str, delta: str) -> list[Chunk]:
        call_id = self._call_ids.get(call_id, call_id)
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
        call = self._streaming(call_id)
        if call is None:
            self._prepare_call(lane)
            call = Call(self._fresh(call_id), mend(name), dynamic, self.state.step)
        value = plain(value, self._limit)
        self._put(ToolInputAvailable(call.id, call.name, value, provider_executed, true_or_unset(call.dynamic), title))
        return self._take()

    def tool_input_error(
        self, call_id: str, name: str, value: Any, error_text: str, *, lane: str = "", dynamic: bool = False
    ) -> list[Chunk]:
        """An input that the tool could not be called with; `value` is what was given, of whatever shape."""
        call = self._streaming(call_id)
        if call is None:
            self._prepare_call(lane)
            call = Call(self._fresh(call_id), mend(name), dynamic, self.state.step)
        value = plain(value, self._limit)
        self._put(ToolInputError(call.id, call.name, value, mend(error_text), dynamic=true_or_unset(call.dynamic)))
        return self._take()

    def tool_output(self, call_id: str, output: Any, *, preliminary: bool = False) -> list[Chunk]:
        """The result of a call; a preliminary one is replaced by the next."""
        call_id, dynamic = self._before_result(call_id)
        output = plain(output, self._limit)
        self._put(ToolOutputAvailable(call_id, output, dynamic=dynamic, preliminary=true_or_unset(preliminary)))
        return self._take()

    def tool_error(self, call_id: str, error_text: str) -> list[Chunk]:
        call_id, dynamic = self._before_result(call_id)
        self._put(ToolOutputError(call_id, mend(error_text), dynamic=dynamic))
        return self._take()

    def tool_denied(self, call_id: str) -> list[Chunk]:
        """The call is not carried out: after the user's refusal, or, as an error, by a decision of the server."""
        call = self.state.calls.get(self._call_ids.get(call_id, call_id))
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
        return self.send(ToolApprovalRequest(approval_id, self._call_ids.get(call_id, call_id), signature, reason))

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
        return self.send(Data(f"data-{name}", value, id, true_or_unset(transient)))

    def metadata(self, value: Any) -> list[Chunk]:
        self._put(MessageMetadata(self._metadata(value, "message-metadata")))
        return self._take()

    def step(self) -> list[Chunk]:
        """Begin a new step, as soon as no tool input is streaming."""
        self._step_asked = self.state.shown == self.state.step or self.state.phase != "step"
        self._consider_step()
        if self._step_due:
            self._open_step()
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
            return self._end(Finish(chunk.finish_reason, self._metadata(chunk.message_metadata, "finish")))
        if isinstance(chunk, Abort | Error):
            return self._end(chunk)
        if isinstance(chunk, _CONTENT):
            self._content()
        elif isinstance(chunk, _WHOLE):
            self._enter_step()
        elif isinstance(chunk, ToolApprovalRequest):
            self._check_whole(chunk)
        self._put(chunk)
        if isinstance(chunk, ResetStep):
            self._lanes.forget()
        return self._take()

    def finish(self, reason: FinishReason = "stop", metadata: Any = UNSET) -> list[Chunk]:
        """End the message; with `tool-calls`, calls that wait for the browser or for an approval stay open."""
        return self._end(Finish(reason, self._metadata(metadata, "finish")))

    def abort(self, reason: str | UnsetType = UNSET) -> list[Chunk]:
        """End the message because somebody stopped it."""
        return self._end(Abort(reason))

    def fail(self, error_text: str) -> list[Chunk]:
        """End the message with an error, whose text the user sees."""
        return self._end(Error(mend(error_text)))
