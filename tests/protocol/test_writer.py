from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from msgspec import UNSET

from usechat.errors import LocalProtocolError
from usechat.protocol.chunks import (
    Abort,
    Chunk,
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
    SourceDocument,
    SourceUrl,
    Start,
    StartStep,
    TextDelta,
    TextEnd,
    TextStart,
    ToolApprovalRequest,
    ToolInputAvailable,
    ToolInputDelta,
    ToolInputError,
    ToolInputStart,
    ToolOutputAvailable,
    ToolOutputDenied,
    ToolOutputError,
)
from usechat.protocol.clients import ClientName
from usechat.protocol.messages import UIMessage
from usechat.protocol.state import closing
from usechat.protocol.writer import MessageWriter

QUIET_STEP: list[Chunk] = [StartStep(), MessageMetadata({}), FinishStep()]


@pytest.fixture
def writer(new_id: Callable[[], str]) -> MessageWriter:
    return MessageWriter("m", new_id=new_id)


def continuing(new_id: Callable[[], str], *parts: dict[str, Any], client: ClientName = "portable") -> MessageWriter:
    message = UIMessage(id="a-1", role="assistant", parts=[{"type": "step-start"}, *parts])
    return MessageWriter("unused", new_id=new_id, client=client, continues=message)


def test_the_first_text_opens_message_step_and_part(writer: MessageWriter) -> None:
    assert writer.text("hel") == [Start("m"), StartStep(), TextStart("id-1"), TextDelta("id-1", "hel")]
    assert writer.text("lo") == [TextDelta("id-1", "lo")]
    assert writer.text("") == []
    assert writer.finish() == [TextEnd("id-1"), FinishStep(), Finish("stop")]


def test_a_delta_flows_only_where_the_last_text_stopped(writer: MessageWriter) -> None:
    assert writer.flow("a") is None
    writer.text("a")
    assert (writer.flow("b"), writer.flow("é😀"), writer.flow(""), writer.flow("\ud800")) == (
        "id-1",
        "id-1",
        None,
        None,
    )
    writer.text("\ud83d")
    assert writer.flow("b") is None
    writer.text("\ude00")
    writer.text("c")
    assert writer.flow("b") == "id-1"
    for write in (
        lambda: writer.data("x", 1),
        lambda: writer.text("a", "another lane"),
        lambda: writer.reasoning("a"),
        writer.end_part,
        writer.finish,
    ):
        writer.text("c")
        write()
        assert writer.flow("b") is None


def test_start_may_bring_metadata_and_later_metadata_follows(writer: MessageWriter) -> None:
    assert writer.start({"model": "x"}) == [Start("m", {"model": "x"})]
    assert writer.start() == []
    assert writer.send(Start("other", {"a": 1})) == [MessageMetadata({"a": 1})]
    assert writer.metadata({"b": 2}) == [MessageMetadata({"b": 2})]
    assert writer.finish("length", {"c": 3}) == [Finish("length", {"c": 3})]


def test_metadata_must_be_an_object(writer: MessageWriter) -> None:
    for write in (partial(writer.start, "text"), partial(writer.metadata, 7), partial(writer.send, Finish("stop", []))):
        with pytest.raises(LocalProtocolError, match="must be an object"):
            write()
    assert writer.send(MessageMetadata(None)) == [Start("m"), MessageMetadata(None)]


def test_text_and_reasoning_close_each_other(writer: MessageWriter) -> None:
    writer.reasoning("hm")
    assert writer.text("so") == [ReasoningEnd("id-1"), TextStart("id-2"), TextDelta("id-2", "so")]
    assert writer.reasoning("but") == [TextEnd("id-2"), ReasoningStart("id-3"), ReasoningDelta("id-3", "but")]


def test_a_part_may_be_ended_by_hand(writer: MessageWriter) -> None:
    writer.text("one")
    assert writer.end_part() == [TextEnd("id-1")]
    assert writer.end_part() == []
    assert writer.text("two") == [TextStart("id-2"), TextDelta("id-2", "two")]


