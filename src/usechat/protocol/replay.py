"""The shortest stream that builds a message again, for a client that comes back in the middle of a turn."""

from collections.abc import Iterator
from typing import TypeAlias, cast

import msgspec
from msgspec import UNSET, Struct, UnsetType

from usechat.protocol.chunks import (
    Chunk,
    Data,
    MessageMetadata,
    ProviderMetadata,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    ResetStep,
    Start,
    TextDelta,
    TextEnd,
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
from usechat.protocol.messages import UIMessage
from usechat.protocol.part_chunks import chunks_of_parts

__all__ = ["Fold"]

_Text: TypeAlias = TextStart | TextDelta | TextEnd | ReasoningStart | ReasoningDelta | ReasoningEnd
_Key: TypeAlias = tuple[str, str]


class _Entry(Struct):
    """A chunk that stays, with the deltas that are joined to it."""

    chunk: Chunk
    deltas: list[str] = []
    metadata: ProviderMetadata | UnsetType = UNSET


class Fold:
    """Takes the chunks of a turn and keeps what a client needs of them: one delta a part, the last of each value.

    `continues` is the message that the turn goes on with; its parts stand before those of the turn.
    """

    def __init__(self, continues: UIMessage | None = None) -> None:
        self._before = [] if continues is None else list(chunks_of_parts(continues.parts))
        self._start = Start() if continues is None else Start(continues.id, continues.metadata)
        self._entries: list[_Entry] = []
        self._latest: dict[_Key, _Entry] = {}

    def add(self, chunk: Chunk) -> None:
        """Take in the next chunk of the turn."""
        match chunk:
            case Start():
                self._begin(chunk)
            case TextStart() | ReasoningStart() | ToolInputStart():
                self._latest[_key(chunk)] = self._keep(chunk)
            case TextDelta() | ReasoningDelta() | ToolInputDelta():
                self._join(chunk)
            case TextEnd() | ReasoningEnd():
                del self._latest[_key(chunk)]
                self._keep(chunk)
            case Data():
                self._data(chunk)
            case ToolInputAvailable() | ToolInputError():
                self._input(chunk)
            case ToolOutputAvailable():
                self._output(chunk)
            case ToolOutputError() | ToolOutputDenied() | ToolApprovalRequest():
                self._latest.pop(("output", chunk.tool_call_id), None)
                self._keep(chunk)
            case ResetStep():
                # The client decides what of the earlier chunks the step had, so that they are told as they were.
                self._latest.clear()
                self._keep(chunk)
            case _:
                self._keep(chunk)

    def chunks(self) -> Iterator[Chunk]:
        """The stream that builds the message; what follows in the live stream fits on."""
        yield self._start
        yield from self._before
        for entry in self._entries:
            yield entry.chunk
            if entry.deltas:
                yield _delta(entry)

    def _begin(self, chunk: Start) -> None:
        if chunk.message_id is not UNSET:
            self._start = Start(chunk.message_id, self._start.message_metadata)
        if chunk.message_metadata is not UNSET:
            self._keep(MessageMetadata(chunk.message_metadata))

    def _keep(self, chunk: Chunk) -> _Entry:
        entry = _Entry(chunk, [])
        self._entries.append(entry)
        return entry

    def _join(self, chunk: TextDelta | ReasoningDelta | ToolInputDelta) -> None:
        entry = self._latest[_key(chunk)]
        if isinstance(chunk, ToolInputDelta):
            entry.deltas.append(chunk.input_text_delta)
        else:
            entry.deltas.append(chunk.delta)
            if chunk.provider_metadata is not UNSET:
                entry.metadata = chunk.provider_metadata

    def _data(self, chunk: Data) -> None:
        if chunk.transient is True:
            return
        if chunk.id is UNSET:
            self._keep(chunk)
            return
        entry = self._latest.get((chunk.type, chunk.id))
        if entry is None:
            self._latest[chunk.type, chunk.id] = self._keep(chunk)
        else:
            entry.chunk = msgspec.structs.replace(entry.chunk, data=chunk.data)

    def _input(self, chunk: ToolInputAvailable | ToolInputError) -> None:
        begun = self._latest.pop(("call", chunk.tool_call_id), None)
        if begun is not None:
            # The whole input takes the place of what was streamed.
            begun.deltas.clear()
        self._keep(chunk)

    def _output(self, chunk: ToolOutputAvailable) -> None:
        entry = self._latest.get(("output", chunk.tool_call_id))
        if entry is None or not isinstance(entry.chunk, ToolOutputAvailable):
            self._latest["output", chunk.tool_call_id] = self._keep(chunk)
        else:
            entry.chunk = _replaced(entry.chunk, chunk)


def _key(chunk: _Text | ToolInputStart | ToolInputDelta) -> _Key:
    match chunk:
        case ToolInputStart() | ToolInputDelta():
            return "call", chunk.tool_call_id
        case TextStart() | TextDelta() | TextEnd():
            return "text", chunk.id
        case _:
            return "reasoning", chunk.id


def _delta(entry: _Entry) -> Chunk:
    text = "".join(entry.deltas)
    match entry.chunk:
        case TextStart(id=id_):
            return TextDelta(id_, text, entry.metadata)
        case ReasoningStart(id=id_):
            return ReasoningDelta(id_, text, entry.metadata)
        case chunk:
            return ToolInputDelta(cast("ToolInputStart", chunk).tool_call_id, text)


def _replaced(old: ToolOutputAvailable, new: ToolOutputAvailable) -> ToolOutputAvailable:
    """The newer output, with what the client keeps of the older one."""
    return ToolOutputAvailable(
        new.tool_call_id,
        new.output,
        old.provider_executed if new.provider_executed is UNSET else new.provider_executed,
        new.dynamic,
        new.preliminary,
        old.provider_metadata if new.provider_metadata is UNSET else new.provider_metadata,
        old.tool_metadata if new.tool_metadata is UNSET else new.tool_metadata,
    )
