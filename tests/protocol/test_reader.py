from typing import Any

import msgspec
import pytest

from usechat.errors import RemoteProtocolError
from usechat.protocol.chunks import (
    CHUNK_TYPES,
    Abort,
    Chunk,
    Citation,
    Custom,
    Data,
    Error,
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
    ToolApprovalRequest,
    ToolApprovalResponse,
    ToolInputAvailable,
    ToolInputDelta,
    ToolInputError,
    ToolInputStart,
    ToolOutputAvailable,
    ToolOutputDenied,
    ToolOutputError,
    UrlSource,
)
from usechat.protocol.codec import read_chunk
from usechat.protocol.messages import UIMessage
from usechat.protocol.reader import MessageReader

META = {"p": {"k": 1}}


def read(*chunks: Chunk, message: UIMessage | None = None) -> UIMessage:
    reader = MessageReader(message)
    for chunk in chunks:
        reader.apply(chunk)
    return reader.message


def parts(*chunks: Chunk) -> list[dict[str, Any]]:
    return read(*chunks).parts


def test_every_chunk_type_is_read() -> None:
    assert set(MessageReader.READS) == set(CHUNK_TYPES.values())


def test_text_grows_and_ends() -> None:
    reader = MessageReader()
    reader.feed(Start("m", {"a": 1}))
    reader.feed(StartStep())
    reader.feed(TextStart("t", META))
    assert reader.feed(TextDelta("t", "he")).parts[1] == {
        "type": "text",
        "text": "he",
        "state": "streaming",
        "providerMetadata": META,
    }
    reader.feed(TextDelta("t", "llo", {"p": {"k": 2}}))
    reader.feed(TextEnd("t", citations=[Citation(UrlSource("s", "u"), cited_text="x")]))
    reader.feed(FinishStep())
    reader.feed(Abort())
    assert msgspec.to_builtins(reader.feed(Finish("stop", {"b": 2}))) == {
        "id": "m",
        "role": "assistant",
        "metadata": {"a": 1, "b": 2},
        "parts": [
            {"type": "step-start"},
            {
                "type": "text",
                "text": "hello",
                "state": "done",
                "providerMetadata": {"p": {"k": 2}},
                "citations": [
                    {"source": {"sourceType": "url", "id": "s", "url": "u", "type": "source"}, "citedText": "x"}
                ],
            },
        ],
    }


def test_text_and_reasoning_ids_are_kept_apart() -> None:
    assert parts(
        TextStart("x"), ReasoningStart("x"), ReasoningDelta("x", "r"), TextDelta("x", "t"), ReasoningEnd("x")
    ) == [
        {"type": "text", "text": "t", "state": "streaming"},
        {"type": "reasoning", "id": "x", "text": "r", "state": "done"},
    ]


@pytest.mark.parametrize(
    ("first", "second", "merged"),
    [
        ({"a": {"b": 1, "c": [1]}}, {"a": {"c": [2], "d": None}}, {"a": {"b": 1, "c": [2], "d": None}}),
        ({"a": 1}, None, {"a": 1}),
        ({"a": 1}, {"constructor": 1, "prototype": 2}, {"a": 1}),
        ({"a": 1}, [5], {"a": 1, "0": 5}),
        ("ab", {}, {"0": "a", "1": "b"}),
        ({"a": 1}, "😀", {"a": 1, "0": "\ud83d", "1": "\ude00"}),
        (7, {}, {}),
        (None, [1], [1]),
    ],
)
def test_metadata_is_merged_as_the_client_does(first: Any, second: Any, merged: Any) -> None:
    assert read(MessageMetadata(first), MessageMetadata(second)).metadata == merged


@pytest.mark.parametrize("base", [7, "ab", True])
def test_metadata_that_the_client_cannot_merge_raises(base: Any) -> None:
    with pytest.raises(RemoteProtocolError, match="not an object"):
        read(MessageMetadata(base), MessageMetadata({"a": 1}))


def test_data_with_an_id_is_replaced_and_transient_data_is_left_out() -> None:
    assert parts(
        Data("data-a", 1, "i"),
        Data("data-b", 1, "i"),
        Data("data-a", 2, "i", transient=False),
        Data("data-a", 3),
        Data("data-a", 4, "i", transient=True),
        File("u", "text/plain"),
        Custom("openai.x"),
    ) == [
        {"type": "data-a", "id": "i", "data": 2},
        {"type": "data-b", "id": "i", "data": 1},
        {"type": "data-a", "data": 3},
        {"type": "file", "url": "u", "mediaType": "text/plain"},
        {"type": "custom", "kind": "openai.x"},
    ]