def test_a_character_cut_in_two_arrives_whole(writer: MessageWriter) -> None:
    writer.text("a\ud83d")
    assert writer.text("\ude00") == [TextDelta("id-1", "\U0001f600")]
    assert writer.text("\ud83d") == []
    assert writer.finish() == [TextDelta("id-1", "\ufffd"), TextEnd("id-1"), FinishStep(), Finish("stop")]


def test_a_character_cut_in_two_stays_in_its_own_part(writer: MessageWriter) -> None:
    writer.reasoning("hm")
    assert writer.text("\ud83d") == []
    assert writer.text("\ude00") == [ReasoningEnd("id-1"), TextStart("id-2"), TextDelta("id-2", "\U0001f600")]


def test_a_tool_call_closes_the_text_before_it(writer: MessageWriter) -> None:
    writer.text("let me see")
    assert writer.tool_input_start("c", "search", title="Search") == [
        TextEnd("id-1"),
        ToolInputStart("c", "search"),
    ]
    assert writer.tool_input_delta("c", '{"q":"\ud83d') == [ToolInputDelta("c", '{"q":"')]
    assert writer.tool_input_delta("c", '\ude00"}') == [ToolInputDelta("c", '\U0001f600"}')]
    assert writer.tool_input("c", "search", {"q": 1}) == [ToolInputAvailable("c", "search", {"q": 1})]
    assert writer.tool_output("c", 5, preliminary=True) == [ToolOutputAvailable("c", 5, preliminary=True)]
    assert writer.tool_output("c", None) == [ToolOutputAvailable("c", None)]


def test_a_step_stands_between_results_and_what_follows(writer: MessageWriter) -> None:
    writer.tool_input("a", "search", {})
    assert writer.tool_input("b", "search", {}) == [ToolInputAvailable("b", "search", {})]
    writer.tool_output("a", 1)
    assert writer.text("one is in") == [TextStart("id-1"), TextDelta("id-1", "one is in")]
    writer.tool_error("b", "no")
    assert writer.data("progress", 1) == [Data("data-progress", 1)]
    assert writer.metadata({}) == [MessageMetadata({})]
    assert writer.text("both") == [
        TextEnd("id-1"),
        FinishStep(),
        StartStep(),
        TextStart("id-2"),
        TextDelta("id-2", "both"),
    ]


def test_results_of_the_provider_cause_no_step(writer: MessageWriter) -> None:
    writer.tool_input("c", "web", {}, provider_executed=True)
    writer.tool_output("c", 1)
    assert writer.text("x") == [TextStart("id-1"), TextDelta("id-1", "x")]
    assert writer.finish() == [TextEnd("id-1"), FinishStep(), Finish("stop")]


def test_the_first_release_posts_again_after_results_of_the_provider_too(new_id: Callable[[], str]) -> None:
    writer = MessageWriter("m", new_id=new_id, client="v5")
    writer.tool_input("c", "web", {}, provider_executed=True)
    writer.tool_output("c", 1)
    assert writer.finish() == [FinishStep(), *QUIET_STEP, Finish()]


def test_a_later_v5_posts_again_although_a_call_of_the_provider_is_open(new_id: Callable[[], str]) -> None:
    writer = MessageWriter("m", new_id=new_id, client="v5")
    writer.tool_input("a", "web", {}, provider_executed=True)
    writer.tool_input("b", "search", {})
    writer.tool_output("b", 1)
    assert writer.finish("tool-calls") == [FinishStep(), *QUIET_STEP, Finish()]


def test_a_turn_that_ends_on_a_result_opens_one_more_step(writer: MessageWriter) -> None:
    writer.tool_input("c", "search", {})
    writer.tool_output("c", 1)
    assert writer.finish() == [FinishStep(), *QUIET_STEP, Finish("stop")]


