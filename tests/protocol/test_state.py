from collections.abc import Sequence
from typing import Any

import pytest

from usechat.errors import LocalProtocolError
from usechat.protocol.chunks import (
    CHUNK_TYPES,
    Abort,
    Chunk,
    Data,
    Error,
    Finish,
    FinishStep,
    MessageMetadata,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    ResetStep,
    SourceUrl,
    Start,
    StartStep,
    TextDelta,
    TextEnd,
    TextStart,
    ToolApprovalRequest,
    ToolApprovalResponse,
    ToolInputAvailable,
    ToolInputDelta,
    ToolInputError,
    ToolInputStart,
    ToolOutputAvailable,
    ToolOutputDenied,
    ToolOutputError,
)
from usechat.protocol.state import StreamState
from usechat.protocol.tables import ANYTIME, CALLS, MESSAGE, PARTS

INPUT = ToolInputAvailable("c", "search", {})
OUTPUT = ToolOutputAvailable("c", 1)
CALL_THAT_WAITS: dict[str, Any] = {"type": "tool-search", "toolCallId": "c", "state": "input-available", "input": {}}


def state_after(chunks: Sequence[Chunk], parts: Sequence[dict[str, Any]] = ()) -> StreamState:
    state = StreamState(parts=parts)
    for chunk in chunks:
        state.apply(chunk)
    return state


def snapshot(state: StreamState) -> dict[str, Any]:
    values = dict(vars(state))
    values["calls"] = {id_: (call.state, call.provider_executed) for id_, call in state.calls.items()}
    values["here"] = [call.id for call in state.here]
    values["approvals"] = {id_: call.id for id_, call in state.approvals.items()}
    return {name: value.copy() if isinstance(value, dict) else value for name, value in values.items()}  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def test_every_chunk_type_stands_in_exactly_one_table() -> None:
    calls = {move.partition(",")[0] for move in CALLS}
    rows = [*(MESSAGE.keys() - {"any other"}), *PARTS, *calls, *ANYTIME]
    assert sorted(rows) == sorted(CHUNK_TYPES)


def test_a_whole_turn_is_legal() -> None:
    state = state_after(
        [
            Start("m"),
            StartStep(),
            ReasoningStart("r"),
            ReasoningDelta("r", "hm"),
            ReasoningEnd("r"),
            ToolInputStart("c", "search"),
            ToolInputDelta("c", "{}"),
            INPUT,
            OUTPUT,
            FinishStep(),
            StartStep(),
            TextStart("t"),
            TextDelta("t", "hi"),
            TextEnd("t"),
            FinishStep(),
            Finish("stop"),
        ]
    )
    assert (state.phase, state.step, state.text, state.calls["c"].state) == ("ended", 2, {}, "done")


