"""Server-sent events as the WHATWG HTML standard (9.2.6) has them: the decoder, and the lines that carry no chunk."""

import re

import msgspec

from usechat.protocol.rules import remote_error

__all__ = ["DONE", "KEEP_ALIVE", "SseDecoder", "SseEvent"]

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


class SseEvent(msgspec.Struct, frozen=True):
    """One event. `id` is the last one of the stream so far; `line` is the line of its first data, counted from 1."""

    data: str
    event: str
    id: str
    line: int


class SseDecoder:
    """Reads an event stream in pieces of any size. An event without its blank line is never returned."""

    def __init__(self, *, max_event: int = 32 * 1024 * 1024) -> None:
        self._max_event = max_event
        self._unfinished = bytearray()
        self._after_cr = False
        self._line = 0
        self._id = ""
        self._event = ""
        self._data: list[bytes] = []
        self._data_line = 0
        self._size = 0

    def feed(self, data: bytes) -> list[SseEvent]:
        """Take the next bytes and return the events that they complete.

        Raises:
            RemoteProtocolError: An event is larger than `max_event` bytes. The decoder cannot be used afterwards.
        """
        if not data:
            return []
        # A CR ends its line at once, and the LF of a CRLF may come with the next piece.
        if self._after_cr and data.startswith(b"\n"):
            data = data[1:]
        self._after_cr = data.endswith(b"\r")
        *ended, rest = _LINE_END.split(data)
        if ended and self._unfinished:
            ended[0] = bytes(self._unfinished) + ended[0]
            self._unfinished.clear()
        events = [event for line in ended if (event := self._end_line(line))]
        self._unfinished += rest
        self._bound(len(self._unfinished))
        return events

    def _end_line(self, line: bytes) -> SseEvent | None:
        self._line += 1
        self._bound(len(line))
        self._size += len(line)
        if self._line == 1:
            line = line.removeprefix(_BOM)
        if not line:
            return self._end_event()
        field, _, value = line.partition(b":")
        self._take(field, value.removeprefix(b" "))
        return None

    def _take(self, field: bytes, value: bytes) -> None:
        # A comment is a field without a name. It is ignored, like `retry` and unknown fields.
        if field == b"data":
            self._data_line = self._data_line or self._line
            self._data.append(value)
        elif field == b"event":
            self._event = value.decode(errors="replace")
        elif field == b"id" and b"\0" not in value:
            self._id = value.decode(errors="replace")

    def _end_event(self) -> SseEvent | None:
        text = b"\n".join(self._data).decode(errors="replace")
        event = SseEvent(text, self._event or "message", self._id, self._data_line) if self._data else None
        self._event, self._data, self._data_line, self._size = "", [], 0, 0
        return event

    def _bound(self, line_size: int) -> None:
        if self._size + line_size > self._max_event:
            raise remote_error("event-too-large", "", f"An event is larger than {self._max_event:,} bytes.")