def test_lanes_keep_apart_and_a_step_closes_all(writer: MessageWriter) -> None:
    writer.text("a1", lane="a")
    assert writer.text("b1", lane="b") == [TextStart("id-2"), TextDelta("id-2", "b1")]
    assert writer.text("a2", lane="a") == [TextDelta("id-1", "a2")]
    assert writer.tool_input("c", "search", {}, lane="b") == [TextEnd("id-2"), ToolInputAvailable("c", "search", {})]
    assert writer.text("a3", lane="a") == [TextDelta("id-1", "a3")]
    writer.tool_output("c", 1)
    assert writer.text("b2", lane="b") == [
        TextEnd("id-1"),
        FinishStep(),
        StartStep(),
        TextStart("id-3"),
        TextDelta("id-3", "b2"),
    ]
    assert writer.text("a4", lane="a") == [TextStart("id-4"), TextDelta("id-4", "a4")]


def test_steps_by_hand(writer: MessageWriter) -> None:
    assert writer.step() == [Start("m"), StartStep()]
    assert writer.step() == []
    writer.text("x")
    assert writer.step() == [TextEnd("id-1"), FinishStep(), StartStep()]


def test_a_step_waits_until_the_input_of_a_call_is_whole(writer: MessageWriter) -> None:
    writer.tool_input_start("c", "search", lane="a")
    assert writer.step() == []
    assert writer.text("x", lane="b") == [TextStart("id-1"), TextDelta("id-1", "x")]
    writer.tool_input("c", "search", {})
    assert writer.text("y", lane="b") == [
        TextEnd("id-1"),
        FinishStep(),
        StartStep(),
        TextStart("id-2"),
        TextDelta("id-2", "y"),
    ]
    assert writer.tool_output("c", 1) == [ToolOutputAvailable("c", 1)]


def test_a_call_id_is_never_used_again(writer: MessageWriter) -> None:
    writer.tool_input("c", "search", 1)
    assert writer.tool_input("c", "search", 2) == [ToolInputAvailable("id-1", "search", 2)]
    assert writer.tool_output("c", "two") == [ToolOutputAvailable("id-1", "two")]
    assert writer.tool_input_start("c", "search") == [ToolInputStart("id-2", "search")]
    assert writer.tool_input_delta("c", "3") == [ToolInputDelta("id-2", "3")]
    assert writer.tool_input("c", "search", 3) == [ToolInputAvailable("id-2", "search", 3)]
    assert writer.approval_request("c") == [ToolApprovalRequest("id-3", "id-2")]


@pytest.mark.parametrize("call_id", ["", "a\nb", "x" * 8193])
def test_a_call_id_that_could_not_come_back_gets_another_one(writer: MessageWriter, call_id: str) -> None:
    writer.tool_input(call_id, "search", 1)
    assert writer.tool_output(call_id, 2) == [ToolOutputAvailable("id-1", 2)]


def test_all_chunks_of_a_call_are_equally_dynamic(writer: MessageWriter) -> None:
    writer.tool_input_start("c", "search", dynamic=True)
    assert writer.tool_input("c", "search", {}) == [ToolInputAvailable("c", "search", {}, dynamic=True)]
    assert writer.tool_output("c", 1) == [ToolOutputAvailable("c", 1, dynamic=True)]
    assert writer.tool_input_delta("c", "") == []
    writer.tool_input("d", "search", {}, dynamic=True)
    assert writer.fail("x") == [
        ToolOutputError("d", "The call was cut off by an error.", dynamic=True),
        FinishStep(),
        *QUIET_STEP,
        Error("x"),
    ]


SIGNED: dict[str, dict[str, Any]] = {"anthropic": {"signature": "s"}}


def test_what_the_provider_says_of_a_part_or_call_stands_on_its_chunks(new_id: Callable[[], str]) -> None:
    writer = MessageWriter("m", new_id=new_id, client="latest")
    writer.reasoning("hm")
    assert writer.end_part(metadata=SIGNED) == [ReasoningEnd("id-1", SIGNED)]
    writer.text("so", "a")
    assert writer.end_part(lane="a", metadata=SIGNED) == [TextEnd("id-2", SIGNED)]
    assert writer.end_part(metadata=SIGNED) == []
    assert writer.tool_input_start("c", "web", metadata=SIGNED) == [
        ToolInputStart("c", "web", provider_metadata=SIGNED)
    ]
    assert writer.tool_input("c", "web", {}, metadata=SIGNED) == [
        ToolInputAvailable("c", "web", {}, provider_metadata=SIGNED)
    ]
    assert writer.tool_output("c", 1, provider_executed=True, metadata={"openai": {"usage": {1}}}) == [
        ToolOutputAvailable("c", 1, True, provider_metadata={"openai": {"usage": [1]}})
    ]
    writer.tool_input("d", "web", {})
    assert writer.tool_error("d", "no", provider_executed=True, metadata=SIGNED) == [
        ToolOutputError("d", "no", True, provider_metadata=SIGNED)
    ]