def test_a_tool_call_from_its_first_letter_to_its_result() -> None:
    reader = MessageReader()
    reader.feed(ToolInputStart("c", "search", title="T", provider_metadata=META, tool_metadata={"x": 1}))
    call = {
        "type": "tool-search",
        "toolCallId": "c",
        "title": "T",
        "callProviderMetadata": META,
        "toolMetadata": {"x": 1},
    }
    assert reader.feed(ToolInputDelta("c", '{"q": "a')).parts == [
        {**call, "state": "input-streaming", "input": {"q": "a"}, "rawInput": '{"q": "a'}
    ]
    assert reader.feed(ToolInputDelta("c", "\\")).parts[0]["rawInput"] == '{"q": "a\\'
    assert reader.feed(ToolInputAvailable("c", "search", {"q": "ab"}, provider_executed=True)).parts == [
        {**call, "state": "input-available", "input": {"q": "ab"}, "providerExecuted": True}
    ]
    output = ToolOutputAvailable("c", 1, preliminary=True, provider_metadata={"r": {}}, tool_metadata={"y": 2})
    done: dict[str, Any] = {**call, "input": {"q": "ab"}, "providerExecuted": True, "resultProviderMetadata": {"r": {}}}
    assert reader.feed(output).parts == [
        {**done, "state": "output-available", "output": 1, "preliminary": True, "toolMetadata": {"y": 2}}
    ]
    assert reader.feed(ToolOutputAvailable("c", None)).parts == [
        {**done, "state": "output-available", "output": None, "toolMetadata": {"y": 2}}
    ]


def test_an_input_that_is_no_json_yet_is_none() -> None:
    (part,) = parts(ToolInputStart("c", "x"), ToolInputDelta("c", "?"))
    assert part == {"type": "tool-x", "toolCallId": "c", "state": "input-streaming", "rawInput": "?"}


def test_deltas_may_be_added_without_chunks() -> None:
    reader = MessageReader()
    for chunk in (TextStart("t"), TextDelta("t", "a")):
        reader.apply(chunk)
    deltas = reader.deltas_of("t")
    deltas += ["b", "c"]
    assert reader.message.parts[0]["text"] == "abc"
    deltas.append("d")
    reader.apply(TextEnd("t"))
    assert reader.message.parts == [{"type": "text", "text": "abcd", "state": "done"}]


def test_input_as_text_is_not_parsed() -> None:
    assert parts(ToolInputStart("c", "x", input_encoding="text"), ToolInputDelta("c", "[1")) == [
        {
            "type": "tool-x",
            "toolCallId": "c",
            "state": "input-streaming",
            "inputEncoding": "text",
            "input": "[1",
            "rawInput": "[1",
        }
    ]


def test_a_failed_call_keeps_what_was_streamed() -> None:
    begin = [ToolInputStart("c", "x"), ToolInputDelta("c", "[1"), ToolOutputError("c", "no")]
    failed = {"toolCallId": "c", "state": "output-error", "input": [1], "errorText": "no"}
    assert parts(*begin) == [{"type": "tool-x", "rawInput": "[1", **failed}]
    dynamic = [
        ToolInputStart("c", "x", dynamic=True),
        ToolInputDelta("c", "[1"),
        ToolOutputError("c", "no", dynamic=True),
    ]
    assert parts(*dynamic) == [{"type": "dynamic-tool", "toolName": "x", **failed}]


def test_a_wrong_input_is_an_error_of_the_call() -> None:
    assert parts(ToolInputStart("c", "x", dynamic=True), ToolInputError("c", "x", "?", "bad", title="ignored")) == [
        {
            "type": "dynamic-tool",
            "toolName": "x",
            "toolCallId": "c",
            "state": "output-error",
            "input": "?",
            "errorText": "bad",
        }
    ]


def test_results_find_their_call_in_an_earlier_step() -> None:
    assert parts(
        ToolInputAvailable("c", "x", 1), StartStep(), ToolInputAvailable("d", "x", 1), ToolOutputAvailable("c", 2)
    ) == [
        {"type": "tool-x", "toolCallId": "c", "state": "output-available", "input": 1, "output": 2},
        {"type": "step-start"},
        {"type": "tool-x", "toolCallId": "d", "state": "input-available", "input": 1},
    ]


