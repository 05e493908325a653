"""Calls as frameworks tell of them: of other messages, after a pause, in pieces, and inside sub-agents."""

from typing import Any

import pytest

from usechat import events as e
from usechat.events.mapper import EventMapper
from usechat.protocol import chunks as c
from usechat.protocol.messages import UIMessage
from usechat.protocol.writer import MessageWriter

CALL = e.ToolCall("c", "t", {})


def writer(continues: UIMessage | None = None) -> MessageWriter:
    return MessageWriter("m", new_id=lambda: "id", continues=continues)


def chunks(*events: e.AgentEvent, continues: UIMessage | None = None, repeats: bool = True) -> list[c.Chunk]:
    """The chunks after the message's start."""
    mapper = EventMapper(writer(continues), repeats=repeats)
    found = [chunk for event in events for chunk in mapper.map(event)]
    return [chunk for chunk in found if not isinstance(chunk, c.Start)]


def sub(event: e.AgentEvent | None = None, **fields: Any) -> e.SubAgent:
    return e.SubAgent("s", "helper", event, **fields)


def tools(found: list[c.Chunk]) -> list[Any]:
    return [
        [(tool["toolCallId"], tool["state"]) for tool in one.data["tools"]] for one in found if isinstance(one, c.Data)
    ]


@pytest.mark.parametrize(
    "event",
    [
        e.ToolInputDelta("c", "{"),
        e.ToolProgress("c", 1),
        e.ToolOutputDelta("c", "x"),
        e.ToolResult("c", 1),
        e.ToolError("c", "no"),
        e.ToolDenied("c"),
    ],
)
def test_what_a_framework_tells_of_a_call_that_nobody_announced_is_dropped(event: e.AgentEvent) -> None:
    assert chunks(event) == []
    assert chunks(sub(), sub(event))[1:] == []


def paused(state: str = "output-available") -> UIMessage:
    call: dict[str, Any] = {
        "type": "tool-t",
        "toolCallId": "c",
        "state": state,
        "input": {},
        "output": "This call waits.",
    }
    return UIMessage("m", "assistant", [{"type": "step-start"}, call])


@pytest.mark.parametrize(
    ("event", "written"),
    [
        (e.ToolProgress("c", 1), c.ToolOutputAvailable("c", 1, preliminary=True)),
        (e.ToolResult("c", 1), c.ToolOutputAvailable("c", 1)),
        (e.ToolError("c", "no"), c.ToolOutputError("c", "no")),
    ],
)
def test_a_call_that_a_pause_gave_a_result_goes_on_in_the_continued_message(
    event: e.AgentEvent, written: c.Chunk
) -> None:
    again = e.ToolResult("c", 2) if not isinstance(event, e.ToolProgress) else CALL
    assert chunks(CALL, event, again, continues=paused()) == [written]
    assert chunks(event, continues=paused(), repeats=False) == [written]


def test_a_call_of_an_earlier_step_has_its_result() -> None:
    earlier = paused()
    earlier.parts.append({"type": "step-start"})
    assert chunks(e.ToolResult("c", 1), continues=earlier) == []


def test_what_a_tool_says_while_it_works_is_told_more_rarely_as_it_grows() -> None:
    deltas = [e.ToolOutputDelta("c", "x" * 10) for _ in range(200)]
    told = [chunk.output for chunk in chunks(CALL, *deltas) if isinstance(chunk, c.ToolOutputAvailable)]
    assert told[:2] == ["x" * 10, "x" * 80]
    assert sum(map(len, told)) < 6 * 2_000
    preliminary = c.ToolOutputAvailable("c", ["x", {"a": 1}], preliminary=True)
    first, rest = e.ToolOutputDelta("c", "x"), e.ToolOutputDelta("c", {"a": 1})
    assert chunks(CALL, first, rest)[-1] == preliminary
    # The next call with the id begins anew, and what comes after its end is too late.
    again = [e.Step(), CALL, first, e.ToolResult("c", 2), rest]
    outputs = [
        chunk.output
        for chunk in chunks(CALL, first, e.ToolResult("c", 1), *again)
        if isinstance(chunk, c.ToolOutputAvailable)
    ]
    assert outputs == ["x", 1, "x", 2]
    approved = {"toolCallId": "s:c", "state": "approval-responded", "approval": {"id": "a", "approved": True}}
    inside = UIMessage("m", "assistant", [{"type": "tool-t", "input": {}, **approved}])
    assert chunks(sub(first), continues=inside)[0] == c.ToolOutputAvailable("s:c", "x", preliminary=True)


def test_the_first_end_of_a_sub_agents_call_counts() -> None:
    ends = [sub(CALL), sub(e.ToolResult("c", 1)), sub(e.ToolError("c", "late")), sub(e.ToolResult("c", 1))]
    assert tools(chunks(*ends)) == [[("c", "running")], [("c", "done")]]
    assert tools(chunks(sub(e.ToolError("c", "no", "t")), sub(e.ToolResult("c", 1)))) == [[("c", "failed")]]
    # A model may use its id again.
    again = [*ends, sub(e.ToolInputStart("c", "t")), sub(CALL), sub(e.ToolDenied("c"))]
    assert tools(chunks(*again))[2:] == [[("c", "streaming")], [("c", "running")], [("c", "failed")]]


def test_a_sub_agent_that_ends_without_a_word_is_told() -> None:
    [done] = chunks(sub(status="done"), sub(status="done"))
    assert isinstance(done, c.Data)
    assert done.data == {"id": "s", "name": "helper", "status": "done", "text": "", "tools": []}
    assert chunks(sub(e.Step())) == []


