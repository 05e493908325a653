"""Frames: chunks as server-sent events with `id:`, `event:` (if wanted) and `data:`, and back."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Union

import msgspec
from msgspec import UNSET, Raw, Struct

from usechat.protocol.chunks import CHUNK_TYPES, Chunk, Data, TextDelta, chunk_type
from usechat.protocol.codec import decode_chunk, encode_chunk

__all__ = [
    "EVENT_NAMES",
    "Frames",
    "decode_frame",
    "decode_frame_raw",
    "encode_event",
    "encode_frame",
    "event_name",
    "payload_of",
]

# The Agent Ops RFC has its own names for these two. Every other event has the name of its chunk's type.
EVENT_NAMES: Final = {"start": "message-start", "finish": "message-finish"}

# The name of a data chunk comes from outside. One that could break out of its line is replaced by "data".
_SAFE_NAME: Final = re.compile(r"[a-z][A-Za-z0-9_.-]{0,127}")
_UNSAFE_NAME: Final = "data"

_EVENT: Final = (b"data: ", b"\n\n")
_encode: Final = msgspec.json.Encoder().encode

_VALUES: Final = frozenset(("input", "output", "data", "message_metadata", "url"))


def _with_raw_values(kind: type[Chunk]) -> type[Struct]:
    """A copy of the chunk class whose values stay encoded."""
    fields = [
        (field.name, Raw if field.name in _VALUES else field.type, field.default)
        for field in msgspec.structs.fields(kind)
    ]
    config = kind.__struct_config__
    return msgspec.defstruct(
        kind.__name__, fields, rename="camel", frozen=True, gc=False, tag_field=config.tag_field, tag=config.tag
    )


def _decoder(kinds: Iterable[type[Struct]]) -> Callable[[bytes], Chunk]:
    # The type checker cannot follow a union of classes from a table.
    union: Any = Union[tuple(kinds)]  # noqa: UP007
    return msgspec.json.Decoder[Chunk](union).decode


_TAGGED: Final = [kind for kind in CHUNK_TYPES.values() if kind is not Data]
_RAW: Final = {kind: _with_raw_values(kind) for kind in CHUNK_TYPES.values() if _VALUES & {*kind.__struct_fields__}}
_KINDS: Final = {raw: kind for kind, raw in _RAW.items()}
_decode: Final = _decoder(_TAGGED)
_decode_data: Final = _decoder([Data])
_decode_raw: Final = _decoder(_RAW.get(kind, kind) for kind in _TAGGED)
_decode_raw_data: Final = _decoder([_RAW[Data]])
_DATA: Final = b'{"type":"data-'


class Frames:
    """Makes the frames of one turn; `names` asks for `event:` lines.

    Each `id:` has the `mark` of the turn before the index, so no client mistakes an index for that of another turn.
    """

    def __init__(self, mark: str, *, names: bool = False) -> None:
        self._id = b"id: %b.%%d\n" % mark.encode().replace(b"%", b"%%")
        self._frame = self._id + (b"event: %b\ndata: %b\n\n" if names else b"data: %b\n\n")
        self._names = names
        self._part = ""
        self._text_frame = self._text_template("")

    def frame(self, index: int | None, chunk: Chunk) -> bytes:
        """The frame of chunk number `index` of the turn; without a number it has no `id:`.

        Raises:
            LocalProtocolError: A field has a value of the wrong type.
        """
        if index is None:
            return encode_event(encode_chunk(chunk), event=chunk_type(chunk)) if self._names else encode_frame(chunk)
        if self._names:
            return self._frame % (index, event_name(chunk_type(chunk)).encode(), encode_chunk(chunk))
        return self._frame % (index, encode_chunk(chunk))

    def texts(self, part: str, first: int, texts: Sequence[str]) -> list[bytes]:
        """The frames of deltas of one text part, from index `first` on. No delta may hold half a character."""
        if part != self._part:
            self._part, self._text_frame = part, self._text_template(part)
        frame = self._text_frame
        if len(texts) == 1:
            return [frame % (first, _encode(texts[0]))]
        return [frame % (index, _encode(text)) for index, text in enumerate(texts, first)]

    def _text_template(self, part: str) -> bytes:
        event = b"event: text-delta\n" if self._names else b""
        begin = b'data: {"type":"text-delta","id":%b,"delta":' % _encode(part)
        return self._id + event + begin.replace(b"%", b"%%") + b"%b}\n\n"


def encode_frame(chunk: Chunk) -> bytes:
    """The chunk as a server-sent event without an id.

    Raises:
        LocalProtocolError: A field has a value of the wrong type.
    """
    if type(chunk) is TextDelta and chunk.provider_metadata is UNSET:
        try:
            return _encode(chunk).join(_EVENT)
        except (TypeError, ValueError):
            pass
    return encode_chunk(chunk).join(_EVENT)


def encode_event(payload: bytes, index: int | None = None, event: str | None = None) -> bytes:
    """Frame one chunk. `payload` is its JSON on one line; `event` is its type, if the frame needs an `event:` line."""
    if event is None:
        return payload.join(_EVENT) if index is None else b"id: %d\ndata: %b\n\n" % (index, payload)
    name = event_name(event).encode()
    if index is None:
        return b"event: %b\ndata: %b\n\n" % (name, payload)
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (index, name, payload)


def event_name(chunk_type: str) -> str:
    """The `event:` name of a chunk's type. A name that this function returned stays the same."""
    name = EVENT_NAMES.get(chunk_type, chunk_type)
    return name if _SAFE_NAME.fullmatch(name) else _UNSAFE_NAME


def payload_of(frame: bytes) -> bytes:
    """The chunk's JSON in a frame of this module."""
    return frame[frame.index(b"data: ") + 6 : -2]


def decode_frame(frame: bytes) -> Chunk:
    """The chunk of a frame of this module, several times as fast as `decode_chunk`.

    Raises:
        RemoteProtocolError: The frame is not from here, and no client takes it.
    """
    payload = frame[frame.index(b"data: ") + 6 : -2]
    try:
        return _decode(payload)
    except msgspec.DecodeError:
        return _decode_data(payload) if payload.startswith(_DATA) else decode_chunk(payload).chunk


def decode_frame_raw(frame: bytes) -> Chunk:
    """As `decode_frame`, but each value and URL is a `msgspec.Raw`, for callers that do not look inside.

    Raises:
        RemoteProtocolError: The frame is not from here, and no client takes it.
    """
    payload = frame[frame.index(b"data: ") + 6 : -2]
    try:
        chunk = _decode_raw(payload)
    except msgspec.DecodeError:
        chunk = _decode_raw_data(payload) if payload.startswith(_DATA) else decode_chunk(payload).chunk
    kind = _KINDS.get(type(chunk))
    return chunk if kind is None else kind(*msgspec.structs.astuple(chunk))
