"""The writer of one assistant message: it opens and closes parts and steps, so that nobody else has to."""

from collections.abc import Callable, Iterable
from typing import Any, Final, cast

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
    FinishStep,
    MessageMetadata,
    ReasoningFile,
    ReasoningStart,
    ResetStep,
    SourceDocument,
    SourceUrl,
    Start,
    StartStep,
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
from usechat.protocol.closing import End, closing, closing_parts, with_input
from usechat.protocol.codec import clean_chunk
from usechat.protocol.lanes import Kind, Lanes
from usechat.protocol.messages import TOOL_CALL_ID, UIMessage
from usechat.protocol.rules import local_error
from usechat.protocol.state import Call, StreamState
from usechat.protocol.tables import UNFINISHED
from usechat.protocol.values import VALUE_LIMIT, mend, plain

__all__ = ["MessageWriter"]

_CONTENT: Final = (TextStart, ReasoningStart, ToolInputStart, ToolInputAvailable, ToolInputError)
_WHOLE: Final = (SourceUrl, SourceDocument, File, ReasoningFile, Custom)
_DECIDES_STEP: Final = frozenset[type[Chunk]](
    (
        StartStep,
        ToolInputStart,
        ToolInputAvailable,
        ToolInputError,
        ToolOutputAvailable,
        ToolOutputError,
        ToolOutputDenied,
    )
)


class MessageWriter:
    """Writes one message; every method returns the chunks that it caused, in the form that the client takes.

    `continues` is the assistant message that the turn goes on with: its id is used again and its open calls are known.
    What is written to one lane never mixes with the text of another; a tool call belongs to the lane that made it.
    A tool call id that the message has already, or that could not come back in a request, gets another one on the wire.
    """

    def __init__(
        self,
        message_id: str,
        *,
        new_id: Callable[[], str],
        client: ClientName = "portable",
        continues: UIMessage | None = None,
        value_limit: int = VALUE_LIMIT,
    ) -> None:
        self.message_id = message_id if continues is None else continues.id
        self.state = StreamState(self.message_id, () if continues is None else continues.parts)
        self._new_id = new_id
        self.client = CLIENTS[client]
        self.state.first_release = Release(5, 0) in self.client.oldest
        self._fit = self.client.fit
        self._limit = value_limit
        self._written: list[Chunk] = []
        self._lanes = Lanes(new_id)
        # The lane and the text part of the last call, until anything else happens.
        self._open_text = self.state.text
        self._flow_lane: str | None = None
        self._flow_id = ""
        self._call_ids: dict[str, str] = {}
        self._step_asked = False
        self._step_due = self.state.has_results()

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
        self._put(ToolInputStart(call_id, mend(name), provider_executed, _true(dynamic), title))
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
        self._put(ToolInputAvailable(call.id, call.name, value, provider_executed, _true(call.dynamic), title))
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
        self._put(ToolInputError(call.id, call.name, value, mend(error_text), dynamic=_true(call.dynamic)))
        return self._take()

    def tool_output(self, call_id: str, output: Any, *, preliminary: bool = False) -> list[Chunk]:
        """The result of a call; a preliminary one is replaced by the next."""
        call_id, dynamic = self._before_result(call_id)
        output = plain(output, self._limit)
        self._put(ToolOutputAvailable(call_id, output, dynamic=dynamic, preliminary=_true(preliminary)))
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
        return self.send(Data(f"data-{name}", value, id, _true(transient)))

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

    def _take(self) -> list[Chunk]:
        # What was written before an error is kept here until the next call returns it.
        written, self._written = self._written, []
        return written

    def _put(self, chunk: Chunk) -> None:
        self._flow_lane = None
        if self.state.phase == "new" and not isinstance(chunk, Start):
            self._put(Start(self.message_id))
        fitted = self._fit(chunk, self.state)
        self.state.apply(chunk)
        self._written += fitted
        if type(chunk) in _DECIDES_STEP:
            self._consider_step()

    def _put_all(self, chunks: Iterable[Chunk]) -> None:
        # All of them are made before the first is put, since that changes the state that they are made from.
        for chunk in list(chunks):
            self._put(chunk)

    def _check_whole(self, chunk: ToolApprovalRequest) -> None:
        # Clients show it, but v5 is asked by a data part, which would leave the call streaming.
        call = self.state.calls.get(chunk.tool_call_id)
        if call is not None and call.state in UNFINISHED:
            problem = f"An approval is asked for the call {call.id!r:.60}, whose input is not whole."
            raise local_error("call-order", "tool-approval-request", problem)

    def _metadata(self, value: Any, name: str) -> Any:
        metadata = UNSET if value is UNSET else plain(value, self._limit)
        if metadata is UNSET or metadata is None or isinstance(metadata, dict):
            return cast("Any", metadata)
        # The client merges metadata as objects, and throws over anything else.
        raise local_error("shape", name, "The metadata of a message must be an object.")

    def _end(self, last: End) -> list[Chunk]:
        self._put_all(self._lanes.leave_all())
        self._put_all(closing(self.state, last))
        return self._take()

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
        """Open a step for what follows, where one is due or none is open."""
        if self._step_due:
            self._open_step()
        elif self.state.phase != "step":
            self._enter_step()

    def _enter_step(self) -> None:
        # The results of a continued message's open calls belong before its next step.
        between = self.state.phase in ("new", "open") and not (self.state.text or self.state.reasoning)
        if between and not self.state.open_here():
            self._put(StartStep())

    def _consider_step(self) -> None:
        streaming = any(call.state in UNFINISHED for call in self.state.here)
        self._step_due = not streaming and (self._step_asked or self.state.has_results())

    def _open_step(self) -> None:
        self._put_all(self._lanes.leave_all())
        self._put_all(closing_parts(self.state))
        if self.state.phase == "step":
            self._put(FinishStep())
        self._step_asked = False
        self._put(StartStep())

    def _prepare_call(self, lane: str) -> None:
        self._content()
        self._put_all(self._lanes.leave(lane))

    def _fresh(self, call_id: str) -> str:
        wire_id = mend(call_id)
        while wire_id in self.state.calls or TOOL_CALL_ID(wire_id) is not None:
            wire_id = self._new_id()
        self._call_ids[call_id] = wire_id
        return wire_id

    def _streaming(self, call_id: str) -> Call | None:
        call = self.state.calls.get(self._call_ids.get(call_id, call_id))
        return call if call is not None and call.state in UNFINISHED else None

    def _before_result(self, call_id: str) -> tuple[str, bool | UnsetType]:
        call_id = self._call_ids.get(call_id, call_id)
        call = self.state.calls.get(call_id)
        if call is None:
            return call_id, UNSET
        self._put_all(with_input(call, self.state.step))
        return call_id, _true(call.dynamic)


def _true(flag: bool) -> bool | UnsetType:  # noqa: FBT001
    return True if flag else UNSET