def test_a_sub_agent_works_while_one_of_its_tools_runs() -> None:
    written = writer()
    mapper = EventMapper(written, repeats=True)
    working: list[bool] = []
    for event in (
        sub("Hm."),
        sub(CALL),
        sub(e.ToolCall("d", "t", {})),
        sub(e.ToolResult("c", 1)),
        sub(e.ToolResult("d", 1)),
        sub(e.ToolCall("e", "t", {})),
        sub(status="waiting"),
        sub(e.Text("")),
    ):
        list(mapper.map(event))
        working.append(list(written.working) == ["s"])
    assert working == [False, True, True, True, False, True, False, True]


HIDDEN = e.ToolCall("c", "t", {"a": 1}, hidden=True)
SHOWN = [c.StartStep(), c.ToolInputAvailable("c", "t", {"a": 1})]


@pytest.mark.parametrize("end", [e.ToolResult("c", 1), e.ToolError("c", "no"), e.ToolDenied("c")])
def test_a_hidden_call_is_not_shown_and_counts_as_work_until_its_end(end: e.AgentEvent) -> None:
    written = writer()
    mapper = EventMapper(written, repeats=True)
    assert list(mapper.map(HIDDEN)) == list(mapper.map(HIDDEN)) == []
    assert set(written.working) == {"c"}
    assert list(mapper.map(end)) == []
    assert not written.working
    assert list(mapper.map(e.ApprovalRequest())) == []


def test_a_hidden_call_is_shown_when_the_user_is_asked_or_when_it_is_no_longer_hidden() -> None:
    asked = [*SHOWN, c.ToolApprovalRequest("a", "c")]
    assert chunks(HIDDEN, e.ApprovalRequest("a", "c")) == asked
    assert chunks(HIDDEN, e.ApprovalRequest("a")) == asked
    assert chunks(HIDDEN, e.ToolCall("c", "t", {}), HIDDEN) == SHOWN


def waiting(state: str) -> UIMessage:
    approval = {"approval": {"id": "a", "approved": True}} if state == "approval-responded" else {}
    asked = {"approval": {"id": "a"}} if state == "approval-requested" else approval
    call = {"type": "tool-t", "toolCallId": "c", "state": state, "input": {}, **asked}
    return UIMessage("m", "assistant", [{"type": "step-start"}, call])


def test_the_user_is_asked_about_every_call_of_the_turn_without_a_result() -> None:
    calls = [CALL, e.ToolCall("d", "t", {}), e.ToolResult("d", 1), e.ToolInputStart("e", "t")]
    assert chunks(*calls, e.ApprovalRequest())[-1] == c.ToolApprovalRequest("id", "c")
    for state in ("input-available", "approval-requested", "approval-responded"):
        assert chunks(e.ApprovalRequest(), continues=waiting(state)) == []


def test_a_framework_does_not_ask_about_a_call_that_is_over_or_unknown_and_does_not_end_one_that_waits() -> None:
    over = [CALL, e.ToolResult("c", 1)]
    assert chunks(*over, e.ApprovalRequest("a", "c")) == chunks(*over)
    assert chunks(e.ApprovalRequest("a", "c")) == []
    for end in (e.ToolResult("c", 1), e.ToolError("c", "no")):
        assert chunks(end, continues=waiting("approval-requested")) == []


@pytest.mark.parametrize("approved", [True, False])
def test_an_answer_during_the_run_is_shown_by_clients_that_know_it(approved: bool) -> None:
    newest = EventMapper(MessageWriter("m", new_id=lambda: "id", client="latest"), repeats=True)
    answer = e.ApprovalResponse("a", "c", approved)
    list(newest.map(CALL))
    shown = [c.ToolApprovalRequest("a", "c"), c.ToolApprovalResponse("a", approved)]
    assert list(newest.map(answer)) == [*shown, *([] if approved else [c.ToolOutputDenied("c")])]
    denied = [] if approved else [c.ToolOutputError("c", "The call was denied.")]
    assert chunks(CALL, answer)[2:] == denied
    # There is no such call.
    assert list(newest.map(e.ApprovalResponse("b", "d", approved))) == []


def test_data_names_the_call_as_the_page_knows_it() -> None:
    events = [CALL, e.ToolResult("c", 1), e.Step(), CALL]
    owned = e.Data("x", {"toolCallId": "c", "a": 1}, call_id="c")
    assert chunks(*events, owned)[-1] == c.Data("x", {"toolCallId": "id", "a": 1})
    assert chunks(*events, e.Data("x", 7, call_id="c"))[-1] == c.Data("x", 7)
    batch = [{"type": "x", "toolCallId": "id", "a": 1}, {"type": "y"}]
    assert chunks(*events, e.DataBatch((owned, e.Data("y", {})), transient=True))[-1] == c.Data(
        "batch", {"events": batch}, transient=True
    )


def test_a_lazy_step_begins_with_the_first_thing_that_is_said_in_it() -> None:
    step = e.Step(lazy=True)
    assert chunks("a", e.EndPart(), step, e.Data("x", 1), step)[-1] == c.Data("x", 1)
    assert chunks("a", step, "b")[3:] == [
        c.TextEnd("id"),
        c.FinishStep(),
        c.StartStep(),
        c.TextStart("id"),
        c.TextDelta("id", "b"),
    ]
    # A model may use the id of a call again before anything else is said in the step.
    found = chunks(CALL, e.ToolResult("c", 1), step, CALL)
    assert [chunk.tool_call_id for chunk in found if isinstance(chunk, c.ToolInputAvailable)] == ["c", "id"]
