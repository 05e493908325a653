"""The shortest stream that rebuilds a message, for a client that comes back in the middle of a turn.

The turn's own chunks are folded. The parts of the message that the turn continues are turned into chunks.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Any, Final, TypeAlias, cast

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from usechat.protocol import chunks as c
from usechat.protocol.clients import TYPES, Client
from usechat.protocol.frames import Frames, decode_frame_raw
from usechat.protocol.messages import UIMessage, is_tool_call, tool_name
from usechat.protocol.partial import parse_partial
from usechat.protocol.state import StreamState

__all__ = ["Fold", "Replay", "chunks_of_parts", "in_pieces"]

_Key: TypeAlias = tuple[str, str]
_Part: TypeAlias = dict[str, Any]

_OF_THE_CALL: Final = frozenset(("title", "callProviderMetadata", "resultProviderMetadata"))
_APPROVAL: Final = {
    "signature": "signature",
    "reason": "requestReason",
    "is_automatic": "isAutomatic",
    "approval_descriptor": "descriptor",
    "input_schema_input": "inputSchemaInput",
}

_LONG_INPUT: Final = 128
_BEGINS_JSON: Final = frozenset('{["-0123456789tfn')
# In characters, each of which is at most four bytes.
_PIECE: Final = 64 * 1024
_BATCH: Final = 32 * 1024


class Replay:
    """The shortest stream that builds the message so far, made in slices to keep the event loop responsive.

    One replay serves all readers of a turn's log. Frames that it takes later do not change a stream that has begun.
    """

    def __init__(self, continues: UIMessage | None, client: Client, frames: Frames) -> None:
        self._fold = Fold(continues)
        self._fit = client.fit
        self._sends_answers = client.takes(TYPES["tool-approval-response"])
        self._frames = frames
        self._taken = 0

    def take(self, frames: Sequence[bytes]) -> None:
        """Take in the next frames of the log."""
        add = self._fold.add
        for frame in frames:
            add(decode_frame_raw(frame))
        self._taken += len(frames)

    def encoded(self) -> Iterator[bytes]:
        """The stream in pieces of whole frames. The last frame has the `id:` of the last chunk that it covers."""
        return self._pieces(self._fold.chunks(), self._taken)

    def _pieces(self, chunks: Iterator[c.Chunk], index: int) -> Iterator[bytes]:
        waiting: list[bytes] = []
        size = 0
        for chunk, following in pairwise(chain(self._fitted(chunks), (None,))):
            frame = self._frames.frame(index if following is None else None, cast("c.Chunk", chunk))
            waiting.append(frame)
            size += len(frame)
            if size >= _BATCH:
                yield b"".join(waiting)
                waiting, size = [], 0
        if waiting:
            yield b"".join(waiting)

    def _fitted(self, chunks: Iterator[c.Chunk]) -> Iterator[c.Chunk]:
        state = StreamState()
        for chunk in chunks:
            # The parts of a continued message may hold answers to approvals, which only newer clients take.
            if self._sends_answers or not isinstance(chunk, c.ToolApprovalResponse):
                yield from self._fit(chunk, state)


class _Entry(Struct, gc=False):
    """A chunk that the fold keeps, with the deltas that belong to it; `place` is its index among all entries.

    It may change only while `generation` is that of the fold. An older entry may be in use by a reader.
    """

    chunk: c.Chunk
    place: int
    generation: int
    deltas: Sequence[str] | None = None
    metadata: c.ProviderMetadata | UnsetType = UNSET


class Fold:
    """Takes the chunks of a turn and keeps what a client needs: the text of each part, the last of each value.

    `continues` is the message that the turn continues. Its parts come first. It must not change.
    """

    def __init__(self, continues: UIMessage | None = None) -> None:
        self._before = [] if continues is None else continues.parts
        self._start = c.Start() if continues is None else c.Start(continues.id, continues.metadata)
        self._entries: list[_Entry] = []
        self._latest: dict[_Key, _Entry] = {}
        self._generation = 0

    def add(self, chunk: c.Chunk) -> None:
        """Take in the next chunk of the turn."""
        match chunk:
            case c.TextDelta() | c.ReasoningDelta() | c.ToolInputDelta():
                self._join(chunk)
            case c.Start():
                self._begin(chunk)
            case c.TextStart() | c.ReasoningStart() | c.ToolInputStart():
                self._latest[_key(chunk)] = self._keep(chunk)
            case c.TextEnd() | c.ReasoningEnd():
                self._end(chunk)
            case c.Data():
                self._data(chunk)
            case c.ToolInputAvailable() | c.ToolInputError():
                self._input(chunk)
            case c.ToolOutputAvailable():
                self._output(chunk)
            case c.ToolOutputError() | c.ToolOutputDenied() | c.ToolApprovalRequest():
                self._latest.pop(("output", chunk.tool_call_id), None)
                self._keep(chunk)
            case c.ResetStep():
                # The client decides which earlier chunks belong to the step, so they stay unchanged.
                self._latest.clear()
                self._keep(chunk)
            case _:
                self._keep(chunk)

    def chunks(self) -> Iterator[c.Chunk]:
        """The stream that builds the message so far, made lazily. Chunks that are added later do not change it."""
        self._generation += 1
        return _stream(self._start, self._before, self._entries.copy())

    def _begin(self, chunk: c.Start) -> None:
        if chunk.message_id is not UNSET:
            self._start = c.Start(chunk.message_id, self._start.message_metadata)
        if chunk.message_metadata is not UNSET:
            self._keep(c.MessageMetadata(chunk.message_metadata))

    def _keep(self, chunk: c.Chunk) -> _Entry:
        entry = _Entry(chunk, len(self._entries), self._generation)
        self._entries.append(entry)
        return entry

    def _own(self, key: _Key) -> _Entry | None:
        """The latest entry of this key, as a copy if a reader may use it."""
        entry = self._latest.get(key)
        if entry is None or entry.generation == self._generation:
            return entry
        deltas = None if entry.deltas is None else [*entry.deltas]
        own = _Entry(entry.chunk, entry.place, self._generation, deltas, entry.metadata)
        self._latest[key] = self._entries[own.place] = own
        return own

    def _join(self, chunk: c.TextDelta | c.ReasoningDelta | c.ToolInputDelta) -> None:
        key = _key(chunk)
        entry = self._latest[key]
        if entry.generation != self._generation:
            entry = self._own(key) or entry
        if entry.deltas is None:
            entry.deltas = []
        deltas = cast("list[str]", entry.deltas)
        if isinstance(chunk, c.ToolInputDelta):
            deltas.append(chunk.input_text_delta)
        else:
            deltas.append(chunk.delta)
            if chunk.provider_metadata is not UNSET:
                entry.metadata = chunk.provider_metadata

    def _end(self, chunk: c.TextEnd | c.ReasoningEnd) -> None:
        entry = self._latest.pop(_key(chunk))
        # A tuple: the garbage collector would visit each list again and again, which blocks the loop.
        entry.deltas = entry.deltas and tuple(entry.deltas)
        self._keep(chunk)

    def _data(self, chunk: c.Data) -> None:
        if chunk.transient is True:
            return
        if chunk.id is UNSET:
            self._keep(chunk)
            return
        entry = self._own((chunk.type, chunk.id))
        if entry is None:
            self._latest[chunk.type, chunk.id] = self._keep(chunk)
        else:
            entry.chunk = replace(entry.chunk, data=chunk.data)

    def _input(self, chunk: c.ToolInputAvailable | c.ToolInputError) -> None:
        key = ("call", chunk.tool_call_id)
        begun = self._own(key)
        if begun is not None:
            # The whole input replaces what was streamed.
            begun.deltas = None
            del self._latest[key]
        self._keep(chunk)

    def _output(self, chunk: c.ToolOutputAvailable) -> None:
        entry = self._own(("output", chunk.tool_call_id))
        if entry is None or not isinstance(entry.chunk, c.ToolOutputAvailable):
            self._latest["output", chunk.tool_call_id] = self._keep(chunk)
        else:
            entry.chunk = _replaced(entry.chunk, chunk)


def _key(chunk: c.TextChunk | c.ToolInputStart | c.ToolInputDelta) -> _Key:
    match chunk:
        case c.TextDelta() | c.TextStart() | c.TextEnd():
            return "text", chunk.id
        case c.ToolInputStart() | c.ToolInputDelta():
            return "call", chunk.tool_call_id
        case _:
            return "reasoning", chunk.id


def _stream(start: c.Start, before: list[_Part], entries: list[_Entry]) -> Iterator[c.Chunk]:
    yield start
    yield from chunks_of_parts(before)
    for entry in entries:
        yield entry.chunk
        if entry.deltas is not None:
            yield from _deltas(entry)


def _deltas(entry: _Entry) -> Iterator[c.Chunk]:
    pieces = in_pieces(entry.deltas or ())
    if isinstance(entry.chunk, c.ToolInputStart):
        yield from _input_deltas(entry.chunk.tool_call_id, pieces)
        return
    start = cast("c.TextStart | c.ReasoningStart", entry.chunk)
    delta = c.TextDelta if isinstance(start, c.TextStart) else c.ReasoningDelta
    yield delta(start.id, next(pieces, ""), entry.metadata)
    yield from (delta(start.id, piece) for piece in pieces)


def _input_deltas(call_id: str, pieces: Iterator[str]) -> Iterator[c.Chunk]:
    # An empty delta also makes a difference: the part has a raw input then.
    yield c.ToolInputDelta(call_id, next(pieces, ""))
    yield from (c.ToolInputDelta(call_id, piece) for piece in pieces)


def _replaced(old: c.ToolOutputAvailable, new: c.ToolOutputAvailable) -> c.ToolOutputAvailable:
    """The newer output, with the fields that the client keeps from the older one."""
    kept = ("provider_executed", "provider_metadata", "tool_metadata")
    return replace(new, **{name: getattr(old, name) for name in kept if getattr(new, name) is UNSET})


def in_pieces(texts: Iterable[str]) -> Iterator[str]:
    """The joined texts, in pieces of at most 65,536 characters, which are cheap to encode."""
    waiting: list[str] = []
    size = 0
    for text in texts:
        if size + len(text) > _PIECE:
            if size:
                yield "".join(waiting)
            whole = len(text) - len(text) % _PIECE
            yield from (text[at : at + _PIECE] for at in range(0, whole, _PIECE))
            waiting, size, text = [], 0, text[whole:]
        waiting.append(text)
        size += len(text)
    if size:
        yield "".join(waiting)


def chunks_of_parts(parts: Iterable[_Part]) -> Iterator[c.Chunk]:
    """The chunks that build these parts. Parts that no chunk builds are left out."""
    for number, part in enumerate(parts):
        kind: str = part["type"]
        if kind == "step-start":
            yield c.StartStep()
        elif kind == "text":
            yield from _text(part, f"before-{number}")
        elif kind == "reasoning":
            yield from _reasoning(part, part.get("id", f"before-{number}"))
        elif is_tool_call(part):
            yield from _tool(part)
        elif kind.startswith("data-"):
            yield msgspec.convert(part, c.Data)
        elif kind in c.CHUNK_TYPES:
            yield msgspec.convert(part, c.CHUNK_TYPES[kind])


def _text(part: _Part, id_: str) -> Iterator[c.Chunk]:
    yield c.TextStart(id_, part.get("providerMetadata", UNSET))
    yield from (c.TextDelta(id_, piece) for piece in in_pieces((part["text"],)))
    if part.get("state") != "streaming":
        citations = part.get("citations")
        yield c.TextEnd(id_, citations=UNSET if citations is None else msgspec.convert(citations, list[c.Citation]))


def _reasoning(part: _Part, id_: str) -> Iterator[c.Chunk]:
    yield c.ReasoningStart(id_, part.get("providerMetadata", UNSET))
    yield from (c.ReasoningDelta(id_, piece) for piece in in_pieces((part["text"],)))
    if part.get("state") != "streaming":
        yield c.ReasoningEnd(id_)


def _tool(part: _Part) -> Iterator[c.Chunk]:
    call: dict[str, Any] = {
        "tool_call_id": part["toolCallId"],
        "tool_name": tool_name(part),
        "dynamic": part["type"] == "dynamic-tool" or UNSET,
        "provider_executed": part.get("providerExecuted", UNSET),
        "title": part.get("title", UNSET),
        "provider_metadata": part.get("callProviderMetadata", UNSET),
        "tool_metadata": part.get("toolMetadata", UNSET),
    }
    if _is_wrong_input(part):
        yield from _wrong_input(part, call)
        if part["state"] != "output-error":
            yield from _result(part, call["dynamic"])
        return
    if "rawInput" in part or "input" not in part:
        yield c.ToolInputStart(**call, input_encoding=_encoding(part))
        if "rawInput" in part:
            yield from _input_deltas(part["toolCallId"], in_pieces((part["rawInput"],)))
    else:
        yield c.ToolInputAvailable(**call, input=part["input"])
    yield from _approval(part)
    yield from _result(part, call["dynamic"])


def _encoding(part: _Part) -> Any:
    # A part that has ended does not name the encoding of its input. An unparsed text shows it.
    unparsed = "rawInput" in part and part.get("input") == part["rawInput"]
    return part.get("inputEncoding", "text" if unparsed else UNSET)


def _wrong_input(part: _Part, call: dict[str, Any]) -> Iterator[c.Chunk]:
    if part.keys() & _OF_THE_CALL:
        # A wrong input has neither the title nor the metadata of its call. Its own metadata is the result's.
        yield c.ToolInputStart(**call)
        call = {**call, "provider_metadata": part.get("resultProviderMetadata", UNSET)}
    yield c.ToolInputError(**call, input=part["rawInput"], error_text=part.get("errorText", ""))


def _is_wrong_input(part: _Part) -> bool:
    """Whether v5 and v6 keep a wrong input in this form."""
    if "rawInput" not in part or "input" in part or part["state"] == "input-streaming":
        return False
    raw = part["rawInput"]
    if not isinstance(raw, str):
        return True
    # Parsing costs microseconds per character. A long text that begins like JSON nearly always has a value.
    return raw.lstrip()[:1] in _BEGINS_JSON if len(raw) > _LONG_INPUT else parse_partial(raw) is not UNSET


def _approval(part: _Part) -> Iterator[c.Chunk]:
    approval: _Part | None = part.get("approval")
    if approval is None:
        return
    fields = {name: approval[key] for name, key in _APPROVAL.items() if key in approval}
    yield c.ToolApprovalRequest(approval["id"], part["toolCallId"], **fields)
    if "approved" in approval:
        yield c.ToolApprovalResponse(approval["id"], approval["approved"], approval.get("reason", UNSET))


def _result(part: _Part, dynamic: Any) -> Iterator[c.Chunk]:
    call_id, metadata = part["toolCallId"], part.get("resultProviderMetadata", UNSET)
    match part["state"]:
        case "output-available":
            preliminary = part.get("preliminary", UNSET)
            yield c.ToolOutputAvailable(call_id, part.get("output"), UNSET, dynamic, preliminary, metadata)
        case "output-error":
            yield c.ToolOutputError(call_id, part["errorText"], UNSET, dynamic, metadata)
        case "output-denied":
            yield c.ToolOutputDenied(call_id)
        case _:
            pass
