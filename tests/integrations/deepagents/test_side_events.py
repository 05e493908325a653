"""The DeepAgent events of a run of deepagents, by parts as JSON; test_agent.py has the installed framework."""

from typing import Any

import pytest

from support.graph_parts import Part, ai, call, event, tool, update
from usechat.integrations.deepagents.side_events import DeepAgentEvents, edits, exit_of, lines_read, matches, paths
from usechat.protocol.messages import UIMessage

SUB = ["tools:t1"]


def seen(*parts: Part, continues: UIMessage | None = None, **tools: str) -> list[Part]:
    events = DeepAgentEvents("thread", tools, continues)
    return [found for part in parts for found in events.see(part)]


def started(name: str, call_id: str = "c1", ns: list[str] | None = None, **args: Any) -> Part:
    return event("started", call_id, ns, tool_name=name, input=args)


def finished(content: str, call_id: str = "c1", ns: list[str] | None = None, **fields: Any) -> Part:
    return event("finished", call_id, ns, output=tool(content, call_id, **fields))


def task(task_id: str, ns: list[str] | None = None, call_id: str | None = None) -> Part:
    given: list[Part] = [] if call_id is None else [{"type": "tool_call", "id": call_id, "name": "x", "args": {}}]
    return {"type": "tasks", "ns": ns or [], "data": {"id": task_id, "name": "x", "input": given, "triggers": []}}


WRITE: Part = {"file_path": "/a", "content": "x"}


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("write_file", {"file_path": "/a"}),
        ("write_file", {"file_path": 1, "content": "x"}),
        ("edit_file", {}),
        ("execute", {"cmd": "ls"}),
        ("task", {"description": "x"}),
        ("look", WRITE),
    ],
)
def test_a_tool_with_other_arguments_is_another_tool(name: str, args: Part) -> None:
    parts = [
        event("started", tool_name=name, input=args),
        event("started", tool_name=name),
        finished("Updated file /a"),
    ]
    assert seen(*parts) == []


def test_what_failed_was_not_done() -> None:
    assert seen(started("write_file", **WRITE), finished("Error: no room", status="error")) == [
        {"type": "file-write-start", "path": "/a", "content": "x", "toolCallId": "c1"}
    ]
    assert seen(started("write_file", **WRITE), event("error", message="secret"))[1:] == []
    assert seen(started("write_file", **WRITE), finished("Updated file /a"))[1:] == [
        {"type": "file-written", "path": "/a", "content": "x", "toolCallId": "c1"}
    ]
    begins = {"type": "execute-start", "command": "ls", "toolCallId": "c1"}
    failed = {"type": "execute-finish", "command": "ls", "exitCode": None, "truncated": False, "toolCallId": "c1"}
    assert seen(started("execute", command="ls"), event("error")) == [begins, failed]
    assert seen(started("execute", command="ls"), finished("Error: timeout", status="error")) == [begins, failed]
    assert seen(event("error"), event("finished", output=tool("x")), event("odd")) == []


def test_a_result_that_tells_no_number_is_no_event() -> None:
    vague: list[tuple[str, Part]] = [
        ("edit_file", {"file_path": "/a"}),
        ("read_file", {"file_path": "/a"}),
        ("ls", {}),
        ("glob", {"pattern": "*"}),
    ]
    for name, args in vague:
        assert seen(started(name, **args), finished("Well.")) == []
    assert seen(started("ls"), event("finished", output="not a message")) == []
    assert seen(started("ls"), finished("['/a']")) == [{"type": "ls", "path": "/", "count": 1, "toolCallId": "c1"}]


def test_a_tool_may_have_another_name() -> None:
    [found] = seen(started("list", path="/x"), finished("[]"), started("ls"), finished("[]"), ls="list")
    assert found == {"type": "ls", "path": "/x", "count": 0, "toolCallId": "c1"}


def test_results_are_read_as_deepagents_writes_them() -> None:
    assert edits("Successfully replaced 12 instance(s) of the string in '/a'") == 12
    assert lines_read("The offset was clamped.\n@@ lines 3-7 of 9 | next offset 8 @@\n@@ lines 1-1 @@") == 5
    note = "... [results truncated, try being more specific with your parameters]"
    assert paths(f"['/a', '/b, c', {note!r}]\n\nNote: the search stopped early.") == 2
    assert (paths("No files found"), paths("{'a': 1}"), paths("[" * 500)) == (0, None, None)
    assert matches("No matches found\n\nA hint.", None) == 0
    assert matches(f"/a\n/b\n{note}\n\nA note.", "files_with_matches") == 2
    assert matches("/a:\n  1: x\n  2- y\n  --\n  9: z\n/b:\n  3: x", "content") == 3
    assert matches("/a: 2\n/b: 10", "count") == 12
    assert exit_of({"exit_code": 3, "truncated": True}, "") == (3, True)
    assert exit_of({"exit_code": "3"}, "[Command failed with exit code 3]") == (None, False)


