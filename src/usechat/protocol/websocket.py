"""The text frames of the client's `WebSocketChatTransport` (`ai` 7.0.135 and later)."""

import re
from typing import Any, Final, Literal, TypeAlias, cast

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from usechat.errors import RequestError
from usechat.protocol.frames import payload_of
from usechat.protocol.messages import IDENTIFIER
from usechat.protocol.requests import ChatRequest, Limits, decode_json, decode_request

__all__ = [
    "ClientFrame",
    "Notice",
    "chunk_frame",
    "chunk_opening",
    "notice",
    "open_frame",
    "read_headers",
    "read_resume",
    "read_send",
]

Notice: TypeAlias = Literal["start", "end", "no-active", "error"]

# RFC 9110, section 5. An app reads these as headers, so a value must be one that an HTTP server would accept.
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]{0,16384}")
_MAX_HEADERS: Final = 64 * 1024
_PROTOCOL_FIELDS: Final = frozenset(("id", "message", "messages", "trigger", "messageId"))


class ClientFrame(Struct, frozen=True, rename="camel"):
    """A frame of which only the type and the request's id are decoded yet, so a stranger's frame costs little."""

    type: str
    request_id: str
    id: Raw = Raw(b"null")
    headers: Raw = Raw(b"null")
    last_sequence: Raw = Raw(b"null")


_FRAMES: Final = msgspec.json.Decoder(ClientFrame)
_TEXT: Final = msgspec.json.Decoder(str)
_HEADERS: Final = msgspec.json.Decoder(dict[str, str])
_NUMBER: Final = msgspec.json.Decoder[int | None](int | None)


def open_frame(data: bytes) -> ClientFrame:
    """Read what a frame is and which request it belongs to.

    Raises:
        RequestError: It belongs to no request, so no answer could reach its sender.
    """
    frame = decode_json(_FRAMES, data, "A frame", "must be a JSON object with a type and a requestId")
    if problem := IDENTIFIER(frame.request_id):
        raise RequestError(f"requestId{problem}.")
    return frame


def read_headers(frame: ClientFrame) -> dict[str, str]:
    """The headers inside the frame, by lower-case name.

    Raises:
        RequestError: HTTP could not carry them.
    """
    if len(bytes(frame.headers)) > _MAX_HEADERS:
        raise RequestError(f"headers must not be larger than {_MAX_HEADERS:,} bytes.")
    headers = decode_json(_HEADERS, frame.headers, "headers", "must be an object of strings")
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise RequestError(f"headers must hold HTTP headers, and {name[:40]!a} is not one.")
    return {name.lower(): value for name, value in headers.items()}


def read_send(data: bytes, limits: Limits, *, checked: bool = False) -> ChatRequest:
    """Read the request of a `send` frame. Its `metadata` is among the extra fields.

    `checked` says that the frame has passed `check_cost`.

    Raises:
        RequestError: The request is too large (413) or wrong (400).
    """
    # A frame has the fields of a POST, except that the extra ones are in `body`.
    request = decode_request(data, limits, checked=checked)
    body: Any = request.extra.get("body")
    if not isinstance(body, dict):
        raise RequestError("body must be an object.")
    extra = {name: value for name, value in cast("dict[str, Any]", body).items() if name not in _PROTOCOL_FIELDS}
    if "metadata" in request.extra:
        extra.setdefault("metadata", request.extra["metadata"])
    return msgspec.structs.replace(request, extra=extra)


def read_resume(frame: ClientFrame) -> tuple[str, int | None]:
    """The chat that a `resume` frame asks for, and the sequence of the client's last chunk, if the frame names it.

    Raises:
        RequestError: One of them is wrong.
    """
    chat_id = decode_json(_TEXT, frame.id, "id", "must be a string")
    if problem := IDENTIFIER(chat_id):
        raise RequestError(f"id{problem}.")
    seen = decode_json(_NUMBER, frame.last_sequence, "lastSequence", "must be a whole number")
    if seen is not None and seen < 0:
        raise RequestError("lastSequence must not be negative.")
    return chat_id, seen


def notice(kind: Notice, request_id: str, error_text: str | UnsetType = UNSET) -> str:
    """A frame that carries no chunk."""
    return msgspec.json.encode(_Notice(kind, request_id, error_text)).decode()


def chunk_opening(request_id: str) -> str:
    """How all chunk frames of a request begin."""
    return f'{{"type":"chunk","requestId":{msgspec.json.encode(request_id).decode()},"sequence":'


def chunk_frame(opening: str, sequence: int, event: bytes) -> str:
    """The frame of a chunk, which the turn's log keeps as a server-sent event."""
    return f'{opening}{sequence},"chunk":{payload_of(event).decode()}}}'


class _Notice(Struct, rename="camel"):
    type: Notice
    request_id: str
    error_text: str | UnsetType
