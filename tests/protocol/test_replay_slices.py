from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from usechat.protocol.chunks import (
    Chunk,
    Data,
    File,
    MessageMetadata,
    ReasoningDelta,
    ReasoningStart,
    Start,
    StartStep,
    TextDelta,
    TextEnd,
    TextStart,
    ToolApprovalResponse,
    ToolInputAvailable,
    ToolInputDelta,
    ToolInputError,
    ToolInputStart,
    ToolOutputAvailable,
    ToolOutputError,
)
from usechat.protocol.clients import CLIENTS, ClientName
from usechat.protocol.frames import Frames, decode_frame
from usechat.protocol.messages import UIMessage
from usechat.protocol.reader import MessageReader
from usechat.protocol.replay import Replay, chunks_of_parts, in_pieces

FRAMES = Frames("m")
META = {"p": {"k": 1}}
CHUNKS: list[Chunk] = [
    Start("a", {"n": [1]}),
    StartStep(),
    TextStart("t"),
    TextDelta("t", "x"),
    ToolInputStart("c", "f"),
    ToolInputDelta("c", '{"a":'),
    TextDelta("t", "y", META),
    Data("data-x", {"v": 1}, "i"),
    ToolInputDelta("c", "1}"),
    ToolInputAvailable("c", "f", {"a": 1}),
    ToolOutputAvailable("c", {"half": None}, preliminary=True),
    Data("data-x", {"v": 2}, "i"),
    ToolOutputAvailable("c", {"whole": [1.5]}),
    File("data:,x", "text/plain"),
    TextDelta("t", "z"),
    TextEnd("t"),
    ReasoningStart("r"),
]


def replaying(continues: UIMessage | None = None, client: ClientName = "latest", *, names: bool = False) -> Replay:
    return Replay(continues, CLIENTS[client], Frames("m", names=names))


def logged(chunks: Sequence[Chunk], first: int = 1) -> list[bytes]:
    return [FRAMES.frame(index, chunk) for index, chunk in enumerate(chunks, first)]


def frames_of(pieces: Sequence[bytes]) -> list[bytes]:
    return [frame + b"\n\n" for piece in pieces for frame in piece.split(b"\n\n")[:-1]]


def message_of(frames: Sequence[bytes]) -> UIMessage:
    reader = MessageReader()
    for frame in frames:
        reader.apply(decode_frame(frame))
    return reader.message


@pytest.mark.parametrize("names", [False, True])
def test_the_last_frame_says_up_to_which_chunk_a_replay_tells(names: bool) -> None:
    replay = replaying(names=names)
    replay.take(logged([Start("a"), StartStep(), TextStart("t"), TextDelta("t", "x"), TextDelta("t", "y")]))
    events = ["message-start", "start-step", "text-start", "text-delta"]
    heads = [f"event: {event}\n".encode() if names else b"" for event in events]
    assert list(replay.encoded()) == [
        heads[0] + b'data: {"type":"start","messageId":"a"}\n\n'
        + heads[1] + b'data: {"type":"start-step"}\n\n'
        + heads[2] + b'data: {"type":"text-start","id":"t"}\n\n'
        + b"id: m.5\n" + heads[3] + b'data: {"type":"text-delta","id":"t","delta":"xy"}\n\n'
    ]  # fmt: skip


def test_a_replay_of_nothing_tells_up_to_0() -> None:
    assert list(replaying().encoded()) == [b'id: m.0\ndata: {"type":"start"}\n\n']
    continued = replaying(UIMessage("a", "assistant", [{"type": "step-start"}], {"n": 1}))
    assert b"".join(continued.encoded()) == (
        b'data: {"type":"start","messageId":"a","messageMetadata":{"n":1}}\n\nid: m.0\ndata: {"type":"start-step"}\n\n'
    )


@given(st.lists(st.integers(0, len(CHUNKS)), max_size=4).map(sorted))
def test_whoever_comes_back_at_any_moment_ends_with_the_same_message(cuts: list[int]) -> None:
    log = logged(CHUNKS)
    replay = replaying()
    begun = [(0, replay.encoded())]
    for begin, end in pairwise([0, *cuts, len(CHUNKS)]):
        replay.take(log[begin:end])
        begun.append((end, replay.encoded()))
    # All of them are read only now, after everything was taken.
    for index, pieces in begun:
        frames = frames_of(list(pieces))
        assert [frame.split(b"\n")[0] for frame in frames if frame.startswith(b"id:")] == [b"id: m.%d" % index]
        assert frames[-1].startswith(b"id:")
        assert message_of([*frames, *log[index:]]) == message_of(log)


def test_small_chunks_are_sent_together_and_large_ones_alone() -> None:
    replay = replaying()
    replay.take(logged([Data("data-x", "x" * 1000)] * 100))
    replay.take(logged([Data("data-x", "x" * 100_000)] * 2, 101))
    pieces = list(replay.encoded())
    assert [len(frames_of([piece])) for piece in pieces] == [33, 32, 32, 5, 1]
    assert b"".join(pieces).count(b"id: ") == 1