def test_what_the_provider_says_is_left_out_where_a_release_refuses_it(writer: MessageWriter) -> None:
    writer.reasoning("hm")
    assert writer.end_part(metadata=SIGNED) == [ReasoningEnd("id-1", SIGNED)]
    assert writer.tool_input_start("c", "web", metadata=SIGNED) == [ToolInputStart("c", "web")]
    assert writer.tool_input("c", "web", {}, metadata=SIGNED) == [
        ToolInputAvailable("c", "web", {}, provider_metadata=SIGNED)
    ]
    assert writer.tool_output("c", 1, metadata=SIGNED) == [ToolOutputAvailable("c", 1)]
    assert writer.tool_error("c", "no", metadata=SIGNED) == [ToolOutputError("c", "no")]


@pytest.mark.parametrize("metadata", ["text", {"anthropic": "text"}, None])
def test_what_the_provider_says_must_be_an_object_of_objects_and_else_changes_nothing(
    writer: MessageWriter, metadata: Any
) -> None:
    writer.text("x")
    for write in (
        partial(writer.end_part, metadata=metadata),
        partial(writer.tool_input_start, "c", "web", metadata=metadata),
        partial(writer.tool_input, "c", "web", {}, metadata=metadata),
    ):
        with pytest.raises(LocalProtocolError, match="Provider metadata must be an object with an object for each"):
            write()
    assert writer.text("y") == [TextDelta("id-1", "y")]
    writer.tool_input_start("c", "web")
    for write in (
        partial(writer.tool_output, "c", 1, metadata=metadata),
        partial(writer.tool_error, "c", "no", metadata=metadata),
    ):
        with pytest.raises(LocalProtocolError, match="Provider metadata must be an object with an object for each"):
            write()
    assert writer.tool_input_delta("c", "{") == [ToolInputDelta("c", "{")]


def test_a_wrong_input_is_told_of_a_new_call_and_of_a_streamed_one(writer: MessageWriter) -> None:
    writer.text("x")
    assert writer.tool_input_error("c", "search", "{", "no JSON") == [
        TextEnd("id-1"),
        ToolInputError("c", "search", "{", "no JSON"),
    ]
    writer.tool_input_start("d", "other", dynamic=True)
    assert writer.tool_input_error("d", "ignored", 1, "bad") == [ToolInputError("d", "other", 1, "bad", dynamic=True)]


def test_a_result_without_input_gets_an_empty_one(writer: MessageWriter) -> None:
    writer.tool_input_start("c", "search")
    assert writer.tool_output("c", 1) == [ToolInputDelta("c", "{}"), ToolOutputAvailable("c", 1)]


def test_a_result_for_an_unknown_call_raises_and_loses_nothing(writer: MessageWriter) -> None:
    with pytest.raises(LocalProtocolError, match="not known"):
        writer.tool_output("c", 1)
    assert writer.text("x") == [Start("m"), StartStep(), TextStart("id-1"), TextDelta("id-1", "x")]


def test_what_was_written_before_an_error_comes_with_the_next_call(writer: MessageWriter) -> None:
    writer.tool_input("c", "a", {})
    writer.tool_output("c", 1)
    with pytest.raises(LocalProtocolError, match="the message already has"):
        writer.send(ToolInputAvailable("c", "b", {}))
    assert writer.text("y") == [FinishStep(), StartStep(), TextStart("id-1"), TextDelta("id-1", "y")]


def test_a_refusal_ends_the_call_as_denied(new_id: Callable[[], str]) -> None:
    refused: dict[str, Any] = {"type": "tool-rm", "toolCallId": "c", "state": "approval-responded", "input": {}}
    writer = continuing(new_id, {**refused, "approval": {"id": "p", "approved": False}})
    assert writer.tool_denied("c") == [Start("a-1"), ToolOutputDenied("c")]