ILLEGAL: Sequence[tuple[str, Sequence[Chunk], Chunk]] = [
    ("late-start", [Start("m"), TextStart("t")], Start("other")),
    ("late-start", [TextStart("t"), TextDelta("t", "x")], Start("m")),
    ("late-start", [Start("m"), Start("m")], Start("other")),
    ("late-start", [Start("m"), MessageMetadata({})], Start("other")),
    ("late-start", [Start(message_metadata={}), Start("m")], Start("other")),
    ("after-end", [Finish()], TextStart("t")),
    ("after-end", [Abort()], Finish()),
    ("after-end", [Finish()], INPUT),
    ("after-error", [Error("x")], MessageMetadata({})),
    ("part-not-open", [], TextDelta("t", "x")),
    ("part-not-open", [], TextEnd("t")),
    ("part-not-open", [TextStart("t")], ReasoningDelta("t", "x")),
    ("part-not-open", [TextStart("t"), TextEnd("t")], TextDelta("t", "x")),
    ("part-not-open", [TextStart("t"), ResetStep()], TextDelta("t", "x")),
    ("part-open-twice", [TextStart("t")], TextStart("t")),
    ("part-open-twice", [ReasoningStart("t")], ReasoningStart("t")),
    ("part-left-open", [TextStart("t")], FinishStep()),
    ("part-left-open", [ReasoningStart("t")], Finish()),
    ("part-left-open", [TextStart("t")], Abort()),
    ("part-left-open", [TextStart("t")], Error("x")),
    ("call-unknown", [], OUTPUT),
    ("call-unknown", [], ToolOutputError("c", "x")),
    ("call-unknown", [], ToolInputDelta("c", "x")),
    ("call-unknown", [], ToolOutputDenied("c")),
    ("call-unknown", [], ToolApprovalRequest("a", "c")),
    ("call-unknown", [StartStep(), INPUT, ResetStep()], OUTPUT),
    ("call-twice", [INPUT], INPUT),
    ("call-twice", [INPUT], ToolInputStart("c", "search")),
    ("call-twice", [ToolInputStart("c", "search")], ToolInputStart("c", "search")),
    ("call-twice", [INPUT, OUTPUT, StartStep()], ToolInputError("c", "search", {}, "x")),
    ("call-order", [INPUT], ToolInputDelta("c", "x")),
    ("call-order", [INPUT], ToolOutputDenied("c")),
    ("call-order", [ToolInputError("c", "search", {}, "x")], OUTPUT),
    ("call-order", [INPUT, OUTPUT], ToolApprovalRequest("a", "c")),
    ("call-order", [INPUT, ToolApprovalRequest("a", "c")], OUTPUT),
    ("call-order", [INPUT, ToolApprovalRequest("a", "c"), ToolApprovalResponse("a", approved=False)], OUTPUT),
    ("call-changed", [ToolInputStart("c", "search")], ToolInputAvailable("c", "other", {})),
    ("call-changed", [ToolInputStart("c", "search")], ToolInputAvailable("c", "search", {}, dynamic=True)),
    ("call-changed", [INPUT], ToolOutputAvailable("c", 1, dynamic=True)),
    ("call-across-steps", [ToolInputStart("c", "search"), StartStep()], INPUT),
    ("call-across-steps", [ToolInputStart("c", "search"), StartStep()], ToolInputDelta("c", "x")),
    ("call-left-open", [ToolInputStart("c", "search")], Finish()),
    ("call-left-open", [ToolInputStart("c", "search"), ToolInputDelta("c", "{")], Abort()),
    ("approval-unknown", [INPUT], ToolApprovalResponse("a", approved=True)),
    (
        "approval-twice",
        [INPUT, ToolInputAvailable("d", "x", {}), ToolApprovalRequest("a", "c")],
        ToolApprovalRequest("a", "d"),
    ),
    ("resubmits", [INPUT, OUTPUT], Finish("stop")),
    ("resubmits", [INPUT, OUTPUT], Abort()),
    ("resubmits", [INPUT, ToolOutputAvailable("c", 1, preliminary=True)], Finish("stop")),
    ("resubmits", [INPUT, OUTPUT, StartStep()], Finish("stop")),
    ("resubmits", [INPUT, OUTPUT, StartStep(), MessageMetadata(None)], Finish("stop")),
    ("resubmits", [INPUT, OUTPUT, StartStep(), Data("data-x", 1, transient=True)], Finish("stop")),
]


@pytest.mark.parametrize(("rule", "before", "chunk"), ILLEGAL)
def test_an_illegal_chunk_raises_and_changes_nothing(rule: str, before: Sequence[Chunk], chunk: Chunk) -> None:
    state = state_after(before)
    known = snapshot(state)
    with pytest.raises(LocalProtocolError) as caught:
        state.apply(chunk)
    assert caught.value.rule == rule
    assert snapshot(state) == known


