"""Judging a recorded stream: is it legal, and which releases of the client take it?"""

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from usechat.errors import ProtocolError, RemoteProtocolError
from usechat.protocol.chunks import Chunk, chunk_type
from usechat.protocol.clients import CLIENTS, LOOSE, Client, ClientName, Release, Since, needs, newer_than
from usechat.protocol.codec import parse_wire, read_chunk
from usechat.protocol.messages import UIMessage
from usechat.protocol.reader import MessageReader
from usechat.protocol.recorded import RecordedStream
from usechat.protocol.rules import RULES, Level, remote_error
from usechat.protocol.sse import SseDecoder

__all__ = ["Verdict", "Violation", "judge", "recorded_events"]

_OF_THE_MESSAGE_BEFORE: Final = ("call-unknown", "approval-unknown")
_BOM: Final = b"\xef\xbb\xbf"
_HEADERS: Final = re.compile(rb"(?:HTTP/[\d.]+ \d.*?\r?\n\r?\n)+", re.DOTALL)
_JSON_LINE: Final = re.compile(rb'(?:\xef\xbb\xbf)?\s*[{\["]')
# A letter or digit for the kind of part, and its value as JSON.
_V4_LINE: Final = re.compile(r'[0-9a-k]:(?=["{\[ntf0-9-])')
_V4_PROBLEM: Final = "This is the data stream of AI SDK 4, which no client from AI SDK 5 on reads."
_V4_REMEDY: Final = (
    "Upgrade the server: in Node, `ai` 5 or newer and `toUIMessageStreamResponse()` for `toDataStreamResponse()`; "
    "elsewhere, send the UI message stream with the header `x-vercel-ai-ui-message-stream: v1`."
)


class Event(NamedTuple):
    """The data of one event. It is not whole if the recording ends before its blank line."""

    line: int
    data: str
    is_whole: bool = True


class Violation(Struct, frozen=True):
    """What is wrong, and the `line` of the recording, counted from 1.

    A stream is `refused` if a client throws, loses something or posts again and again. It is left `untidy` if a part
    stays streaming, or if the client's own `validateUIMessages` refuses the message.
    """

    level: Level
    line: int
    chunk: str
    rule: str
    problem: str
    remedy: str


class Verdict(Struct, frozen=True):
    """What the clients of a profile do with a stream.

    `violation` is the first thing that a client refuses, and `warnings` is what is left untidy before it. `releases`
    has the first release of each major that takes the stream. `message` is what the newest client of the profile
    builds.
    """

    chunks: int
    releases: list[str]
    message: UIMessage
    violation: Violation | None
    warnings: list[Violation]


def recorded_events(recording: bytes) -> list[Event]:
    """The chunks of a recording: an SSE body, the output of `curl -i`, or one chunk per line.

    The lines of AI SDK 4 are not chunks. They are returned unchanged, and `judge` recognises them.

    Raises:
        RemoteProtocolError: An event is too large.
    """
    headers = _HEADERS.match(recording)
    body = recording[headers.end() :] if headers else recording
    skipped = len(recording[: -len(body) or None].splitlines()) if headers else 0
    if _JSON_LINE.match(body) or _V4_LINE.match(body[:100].decode(errors="replace").lstrip()):
        lines = enumerate(body.removeprefix(_BOM).splitlines(), skipped + 1)
        return [Event(number, line.decode(errors="replace")) for number, line in lines if line.strip()]
    decoder = SseDecoder()
    events = [Event(event.line + skipped, event.data) for event in decoder.feed(body)]
    # The event that its blank line would have ended.
    events += [Event(event.line + skipped, event.data, is_whole=False) for event in decoder.feed(b"\n\n")]
    return [event for event in events if event.data != "[DONE]"]


def judge(events: Iterable[Event], client: ClientName = "portable", *, continues: UIMessage | None = None) -> Verdict:
    """Read the chunks as the clients do, and stop at the first chunk that one of them refuses.

    `continues` is the message that the stream continues.
    """
    profile = CLIENTS[client]
    state, reader = RecordedStream(profile, continues), MessageReader(continues, major=profile.oldest[-1].major)
    count, line, violation = 0, 1, None
    lines: dict[ProtocolError, int] = {}
    try:
        for line, data, is_whole in events:
            if not is_whole:
                # A body without a single whole event breaks `no-chunks`.
                if count:
                    raise remote_error("event-cut-off", "", RULES["event-cut-off"].meaning)
                break
            _read(state, reader, profile, data)
            count += 1
            lines.update(dict.fromkeys(state.warnings[len(lines) :], line))
        if count == 0:
            raise remote_error("no-chunks", "", RULES["no-chunks"].meaning)
        state.end(reader.message)
    except ProtocolError as error:
        violation = _violation("refused", line, error)
        if continues is None and error.rule in _OF_THE_MESSAGE_BEFORE:
            remedy = f"{error.remedy} If the stream continues a message, judge it with that one: --continues FILE."
            violation = msgspec.structs.replace(violation, remedy=remedy)
    warnings = [_violation("untidy", lines.get(error, line), error) for error in state.warnings]
    return Verdict(count, _releases(state.asks), reader.message, violation, warnings)


def _violation(level: Level, line: int, error: ProtocolError) -> Violation:
    return Violation(level, line, error.chunk, error.rule, error.problem, error.remedy)


def _read(state: RecordedStream, reader: MessageReader, profile: Client, data: str) -> None:
    if _V4_LINE.match(data):
        raise RemoteProtocolError(_V4_PROBLEM, chunk="", rule="json", remedy=_V4_REMEDY)
    wire = parse_wire(data)
    chunk, unknown = read_chunk(wire)
    if state.phase == "failed":
        state.apply(chunk)
        return
    state.apply(chunk)
    _check_client(profile, chunk, unknown)
    reader.apply_wire(chunk, wire)
    state.asks += [since for _, since in needs(chunk, unknown)]


def _check_client(client: Client, chunk: Chunk, unknown: Mapping[str, object]) -> None:
    name = chunk_type(chunk)
    for release in client.oldest:
        if name in client.passes and release.major == 5:
            continue
        if unknown and not LOOSE.includes(release):
            raise remote_error("unknown-field", name, f"`{name}` has no field `{next(iter(unknown))}`.")
        for what in newer_than(chunk, release):
            raise remote_error("too-new", name, f"ai {release} refuses {what}.")


def _releases(asked: list[Since]) -> list[str]:
    firsts = [[since[index] for since in asked] for index in range(3)]
    return [
        str(Release(major, max((patch for patch in patches if patch is not None), default=0)))
        for major, patches in enumerate(firsts, 5)
        if None not in patches
    ]
