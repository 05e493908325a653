"""Judging a recorded stream: is it legal, and which releases of the client take it?"""

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from msgspec import Struct

from usechat.errors import ProtocolError
from usechat.protocol.chunks import Chunk, chunk_type
from usechat.protocol.clients import CLIENTS, LOOSE, Client, ClientName, Release, Since, needs, newer_than
from usechat.protocol.codec import decode_chunk
from usechat.protocol.messages import UIMessage
from usechat.protocol.reader import MessageReader
from usechat.protocol.rules import RULES, remote_error
from usechat.protocol.sse import SseDecoder
from usechat.protocol.state import StreamState

__all__ = ["Verdict", "Violation", "judge", "recorded_events"]

_ENDED: Final = ("ended", "failed")
_BOM: Final = b"\xef\xbb\xbf"
_HEADERS: Final = re.compile(rb"(?:HTTP/[\d.]+ \d.*?\r?\n\r?\n)+", re.DOTALL)
_JSON_LINE: Final = re.compile(rb'(?:\xef\xbb\xbf)?\s*[{\["]')


class Event(NamedTuple):
    line: int
    data: str


class Violation(Struct, frozen=True):
    """The first thing that is wrong; `line` is where it stands in the recording, counted from 1."""

    line: int
    chunk: str
    rule: str
    problem: str
    remedy: str


class Verdict(Struct, frozen=True):
    """`releases` are the first of each major that take the stream; `message` is what the client has in the end."""

    chunks: int
    releases: list[str]
    message: UIMessage
    violation: Violation | None


def recorded_events(recording: bytes) -> list[Event]:
    """The chunks of a recording: an SSE body, also with the headers of `curl -i` before it, or a chunk a line.

    Raises:
        RemoteProtocolError: an event is too large.
    """
    headers = _HEADERS.match(recording)
    body = recording[headers.end() :] if headers else recording
    skipped = len(recording[: -len(body) or None].splitlines()) if headers else 0
    if _JSON_LINE.match(body):
        lines = enumerate(body.removeprefix(_BOM).splitlines(), skipped + 1)
        return [Event(number, line.decode(errors="replace")) for number, line in lines if line.strip()]
    return [Event(event.line + skipped, event.data) for event in SseDecoder().feed(body) if event.data != "[DONE]"]


def judge(events: Iterable[Event], client: ClientName = "portable") -> Verdict:
    """Read the chunks as the client would and stop at the first that breaks a rule."""
    state, reader = StreamState(), MessageReader()
    asked: list[Since] = []
    count, line, violation = 0, 1, None
    try:
        for line, data in events:  # noqa: B007
            chunk, unknown = decode_chunk(data)
            state.apply(chunk)
            _check_client(CLIENTS[client], chunk, unknown)
            reader.apply(chunk)
            asked += [since for _, since in needs(chunk, unknown)]
            count += 1
        _check_end(state, count)
    except ProtocolError as error:
        violation = Violation(line, error.chunk, error.rule, error.problem, error.remedy)
    return Verdict(count, _releases(asked), reader.message, violation)


def _check_client(client: Client, chunk: Chunk, unknown: Mapping[str, object]) -> None:
    name = chunk_type(chunk)
    for release in client.oldest:
        if name in client.passes and release.major == 5:
            continue
        if unknown and not LOOSE.includes(release):
            raise remote_error("unknown-field", name, f"`{name}` has no field `{next(iter(unknown))}`.")
        for what in newer_than(chunk, release):
            raise remote_error("too-new", name, f"ai {release} refuses {what}.")


def _check_end(state: StreamState, count: int) -> None:
    if count == 0:
        raise remote_error("no-chunks", "", RULES["no-chunks"].meaning)
    if state.phase not in _ENDED:
        raise remote_error("no-end", "", RULES["no-end"].meaning)


def _releases(asked: list[Since]) -> list[str]:
    firsts = [[since[index] for since in asked] for index in range(3)]
    return [
        str(Release(major, max((patch for patch in patches if patch is not None), default=0)))
        for major, patches in enumerate(firsts, 5)
        if None not in patches
    ]
