"""DeepAgent: the side events as data parts, one by one or several together."""

import re
from typing import Any, Final

import msgspec
from msgspec import UNSET

from usechat.integrations.deepagent_sdk.fields import Event, unusable
from usechat.integrations.deepagent_sdk.options import DeepAgentOptions
from usechat.integrations.deepagent_sdk.parts import SIDE_EVENTS
from usechat.protocol.chunks import Chunk
from usechat.protocol.values import plain
from usechat.protocol.writer import MessageWriter

__all__ = ["DataParts", "read_side_event"]

_TODOS: Final = "todos-changed"
_WITH_CONTENT: Final = frozenset({"file-write-start", "file-written"})
_CONTENT_LIMIT: Final = 64 * 1024
_BATCH_LIMIT: Final = 256 * 1024
_FIELD: Final = re.compile(r"(?:missing required field `|at `\$\.)(\w+)")


def read_side_event(event: Event) -> dict[str, Any]:
    """The fields of a side event as plain values, without its type; long content of a file is cut and marked.

    Raises:
        MappingError: it lacks what every event of its type has.
    """
    name: str = event["type"]
    fields = {key: value for key, value in event.items() if key != "type"}
    if name in _WITH_CONTENT and isinstance(fields.get("content"), str):
        fields |= _cut(str.__str__(fields["content"]))
    data: dict[str, Any] = plain(fields)
    try:
        msgspec.convert({**data, "type": name}, SIDE_EVENTS[name])
    except msgspec.ValidationError as error:
        # Its text may quote a value.
        field = _FIELD.search(str(error))
        raise unusable(event, field[1] if field else "") from None
    return data


def _cut(content: str) -> dict[str, Any]:
    # No character has more than four bytes, so most contents need not be encoded.
    if len(content) * 4 <= _CONTENT_LIMIT or len(encoded := content.encode(errors="replace")) <= _CONTENT_LIMIT:
        return {"content": content}
    kept = encoded[:_CONTENT_LIMIT].decode(errors="ignore")
    return {"content": f"{kept}… [{len(content) - len(kept)} more characters left out]", "truncated": True}


class DataParts:
    """Writes the data parts. Where several go together, those that came in a row wait until they are flushed."""

    def __init__(self, writer: MessageWriter, options: DeepAgentOptions) -> None:
        self._writer = writer
        self._transient = frozenset(options.transient)
        self._together = options.together
        self._waiting: list[dict[str, Any]] = []
        self._size = 0

    def show(self, name: str, data: dict[str, Any]) -> list[Chunk]:
        """Write a side event, or keep it for the next flush."""
        if name == _TODOS:
            return self.flush() + self._writer.data(name, data, id="todos", transient=name in self._transient)
        if self._together == 1:
            return self._write({"type": name, **data})
        chunks: list[Chunk] = []
        if self._waiting and (self._waiting[0]["type"] in self._transient) is not (name in self._transient):
            chunks = self.flush()
        self._waiting.append({"type": name, **data})
        self._size += len(msgspec.json.encode(data))
        if len(self._waiting) >= self._together or self._size > _BATCH_LIMIT:
            chunks += self.flush()
        return chunks

    def flush(self) -> list[Chunk]:
        """Write what waits."""
        if not self._waiting:
            return []
        waiting, self._waiting, self._size = self._waiting, [], 0
        if len(waiting) < 2:
            return self._write(waiting[0])
        return self._writer.data("batch", {"events": waiting}, transient=waiting[0]["type"] in self._transient)

    def _write(self, event: dict[str, Any]) -> list[Chunk]:
        name = event.pop("type")
        return self._writer.data(name, event, id=UNSET, transient=name in self._transient)
