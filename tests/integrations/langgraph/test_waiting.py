"""What is made of LangGraph's stream: graphs that wait for a user, and graphs inside graphs."""

from typing import Any

import pytest

from support.graph_parts import (
    STEP,
    STEP_END,
    Part,
    ai,
    available,
    began,
    call,
    chunk,
    error,
    event,
    mapped,
    message,
    new_mapper,
    output,
    said,
    text,
    tool,
    update,
)
from usechat.integrations.langgraph.interrupts import DECISIONS, Action, read_interrupt
from usechat.protocol.messages import UIMessage

ASKS = {"type": "finish", "finishReason": "tool-calls"}
SUB = ["tools:t1"]


def interrupted(*interrupts: Part, ns: list[str] | None = None) -> Part:
    return {"type": "updates", "ns": ns or [], "data": {"__interrupt__": list(interrupts)}}


def batched(*requests: Any, **fields: Any) -> Part:
    configs = [{"action_name": "look", "allowed_decisions": ["approve"]} for _ in requests]
    return {"id": "i1", "value": {"action_requests": list(requests), "review_configs": configs, **fields}}


def request(name: str = "look", **args: Any) -> Part:
    return {"name": name, "args": args, "description": "May I?"}


def asked(approval: str, call_id: str = "c1") -> Part:
    return {"type": "tool-approval-request", "approvalId": approval, "toolCallId": call_id}


def test_an_interrupt_has_the_actions_that_it_asks_about() -> None:
    first, second = read_interrupt(batched(request(at=1), {"name": "walk"}, review_configs=[{}])).actions
    assert (first, second) == (
        Action("i1:0", "look", {"at": 1}, DECISIONS, "May I?"),
        Action("i1:1", "walk", {}, DECISIONS),
    )
    alone = {"type": "tool_approval", "tool_call_id": "c1", "name": "look", "args": {"at": 1}, "description": "May I?"}
    only_approve: Part = {"properties": {"type": {"const": "approve"}}}
    schema: Part = {
        "$defs": {"A": only_approve, "B": {"properties": {"type": {"const": "reject"}}}, "C": {"properties": {}}}
    }
    for given, allowed in ((only_approve, ("approve",)), (schema, ("approve", "reject")), (None, DECISIONS)):
        [action] = read_interrupt({"id": "i1", "value": alone, "response_schema": given}).actions
        assert action == Action("i1", "look", {"at": 1}, allowed, "May I?", "c1")
    others: list[Any] = [None, "Who?", {"action_requests": [], "review_configs": []}, {"type": "tool_approval"}]
    for value in others:
        assert read_interrupt({"id": "i1", "value": value}).actions == ()


def test_each_action_asks_about_its_own_call() -> None:
    calls = ai("", tool_calls=[call("c1", at=1), call("c2", "walk"), call("c3", at=2), call("c4", at=2)])
    chunks = said(message(calls), interrupted(batched(request(at=2), request(at=2), request(at=1))), end=True)
    # The one that only waits for the others has a result until they are answered.
    assert chunks[-6:] == [
        asked("i1:0", "c3"),
        asked("i1:1", "c4"),
        asked("i1:2", "c1"),
        output("This call waits until others are approved.", "c2"),
        STEP_END,
        ASKS,
    ]


def test_a_call_whose_arguments_were_changed_is_known_by_its_name() -> None:
    chunks = said(message(ai("", tool_calls=[call(at=1)])), interrupted(batched(request(at="here"))))
    assert chunks[-1] == asked("i1:0")


def test_a_call_that_is_asked_about_by_its_id_need_not_be_known() -> None:
    alone = {"type": "tool_approval", "tool_call_id": "c1", "name": "look", "args": {"at": 1}}
    asks = interrupted({"id": "i1", "value": alone})
    assert said(asks) == [STEP, available(value={"at": 1}), asked("i1")]
    by_sub_graph = said(interrupted({"id": "i1", "value": alone}, ns=SUB), subgraphs="off")
    assert by_sub_graph == [STEP, available("t1:c1", value={"at": 1}), asked("i1", "t1:c1")]