def test_a_long_text_is_told_in_deltas_of_at_most_64_k_characters() -> None:
    replay = replaying()
    texts = ["潮" * 100_000, "tide " * 100, "é", "x" * 65_536]
    replay.take(logged([Start("a"), TextStart("t"), *(TextDelta("t", text, META) for text in texts)]))
    start, begun, *deltas = map(decode_frame, frames_of(list(replay.encoded())))
    assert (start, begun) == (Start("a"), TextStart("t"))
    assert deltas == [
        TextDelta("t", "潮" * 65_536, META),
        TextDelta("t", "潮" * (100_000 - 65_536) + "tide " * 100 + "é"),
        TextDelta("t", "x" * 65_536),
    ]


@given(st.lists(st.sampled_from(["", "a", "b" * 50_000, "c" * 65_536, "d" * 140_000])))
def test_pieces_are_the_same_text(texts: list[str]) -> None:
    pieces = list(in_pieces(texts))
    assert "".join(pieces) == "".join(texts)
    assert [piece for piece in pieces if not 0 < len(piece) <= 65_536] == []


def test_reasoning_and_input_are_told_in_pieces_too() -> None:
    long = "x" * 65_537
    replay = replaying()
    replay.take(logged([ReasoningStart("r"), ReasoningDelta("r", "", META), ToolInputStart("c", "f")]))
    replay.take(logged([ReasoningDelta("r", long), ToolInputDelta("c", long)], 4))
    assert list(map(decode_frame, frames_of(list(replay.encoded())))) == [
        Start(),
        ReasoningStart("r"),
        ReasoningDelta("r", long[1:], META),
        ReasoningDelta("r", "x"),
        ToolInputStart("c", "f"),
        ToolInputDelta("c", long[1:]),
        ToolInputDelta("c", "x"),
    ]


def test_a_delta_may_bring_metadata_alone() -> None:
    replay = replaying()
    replay.take(logged([TextStart("t"), TextDelta("t", "", META)]))
    assert frames_of(list(replay.encoded()))[-1] == FRAMES.frame(2, TextDelta("t", "", META))


def test_an_empty_delta_of_an_input_is_told() -> None:
    replay = replaying()
    replay.take(logged([ToolInputStart("c", "f"), ToolInputDelta("c", "")]))
    assert frames_of(list(replay.encoded()))[-1] == FRAMES.frame(2, ToolInputDelta("c", ""))
    part = {"type": "tool-f", "toolCallId": "c", "state": "input-streaming", "rawInput": ""}
    assert list(chunks_of_parts([part])) == [ToolInputStart("c", "f"), ToolInputDelta("c", "")]


def test_a_continued_message_is_looked_at_only_as_far_as_it_is_told() -> None:
    parts: list[dict[str, Any]] = [{"type": "text", "text": "x" * 200_000}, {"type": "text"}]
    pieces = replaying(UIMessage("a", "assistant", parts)).encoded()
    told = [decode_frame(frame) for _ in range(3) for frame in frames_of([next(pieces)])]
    assert [len(chunk.delta) for chunk in told if isinstance(chunk, TextDelta)] == [65_536] * 3
    with pytest.raises(KeyError):
        next(pieces)


@pytest.mark.parametrize(("client", "answers"), [("latest", 1), ("v7", 1), ("v6", 0), ("portable", 0)])
def test_an_answer_is_told_to_clients_that_take_it(client: ClientName, answers: int) -> None:
    part = {
        "type": "tool-f",
        "toolCallId": "c",
        "state": "approval-responded",
        "input": 1,
        "title": "T",
        "approval": {"id": "p", "approved": True},
    }
    replay = replaying(UIMessage("a", "assistant", [part]), client)
    told = [decode_frame(frame) for frame in frames_of(list(replay.encoded()))]
    assert len([chunk for chunk in told if isinstance(chunk, ToolApprovalResponse)]) == answers
    title = UNSET if client == "portable" else "T"
    assert told[1] == ToolInputAvailable("c", "f", 1, title=title)


def test_metadata_of_the_turn_is_told_as_it_was_sent() -> None:
    replay = replaying()
    replay.take(logged([Start("a", {"n": [1, {"x": None}]}), MessageMetadata(None)]))
    assert list(replay.encoded()) == [
        b'data: {"type":"start","messageId":"a"}\n\n'
        b'data: {"type":"message-metadata","messageMetadata":{"n":[1,{"x":null}]}}\n\n'
        b'id: m.2\ndata: {"type":"message-metadata","messageMetadata":null}\n\n'
    ]


@pytest.mark.parametrize(
    ("raw", "chunks"),
    [
        (" [" + "1," * 100, [ToolInputError("c", "f", " [" + "1," * 100, "no")]),
        ("?" * 200, [ToolInputStart("c", "f"), ToolInputDelta("c", "?" * 200), ToolOutputError("c", "no")]),
    ],
)
def test_a_long_wrong_input_is_known_by_its_beginning(raw: str, chunks: list[Chunk]) -> None:
    part = {"type": "tool-f", "toolCallId": "c", "state": "output-error", "rawInput": raw, "errorText": "no"}
    assert list(chunks_of_parts([part])) == chunks


def test_an_input_that_streams_is_not_taken_for_a_wrong_one() -> None:
    part = {"type": "tool-f", "toolCallId": "c", "state": "input-streaming", "rawInput": '{"a":' + "1" * 200}
    assert list(chunks_of_parts([part])) == [ToolInputStart("c", "f"), ToolInputDelta("c", part["rawInput"])]