def test_results_are_read_as_the_first_releases_wrote_them() -> None:
    assert lines_read(" 9  nine\n10  ten\n10.1  and more of it\n11  ") == 3
    assert lines_read("2  two\n3  [Read 9 lines\n\n[Read 2 lines (lines 2-3 of 7 total). 4 lines remaining.]") == 2
    assert (lines_read("two  words"), lines_read("no number\n1  one")) == (None, None)
    ends = "[Command succeeded with exit code 0]\n\n[Command failed with exit code -9]"
    assert exit_of(None, ends) == (-9, False)
    assert exit_of(None, f"y\n{ends}\n[Output was truncated due to size limits]") == (-9, True)
    assert exit_of(None, f"Tool result too large, it is in a file.\n\n{ends}") == (0, False)
    assert exit_of(None, "It said: [Command failed with exit code 3] or so") == (None, False)


def test_the_todos_are_those_of_the_state_and_not_of_a_sub_agent() -> None:
    todos = [{"content": "look", "status": "pending"}]
    listed = [{"id": "todo-1", "content": "look", "status": "pending"}]
    given = update(tool("Updated todo list", "c1"), todos=todos)
    assert seen(given) == [{"type": "todos-changed", "todos": listed, "toolCallId": "c1"}]
    # A node may give several updates at once.
    assert seen({**given, "data": {"tools": [*given["data"].values(), {"files": {}}]}}) == seen(given)
    assert seen(update(todos=todos), update(todos=todos, ns=SUB), update(todos=None), update(todos=[])) == [
        {"type": "todos-changed", "todos": [{"id": "todo-1", "content": "look", "status": "pending"}]},
        {"type": "todos-changed", "todos": []},
    ]
    assert seen({"type": "updates", "ns": [], "data": None}, {"type": "updates", "ns": [], "data": {"a": None}}) == []


STARTS = [started("task", "c1", subagent_type="poet", description="Write"), task("t1", call_id="c1"), task("m1", SUB)]
START = {"type": "subagent-start", "name": "poet", "task": "Write", "toolCallId": "c1"}


def step(index: int, *calls: Part) -> Part:
    return {"type": "subagent-step", "stepIndex": index, "toolCalls": list(calls), "toolCallId": "c1"}


def test_a_sub_agent_starts_when_its_graph_runs_and_steps_when_its_model_speaks() -> None:
    parts = [
        *STARTS,
        task("m2", SUB),
        update(ai("", tool_calls=[call("w1", "write", at=1), call("w2", "write")]), ns=SUB),
        update(tool("ok", "w1"), tool("stray", "w9"), ns=SUB),
        update(ai("Done."), ns=SUB),
    ]
    first = step(0, {"toolName": "write", "args": {"at": 1}, "result": "ok"}, {"toolName": "write", "args": {}})
    over = {"type": "subagent-finish", "name": "poet", "result": "A poem.", "toolCallId": "c1"}
    assert seen(*parts, finished("A poem.")) == [START, first, step(1), over]
    # A result before anything was said belongs to no step.
    assert seen(*STARTS, update(tool("ok", "w1"), ns=SUB), finished("A poem.")) == [START, over]


def test_what_runs_in_other_sub_graphs_is_no_sub_agent() -> None:
    other = [started("look", "c1"), task("t1", call_id="c1"), task("m1", SUB)]
    assert seen(*other, update(ai("Hi"), ns=SUB), finished("x")) == []
    assert seen(task("t1"), task("m1", SUB), {"type": "tasks", "ns": [], "data": {"id": "t1", "result": None}}) == []


def test_what_a_sub_agent_does_belongs_to_its_call() -> None:
    write = started("write_file", "w1", SUB, **WRITE)
    assert seen(*STARTS, write)[1]["toolCallId"] == "c1"
    nested = [
        started("task", "c2", SUB, subagent_type="critic", description="Read"),
        task("t2", SUB, "c2"),
        task("m3", [*SUB, "tools:t2"]),
        event("finished", "c2", SUB, output=tool("Good.", "c2")),
    ]
    assert seen(*STARTS, *nested)[1:] == [
        {"type": "subagent-start", "name": "critic", "task": "Read", "toolCallId": "c1"},
        {"type": "subagent-finish", "name": "critic", "result": "Good.", "toolCallId": "c1"},
    ]


def test_a_sub_agent_that_goes_on_after_an_answer_does_not_start_again() -> None:
    about = {"data": {"toolCallId": "c1"}}
    parts = [{"type": "data-subagent-start", **about}, {"type": "data-subagent-step", **about}, {"type": "text"}]
    continues = UIMessage("m", "assistant", parts)
    assert seen(*STARTS, update(ai("Done."), ns=SUB), finished("x"), continues=continues)[0] == step(1)


def test_the_checkpoints_at_the_ends_of_steps_are_told() -> None:
    def checkpoint(step: int, *upcoming: str, source: str = "loop", ns: list[str] | None = None) -> Part:
        data = {"metadata": {"source": source, "step": step}, "next": list(upcoming)}
        return {"type": "checkpoints", "ns": ns or [], "data": data}

    assert seen(
        {"type": "messages", "ns": [], "data": []},
        checkpoint(5, "__start__", source="input"),
        checkpoint(6, "model"),
        checkpoint(7, "TodoListMiddleware.after_model"),
        checkpoint(7, ns=SUB),
        checkpoint(8),
    ) == [
        {"type": "checkpoint-saved", "threadId": "thread", "step": 6},
        {"type": "checkpoint-saved", "threadId": "thread", "step": 8},
    ]
