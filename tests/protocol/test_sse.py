import itertools
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from usechat.errors import RemoteProtocolError
from usechat.protocol.frames import encode_event, event_name
from usechat.protocol.sse import DONE, KEEP_ALIVE, SseDecoder, SseEvent

# What may break out of a line, or is a line end for str.splitlines, or is a lure for a sloppy parser.
NASTY = st.sampled_from(
    ["\r", "\n", "\r\n", "\n\n", "\0", "\u2028", "\u0085", "\x1c", "\ufeff", "data: x\n\n", "id: 1\n"]
)
TEXT = st.lists(NASTY | st.text(max_size=3), max_size=8).map("".join)
PIECES = st.sampled_from(
    [
        *(b"\n", b"\r", b"\r\n", b"data", b"event", b"id", b"retry", b":", b" ", b"a", b"\0"),
        *(b"\xef\xbb\xbf", b"\xc3\xa4", b"\xe2\x82", b"\xff", "😀".encode(), "\u2028".encode(), "\u0085".encode()),
    ]
)
STREAM = st.lists(PIECES | st.binary(max_size=3), max_size=60).map(b"".join)

BODY = (
    b"\xef\xbb\xbf: stream-open\r\n\r\n"
    b'id: 0\r\nevent: message-start\r\ndata: {"type":"start"}\r\n\r\n'
    b'retry: 10\rdata:{"a":\rdata:  1}\r\r'
    b": keep-alive\n\n"
    b"event: unused\n\n"
    b"data: gr\xc3\xbc\xc3\x9fe \xf0\x9f\x98\x80 \xe2\x80\xa8\n\n"
    b"id\ndata\n\n"
    b"data: [DONE]\n\n"
    b"data: cut off"
)
EVENTS = [
    SseEvent(data='{"type":"start"}', event="message-start", id="0", line=5),
    SseEvent(data='{"a":\n 1}', event="message", id="0", line=8),
    SseEvent(data="grüße 😀 \u2028", event="message", id="0", line=15),
    SseEvent(data="", event="message", id="", line=18),
    SseEvent(data="[DONE]", event="message", id="", line=20),
]


def read(*pieces: bytes, decoder: SseDecoder | None = None) -> list[SseEvent]:
    decoder = decoder or SseDecoder()
    return [event for piece in pieces for event in decoder.feed(piece)]


def read_by_the_standard(body: bytes) -> list[SseEvent]:
    """A second parser, on the whole text and as slow as it likes, in the order of the standard's own words."""
    text = body.decode("utf-8", "replace").removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    lines = text.split("\n")[:-1]
    events: list[SseEvent] = []
    data, event, last_id, first = "", "", "", 0
    for number, line in enumerate(lines, 1):
        field, *rest = line.split(":", 1)
        value = re.sub("^ ", "", "".join(rest))
        if line == "":
            if data:
                events.append(SseEvent(data.removesuffix("\n"), event or "message", last_id, first))
            data, event, first = "", "", 0
        elif field == "data":
            data += value + "\n"
            first = first or number
        elif field == "event":
            event = value
        elif field == "id" and "\0" not in value:
            last_id = value
    return events


def test_the_fixed_frames_are_the_ones_of_the_sdk():
    assert (DONE, KEEP_ALIVE) == (b"data: [DONE]\n\n", b": keep-alive\n\n")
    assert read(KEEP_ALIVE, DONE) == [SseEvent("[DONE]", "message", "", 3)]


@given(TEXT, st.none() | st.integers(0, 10**12), st.none() | TEXT)
def test_any_text_in_a_chunk_comes_back_as_one_event(text: str, index: int | None, event: str | None):
    payload = msgspec.json.encode({"type": f"data-{text}", "data": text})
    frame = encode_event(payload, index=index, event=event)
    line = 1 + (index is not None) + (event is not None)
    name = "message" if event is None else event_name(event)
    expected = [SseEvent(payload.decode(), name, "" if index is None else str(index), line)]
    assert read(frame) == expected
    assert read_by_the_standard(frame) == expected


def test_a_stream_is_read_with_all_that_the_grammar_has():
    assert read(BODY) == EVENTS