def test_a_denial_by_the_server_is_an_error_of_the_call(writer: MessageWriter) -> None:
    writer.tool_input("c", "rm", {})
    assert writer.tool_denied("c") == [ToolOutputError("c", "The call was denied.")]


def test_a_continuation_sends_results_before_its_next_step(new_id: Callable[[], str]) -> None:
    approved: dict[str, Any] = {"type": "tool-rm", "toolCallId": "c", "state": "approval-responded", "input": {}}
    writer = continuing(new_id, {**approved, "approval": {"id": "p", "approved": True}})
    assert writer.data("note", 1) == [Start("a-1"), Data("data-note", 1)]
    assert writer.tool_output("c", "gone") == [ToolOutputAvailable("c", "gone")]
    assert writer.text("done") == [StartStep(), TextStart("id-1"), TextDelta("id-1", "done")]


def waiting_call(state: str, **fields: Any) -> dict[str, Any]:
    return {"type": "tool-rm", "toolCallId": "c", "state": state, "input": {"files": [1, 2.0]}, **fields}


OPEN_CALLS = [
    waiting_call("approval-responded", approval={"id": "p", "approved": True}),
    waiting_call("input-available"),
    waiting_call("output-available", output=1, preliminary=True),
]


@pytest.mark.parametrize("part", OPEN_CALLS)
def test_a_call_that_waited_is_meant_by_the_same_call_again(new_id: Callable[[], str], part: dict[str, Any]) -> None:
    writer = continuing(new_id, part)
    assert writer.tool_input("c", "rm", {"files": (1.0, 2)}) == []
    assert writer.tool_output("c", "gone") == [Start("a-1"), ToolOutputAvailable("c", "gone")]
    assert writer.finish() == [*QUIET_STEP, Finish("stop")]


@pytest.mark.parametrize(
    "part", [*OPEN_CALLS, waiting_call("output-available", output=1), waiting_call("output-error", errorText="x")]
)
def test_an_input_that_the_continued_message_has_already_may_be_sent_again(
    new_id: Callable[[], str], part: dict[str, Any]
) -> None:
    writer = continuing(new_id, part)
    writer.start()
    assert writer.send(ToolInputAvailable("c", "rm", {"files": [1, 2]}, title="Remove")) == []
    assert writer.send(ToolOutputAvailable("c", "gone")) == [ToolOutputAvailable("c", "gone")]


@pytest.mark.parametrize(("name", "value"), [("rm", {"files": [True, 2]}), ("rm", {}), ("ls", {"files": [1, 2]})])
def test_another_input_or_name_is_another_call(new_id: Callable[[], str], name: str, value: Any) -> None:
    writer = continuing(new_id, OPEN_CALLS[0])
    with pytest.raises(LocalProtocolError, match="the message already has"):
        writer.send(ToolInputAvailable("c", name, value))
    assert writer.tool_input("c", name, value)[-1] == ToolInputAvailable("id-1", name, value)
    assert writer.tool_output("c", "gone") == [ToolOutputAvailable("id-1", "gone")]


def test_a_call_that_was_reset_can_be_made_again(new_id: Callable[[], str]) -> None:
    writer = continuing(new_id, OPEN_CALLS[1], client="latest")
    writer.send(ResetStep())
    assert writer.tool_input("c", "rm", {"files": [1, 2]})[-1] == ToolInputAvailable("c", "rm", {"files": [1, 2]})


def test_a_call_that_has_ended_is_not_meant_by_the_same_call_again(new_id: Callable[[], str]) -> None:
    writer = continuing(new_id, OPEN_CALLS[0])
    writer.tool_output("c", "gone")
    assert writer.tool_input("c", "rm", {"files": [1, 2]})[-1] == ToolInputAvailable("id-1", "rm", {"files": [1, 2]})
    with pytest.raises(LocalProtocolError, match="the message already has"):
        writer.send(ToolInputAvailable("id-1", "rm", {"files": [1, 2]}))