def test_a_call_that_is_not_known_is_a_question() -> None:
    question = batched(request("walk"))
    data = {"id": "i1", "value": question["value"]}
    # It comes again from the graph around it.
    chunks = said(interrupted(question, ns=SUB), interrupted(question), end=True)
    assert chunks == [
        {"type": "data-interrupt", "data": data, "id": "i1"},
        {"type": "finish", "finishReason": "other"},
    ]


def test_a_tool_that_asks_has_a_result_until_it_is_answered() -> None:
    parts = [message(ai("", tool_calls=[call()])), event("started"), interrupted({"id": "i1", "value": "Who?"})]
    assert said(*parts, end=True)[3:] == [
        {"type": "data-interrupt", "data": {"id": "i1", "value": "Who?"}, "id": "i1"},
        output("This call waits for an answer."),
        STEP_END,
        # A page does not post again by itself.
        STEP,
        {"type": "message-metadata", "messageMetadata": {}},
        STEP_END,
        {"type": "finish", "finishReason": "other"},
    ]


def test_a_call_that_nobody_ran_is_the_browsers() -> None:
    assert said(message(ai("", tool_calls=[call()])), end=True)[-1] == ASKS


def part(call_id: str, state: str, name: str = "look", **fields: Any) -> Part:
    return {"type": f"tool-{name}", "toolCallId": call_id, "state": state, "input": {}, **fields}


def approval(approved: bool | None = None) -> Part:
    return {"id": "a", **({} if approved is None else {"approved": approved})}


def test_the_result_of_an_answered_call_goes_to_the_message_that_is_continued() -> None:
    parts = [
        {"type": "step-start"},
        part("c1", "approval-responded", approval=approval(True)),
        part("c2", "approval-responded", approval=approval(False)),
        part("c3", "output-available", output="This call waits until others are approved."),
        part("c4", "approval-responded", approval=approval(False)),
    ]
    chunks = mapped(
        new_mapper(UIMessage("m", "assistant", parts)),
        update(ai("", tool_calls=[call("c1")]), tool("No.", "c2", status="error"), tool("I did it.", "c4")),
        event("started", tool_name="look", input={"edited": 1}),
        event("finished", output=tool("done")),
        update(tool("late", "c3")),
        message(chunk("So.", "lc_run--2")),
    )
    assert chunks == [
        {"type": "tool-output-denied", "toolCallId": "c2"},
        {"type": "tool-output-denied", "toolCallId": "c4"},
        output("done"),
        output("late", "c3"),
        STEP,
        *text("So."),
    ]


def test_an_approval_that_is_still_open_is_not_asked_for_again() -> None:
    parts = [
        {"type": "step-start"},
        part("t1:c1", "approval-requested", approval=approval()),
        part("t1:c2", "approval-requested", approval=approval()),
        part("c3", "output-available", output=1),
    ]
    mapper = new_mapper(UIMessage("m", "assistant", parts))
    again = interrupted(batched(request(), request()), ns=SUB)
    assert mapped(mapper, again, end=True) == [ASKS]
    # One more than there are calls is a question.
    other = interrupted({**batched(request(), request(), request()), "id": "i2"}, ns=SUB)
    assert mapped(mapper := new_mapper(UIMessage("m", "assistant", parts)), other)[0]["type"] == "data-interrupt"


def task(task_id: str, name: str, ns: list[str] | None = None, **fields: Any) -> Part:
    return {"type": "tasks", "ns": ns or [], "data": {"id": task_id, "name": name, "triggers": [], **fields}}


def done(task_id: str, **fields: Any) -> Part:
    return {"type": "tasks", "ns": [], "data": {"id": task_id, "name": "x", "result": None, "error": None, **fields}}


def told(chunks: list[Any]) -> Any:
    return [chunk["data"] for chunk in chunks if chunk["type"] == "data-subagent"]


def sub_agent(name: str = "tools", text: str = "a", **fields: Any) -> Part:
    return {"id": "t1", "name": name, "status": "running", "text": text, "tools": [], **fields}


