"""Chunks to the message that the client builds from them: `ai` 7.0.170, or the newest release of 5 or 6."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, TypeAlias, cast

import msgspec
from msgspec import UNSET, Struct, UnsetType

from usechat.protocol import chunks as c
from usechat.protocol.messages import UIMessage, is_tool_call, tool_name
from usechat.protocol.partial import parse_partial
from usechat.protocol.rules import remote_error

__all__ = ["MessageReader"]

_Part: TypeAlias = dict[str, Any]
_TextStart: TypeAlias = c.TextStart | c.ReasoningStart
_TextDelta: TypeAlias = c.TextDelta | c.ReasoningDelta
_TextEnd: TypeAlias = c.TextEnd | c.ReasoningEnd
_Whole: TypeAlias = c.SourceUrl | c.SourceDocument | c.File | c.ReasoningFile | c.Custom | c.SteeringMessage

# Every chunk of a call sets these fields, so a field that the chunk does not carry disappears.
_PER_CHUNK: Final = ("input", "output", "errorText", "rawInput", "inputEncoding", "preliminary")


class _OpenText(Struct):
    """A text or reasoning part that streams. Its deltas are joined when the message is read."""

    part: _Part
    pending: list[str]

    def settle(self) -> None:
        if self.pending:
            self.part["text"] += "".join(self.pending)
            self.pending.clear()


class _OpenInput(Struct):
    """A tool input that streams or did, since a client takes more of it at any time. `begun` is how the call began.

    The deltas go to `part`, which is in step number `step`. It is None after another chunk has changed the part.
    """

    begun: c.ToolInputStart
    part: _Part | None
    step: int
    text: str
    pending: list[str]

    def join(self) -> str:
        """The text so far, with its last deltas."""
        if self.pending:
            self.text += "".join(self.pending)
            self.pending.clear()
        return self.text

    def settle(self) -> None:
        if self.part is None or not self.pending:
            return
        text = self.part["rawInput"] = self.join()
        self.part.pop("input", None)
        _set_field(self.part, "input", text if self.begun.input_encoding == "text" else parse_partial(text))


class MessageReader:
    """Builds one assistant message. `message` is the one that the stream continues; the reader does not change it.

    `major` is the major release of the client whose message is built.
    """

    def __init__(self, message: UIMessage | None = None, *, major: int = 7) -> None:
        self._major = major
        self._step = 0
        self._message = UIMessage(id="", role="assistant", parts=[])
        self._parts: dict[str, dict[str, _OpenText]] = {"text": {}, "reasoning": {}}
        self._inputs: dict[str, _OpenInput] = {}
        # Many data parts of one type share one string. And the part of each type and id.
        self._data_types: dict[str, str] = {}
        self._data_parts: dict[tuple[str, str], _Part] = {}
        self._failed = False
        if message is not None:
            self._message = msgspec.convert(msgspec.to_builtins(message), UIMessage)
            self._continue_inputs()
            self._find_data()

    def feed(self, chunk: c.Chunk) -> UIMessage:
        """Take the chunk in and return the message after it.

        Raises:
            RemoteProtocolError: The client would throw here.
        """
        self.apply(chunk)
        return self.message

    def apply(self, chunk: c.Chunk) -> None:
        """Take the chunk in. Cheaper than `feed`, if you do not need the message after each chunk.

        Raises:
            RemoteProtocolError: The client would throw here.
        """
        if not self._failed:
            self.READS[type(chunk)](self, chunk)

    def apply_wire(self, chunk: c.Chunk, wire: Mapping[str, Any]) -> None:
        """Take in a chunk with its JSON object: the part of a data or steering chunk keeps unknown fields.

        Raises:
            RemoteProtocolError: The client would throw here.
        """
        parts, before = self._message.parts, len(self._message.parts)
        self.apply(chunk)
        if isinstance(chunk, c.Data) and len(parts) > before:
            parts[-1].update(wire)
        elif isinstance(chunk, c.SteeringMessage) and len(parts) > before:
            parts[-1]["parts"] = wire["parts"]

    def deltas_of(self, text_id: str) -> list[str]:
        """The deltas of an open text part that are not joined yet. Appending one has the effect of its chunk."""
        return self._parts["text"][text_id].pending

    @property
    def message(self) -> UIMessage:
        """The message so far, in one object that later chunks change."""
        for parts in self._parts.values():
            for open_text in parts.values():
                open_text.settle()
        for open_input in self._inputs.values():
            open_input.settle()
        return self._message

    def _continue_inputs(self) -> None:
        """Take up the inputs of the continued message that an earlier stream began."""
        for part in self._step_parts():
            if is_tool_call(part) and part["state"] == "input-streaming":
                begun = c.ToolInputStart(
                    part["toolCallId"],
                    tool_name(part),
                    dynamic=part["type"] == "dynamic-tool",
                    title=part.get("title", UNSET),
                    tool_metadata=part.get("toolMetadata", UNSET),
                    input_encoding=part.get("inputEncoding", UNSET),
                )
                self._inputs[begun.tool_call_id] = _OpenInput(begun, part, 0, part.get("rawInput", ""), [])

    def _find_data(self) -> None:
        """Find the data parts by their ids. Of two with the same id the client takes the first."""
        found = [part for part in self._message.parts if part["type"].startswith("data-") and "id" in part]
        self._data_parts = {(part["type"], part["id"]): part for part in reversed(found)}

    def _step_parts(self) -> list[_Part]:
        parts = self._message.parts
        begin = next((index for index in range(len(parts), 0, -1) if parts[index - 1]["type"] == "step-start"), 0)
        return parts[begin:]

    def _start(self, chunk: c.Start) -> None:
        if chunk.message_id is not UNSET:
            self._message.id = chunk.message_id
        self._merge(chunk.message_metadata)

    def _metadata(self, chunk: c.Finish | c.MessageMetadata) -> None:
        self._merge(chunk.message_metadata)

    def _merge(self, metadata: Any) -> None:
        if metadata is UNSET or metadata is None:
            return
        if self._message.metadata is UNSET or self._message.metadata is None:
            self._message.metadata = metadata
        else:
            self._message.metadata = _merged(self._message.metadata, metadata)

    def _error(self, chunk: c.Error) -> None:
        # The client reads nothing after an error.
        self._failed = True

    def _nothing(self, chunk: c.Abort | c.FinishStep) -> None:
        pass

    def _start_step(self, chunk: c.StartStep) -> None:
        self._step += 1
        self._message.parts.append({"type": "step-start"})

    def _reset_step(self, chunk: c.ResetStep) -> None:
        # Parts that began in an earlier step stay, with everything they have.
        parts = self.message.parts
        del parts[len(parts) - len(self._step_parts()) :]
        self._parts = {"text": {}, "reasoning": {}}
        self._inputs = {}
        self._find_data()

    def _start_text(self, chunk: _TextStart) -> None:
        part: _Part = {"type": "text", "text": "", "state": "streaming"}
        if isinstance(chunk, c.ReasoningStart):
            part = {"type": "reasoning", "id": chunk.id, "text": "", "state": "streaming"}
        _set_field(part, "providerMetadata", chunk.provider_metadata)
        self._message.parts.append(part)
        same = self._parts[part["type"]]
        if chunk.id in same:
            same[chunk.id].settle()
        same[chunk.id] = _OpenText(part, [])

    def _delta_text(self, chunk: _TextDelta) -> None:
        open_text = self._open_text(chunk)
        open_text.pending.append(chunk.delta)
        if chunk.provider_metadata is not UNSET:
            open_text.part["providerMetadata"] = chunk.provider_metadata

    def _end_text(self, chunk: _TextEnd) -> None:
        open_text = self._open_text(chunk)
        open_text.settle()
        open_text.part["state"] = "done"
        _set_field(open_text.part, "providerMetadata", chunk.provider_metadata)
        if isinstance(chunk, c.TextEnd) and chunk.citations is not UNSET:
            open_text.part["citations"] = msgspec.to_builtins(chunk.citations)
        del self._parts[open_text.part["type"]][chunk.id]

    def _open_text(self, chunk: _TextDelta | _TextEnd) -> _OpenText:
        kind = "text" if isinstance(chunk, (c.TextDelta, c.TextEnd)) else "reasoning"
        open_text = self._parts[kind].get(chunk.id)
        if open_text is None:
            name = c.chunk_type(chunk)
            raise remote_error("part-not-open", name, f"`{name}` for the id {chunk.id!r:.60}, which is not open.")
        return open_text

    def _whole(self, chunk: _Whole) -> None:
        part = msgspec.to_builtins(chunk)
        if self._major == 5 and isinstance(chunk, c.File):
            part.pop("providerMetadata", None)
        self._message.parts.append(part)

    def _data(self, chunk: c.Data) -> None:
        if chunk.transient is True:
            return
        part: _Part = {"type": self._data_types.setdefault(chunk.type, chunk.type), "data": chunk.data}
        _set_field(part, "transient", chunk.transient)
        if chunk.id is not UNSET:
            known = self._data_parts.setdefault((chunk.type, chunk.id), part)
            if known is not part:
                known["data"] = chunk.data
                return
            part["id"] = chunk.id
        self._message.parts.append(part)

    def _start_input(self, chunk: c.ToolInputStart) -> None:
        if chunk.tool_call_id in self._inputs:
            self._inputs[chunk.tool_call_id].settle()
        # A later delta does not set these two again.
        begun = msgspec.structs.replace(chunk, provider_executed=UNSET, provider_metadata=UNSET)
        self._inputs[chunk.tool_call_id] = _OpenInput(begun, self._stream_input(chunk), self._step, "", [])

    def _stream_input(self, begun: c.ToolInputStart) -> _Part:
        part = self._put_call(begun, "input-streaming")
        _set_field(part, "inputEncoding", begun.input_encoding)
        return part

    def _delta_input(self, chunk: c.ToolInputDelta) -> None:
        open_input = self._inputs.get(chunk.tool_call_id)
        if open_input is None:
            problem = f"`tool-input-delta` for the call {chunk.tool_call_id!r:.60}, whose input is not streaming."
            raise remote_error("call-unknown", "tool-input-delta", problem)
        if open_input.part is None or open_input.step != self._step:
            open_input.settle()
            open_input.part, open_input.step = self._stream_input(open_input.begun), self._step
        open_input.pending.append(chunk.input_text_delta)

    def _end_input(self, chunk: c.ToolInputAvailable | c.ToolInputError) -> None:
        open_input = self._inputs.get(chunk.tool_call_id)
        if open_input is not None:
            if open_input.step != self._step:
                open_input.settle()
            # The whole input replaces what was streamed, so parsing that would be wasted.
            open_input.join()
            open_input.part = None
        wrong = isinstance(chunk, c.ToolInputError)
        part = self._put_call(chunk, "output-error" if wrong else "input-available")
        if wrong:
            part["errorText"] = chunk.error_text
        is_raw = wrong and self._major < 7 and part["type"] != "dynamic-tool"
        part["rawInput" if is_raw else "input"] = chunk.input

    def _put_call(self, chunk: c.ToolInput, state: str) -> _Part:
        """Set the part that the call has in the current step, or add one."""
        wrong = isinstance(chunk, c.ToolInputError)
        part = self._in_step(chunk.tool_call_id, None if wrong else chunk.dynamic)
        if part is None:
            kind = "dynamic-tool" if chunk.dynamic is True else "tool-"
            part = {"type": kind, "toolCallId": chunk.tool_call_id}
            self._message.parts.append(part)
        if part["type"] == "dynamic-tool":
            part["toolName"] = chunk.tool_name
        else:
            part["type"] = f"tool-{chunk.tool_name}"
        if not wrong:
            _set_field(part, "title", chunk.title)
        _update_call(part, chunk, state, {})
        return part

    def _output(self, chunk: c.ToolOutput) -> None:
        part = self._called(chunk.tool_call_id, c.chunk_type(chunk))
        if self._major == 5 and isinstance(chunk, c.ToolOutputAvailable) and chunk.dynamic is True:
            chunk = msgspec.structs.replace(chunk, provider_executed=UNSET)
        kept = {"input": part.get("input", UNSET)}
        if isinstance(chunk, c.ToolOutputAvailable):
            kept |= {"output": chunk.output, "preliminary": chunk.preliminary}
            _update_call(part, chunk, "output-available", kept)
        else:
            raw = UNSET if part["type"] == "dynamic-tool" else part.get("rawInput", UNSET)
            _update_call(part, chunk, "output-error", {**kept, "rawInput": raw, "errorText": chunk.error_text})

    def _denied(self, chunk: c.ToolOutputDenied) -> None:
        self._called(chunk.tool_call_id, "tool-output-denied")["state"] = "output-denied"

    def _request(self, chunk: c.ToolApprovalRequest) -> None:
        part = self._called(chunk.tool_call_id, "tool-approval-request")
        part["state"] = "approval-requested"
        approval: _Part = {"id": chunk.approval_id}
        if chunk.approval_descriptor is not None:
            _set_field(approval, "descriptor", chunk.approval_descriptor)
        _set_field(approval, "inputSchemaInput", chunk.input_schema_input)
        _set_field(approval, "requestReason", chunk.reason)
        _set_field(approval, "isAutomatic", True if chunk.is_automatic is True else UNSET)
        _set_field(approval, "signature", chunk.signature)
        part["approval"] = approval

    def _response(self, chunk: c.ToolApprovalResponse) -> None:
        for part in self._message.parts:
            if is_tool_call(part) and part.get("approval", {}).get("id") == chunk.approval_id:
                self._called(part["toolCallId"], "tool-approval-response")
                part["state"] = "approval-responded"
                part["approval"] = {**part["approval"], "approved": chunk.approved}
                _set_field(part["approval"], "reason", chunk.reason)
                _set_field(part, "providerExecuted", chunk.provider_executed)
                _set_field(part, "callProviderMetadata", chunk.provider_metadata)
                return
        problem = f"`tool-approval-response` for the unknown id {chunk.approval_id!r:.60}."
        raise remote_error("approval-unknown", "tool-approval-response", problem)

    def _in_step(self, call_id: str, dynamic: bool | UnsetType | None) -> _Part | None:  # noqa: FBT001
        """The call's part in the current step. `dynamic` None finds static and dynamic parts alike."""
        for part in self._step_parts():
            fits = dynamic is None or (part["type"] == "dynamic-tool") is (dynamic is True)
            if fits and is_tool_call(part) and part["toolCallId"] == call_id:
                return part
        return None

    def _called(self, call_id: str, name: str) -> _Part:
        open_input = self._inputs.get(call_id)
        if open_input is not None:
            open_input.settle()
            open_input.part = None
        part = self._in_step(call_id, None)
        if part is not None:
            return part
        for part in reversed(self._message.parts):
            if is_tool_call(part) and part["toolCallId"] == call_id:
                return part
        raise remote_error("call-unknown", name, f"`{name}` for the call {call_id!r:.60}, which is not known.")

    # Each method takes the class that is its key, which the type checker cannot follow.
    READS: ClassVar = cast(
        "dict[type[c.Chunk], Callable[[MessageReader, c.Chunk], None]]",
        {
            c.Start: _start,
            c.Finish: _metadata,
            c.MessageMetadata: _metadata,
            c.Error: _error,
            c.Abort: _nothing,
            c.FinishStep: _nothing,
            c.StartStep: _start_step,
            c.ResetStep: _reset_step,
            c.TextStart: _start_text,
            c.TextDelta: _delta_text,
            c.TextEnd: _end_text,
            c.ReasoningStart: _start_text,
            c.ReasoningDelta: _delta_text,
            c.ReasoningEnd: _end_text,
            c.SourceUrl: _whole,
            c.SourceDocument: _whole,
            c.File: _whole,
            c.ReasoningFile: _whole,
            c.Custom: _whole,
            c.SteeringMessage: _whole,
            c.Data: _data,
            c.ToolInputStart: _start_input,
            c.ToolInputDelta: _delta_input,
            c.ToolInputAvailable: _end_input,
            c.ToolInputError: _end_input,
            c.ToolOutputAvailable: _output,
            c.ToolOutputError: _output,
            c.ToolOutputDenied: _denied,
            c.ToolApprovalRequest: _request,
            c.ToolApprovalResponse: _response,
        },
    )


