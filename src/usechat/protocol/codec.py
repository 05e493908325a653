"""Chunks to JSON and back."""

import json
from typing import Any, Final, NamedTuple, NoReturn, cast

import msgspec
from msgspec import UNSET

from usechat.protocol.chunks import CHUNK_TYPES, Chunk, Data, TextDelta, TextEnd, chunk_type
from usechat.protocol.rules import local_error, remote_error
from usechat.protocol.values import UNLIMITED, VALUE_LIMIT, has_forbidden_key, may_hold_forbidden_key, plain

__all__ = ["Decoded", "clean_chunk", "decode_chunk", "encode_chunk", "parse_json", "parse_wire", "read_chunk"]

_LIMITED: Final = frozenset(
    ("input", "output", "data", "messageMetadata", "toolMetadata", "approvalDescriptor", "inputSchemaInput")
)
_CLASSES: Final = frozenset(CHUNK_TYPES.values())
_encode = msgspec.json.Encoder().encode


class Decoded(NamedTuple):
    """A chunk, and the fields on the wire that its type does not have. Strict clients refuse a chunk with any."""

    chunk: Chunk
    unknown: dict[str, Any]


def encode_chunk(chunk: Chunk) -> bytes:
    """The chunk as one line of JSON. A value that cannot be encoded is replaced, and nothing else is lost.

    Raises:
        LocalProtocolError: A field has a value of the wrong type.
    """
    try:
        payload = _encode(chunk)
    except (TypeError, ValueError, RecursionError):
        return _encode(clean_chunk(chunk))
    # Nearly every chunk is a text delta without metadata, which has no keys of its own.
    if type(chunk) is TextDelta and chunk.provider_metadata is UNSET:
        return payload
    return _encode(clean_chunk(chunk)) if may_hold_forbidden_key(payload) else payload


def clean_chunk(chunk: Chunk, limit: int = VALUE_LIMIT) -> Chunk:
    """A copy with plain JSON values of at most `limit` bytes each.

    Raises:
        LocalProtocolError: It is not a chunk of the protocol, or a field has a value of the wrong type.
    """
    kind = type(chunk)
    if kind not in _CLASSES:
        # A subclass is not one either: clients refuse its type or its fields.
        raise local_error("unknown-type", kind.__name__, f"{kind.__name__} is not one of the protocol's chunks.")
    wire = {"type": chunk_type(chunk)}
    for name, attribute in zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True):
        value = getattr(chunk, attribute)
        if value is not UNSET:
            wire[name] = plain(value, limit if name in _LIMITED else UNLIMITED)
    try:
        return msgspec.convert(wire, kind)
    except msgspec.ValidationError as error:
        raise local_error("shape", wire["type"], f"The {wire['type']} chunk has a wrong field: {error}.") from None


def decode_chunk(payload: str | bytes) -> Decoded:
    """Read one chunk as the client's parser and schema would.

    Raises:
        RemoteProtocolError: No client takes it. The error names the chunk and the rule.
    """
    return read_chunk(parse_wire(payload))


def read_chunk(wire: dict[str, Any]) -> Decoded:
    """Read a chunk from its JSON object.

    Raises:
        RemoteProtocolError: No client takes it.
    """
    name = wire.get("type")
    kind = _kind(name)
    try:
        chunk = msgspec.convert(wire, kind)
    except msgspec.ValidationError as error:
        problem = f"The {name} chunk has a wrong field: {error}."
        if name == "finish" and wire.get("finishReason") == "unknown":
            problem = "The finish chunk has the reason 'unknown', which only ai 5.0.92 and later 5 take: send 'other'."
        raise remote_error("shape", str(name), problem) from None
    if isinstance(chunk, TextEnd) and any("type" not in citation["source"] for citation in wire.get("citations", ())):
        problem = "The text-end chunk has a wrong field: the source of a citation lacks its `type`."
        raise remote_error("shape", "text-end", problem)
    known = kind.__struct_encode_fields__
    return Decoded(chunk, {key: value for key, value in wire.items() if key not in known and key != "type"})


def parse_wire(payload: str | bytes) -> dict[str, Any]:
    """The JSON object of a chunk of any type.

    Raises:
        RemoteProtocolError: It is not an object, or no client's parser takes it.
    """
    try:
        value = parse_json(payload)
    except ValueError as error:
        raise remote_error("json", "", f"This is not JSON: {error}.") from None
    if not isinstance(value, dict):
        raise remote_error("object", "", f"A chunk is a JSON object, not {type(value).__name__}.")
    wire = cast("dict[str, Any]", value)
    if has_forbidden_key(wire):
        problem = "The chunk holds a key that the client's parser refuses."
        raise remote_error("forbidden-key", str(wire.get("type")), problem)
    return wire


def _kind(name: object) -> type[Chunk]:
    if isinstance(name, str):
        if name.startswith("data-"):
            return Data
        if name in CHUNK_TYPES:
            return CHUNK_TYPES[name]
    raise remote_error("unknown-type", str(name), f"No client knows the chunk type {name!r:.60}.")


def parse_json(text: str | bytes) -> Any:
    """Parse JSON exactly as strictly as JavaScript does.

    Raises:
        ValueError: The text is not JSON.
    """
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        # msgspec refuses lone surrogates; JavaScript takes them.
        return _parse_slowly(text)


def _parse_slowly(text: str | bytes) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant, parse_int=_number)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _number(digits: str) -> int | float:
    # Python refuses to parse very long integers; JavaScript has only floats anyway.
    return int(digits) if len(digits) < 400 else float(digits)