def test_approvals_and_their_answers() -> None:
    asked = [
        ToolInputAvailable("c", "rm", 1),
        ToolApprovalRequest("a", "c", "sig", "why", True, {"d": 1}, None),
    ]
    approval = {
        "id": "a",
        "signature": "sig",
        "requestReason": "why",
        "isAutomatic": True,
        "descriptor": {"d": 1},
        "inputSchemaInput": None,
    }
    call = {"type": "tool-rm", "toolCallId": "c", "input": 1}
    assert parts(*asked) == [{**call, "state": "approval-requested", "approval": approval}]
    answer = ToolApprovalResponse("a", False, "no", True, META)
    answered = {
        **call,
        "approval": {**approval, "approved": False, "reason": "no"},
        "providerExecuted": True,
        "callProviderMetadata": META,
    }
    assert parts(*asked, answer) == [{**answered, "state": "approval-responded"}]
    assert parts(*asked, answer, ToolOutputDenied("c")) == [{**answered, "state": "output-denied"}]
    plain = ToolApprovalRequest("a", "c", is_automatic=False, approval_descriptor=None)
    assert parts(asked[0], plain)[0]["approval"] == {"id": "a"}


def test_data_with_the_id_of_a_part_that_a_reset_has_dropped_is_a_new_part() -> None:
    step = {"type": "step-start"}
    first, second = Data("data-a", 1, "kept"), Data("data-a", 1, "dropped")
    again = Data("data-a", 2, "kept"), Data("data-a", 2, "dropped")
    assert parts(StartStep(), first, StartStep(), second, ResetStep(), *again) == [
        step,
        {"type": "data-a", "id": "kept", "data": 2},
        step,
        {"type": "data-a", "id": "dropped", "data": 2},
    ]


def test_data_replaces_the_first_part_of_a_continued_message_that_has_its_type_and_id() -> None:
    old = [{"type": "data-a", "id": "i", "data": 1}, {"type": "data-a", "id": "i", "data": 1}, {"type": "data-a"}]
    after = read(Data("data-a", 2, "i"), message=UIMessage("m", "assistant", old))
    assert after.parts == [{"type": "data-a", "id": "i", "data": 2}, *old[1:]]


def test_a_reset_drops_the_parts_of_the_step() -> None:
    assert parts(
        StartStep(), TextStart("t"), TextEnd("t"), StartStep(), ToolInputStart("c", "x"), TextStart("u"), ResetStep()
    ) == [{"type": "step-start"}, {"type": "text", "text": "", "state": "done"}, {"type": "step-start"}]


def test_nothing_is_read_after_an_error() -> None:
    assert parts(Start(), TextStart("t"), Error("x"), TextDelta("t", "y"), TextEnd("gone")) == [
        {"type": "text", "text": "", "state": "streaming"}
    ]


def test_a_continued_message_is_copied_and_goes_on() -> None:
    before = UIMessage(
        id="m",
        role="assistant",
        metadata={"a": 1},
        parts=[
            {"type": "tool-old", "toolCallId": "o", "state": "input-streaming"},
            {"type": "step-start"},
            {"type": "text", "text": "x"},
            {"type": "tool-x", "toolCallId": "c", "state": "input-streaming", "rawInput": "[1", "input": [1]},
            {"type": "tool-x", "toolCallId": "d", "state": "input-available", "input": 1},
        ],
    )
    copy = msgspec.convert(msgspec.to_builtins(before), UIMessage)
    after = read(Start("m"), ToolInputDelta("c", ",2"), ToolOutputAvailable("d", 3), message=before)
    assert before == copy
    assert (after.id, after.metadata, after.parts[3:]) == (
        "m",
        {"a": 1},
        [
            {"type": "tool-x", "toolCallId": "c", "state": "input-streaming", "rawInput": "[1,2", "input": [1, 2]},
            {"type": "tool-x", "toolCallId": "d", "state": "output-available", "input": 1, "output": 3},
        ],
    )


