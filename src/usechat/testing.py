"""For the tests of an app: the chunks of a stream, whether clients take them, and turns that the chat page recorded."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from typing import Any, Final, Literal, Self

import msgspec
from msgspec import Struct

from usechat.protocol.clients import ClientName
from usechat.protocol.codec import parse_json
from usechat.protocol.frames import encode_event
from usechat.protocol.messages import UIMessage
from usechat.protocol.sse import DONE
from usechat.protocol.verdict import Violation, judge, recorded_events

__all__ = ["RecordedChunk", "Recording", "assert_legal", "collect", "play"]

_NO_RECORDING: Final = "This is not a recording of a turn, which the chat page's inspector saves."


class RecordedChunk(Struct, frozen=True, omit_defaults=True):
    """What came, in JSON, and when: in milliseconds since the request. What was no JSON is kept as `data`."""

    at: float
    chunk: msgspec.Raw = msgspec.Raw(b"")
    data: str = ""

    @property
    def event(self) -> bytes:
        """The event of the stream."""
        return encode_event(bytes(self.chunk) or self.data.encode())


class _Head(Struct):
    usechat: Literal["recording"]
    request: Any = None
    continues: Any = None


class Recording(Struct, frozen=True):
    """A turn that the chat page recorded: the posted body, the message that it continues if it does, and the chunks."""

    request: Any
    continues: Any
    chunks: list[RecordedChunk]

    @classmethod
    def read(cls, content: bytes) -> Self:
        """Read the content of a file.

        Raises:
            ValueError: It is no recording.
        """
        head, _, rest = content.partition(b"\n")
        try:
            # What stays as it came is not looked into by the decoder.
            content.decode()
            first = msgspec.json.decode(head, type=_Head)
            chunks = msgspec.json.Decoder(RecordedChunk).decode_lines(rest)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise ValueError(_NO_RECORDING) from None
        return cls(first.request, first.continues, chunks)

    @property
    def body(self) -> bytes:
        """The stream as the body of a response."""
        return b"".join([*(chunk.event for chunk in self.chunks), DONE])


def collect(stream: bytes | Iterable[bytes]) -> list[dict[str, Any]]:
    """Give the chunks of a stream: the body of a response, whole or in pieces."""
    body = stream if isinstance(stream, bytes) else b"".join(stream)
    return [parse_json(event.data) for event in recorded_events(body)]


def assert_legal(
    stream: bytes | Recording, client: ClientName = "portable", *, continues: UIMessage | None = None
) -> UIMessage:
    """Assert that the clients of a profile take the stream and leave nothing open, and give the message that they have.

    `continues` is the message that the stream continues, if it does.

    Raises:
        AssertionError: A client refuses it, or a part stays streaming; it says by which rule, and what to do.
    """
    if isinstance(stream, Recording):
        before = stream.continues
        continues = continues or (None if before is None else msgspec.convert(before, UIMessage))
    verdict = judge(
        recorded_events(stream.body if isinstance(stream, Recording) else stream), client, continues=continues
    )
    found = [*([verdict.violation] if verdict.violation else []), *verdict.warnings]
    if found:
        raise AssertionError("\n".join(map(_sentence, found)))
    return verdict.message


def _sentence(violation: Violation) -> str:
    return f"line {violation.line}: {violation.problem} ({violation.rule}) {violation.remedy}"


async def play(recording: Recording, *, speed: float = 1.0) -> AsyncGenerator[bytes, None]:
    """Give the events of a recorded stream as fast as they came, or `speed` times as fast; 0 waits for nothing."""
    before = 0.0
    for chunk in recording.chunks:
        if speed > 0 and chunk.at > before:
            await asyncio.sleep((chunk.at - before) / 1000 / speed)
        before = chunk.at
        yield chunk.event
    yield DONE
