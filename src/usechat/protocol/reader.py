"""Chunks to the very message that the client builds of them, as `ai` 7.0.169 does it."""

from collections.abc import Callable
from typing import Any, ClassVar, Final, TypeAlias, cast

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
from usechat.protocol.open_parts import OpenInput, OpenText, Part, settle_input, settle_text
from usechat.protocol.rules import remote_error

__all__ = ["MessageReader"]

_TextStart: TypeAlias = TextStart | ReasoningStart
_TextDelta: TypeAlias = TextDelta | ReasoningDelta
_TextEnd: TypeAlias = TextEnd | ReasoningEnd
_ToolInput: TypeAlias = ToolInputStart | ToolInputAvailable | ToolInputError
_ToolOutput: TypeAlias = ToolOutputAvailable | ToolOutputError
_Whole: TypeAlias = SourceUrl | SourceDocument | File | ReasoningFile | Custom | SteeringMessage

# The client sets these anew with every chunk of a call, so one that the chunk does not carry is gone.
_PER_CHUNK: Final = ("input", "output", "errorText", "rawInput", "inputEncoding", "preliminary")


class MessageReader:
    """Builds one assistant message; `message` is the one that the stream continues, which is left as it is."""

    def __init__(self, message: UIMessage | None = None) -> None:
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
                self._inputs[part["toolCallId"]] = OpenInput(part, part.get("rawInput", ""), [])

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
        self._message.parts.append({"type": "step-start"})

    def _reset_step(self, chunk: ResetStep) -> None:
        step = self._step_parts()
        del self._message.parts[len(self._message.parts) - len(step) :]
        self._parts = {"text": {}, "reasoning": {}}
        self._inputs = {}

    def _start_text(self, chunk: _TextStart) -> None:
        part: Part = {"type": "text", "text": "", "state": "streaming"}
        if isinstance(chunk, ReasoningStart):
            part = {"type": "reasoning", "id": chunk.id, "text": "", "state": "streaming"}
        _set(part, "providerMetadata", chunk.provider_metadata)
        self._message.parts.append(part)
        self._parts[part["type"]][chunk.id] = OpenText(part, [])

    def _delta_text(self, chunk: _TextDelta) -> None:
        open_text = self._open_text(chunk)
        open_text.pending.append(chunk.delta)
        if chunk.provider_metadata is not UNSET:
            open_text.part["providerMetadata"] = chunk.provider_metadata

    def _end_text(self, chunk: _TextEnd) -> None:
        open_text = self._open_text(chunk)
        settle_text(open_text)
        open_text.part["state"] = "done"
        _set(open_text.part, "providerMetadata", chunk.provider_metadata)
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
        self._message.parts.append(msgspec.to_builtins(chunk))

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
        part = self._put(self._in_step(chunk.tool_call_id, chunk.dynamic), chunk, "input-streaming")
        _set(part, "inputEncoding", chunk.input_encoding)
        self._inputs[chunk.tool_call_id] = OpenInput(part, "", [])

    def _delta_input(self, chunk: ToolInputDelta) -> None:
        open_input = self._inputs.get(chunk.tool_call_id)
        if open_input is None:
            problem = f"`tool-input-delta` for the call {chunk.tool_call_id!r:.60}, whose input is not streaming."
            raise remote_error("call-unknown", "tool-input-delta", problem)
        open_input.pending.append(chunk.input_text_delta)

    def _end_input(self, chunk: ToolInputAvailable | ToolInputError) -> None:
        self._inputs.pop(chunk.tool_call_id, None)
        if isinstance(chunk, ToolInputAvailable):
            part = self._put(self._in_step(chunk.tool_call_id, chunk.dynamic), chunk, "input-available")
        else:
            part = self._put(self._in_step(chunk.tool_call_id, None), chunk, "output-error")
            part["errorText"] = chunk.error_text
        part["input"] = chunk.input

    def _output(self, chunk: _ToolOutput) -> None:
        part = self._called(chunk.tool_call_id, chunk_type(chunk))
        kept = {"input": part.get("input", UNSET)}
        if isinstance(chunk, ToolOutputAvailable):
            kept |= {"output": chunk.output, "preliminary": chunk.preliminary}
            self._update(part, chunk, "output-available", kept)
        else:
            raw = UNSET if part["type"] == "dynamic-tool" else part.get("rawInput", UNSET)
            self._update(part, chunk, "output-error", {**kept, "rawInput": raw, "errorText": chunk.error_text})

    def _denied(self, chunk: ToolOutputDenied) -> None:
        self._called(chunk.tool_call_id, "tool-output-denied")["state"] = "output-denied"

    def _request(self, chunk: ToolApprovalRequest) -> None:
        part = self._called(chunk.tool_call_id, "tool-approval-request")
        part["state"] = "approval-requested"
        approval: Part = {"id": chunk.approval_id}
        if chunk.approval_descriptor is not None:
            _set(approval, "descriptor", chunk.approval_descriptor)
        _set(approval, "inputSchemaInput", chunk.input_schema_input)
        _set(approval, "requestReason", chunk.reason)
        _set(approval, "isAutomatic", True if chunk.is_automatic is True else UNSET)
        _set(approval, "signature", chunk.signature)
        part["approval"] = approval

    def _response(self, chunk: ToolApprovalResponse) -> None:
        for part in self._message.parts:
            if is_tool_call(part) and part.get("approval", {}).get("id") == chunk.approval_id:
                part["state"] = "approval-responded"
                part["approval"] = {**part["approval"], "approved": chunk.approved}
                _set(part["approval"], "reason", chunk.reason)
                _set(part, "providerExecuted", chunk.provider_executed)
                _set(part, "callProviderMetadata", chunk.provider_metadata)
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
        part = self._in_step(call_id, None)
        if part is not None:
            return part
        for part in reversed(self._message.parts):
            if is_tool_call(part) and part["toolCallId"] == call_id:
                return part
        raise remote_error("call-unknown", name, f"`{name}` for the call {call_id!r:.60}, which is not known.")

    def _put(self, part: Part | None, chunk: _ToolInput, state: str) -> Part:
        if part is None:
            dynamic = chunk.dynamic is True
            part = {"type": "dynamic-tool" if dynamic else f"tool-{chunk.tool_name}", "toolCallId": chunk.tool_call_id}
            self._message.parts.append(part)
        if part["type"] == "dynamic-tool":
            part["toolName"] = chunk.tool_name
        else:
            part["type"] = f"tool-{chunk.tool_name}"
        if not isinstance(chunk, ToolInputError):
            _set(part, "title", chunk.title)
        self._update(part, chunk, state, {})
        return part

    def _update(self, part: Part, chunk: _ToolInput | _ToolOutput, state: str, fields: Part) -> None:
        part["state"] = state
        for name in _PER_CHUNK:
            part.pop(name, None)
            _set(part, name, fields.get(name, UNSET))
        _set(part, "providerExecuted", chunk.provider_executed)
        _set(part, "toolMetadata", chunk.tool_metadata)
        side = "resultProviderMetadata" if state.startswith("output-") else "callProviderMetadata"
        _set(part, side, chunk.provider_metadata)

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


def _set(part: Part, name: str, value: Any) -> None:
    if value is not UNSET:
        part[name] = value