def test_every_split_in_two_gives_the_same_events():
    splits = [read(BODY[:at], BODY[at:]) for at in range(len(BODY) + 1)]
    assert splits == [EVENTS] * (len(BODY) + 1)


def test_single_bytes_give_the_same_events():
    assert read(*(bytes([byte]) for byte in BODY)) == EVENTS


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_each_kind_of_line_end_gives_the_same_events(end: bytes):
    body = b"id: 1\ndata: a\ndata: b\n\ndata: c\n\n".replace(b"\n", end)
    assert read(body) == [SseEvent("a\nb", "message", "1", 2), SseEvent("c", "message", "1", 5)]


def test_a_carriage_return_ends_an_event_without_waiting_for_more():
    assert read(b"data: a\r\r") == [SseEvent("a", "message", "", 1)]


def test_a_line_feed_after_an_empty_piece_still_belongs_to_the_carriage_return():
    assert read(b"data: a\r", b"", b"\n", b"data: b\n\n") == [SseEvent("a\nb", "message", "", 1)]


@pytest.mark.parametrize(
    ("body", "events"),
    [
        (b"data:a\ndata: b\ndata:  c\n\n", [SseEvent("a\nb\n c", "message", "", 1)]),
        (b"data: a: b\n\n", [SseEvent("a: b", "message", "", 1)]),
        (b"data\n\n", [SseEvent("", "message", "", 1)]),
        (b"data:\n\n", [SseEvent("", "message", "", 1)]),
        (b"Data: a\ndatas: b\n data: c\n\n", []),
        (b"id: 7\n\nevent: gone\n\ndata: a\n\n", [SseEvent("a", "message", "7", 5)]),
        (b"id: 7\nid: a\0b\ndata: a\n\n", [SseEvent("a", "message", "7", 3)]),
        (b"event:\ndata: a\n\n", [SseEvent("a", "message", "", 2)]),
        (b"data: \xef\xbb\xbfa\n\n", [SseEvent("\ufeffa", "message", "", 1)]),
        (b"\xef\xbb\xbfdata: a\n\n", [SseEvent("a", "message", "", 1)]),
        (b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\n", []),
        (b"data: a\n\xef\xbb\xbfdata: b\n\n", [SseEvent("a", "message", "", 1)]),
        (b"data: \xe2\x82\ndata: \xff\n\n", [SseEvent("\ufffd\n\ufffd", "message", "", 1)]),
        (b"data: a\n", []),
        (b'0:"text"\n{"type":"start"}\n\n', []),
        (b"", []),
    ],
)
def test_a_field_is_read_as_the_standard_says(body: bytes, events: list[SseEvent]):
    assert read(body) == events


@given(STREAM, st.lists(st.integers(0, 200), max_size=8))
def test_any_bytes_in_any_pieces_are_read_as_the_standard_says(body: bytes, cuts: list[int]):
    edges = [0, *sorted(cuts), len(body)]
    pieces = [body[start:end] for start, end in itertools.pairwise(edges)]
    assert read(*pieces) == read_by_the_standard(body)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"data: 1234567\n\n", id="one line"),
        pytest.param(b"data: 1234567", id="a line without an end"),
        pytest.param(b"data\ndata\ndata\ndata\n", id="many lines"),
        pytest.param(b":234567890123\n", id="a comment"),
    ],
)
@pytest.mark.parametrize("step", [1, 5, 100])
def test_an_event_beyond_the_bound_is_an_error_in_whatever_pieces_it_comes(body: bytes, step: int):
    decoder = SseDecoder(max_event=12)
    assert decoder.feed(b"data: 123456\n\n:\n\n") == [SseEvent("123456", "message", "", 1)]
    pieces = [body[start : start + step] for start in range(0, len(body), step)]
    with pytest.raises(RemoteProtocolError) as caught:
        read(*pieces, decoder=decoder)
    error = caught.value
    assert (error.problem, error.chunk, error.rule, error.remedy) == (
        "An event is larger than 12 bytes.",
        "",
        "event-too-large",
        "Send large values in parts, or by reference.",
    )