def _update_call(part: _Part, chunk: c.ToolInput | c.ToolOutput, state: str, fields: _Part) -> None:
    """Set the state and the fields of a part that the call has."""
    part["state"] = state
    for name in _PER_CHUNK:
        part.pop(name, None)
        _set_field(part, name, fields.get(name, UNSET))
    _set_field(part, "providerExecuted", chunk.provider_executed)
    _set_field(part, "toolMetadata", chunk.tool_metadata)
    side = "resultProviderMetadata" if state.startswith("output-") else "callProviderMetadata"
    _set_field(part, side, chunk.provider_metadata)


def _set_field(part: _Part, name: str, value: Any) -> None:
    if value is not UNSET:
        part[name] = value


def _merged(base: Any, overrides: Any) -> Any:
    """Two values merged as JavaScript objects, the second over the first; arrays are replaced."""
    result = _members(base)
    for name, value in _members(overrides).items():
        if name in ("__proto__", "constructor", "prototype"):
            continue
        if not isinstance(base, (dict, list)):
            raise remote_error("shape", "message-metadata", "Metadata is merged into something that is not an object.")
        both = isinstance(result.get(name), dict) and isinstance(value, dict)
        result[name] = _merged(result[name], value) if both else value
    return result


def _members(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return dict(cast("dict[str, Any]", value))
    if isinstance(value, str):
        # JavaScript splits a string into its UTF-16 units.
        units = value.encode("utf-16-le", "surrogatepass")
        value = [units[at : at + 2].decode("utf-16-le", "surrogatepass") for at in range(0, len(units), 2)]
    if isinstance(value, list):
        return {str(index): item for index, item in enumerate(cast("list[Any]", value))}
    return {}
