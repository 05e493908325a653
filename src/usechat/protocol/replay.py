"""The shortest stream that builds a message again, for a client that comes back in the middle of a turn."""

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import Any, Final, TypeAlias, cast

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
    ToolApprovalResponse,
    ToolInputAvailable,
    ToolInputDelta,
    ToolInputError,
    ToolInputStart,
    ToolOutputAvailable,
    ToolOutputDenied,
    ToolOutputError,
)
from usechat.protocol.clients import TYPES, Client
from usechat.protocol.frames import Frames, decode_frame_raw
from usechat.protocol.messages import UIMessage
from usechat.protocol.part_chunks import chunks_of_parts, in_pieces
from usechat.protocol.state import StreamState

__all__ = ["Fold", "Replay"]

_Text: TypeAlias = TextStart | TextDelta | TextEnd | ReasoningStart | ReasoningDelta | ReasoningEnd
_Key: TypeAlias = tuple[str, str]
_Part: TypeAlias = dict[str, Any]

_BATCH: Final = 32 * 1024


class Replay:
    """The shortest stream that builds the message so far, made in slices so that nobody waits long for it.

    One replay serves all readers of a turn's log; what is taken meanwhile does not change a stream that was begun.
    """

    def __init__(self, continues: UIMessage | None, client: Client, frames: Frames) -> None:
        self._fold = Fold(continues)
        self._fit = client.fit
        self._tells_answers = client.takes(TYPES["tool-approval-response"])
        self._frames = frames
        self._taken = 0

    def take(self, frames: Sequence[bytes]) -> None:
        """Take in the next frames of the log."""
        add = self._fold.add
        for frame in frames:
            add(decode_frame_raw(frame))
        self._taken += len(frames)

    def encoded(self) -> Iterator[bytes]:
        """The stream in pieces of whole frames; the `id:` of the last frame says up to which chunk it tells."""
        return self._pieces(self._fold.chunks(), self._taken)

    def _pieces(self, chunks: Iterator[Chunk], index: int) -> Iterator[bytes]:
        waiting: list[bytes] = []
        size = 0
        for chunk, following in pairwise(chain(self._fitted(chunks), (None,))):
            frame = self._frames.frame(index if following is None else None, cast("Chunk", chunk))
            waiting.append(frame)
            size += len(frame)
            if size >= _BATCH:
                yield b"".join(waiting)
                waiting, size = [], 0
        if waiting:
            yield b"".join(waiting)

    def _fitted(self, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        state = StreamState()
        for chunk in chunks:
            # The parts of a continued message may hold what only newer clients can be told.
            if self._tells_answers or not isinstance(chunk, ToolApprovalResponse):
                yield from self._fit(chunk, state)


class _Entry(Struct, gc=False):
    """A chunk that stays, with the deltas that are joined to it; `place` is its index among all.

    It may be changed as long as `generation` is the fold's own: later somebody may be reading it.
    """

    chunk: Chunk
    place: int
    generation: int
    deltas: Sequence[str] | None = None
    metadata: ProviderMetadata | UnsetType = UNSET


class Fold:
    """Takes the chunks of a turn and keeps what a client needs of them: the text of a part, the last of each value.

    `continues` is the message that the turn goes on with; its parts stand before those of the turn. It must not change.
    """

    def __init__(self, continues: UIMessage | None = None) -> None:
        self._before = [] if continues is None else continues.parts
        self._start = Start() if continues is None else Start(continues.id, continues.metadata)
        self._entries: list[_Entry] = []
        self._latest: dict[_Key, _Entry] = {}
        self._generation = 0

    def add(self, chunk: Chunk) -> None:
        """Take in the next chunk of the turn."""
        match chunk:
            case TextDelta() | ReasoningDelta() | ToolInputDelta():
                self._join(chunk)
            case Start():
                self._begin(chunk)
            case TextStart() | ReasoningStart() | ToolInputStart():
                self._latest[_key(chunk)] = self._keep(chunk)
            case TextEnd() | ReasoningEnd():
                self._end(chunk)
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
        """The stream that builds the message so far, made lazily; what is added meanwhile does not change it."""
        self._generation += 1
        return _told(self._start, self._before, self._entries.copy())

    def _begin(self, chunk: Start) -> None:
        if chunk.message_id is not UNSET:
            self._start = Start(chunk.message_id, self._start.message_metadata)
        if chunk.message_metadata is not UNSET:
            self._keep(MessageMetadata(chunk.message_metadata))

    def _keep(self, chunk: Chunk) -> _Entry:
        entry = _Entry(chunk, len(self._entries), self._generation)
        self._entries.append(entry)
        return entry

    def _own(self, key: _Key) -> _Entry | None:
        """The latest entry of this key, in a copy if somebody may be reading it."""
        entry = self._latest.get(key)
        if entry is None or entry.generation == self._generation:
            return entry
        deltas = None if entry.deltas is None else [*entry.deltas]
        own = _Entry(entry.chunk, entry.place, self._generation, deltas, entry.metadata)
        self._latest[key] = self._entries[own.place] = own
        return own

    def _join(self, chunk: TextDelta | ReasoningDelta | ToolInputDelta) -> None:
        key = _key(chunk)
        entry = self._latest[key]
        if entry.generation != self._generation:
            entry = self._own(key) or entry
        if entry.deltas is None:
            entry.deltas = []
        deltas = cast("list[str]", entry.deltas)
        if isinstance(chunk, ToolInputDelta):
            deltas.append(chunk.input_text_delta)
        else:
            deltas.append(chunk.delta)
            if chunk.provider_metadata is not UNSET:
                entry.metadata = chunk.provider_metadata

    def _end(self, chunk: TextEnd | ReasoningEnd) -> None:
        entry = self._latest.pop(_key(chunk))
        # No list: of those the garbage collector looks at each one again and again, which holds the loop.
        entry.deltas = entry.deltas and tuple(entry.deltas)
        self._keep(chunk)

    def _data(self, chunk: Data) -> None:
        if chunk.transient is True:
            return
        if chunk.id is UNSET:
            self._keep(chunk)
            return
        entry = self._own((chunk.type, chunk.id))
        if entry is None:
            self._latest[chunk.type, chunk.id] = self._keep(chunk)
        else:
            entry.chunk = msgspec.structs.replace(entry.chunk, data=chunk.data)

    def _input(self, chunk: ToolInputAvailable | ToolInputError) -> None:
        key = ("call", chunk.tool_call_id)
        begun = self._own(key)
        if begun is not None:
            # The whole input takes the place of what was streamed.
            begun.deltas = None
            del self._latest[key]
        self._keep(chunk)

    def _output(self, chunk: ToolOutputAvailable) -> None:
        entry = self._own(("output", chunk.tool_call_id))
        if entry is None or not isinstance(entry.chunk, ToolOutputAvailable):
            self._latest["output", chunk.tool_call_id] = self._keep(chunk)
        else:
            entry.chunk = _replaced(entry.chunk, chunk)


def _key(chunk: _Text | ToolInputStart | ToolInputDelta) -> _Key:
    match chunk:
        case TextDelta() | TextStart() | TextEnd():
            return "text", chunk.id
        case ToolInputStart() | ToolInputDelta():
            return "call", chunk.tool_call_id
        case _:
            return "reasoning", chunk.id


def _told(start: Start, before: list[_Part], entries: list[_Entry]) -> Iterator[Chunk]:
    yield start
    yield from chunks_of_parts(before)
    for entry in entries:
        yield entry.chunk
        if entry.deltas is not None:
            yield from _deltas(entry)


def _deltas(entry: _Entry) -> Iterator[Chunk]:
    pieces = in_pieces(entry.deltas or ())
    match entry.chunk:
        case TextStart(id=id_):
            yield TextDelta(id_, next(pieces, ""), entry.metadata)
            yield from (TextDelta(id_, piece) for piece in pieces)
        case ReasoningStart(id=id_):
            yield ReasoningDelta(id_, next(pieces, ""), entry.metadata)
            yield from (ReasoningDelta(id_, piece) for piece in pieces)
        case chunk:
            call_id = cast("ToolInputStart", chunk).tool_call_id
            yield ToolInputDelta(call_id, next(pieces, ""))
            yield from (ToolInputDelta(call_id, piece) for piece in pieces)


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
