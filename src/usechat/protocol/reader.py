"""Chunks to the very message that the client builds of them, as `ai` 7.0.170 does it, or the newest of 5 or 6."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeAlias, cast

import msgspec
from msgspec import UNSET, UnsetType

from usechat.protocol.chunks import (
    Abort,
    Chunk,
    Custom,
    Data,
    Error,
    File,
    Finish,
    FinishStep,
    MessageMetadata,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningFile,
    ReasoningStart,
    ResetStep,
    SourceDocument,
    SourceUrl,
    Start,
    StartStep,
    SteeringMessage,
    TextDelta,
    TextEnd,
    TextStart,
    ToolApprovalRequest,
    ToolApprovalResponse,
    ToolInputAvailable,
    ToolInputDelta,
    ToolInputError,
    ToolInputStart,
    ToolOutputAvailable,
    ToolOutputDenied,
    ToolOutputError,
    chunk_type,
)
from usechat.protocol.messages import UIMessage, is_tool_call
from usechat.protocol.metadata import merged
from usechat.protocol.open_parts import OpenInput, OpenText, Part, continued_input, settle_input, settle_text
from usechat.protocol.rules import remote_error
from usechat.protocol.tool_parts import ToolOutput, put_call, set_field, update_call

__all__ = ["MessageReader"]

_TextStart: TypeAlias = TextStart | ReasoningStart
_TextDelta: TypeAlias = TextDelta | ReasoningDelta
_TextEnd: TypeAlias = TextEnd | ReasoningEnd
_Whole: TypeAlias = SourceUrl | SourceDocument | File | ReasoningFile | Custom | SteeringMessage


class MessageReader:
    """Builds one assistant message; `message` is the one that the stream continues, which is left as it is.

    `major` is that of the client whose message it is, where it is not the newest.
    """

    def __init__(self, message: UIMessage | None = None, *, major: int = 7) -> None:
        self._major = major
        self._step = 0
        self._message = UIMessage(id="", role="assistant", parts=[])
        self._parts: dict[str, dict[str, OpenText]] = {"text": {}, "reasoning": {}}
        self._inputs: dict[str, OpenInput] = {}
        self._failed = False
        if message is not None:
            self._message = msgspec.convert(msgspec.to_builtins(message), UIMessage)
            self._continue_inputs()

    def feed(self, chunk: Chunk) -> UIMessage:
        """Take the chunk in and give the message as it is then.

        Raises:
            RemoteProtocolError: the client would throw here.
        """
        self.apply(chunk)
        return self.message

    def apply(self, chunk: Chunk) -> None:
        """Take the chunk in; cheaper than `feed` where nobody looks at the message in between.

        Raises:
            RemoteProtocolError: the client would throw here.
        """
        if not self._failed:
            self.READS[type(chunk)](self, chunk)

    def apply_wire(self, chunk: Chunk, wire: Mapping[str, Any]) -> None:
        """Take in a chunk as it stands on the wire: the part of a data or steering chunk keeps unknown fields.

        Raises:
            RemoteProtocolError: the client would throw here.
        """
        parts, before = self._message.parts, len(self._message.parts)
        self.apply(chunk)
        if isinstance(chunk, Data) and len(parts) > before:
            parts[-1] = dict(wire)
        elif isinstance(chunk, SteeringMessage) and len(parts) > before:
            parts[-1]["parts"] = wire["parts"]

    def deltas_of(self, text_id: str) -> list[str]:
        """The deltas of an open text part that are not joined yet; what is added is as if it had been read."""
        return self._parts["text"][text_id].pending

    @property
    def message(self) -> UIMessage:
        """The message so far: one object, which later chunks change."""
        for parts in self._parts.values():
            for open_text in parts.values():
                settle_text(open_text)
        for open_input in self._inputs.values():
            settle_input(open_input)
        return self._message

    def _continue_inputs(self) -> None:
        for part in self._step_parts():
            if is_tool_call(part) and part["state"] == "input-streaming":
                self._inputs[part["toolCallId"]] = continued_input(part)

    def _step_parts(self) -> list[Part]:
        parts = self._message.parts
        begin = next((index for index in range(len(parts), 0, -1) if parts[index - 1]["type"] == "step-start"), 0)
        return parts[begin:]

    def _start(self, chunk: Start) -> None:
        if chunk.message_id is not UNSET:
            self._message.id = chunk.message_id
        self._merge(chunk.message_metadata)

    def _metadata(self, chunk: Finish | MessageMetadata) -> None:
        self._merge(chunk.message_metadata)

    def _merge(self, metadata: Any) -> None:
        if metadata is UNSET or metadata is None:
            return
        if self._message.metadata is UNSET or self._message.metadata is None:
            self._message.metadata = metadata
        else:
            self._message.metadata = merged(self._message.metadata, metadata)

    def _error(self, chunk: Error) -> None:
        # The client reads nothing after an error.
        self._failed = True

    def _nothing(self, chunk: Abort | FinishStep) -> None:
        pass

    def _start_step(self, chunk: StartStep) -> None:
        self._step += 1
        self._message.parts.append({"type": "step-start"})

    def _reset_step(self, chunk: ResetStep) -> None:
        # What began in an earlier step stays, with all that it got.
        parts = self.message.parts
        del parts[len(parts) - len(self._step_parts()) :]
        self._parts = {"text": {}, "reasoning": {}}
        self._inputs = {}

    def _start_text(self, chunk: _TextStart) -> None:
        part: Part = {"type": "text", "text": "", "state": "streaming"}
        if isinstance(chunk, ReasoningStart):
            part = {"type": "reasoning", "id": chunk.id, "text": "", "state": "streaming"}
        set_field(part, "providerMetadata", chunk.provider_metadata)
        self._message.parts.append(part)
        same = self._parts[part["type"]]
        if chunk.id in same:
            settle_text(same[chunk.id])
        same[chunk.id] = OpenText(part, [])

    def _delta_text(self, chunk: _TextDelta) -> None:
        open_text = self._open_text(chunk)
        open_text.pending.append(chunk.delta)
        if chunk.provider_metadata is not UNSET:
            open_text.part["providerMetadata"] = chunk.provider_metadata

    def _end_text(self, chunk: _TextEnd) -> None:
        open_text = self._open_text(chunk)
        settle_text(open_text)
        open_text.part["state"] = "done"
        set_field(open_text.part, "providerMetadata", chunk.provider_metadata)
        if isinstance(chunk, TextEnd) and chunk.citations is not UNSET:
            open_text.part["citations"] = msgspec.to_builtins(chunk.citations)
        del self._parts[open_text.part["type"]][chunk.id]

    def _open_text(self, chunk: _TextDelta | _TextEnd) -> OpenText:
        kind = "text" if isinstance(chunk, (TextDelta, TextEnd)) else "reasoning"
        open_text = self._parts[kind].get(chunk.id)
        if open_text is None:
            name = chunk_type(chunk)
            raise remote_error("part-not-open", name, f"`{name}` for the id {chunk.id!r:.60}, which is not open.")
        return open_text

    def _whole(self, chunk: _Whole) -> None:
        part = msgspec.to_builtins(chunk)
        if self._major == 5 and isinstance(chunk, File):
            part.pop("providerMetadata", None)
        self._message.parts.append(part)

    def _data(self, chunk: Data) -> None:
        if chunk.transient is True:
            return
        if chunk.id is not UNSET:
            for part in self._message.parts:
                if part["type"] == chunk.type and part.get("id") == chunk.id:
                    part["data"] = chunk.data
                    return
        self._message.parts.append(msgspec.to_builtins(chunk))

    def _start_input(self, chunk: ToolInputStart) -> None:
        if chunk.tool_call_id in self._inputs:
            settle_input(self._inputs[chunk.tool_call_id])
        # A later delta says nothing of these two again.
        begun = msgspec.structs.replace(chunk, provider_executed=UNSET, provider_metadata=UNSET)
        self._inputs[chunk.tool_call_id] = OpenInput(begun, self._stream_input(chunk), self._step, "", [])

    def _stream_input(self, begun: ToolInputStart) -> Part:
        part = put_call(self._message.parts, self._in_step(begun.tool_call_id, begun.dynamic), begun, "input-streaming")
        set_field(part, "inputEncoding", begun.input_encoding)
        return part

    def _delta_input(self, chunk: ToolInputDelta) -> None:
        open_input = self._inputs.get(chunk.tool_call_id)
        if open_input is None:
            problem = f"`tool-input-delta` for the call {chunk.tool_call_id!r:.60}, whose input is not streaming."
            raise remote_error("call-unknown", "tool-input-delta", problem)
        if open_input.part is None or open_input.step != self._step:
            settle_input(open_input)
            open_input.part, open_input.step = self._stream_input(open_input.begun), self._step
        open_input.pending.append(chunk.input_text_delta)

    def _end_input(self, chunk: ToolInputAvailable | ToolInputError) -> None:
        open_input = self._inputs.get(chunk.tool_call_id)
        if open_input is not None:
            if open_input.step != self._step:
                settle_input(open_input)
            # The whole input takes the place of what was streamed, which costs too much to parse for nothing.
            open_input.text += "".join(open_input.pending)
            open_input.pending.clear()
            open_input.part = None
        if isinstance(chunk, ToolInputAvailable):
            part = put_call(
                self._message.parts, self._in_step(chunk.tool_call_id, chunk.dynamic), chunk, "input-available"
            )
        else:
            part = put_call(self._message.parts, self._in_step(chunk.tool_call_id, None), chunk, "output-error")
            part["errorText"] = chunk.error_text
        wrong = isinstance(chunk, ToolInputError) and part["type"] != "dynamic-tool"
        part["rawInput" if wrong and self._major < 7 else "input"] = chunk.input

    def _output(self, chunk: ToolOutput) -> None:
        part = self._called(chunk.tool_call_id, chunk_type(chunk))
        if self._major == 5 and isinstance(chunk, ToolOutputAvailable) and chunk.dynamic is True:
            chunk = msgspec.structs.replace(chunk, provider_executed=UNSET)
        kept = {"input": part.get("input", UNSET)}
        if isinstance(chunk, ToolOutputAvailable):
            kept |= {"output": chunk.output, "preliminary": chunk.preliminary}
            update_call(part, chunk, "output-available", kept)
        else:
            raw = UNSET if part["type"] == "dynamic-tool" else part.get("rawInput", UNSET)
            update_call(part, chunk, "output-error", {**kept, "rawInput": raw, "errorText": chunk.error_text})

    def _denied(self, chunk: ToolOutputDenied) -> None:
        self._called(chunk.tool_call_id, "tool-output-denied")["state"] = "output-denied"

    def _request(self, chunk: ToolApprovalRequest) -> None:
        part = self._called(chunk.tool_call_id, "tool-approval-request")
        part["state"] = "approval-requested"
        approval: Part = {"id": chunk.approval_id}
        if chunk.approval_descriptor is not None:
            set_field(approval, "descriptor", chunk.approval_descriptor)
        set_field(approval, "inputSchemaInput", chunk.input_schema_input)
        set_field(approval, "requestReason", chunk.reason)
        set_field(approval, "isAutomatic", True if chunk.is_automatic is True else UNSET)
        set_field(approval, "signature", chunk.signature)
        part["approval"] = approval

    def _response(self, chunk: ToolApprovalResponse) -> None:
        for part in self._message.parts:
            if is_tool_call(part) and part.get("approval", {}).get("id") == chunk.approval_id:
                self._called(part["toolCallId"], "tool-approval-response")
                part["state"] = "approval-responded"
                part["approval"] = {**part["approval"], "approved": chunk.approved}
                set_field(part["approval"], "reason", chunk.reason)
                set_field(part, "providerExecuted", chunk.provider_executed)
                set_field(part, "callProviderMetadata", chunk.provider_metadata)
                return
        problem = f"`tool-approval-response` for the unknown id {chunk.approval_id!r:.60}."
        raise remote_error("approval-unknown", "tool-approval-response", problem)

    def _in_step(self, call_id: str, dynamic: bool | UnsetType | None) -> Part | None:  # noqa: FBT001
        """The call's part in the current step; static and dynamic parts are kept apart unless `dynamic` is None."""
        for part in self._step_parts():
            fits = dynamic is None or (part["type"] == "dynamic-tool") is (dynamic is True)
            if fits and is_tool_call(part) and part["toolCallId"] == call_id:
                return part
        return None

    def _called(self, call_id: str, name: str) -> Part:
        open_input = self._inputs.get(call_id)
        if open_input is not None:
            settle_input(open_input)
            open_input.part = None
        part = self._in_step(call_id, None)
        if part is not None:
            return part
        for part in reversed(self._message.parts):
            if is_tool_call(part) and part["toolCallId"] == call_id:
                return part
        raise remote_error("call-unknown", name, f"`{name}` for the call {call_id!r:.60}, which is not known.")

    # The table is keyed by the class whose reader stands beside it, which the type checker cannot follow.
    READS: ClassVar = cast(
        "dict[type[Chunk], Callable[[MessageReader, Chunk], None]]",
        {
            Start: _start,
            Finish: _metadata,
            MessageMetadata: _metadata,
            Error: _error,
            Abort: _nothing,
            FinishStep: _nothing,
            StartStep: _start_step,
            ResetStep: _reset_step,
            TextStart: _start_text,
            TextDelta: _delta_text,
            TextEnd: _end_text,
            ReasoningStart: _start_text,
            ReasoningDelta: _delta_text,
            ReasoningEnd: _end_text,
            SourceUrl: _whole,
            SourceDocument: _whole,
            File: _whole,
            ReasoningFile: _whole,
            Custom: _whole,
            SteeringMessage: _whole,
            Data: _data,
            ToolInputStart: _start_input,
            ToolInputDelta: _delta_input,
            ToolInputAvailable: _end_input,
            ToolInputError: _end_input,
            ToolOutputAvailable: _output,
            ToolOutputError: _output,
            ToolOutputDenied: _denied,
            ToolApprovalRequest: _request,
            ToolApprovalResponse: _response,
        },
    )