def test_a_sub_graph_has_the_name_of_its_agent_or_its_tool_or_its_node() -> None:
    speaks = message(chunk("a"), SUB)
    by_tool = task("t1", "tools", input=[{"type": "tool_call", "name": "ask", "id": "c1", "args": {}}])
    assert told(said(speaks)) == [sub_agent("tools")]
    assert told(said(task("t1", "node"), speaks))[-1]["name"] == "node"
    assert told(said(by_tool, speaks)) == [sub_agent("ask", toolCallId="c1")]
    # LangGraph 1.1 gives the task the state, too.
    [call] = by_tool["data"]["input"]
    older = task("t1", "tools", input={"__type": "tool_call_with_context", "tool_call": call, "state": {}})
    assert told(said(older, speaks)) == told(said(by_tool, speaks))
    agent = {"lc_agent_name": "helper"}
    assert told(said(by_tool, task("t2", "model", SUB, metadata=agent), speaks))[-1]["name"] == "helper"
    assert told(said(message(chunk("a"), SUB, **agent)))[-1]["name"] == "helper"
    # A sub-graph without a name has that of the graph.
    named = task("t1", "node", metadata=agent)
    assert told(said(named, task("t2", "model", SUB, metadata=agent), speaks))[-1]["name"] == "node"
    inner = message(chunk("a"), [*SUB, "node:t2"])
    assert told(said(inner)) == [sub_agent("node", id="t2", parent="t1")]


def test_what_a_sub_graph_says_is_one_part_that_is_replaced() -> None:
    chunks = said(
        message(chunk([{"type": "reasoning", "reasoning": "Hm"}]), SUB),
        message(chunk("Let me see."), SUB),
        message(chunk([{"type": "image", "url": "u"}]), SUB),
        message(chunk([{"type": "tool_call_chunk", "id": "c1", "name": "look", "args": "{", "index": 0}]), SUB),
        message(chunk([{"type": "tool_call_chunk", "args": "}", "index": 0}], chunk_position="last"), SUB),
        update(ai("", tool_calls=[call()]), ns=SUB),
        event("started", ns=SUB, tool_name="look"),
        event("output-delta", ns=SUB, delta="x"),
        event("finished", ns=SUB, output=tool("y")),
        message(ai("It is.", "lc_run--2", tool_calls=[call("c2")]), SUB),
        event("error", "c2", SUB),
        message(chunk([{"type": "text", "text": "", "annotations": [{"type": "citation", "url": "u"}]}], "r3"), SUB),
        update(ai("", "r3", invalid_tool_calls=[call("c3")]), ns=SUB),
        done("t1"),
    )
    assert {chunk["id"] for chunk in chunks} == {"t1"}
    tools = [
        {"toolCallId": "c1", "toolName": "look", "state": "done"},
        {"toolCallId": "c2", "toolName": "look", "state": "failed"},
        {"toolCallId": "c3", "toolName": "look", "state": "failed"},
    ]
    whole = sub_agent(text="Let me see.\n\nIt is.", status="done", reasoning="Hm", tools=tools)
    assert told(chunks)[-1] == whole
    states = [data["tools"][0]["state"] for data in told(chunks) if data["tools"]]
    assert [*dict.fromkeys(states)] == ["streaming", "running", "done"]


def test_a_long_text_of_a_sub_graph_is_told_ever_more_rarely() -> None:
    parts = [message(chunk("x" * 10), SUB) for _ in range(1_000)]
    texts = [data["text"] for data in told(said(*parts, message(chunk("", chunk_position="last"), SUB)))]
    assert texts[-1] == "x" * 10_000
    assert sum(map(len, texts)) < 7 * 10_000


@pytest.mark.parametrize(
    ("fields", "status"), [({"error": "x"}, "failed"), ({"interrupts": [1]}, "waiting"), ({}, "done")]
)
def test_the_end_of_a_sub_graph_is_told(fields: Part, status: str) -> None:
    assert told(said(message(chunk("a"), SUB), done("t1", **fields), done("t9")))[-1]["status"] == status