@pytest.mark.parametrize(
    ("chunk", "rule"),
    [
        (TextDelta("t", "x"), "part-not-open"),
        (ReasoningEnd("t"), "part-not-open"),
        (ToolInputDelta("c", "x"), "call-unknown"),
        (ToolOutputAvailable("c", "x"), "call-unknown"),
        (ToolOutputDenied("c"), "call-unknown"),
        (ToolApprovalRequest("a", "c"), "call-unknown"),
        (ToolApprovalResponse("a", True), "approval-unknown"),
    ],
)
def test_what_makes_the_client_throw_raises(chunk: Chunk, rule: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        read(TextStart("other"), ToolInputAvailable("other", "x", 1), chunk)
    assert caught.value.rule == rule


def test_more_of_an_input_that_was_whole_makes_it_stream_again() -> None:
    begun = [ToolInputStart("c", "x", title="T", provider_executed=True), ToolInputDelta("c", "[1")]
    whole = ToolInputAvailable("c", "x", [1], provider_metadata=META)
    part = {"type": "tool-x", "toolCallId": "c", "title": "T", "providerExecuted": True}
    streaming = {**part, "state": "input-streaming", "input": [1, 2], "rawInput": "[1,2"}
    assert parts(*begun, whole, ToolInputDelta("c", ",2")) == [{**streaming, "callProviderMetadata": META}]
    assert parts(*begun, ToolOutputAvailable("c", 5), ToolInputDelta("c", ",2")) == [streaming]
    asked = [*begun, ToolApprovalRequest("a", "c"), ToolApprovalResponse("a", approved=True), ToolInputDelta("c", ",2")]
    assert parts(*asked) == [{**streaming, "approval": {"id": "a", "approved": True}}]


@pytest.mark.parametrize(
    "more", [ToolInputDelta("c", "]"), ToolInputAvailable("c", "x", [1]), ToolInputStart("c", "x")]
)
def test_an_input_that_goes_on_in_another_step_is_another_part(more: Chunk) -> None:
    first, step, second = parts(ToolInputStart("c", "x"), ToolInputDelta("c", "[1"), StartStep(), more)
    assert first == {
        "type": "tool-x",
        "toolCallId": "c",
        "state": "input-streaming",
        "input": [1],
        "rawInput": "[1",
    }
    assert (step, second["toolCallId"]) == ({"type": "step-start"}, "c")


def test_what_began_in_an_earlier_step_keeps_its_text_after_a_reset() -> None:
    kept = [TextStart("t"), TextDelta("t", "x"), StartStep(), TextDelta("t", "y"), ResetStep()]
    assert parts(*kept) == [{"type": "text", "text": "xy", "state": "streaming"}, {"type": "step-start"}]


def test_a_part_that_begins_twice_is_two_parts() -> None:
    twice = parts(TextStart("t"), TextDelta("t", "x"), TextStart("t"), TextDelta("t", "y"), TextEnd("t"))
    assert twice == [
        {"type": "text", "text": "x", "state": "streaming"},
        {"type": "text", "text": "y", "state": "done"},
    ]


def test_a_start_with_another_id_renames_a_continued_message() -> None:
    continued = UIMessage("m", "assistant", [{"type": "text", "text": "x"}])
    assert read(Start("n"), message=continued) == UIMessage("n", "assistant", [{"type": "text", "text": "x"}])


def test_older_majors_have_other_fields() -> None:
    wrong = {"type": "tool-x", "toolCallId": "c", "state": "output-error", "errorText": "bad"}
    dynamic = {"type": "dynamic-tool", "toolName": "x", "toolCallId": "d", "state": "output-available", "output": 1}
    chunks: list[Chunk] = [
        ToolInputError("c", "x", "?", "bad"),
        ToolInputAvailable("d", "x", 0, dynamic=True),
        ToolOutputAvailable("d", 1, dynamic=True, provider_executed=True),
        File("u", "a/b", META),
    ]
    file = {"type": "file", "url": "u", "mediaType": "a/b"}
    expected = {
        5: [{**wrong, "rawInput": "?"}, {**dynamic, "input": 0}, file],
        6: [
            {**wrong, "rawInput": "?"},
            {**dynamic, "input": 0, "providerExecuted": True},
            {**file, "providerMetadata": META},
        ],
    }
    for major, message in expected.items():
        reader = MessageReader(major=major)
        for chunk in chunks:
            reader.apply(chunk)
        assert reader.message.parts == message


def test_a_chunk_of_the_wire_leaves_its_unknown_fields_in_data_and_steering_parts() -> None:
    reader = MessageReader()
    for wire in (
        {"type": "data-a", "data": 1, "id": "1", "more": 1},
        {"type": "data-a", "data": 2, "id": "1", "other": 2},
        {"type": "steering-message", "id": "s", "parts": [{"type": "text", "text": "x", "more": 3}], "more": 4},
        {"type": "custom", "kind": "a.b", "more": 5},
    ):
        reader.apply_wire(read_chunk(wire).chunk, wire)
    assert reader.message.parts == [
        {"type": "data-a", "data": 2, "id": "1", "more": 1},
        {"type": "steering-message", "id": "s", "parts": [{"type": "text", "text": "x", "more": 3}]},
        {"type": "custom", "kind": "a.b"},
    ]
