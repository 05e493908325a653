import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from samples import REQUIRED, sample, text_of
from usechat.errors import RemoteProtocolError
from usechat.protocol.chunks import Chunk, Data, Finish, Start, StartStep, TextDelta, ToolInputAvailable
from usechat.protocol.codec import decode_chunk, encode_chunk
from usechat.protocol.frames import (
    EVENT_NAMES,
    Frames,
    decode_frame,
    decode_frame_raw,
    encode_event,
    encode_frame,
    event_name,
    payload_of,
)

# What may break out of a line, or is a line end for str.splitlines, or is a lure for a sloppy parser.
NASTY = st.sampled_from(["\r", "\n", "\r\n", "\n\n", "\0", "\u2028", "\x85", "\ufeff", "data: x\n\n", "id: 1\n", "%d"])
TEXT = st.lists(NASTY | st.text(max_size=3), max_size=8).map("".join)
FRAMES = Frames("m")
CHUNKS = [*map(sample, REQUIRED), *(decode_chunk(text_of(name, fields)).chunk for name, fields in REQUIRED.items())]


@pytest.mark.parametrize(
    "chunk",
    [
        Start("m"),
        TextDelta("t", "é\n😀"),
        TextDelta("t", "half \ud83d"),
        TextDelta("t", "a", {"provider": {"__proto__": 1}}),
        ToolInputAvailable("c", "search", {"__proto__": 1}),
    ],
)
def test_a_frame_is_the_chunk_as_an_event(chunk: Chunk) -> None:
    assert encode_frame(chunk) == encode_event(encode_chunk(chunk))


@pytest.mark.parametrize(
    ("index", "event", "frame"),
    [
        (None, None, b'data: {"type":"finish"}\n\n'),
        (0, None, b'id: 0\ndata: {"type":"finish"}\n\n'),
        (None, "finish", b'event: message-finish\ndata: {"type":"finish"}\n\n'),
        (7, "finish", b'id: 7\nevent: message-finish\ndata: {"type":"finish"}\n\n'),
    ],
)
def test_a_chunk_is_framed_with_the_fields_that_are_asked_for(index: int | None, event: str | None, frame: bytes):
    assert encode_event(b'{"type":"finish"}', index=index, event=event) == frame


@pytest.mark.parametrize(
    ("chunk_type", "name"),
    [
        ("start", "message-start"),
        ("finish", "message-finish"),
        ("text-delta", "text-delta"),
        ("tool-input-available", "tool-input-available"),
        ("start-step", "start-step"),
        ("error", "error"),
        ("data-agent-status", "data-agent-status"),
        ("data-weather.v2_Now", "data-weather.v2_Now"),
        ("data-" + "x" * 123, "data-" + "x" * 123),
        ("data-" + "x" * 124, "data"),
        ("data-wetter heute", "data"),
        ("data-größe", "data"),
        ("data-x\n", "data"),
        ("data-x\r\ndata: {}", "data"),
        ("data-\0", "data"),
        ("", "data"),
    ],
)
def test_an_event_is_named_as_the_agent_ops_rfc_wants_unless_the_name_is_not_plain(chunk_type: str, name: str):
    assert event_name(chunk_type) == name


@given(TEXT)
def test_the_name_of_an_event_is_always_plain_and_stays_what_it_is(text: str):
    names = [event_name(name) for name in (text, f"data-{text}", *EVENT_NAMES.values())]
    assert [name for name in names if not re.fullmatch("[a-z][A-Za-z0-9_.-]*", name)] == []
    assert [event_name(name) for name in names] == names


@pytest.mark.parametrize(
    ("names", "frames"),
    [
        (False, [b'id: m.1\ndata: {"type":"start"}\n\n', b'id: m.7\ndata: {"type":"data-a b","data":1}\n\n']),
        (
            True,
            [
                b'id: m.1\nevent: message-start\ndata: {"type":"start"}\n\n',
                b'id: m.7\nevent: data\ndata: {"type":"data-a b","data":1}\n\n',
            ],
        ),
    ],
)
def test_the_frames_of_a_turn_are_numbered_and_named_if_wanted(names: bool, frames: list[bytes]) -> None:
    made = Frames("m", names=names)
    assert [made.frame(1, Start()), made.frame(7, Data("data-a b", 1))] == frames


@pytest.mark.parametrize("names", [False, True])
@given(mark=st.text("ab%.", max_size=4), parts=st.lists(TEXT, min_size=1, max_size=3), texts=st.lists(TEXT, max_size=4))
def test_frames_of_text_are_those_of_its_deltas(names: bool, mark: str, parts: list[str], texts: list[str]) -> None:
    frames = Frames(mark, names=names)
    for part in [*parts, parts[0], ""]:
        deltas = [frames.frame(index, TextDelta(part, text)) for index, text in enumerate(texts, 5)]
        assert frames.texts(part, 5, texts) == deltas


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("names", [False, True])
def test_a_frame_gives_its_chunk_again(names: bool, chunk: Chunk) -> None:
    frame = Frames("m", names=names).frame(3, chunk)
    assert (decode_frame(frame), payload_of(frame)) == (chunk, encode_chunk(chunk))


@pytest.mark.parametrize("chunk", CHUNKS)
def test_values_may_be_left_as_json(chunk: Chunk) -> None:
    raw = decode_frame_raw(FRAMES.frame(3, chunk))
    assert (type(raw), encode_chunk(raw)) == (type(chunk), encode_chunk(chunk))


def test_a_value_that_is_left_as_json_is_not_looked_at() -> None:
    raw = decode_frame_raw(FRAMES.frame(1, ToolInputAvailable("c", "f", {"a": [1]})))
    assert isinstance(raw, ToolInputAvailable)
    assert (type(raw.input), bytes(raw.input)) == (Raw, b'{"a":[1]}')


@pytest.mark.parametrize("chunk", [Data("data-", None), TextDelta("t", "half \ud83d"), Finish(), StartStep()])
def test_a_frame_without_an_id_gives_its_chunk_again(chunk: Chunk) -> None:
    assert encode_chunk(decode_frame(encode_frame(chunk))) == encode_chunk(chunk)


def test_what_a_client_would_take_is_read_also_if_it_was_framed_elsewhere() -> None:
    frame = rb'data: {"delta":"\ud83d","id":"t","type":"text-delta"}' + b"\n\n"
    assert decode_frame(frame) == TextDelta("t", "\ud83d")
    with pytest.raises(RemoteProtocolError, match="No client knows the chunk type"):
        decode_frame(b'data: {"type":"x"}\n\n')
    assert decode_frame_raw(frame) == TextDelta("t", "\ud83d")