def test_a_continuation_of_answered_calls_begins_a_step(new_id: Callable[[], str]) -> None:
    writer = continuing(new_id, {"type": "tool-a", "toolCallId": "c", "state": "output-available", "output": 1})
    assert writer.finish() == [Start("a-1"), *QUIET_STEP, Finish("stop")]


def test_text_beside_an_open_call_of_a_continuation_opens_no_step(new_id: Callable[[], str]) -> None:
    writer = continuing(new_id, {"type": "tool-a", "toolCallId": "c", "state": "input-available", "input": {}})
    assert writer.text("x") == [Start("a-1"), TextStart("id-1"), TextDelta("id-1", "x")]
    assert writer.source_url("u") == [SourceUrl("id-2", "u")]


def test_a_text_goes_on_beside_the_result_of_a_provider(new_id: Callable[[], str]) -> None:
    call: dict[str, Any] = {"type": "tool-a", "toolCallId": "c", "state": "input-available", "input": {}}
    call["providerExecuted"] = True
    writer = continuing(new_id, call)
    writer.text("a")
    writer.tool_output("c", 1)
    assert writer.text("b") == [TextDelta("id-1", "b")]


def test_an_approval_is_asked_for_a_whole_input_only(writer: MessageWriter) -> None:
    writer.tool_input_start("c", "rm")
    writer.tool_input_delta("c", "{")
    with pytest.raises(LocalProtocolError, match="not whole"):
        writer.approval_request("c")
    with pytest.raises(LocalProtocolError, match="not known"):
        writer.approval_request("d")


def test_text_is_refused_when_the_stream_was_ended_by_its_state(writer: MessageWriter) -> None:
    writer.text("a")
    for chunk in list(closing(writer.state, Error("x"))):
        writer.state.apply(chunk)
    with pytest.raises(LocalProtocolError, match="after the end"):
        writer.text("b")


def test_finishing_for_tool_calls_leaves_those_that_wait(writer: MessageWriter) -> None:
    writer.tool_input("browser", "locate", {})
    writer.tool_input("risky", "rm", {})
    assert writer.approval_request("risky", approval_id="p", reason="why", signature="s") == [
        ToolApprovalRequest("p", "risky")
    ]
    writer.tool_input_start("cut", "search")
    assert writer.finish("tool-calls") == [
        ToolInputDelta("cut", "{}"),
        ToolOutputError("cut", "The call ended without a result."),
        FinishStep(),
        Finish("tool-calls"),
    ]


@pytest.mark.parametrize(
    ("end", "last", "reason"),
    [
        (MessageWriter.finish, Finish("stop"), "The call ended without a result."),
        (MessageWriter.abort, Abort(), "The call was stopped."),
        (partial(MessageWriter.fail, error_text="x"), Error("x"), "The call was cut off by an error."),
    ],
)
def test_every_other_end_closes_all_calls(
    end: Callable[[MessageWriter], list[Chunk]], last: Chunk, reason: str, writer: MessageWriter
) -> None:
    writer.text("a")
    writer.tool_input("risky", "rm", {})
    writer.approval_request("risky")
    writer.tool_input("slow", "search", {})
    writer.tool_output("slow", 1, preliminary=True)
    assert end(writer) == [
        ToolOutputError("risky", reason),
        ToolOutputError("slow", reason),
        FinishStep(),
        *QUIET_STEP,
        last,
    ]


def test_an_unanswered_refusal_ends_as_denied(new_id: Callable[[], str]) -> None:
    refused: dict[str, Any] = {"type": "tool-rm", "toolCallId": "c", "state": "approval-responded", "input": {}}
    writer = continuing(new_id, {**refused, "approval": {"id": "p", "approved": False}})
    assert writer.abort() == [Start("a-1"), ToolOutputDenied("c"), Abort()]
    oldest = continuing(new_id, {**refused, "approval": {"id": "p", "approved": False}}, client="v5")
    assert oldest.abort() == [Start("a-1"), ToolOutputError("c", "The call was denied."), *QUIET_STEP, Abort()]


