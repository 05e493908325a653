from typing import Any

import pytest

from usechat.protocol.chunks import (
    Chunk,
    Citation,
    Data,
    File,
    Finish,
    FinishStep,
    MessageMetadata,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    ResetStep,
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
    UrlSource,
)
from usechat.protocol.messages import UIMessage
from usechat.protocol.reader import MessageReader
from usechat.protocol.replay import Fold, chunks_of_parts

META = {"p": {"k": 1}}


def folded(*chunks: Chunk, continues: UIMessage | None = None) -> list[Chunk]:
    fold = Fold(continues)
    for chunk in chunks:
        fold.add(chunk)
    return list(fold.chunks())


def test_deltas_are_joined_where_their_part_began() -> None:
    assert folded(
        Start("m", {"a": 1}),
        StartStep(),
        TextStart("t"),
        ReasoningStart("t"),
        TextDelta("t", "a"),
        ReasoningDelta("t", "x", META),
        TextDelta("t", "b"),
        ReasoningDelta("t", "y"),
        TextEnd("t"),
        ReasoningEnd("t"),
        FinishStep(),
        StartStep(),
        TextStart("t"),
        TextDelta("t", "c"),
    ) == [
        Start("m"),
        MessageMetadata({"a": 1}),
        StartStep(),
        TextStart("t"),
        TextDelta("t", "ab"),
        ReasoningStart("t"),
        ReasoningDelta("t", "xy", META),
        TextEnd("t"),
        ReasoningEnd("t"),
        FinishStep(),
        StartStep(),
        TextStart("t"),
        TextDelta("t", "c"),
    ]


def test_only_the_last_of_each_value_is_kept() -> None:
    assert folded(
        Data("data-a", 1, "i"),
        Data("data-a", 2),
        Data("data-a", 3, "i"),
        Data("data-a", 4, "i", transient=True),
        ToolInputStart("c", "x"),
        ToolInputDelta("c", "{"),
        ToolInputAvailable("c", "x", {}),
        ToolOutputAvailable("c", 1, preliminary=True, provider_metadata=META, tool_metadata={"a": 1}),
        ToolOutputAvailable("c", 2, provider_executed=True),
        ToolOutputAvailable("c", 3),
        ToolInputStart("d", "x"),
        ToolInputDelta("d", "{"),
        ToolInputDelta("d", "}"),
        ToolOutputError("d", "no"),
        ToolOutputAvailable("d", 1),
    ) == [
        Start(),
        Data("data-a", 3, "i"),
        Data("data-a", 2),
        ToolInputStart("c", "x"),
        ToolInputAvailable("c", "x", {}),
        ToolOutputAvailable("c", 3, provider_executed=True, provider_metadata=META, tool_metadata={"a": 1}),
        ToolInputStart("d", "x"),
        ToolInputDelta("d", "{}"),
        ToolOutputError("d", "no"),
        ToolOutputAvailable("d", 1),
    ]


def test_nothing_is_joined_across_a_reset() -> None:
    before: list[Chunk] = [
        StartStep(),
        TextStart("t"),
        TextDelta("t", "x"),
        Data("data-x", 1, "i"),
        ToolInputAvailable("a", "x", 1),
        ToolOutputAvailable("a", 1),
        ResetStep(),
    ]
    after: list[Chunk] = [
        Data("data-x", 2, "i"),
        ToolInputAvailable("a", "x", 1),
        ToolOutputAvailable("a", 2),
        TextStart("t"),
        TextDelta("t", "y"),
        Finish("stop"),
    ]
    assert folded(Start("m"), *before, *after) == [Start("m"), *before, *after]


def test_a_continued_message_stands_before_the_turn() -> None:
    parts: list[dict[str, Any]] = [
        {"type": "step-start"},
        {"type": "text", "text": "x", "state": "done"},
        {"type": "tool-a", "toolCallId": "a", "state": "input-available", "input": 1},
    ]
    before = UIMessage(id="m", role="assistant", parts=parts, metadata={"a": 1})
    turn = [Start("m"), ToolOutputAvailable("a", 2), ToolApprovalResponse("elsewhere", approved=True)]
    earlier = [StartStep(), TextStart("before-1"), TextDelta("before-1", "x"), TextEnd("before-1")]
    assert folded(*turn, continues=before) == [
        Start("m", {"a": 1}),
        *earlier,
        ToolInputAvailable("a", "a", 1),
        *turn[1:],
    ]
    assert folded(Start(), continues=before)[0] == Start("m", {"a": 1})