LEGAL: Sequence[Sequence[Chunk]] = [
    [Start("m"), Start("other"), Start(), Start("other"), TextStart("t"), Start("other")],
    [FinishStep(), StartStep(), StartStep(), FinishStep(), Finish()],
    [TextStart("t"), ReasoningStart("t"), StartStep(), TextEnd("t"), ReasoningEnd("t"), Abort()],
    [INPUT, StartStep(), OUTPUT, ToolOutputAvailable("c", 2), Finish()],
    [INPUT, OUTPUT, StartStep(), MessageMetadata({}), Finish()],
    [INPUT, OUTPUT, StartStep(), Finish("stop", {})],
    [INPUT, OUTPUT, StartStep(), SourceUrl("s", "u"), Finish()],
    [INPUT, OUTPUT, Error("x")],
    [INPUT, ToolOutputAvailable("c", 1, provider_executed=True), Finish()],
    [ToolInputAvailable("c", "search", {}, provider_executed=True), OUTPUT, Finish()],
    [INPUT, Finish("tool-calls")],
    [ToolInputStart("c", "a", dynamic=True), ToolInputAvailable("c", "b", {}, dynamic=True), Finish()],
    [ToolInputStart("c", "a"), ToolOutputError("c", "x"), StartStep(), MessageMetadata({}), Finish()],
    [INPUT, ToolApprovalRequest("a", "c"), ToolApprovalRequest("b", "c"), ToolApprovalRequest("b", "c"), Finish()],
    [
        INPUT,
        ToolApprovalRequest("a", "c"),
        ToolApprovalResponse("a", approved=True, provider_executed=True),
        OUTPUT,
        Finish(),
    ],
    [INPUT, ToolApprovalRequest("a", "c"), ToolApprovalResponse("a", approved=False), ToolOutputDenied("c"), Finish()],
    [StartStep(), INPUT, ResetStep(), INPUT, Finish()],
]


@pytest.mark.parametrize("chunks", LEGAL)
def test_what_every_client_takes_is_legal(chunks: Sequence[Chunk]) -> None:
    state_after(chunks)


def test_an_approval_that_is_asked_again_has_only_its_new_id() -> None:
    state = state_after([INPUT, ToolApprovalRequest("a", "c"), ToolApprovalRequest("b", "c")])
    assert list(state.approvals) == ["b"]


def test_a_continued_message_brings_its_calls() -> None:
    parts: list[dict[str, Any]] = [
        {"type": "step-start"},
        {"type": "text", "text": "x"},
        {"type": "tool-a", "toolCallId": "a", "state": "output-available", "output": 1, "providerExecuted": True},
        {"type": "step-start"},
        {"type": "dynamic-tool", "toolName": "b", "toolCallId": "b", "state": "output-available", "preliminary": True},
        {"type": "tool-c", "toolCallId": "c", "state": "approval-responded", "approval": {"id": "p", "approved": True}},
        {
            "type": "tool-d",
            "toolCallId": "d",
            "state": "approval-responded",
            "approval": {"id": "q", "approved": False},
        },
        {"type": "tool-e", "toolCallId": "e", "state": "approval-requested", "approval": {"id": "r"}},
    ]
    state = StreamState("m", parts)
    assert [(call.id, call.name, call.dynamic, call.step, call.state) for call in state.calls.values()] == [
        ("a", "a", False, 1, "done"),
        ("b", "b", True, 2, "preliminary"),
        ("c", "c", False, 2, "approved"),
        ("d", "d", False, 2, "refused"),
        ("e", "e", False, 2, "requested"),
    ]
    assert [call.id for call in state.here] == ["b", "c", "d", "e"]
    assert {id_: call.id for id_, call in state.approvals.items()} == {"p": "c", "q": "d", "r": "e"}
    assert state.calls["a"].provider_executed


def test_only_a_whole_input_follows_one_that_an_earlier_stream_began() -> None:
    begun: dict[str, Any] = {"type": "tool-search", "toolCallId": "c", "state": "input-streaming"}
    with pytest.raises(LocalProtocolError, match="which is cut"):
        state_after([ToolInputDelta("c", "{}")], [begun])
    assert state_after([INPUT], [begun]).calls["c"].state == "available"


def test_a_continuation_may_answer_calls_of_the_message() -> None:
    state = state_after([Start("m"), OUTPUT, StartStep(), MessageMetadata({}), Finish()], [CALL_THAT_WAITS])
    assert state.phase == "ended"