def test_a_tool_of_a_sub_graph_that_failed_is_told_at_the_end() -> None:
    parts = [message(ai("", tool_calls=[call()]), SUB), event("error", ns=SUB)]
    tools = [{"toolCallId": "c1", "toolName": "look", "state": "failed"}]
    assert told(said(*parts, end=True))[-1] == sub_agent(text="", tools=tools)
    assert told(said(*parts, done("t1", error="x"), end=True))[-1] == sub_agent(text="", tools=tools, status="failed")


def test_sub_graphs_may_have_lanes() -> None:
    chunks = said(
        message(ai("", "lc_run--0", tool_calls=[call("c1", "ask")])),
        message(chunk("a"), ["tools:t1"]),
        message(chunk("b", "lc_run--2"), ["tools:t2"]),
        message(ai([{"type": "reasoning", "reasoning": "Hm"}], "lc_run--3", tool_calls=[call()]), ["tools:t2"]),
        event("finished", ns=["tools:t2"], output=tool("y")),
        update(ai("a"), ai("", "lc_run--3", tool_calls=[call()])),
        done("t1"),
        subgraphs="lanes",
    )
    assert chunks[3:] == [
        *text("a"),
        *text("b", part="id-2"),
        {"type": "reasoning-start", "id": "id-3"},
        {"type": "reasoning-delta", "id": "id-3", "delta": "Hm"},
        {"type": "reasoning-end", "id": "id-3"},
        began("t2:c1"),
        available("t2:c1"),
        output("y", "t2:c1"),
    ]


def test_what_a_graph_takes_over_from_a_sub_graph_is_said_by_the_graph() -> None:
    parts = [
        message(chunk("a", chunk_position="last"), SUB),
        message(ai("", "lc_run--2", tool_calls=[call("c1"), call("c2", "send")]), SUB),
        interrupted(batched(request("send")), ns=SUB),
    ]
    chunks = said(*parts, end=True, subgraphs="off")
    assert chunks == [STEP, available("t1:c2", "send"), asked("i1:0", "t1:c2"), STEP_END, ASKS]

    before = [{"type": "step-start"}, part("t1:c2", "approval-responded", "send", approval=approval(True))]
    mapper = new_mapper(UIMessage("m", "assistant", before), subgraphs="off")
    final = [
        ai("old", "of an earlier turn"),
        ai("a", tool_calls=[call("c2", "send"), call("c3")]),
        tool("sent", "c2"),
        tool("looked", "c3"),
    ]
    chunks = mapped(
        mapper,
        message(chunk("a", chunk_position="last"), SUB),
        event("finished", "c2", SUB, output=tool("sent", "c2")),
        update(*final),
    )
    assert chunks == [
        output("sent", "t1:c2"),
        STEP,
        *text("a"),
        {"type": "text-end", "id": "id-1"},
        began("c3"),
        available("c3"),
        output("looked", "c3"),
    ]


def test_the_part_of_a_sub_graph_goes_on_with_its_message() -> None:
    data = {
        "name": "tools",
        "text": "Before.",
        "tools": [{"toolCallId": "c1", "toolName": "look", "state": "running"}, 7],
    }
    before = [
        {"type": "step-start"},
        {"type": "data-subagent", "id": "t1", "data": data},
        part("t1:c1", "approval-responded", approval=approval(False)),
    ]
    mapper = new_mapper(UIMessage("m", "assistant", before))
    chunks = mapped(
        mapper,
        message(tool("No.", status="error"), SUB),
        message(ai("After.", "lc_run--2"), SUB),
    )
    assert chunks[0] == {"type": "tool-output-denied", "toolCallId": "t1:c1"}
    tools = [{"toolCallId": "c1", "toolName": "look", "state": "failed"}]
    assert told(chunks)[-1] == sub_agent(text="Before.\n\nAfter.", tools=tools)


def test_an_error_of_a_sub_graphs_call_that_was_approved_is_in_the_message() -> None:
    before = [{"type": "step-start"}, part("t1:c1", "approval-responded", approval=approval(True))]
    mapper = new_mapper(UIMessage("m", "assistant", before))
    assert mapped(mapper, message(tool("Broken.", status="error"), SUB))[0] == error("Broken.", "t1:c1")