PARTS: list[dict[str, Any]] = [
    {"type": "text", "text": "", "state": "streaming", "providerMetadata": META},
    {
        "type": "text",
        "text": "x",
        "state": "done",
        "citations": [{"source": {"sourceType": "url", "id": "s", "url": "u", "type": "source"}}],
    },
    {"type": "reasoning", "id": "r", "text": "x", "state": "done"},
    {"type": "reasoning", "id": "s", "text": "", "state": "streaming"},
    {"type": "step-start"},
    {"type": "data-x", "data": 1, "id": "i"},
    {"type": "file", "mediaType": "text/plain", "url": "u"},
    {"type": "custom", "kind": "a.b"},
    {"type": "tool-x", "toolCallId": "a", "state": "input-streaming"},
    {"type": "tool-x", "toolCallId": "b", "state": "input-streaming", "rawInput": "[1", "input": [1]},
    {
        "type": "tool-x",
        "toolCallId": "c",
        "state": "output-error",
        "rawInput": "[1",
        "input": "[1",
        "errorText": "no",
    },
    {
        "type": "dynamic-tool",
        "toolName": "x",
        "toolCallId": "d",
        "state": "output-available",
        "input": 1,
        "output": None,
        "title": "T",
        "preliminary": True,
        "providerExecuted": True,
        "callProviderMetadata": META,
        "resultProviderMetadata": META,
        "toolMetadata": {"a": 1},
    },
    {
        "type": "tool-x",
        "toolCallId": "e",
        "state": "output-denied",
        "input": 1,
        "approval": {"id": "p", "requestReason": "why", "signature": "s", "approved": False, "reason": "no"},
    },
    {"type": "tool-x", "toolCallId": "f", "state": "approval-requested", "input": 1, "approval": {"id": "q"}},
]


def test_parts_are_built_again_as_they_were() -> None:
    reader = MessageReader()
    for chunk in chunks_of_parts(PARTS):
        reader.apply(chunk)
    assert reader.message.parts == PARTS


@pytest.mark.parametrize(
    ("part", "chunks"),
    [
        ({"rawInput": {"a": 1}}, [ToolInputError("c", "x", {"a": 1}, "bad")]),
        ({"rawInput": "[1]"}, [ToolInputError("c", "x", "[1]", "bad")]),
        (
            {"rawInput": 1, "title": "T", "resultProviderMetadata": META},
            [
                ToolInputStart("c", "x", title="T"),
                ToolInputError("c", "x", 1, "bad", title="T", provider_metadata=META),
            ],
        ),
        (
            {"rawInput": 1, "callProviderMetadata": META},
            [ToolInputStart("c", "x", provider_metadata=META), ToolInputError("c", "x", 1, "bad")],
        ),
        (
            {"rawInput": 1, "state": "output-available", "output": 2, "errorText": ""},
            [ToolInputError("c", "x", 1, ""), ToolOutputAvailable("c", 2)],
        ),
        ({"rawInput": "?"}, [ToolInputStart("c", "x"), ToolInputDelta("c", "?"), ToolOutputError("c", "bad")]),
    ],
)
def test_a_wrong_input_of_older_clients_is_told_as_one(part: dict[str, Any], chunks: list[Chunk]) -> None:
    wrong = {"type": "tool-x", "toolCallId": "c", "state": "output-error", "errorText": "bad", **part}
    assert list(chunks_of_parts([wrong])) == chunks


def test_a_part_that_no_chunk_builds_is_left_out() -> None:
    assert list(
        chunks_of_parts([{"type": "new"}, {"type": "text", "text": ""}, {"type": "reasoning", "text": "y"}])
    ) == [
        TextStart("before-1"),
        TextEnd("before-1"),
        ReasoningStart("before-2"),
        ReasoningDelta("before-2", "y"),
        ReasoningEnd("before-2"),
    ]


def test_citations_come_back_as_they_were() -> None:
    assert list(chunks_of_parts([PARTS[1]]))[-1] == TextEnd("before-0", citations=[Citation(UrlSource("s", "u"))])


def test_files_come_back_as_they_were() -> None:
    assert list(chunks_of_parts([PARTS[6]])) == [File("u", "text/plain")]
