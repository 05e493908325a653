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