def test_whole_parts_open_a_step_and_get_ids(writer: MessageWriter) -> None:
    assert writer.source_url("u", title="T") == [Start("m"), StartStep(), SourceUrl("id-1", "u", "T")]
    assert writer.source_document("T", "text/plain", filename="f", source_id="s") == [
        SourceDocument("s", "text/plain", "T", "f")
    ]
    assert writer.file("data:,x", "text/plain") == [File("data:,x", "text/plain")]
    assert writer.data("x", {1}, id="i", transient=True) == [Data("data-x", [1], "i", transient=True)]


def test_parts_that_were_sent_by_hand_are_closed_too(writer: MessageWriter) -> None:
    writer.send(TextStart("t"))
    assert writer.send(Abort("why")) == [TextEnd("t"), FinishStep(), Abort()]


def test_sending_by_hand_begins_steps_too(writer: MessageWriter) -> None:
    writer.send(ToolInputAvailable("c", "a", {}))
    writer.send(TextStart("t"))
    writer.send(ToolOutputAvailable("c", 1))
    assert writer.send(ReasoningStart("r")) == [TextEnd("t"), FinishStep(), StartStep(), ReasoningStart("r")]


def test_a_reset_forgets_the_parts_of_the_step(new_id: Callable[[], str]) -> None:
    writer = MessageWriter("m", new_id=new_id, client="latest")
    writer.text("a\ud83d")
    assert writer.send(ResetStep()) == [ResetStep()]
    assert writer.text("b") == [TextStart("id-2"), TextDelta("id-2", "b")]


def test_the_app_may_limit_the_size_of_values(new_id: Callable[[], str]) -> None:
    writer = MessageWriter("m", new_id=new_id, value_limit=10)
    writer.tool_input("c", "a", "x" * 20)
    assert writer.tool_output("c", "x" * 20) == [ToolOutputAvailable("c", "xxxxxxxxxx… [10 more characters left out]")]


def test_nothing_can_be_written_after_the_end(writer: MessageWriter) -> None:
    writer.finish()
    for write in (lambda: writer.text("x"), writer.finish, lambda: writer.data("x", 1)):
        with pytest.raises(LocalProtocolError) as caught:
            write()
        assert caught.value.rule == "after-end"
    assert writer.start(UNSET) == []


def test_an_end_with_a_field_of_the_wrong_type_is_refused_and_changes_nothing(writer: MessageWriter) -> None:
    writer.text("a")
    wrong: Any = 7
    with pytest.raises(LocalProtocolError, match="finishReason"):
        writer.finish(wrong)
    with pytest.raises(LocalProtocolError, match="reason"):
        writer.abort(wrong)
    assert writer.text("b") == [TextDelta("id-1", "b")]


def test_a_finish_without_a_reason_leaves_a_requested_approval_open(writer: MessageWriter) -> None:
    writer.tool_input("risky", "rm", {})
    writer.tool_input("other", "ls", {})
    writer.approval_request("risky", approval_id="p")
    assert writer.send(Finish()) == [
        ToolOutputError("other", "The call ended without a result."),
        FinishStep(),
        Finish(),
    ]
    assert writer.state.calls["risky"].state == "requested"


class _Weather(Data, frozen=True):
    town: str = "Ghent"


class _Forecast(TextDelta, frozen=True, tag="forecast"):
    pass


@pytest.mark.parametrize("chunk", [_Weather("data-weather", 1), _Forecast("t", "sunny"), 7])
def test_only_the_chunks_of_the_protocol_are_written(writer: MessageWriter, chunk: Any) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        writer.send(chunk)
    kind = type(chunk).__name__
    assert (caught.value.rule, caught.value.problem) == ("unknown-type", f"{kind} is not one of the protocol's chunks.")
    assert writer.finish() == [Start("m"), Finish("stop")]


@pytest.mark.parametrize("name", [None, 7, UNSET])
def test_data_without_a_name_is_not_written(writer: MessageWriter, name: Any) -> None:
    with pytest.raises(LocalProtocolError, match="has a wrong field"):
        writer.send(Data(name, 1))
    assert writer.finish() == [Start("m"), Finish("stop")]
