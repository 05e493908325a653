"""Real agents of deepagents, and the DeepAgent events of their runs."""

from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import BaseMessage

from support.frameworks import InMemorySaver, LocalShellBackend, TodoListMiddleware, create_agent, create_deep_agent
from support.graph_chats import GraphChat, heard
from support.scripted_model import Reply, ScriptedModel, calls, says
from usechat.events import AgentEvent, Data
from usechat.integrations import agent_of
from usechat.integrations.deepagent_sdk.agent import DeepAgent
from usechat.integrations.deepagents import DeepGraphAgent
from usechat.integrations.deepagents.agent import is_deep_graph
from usechat.integrations.langgraph import LangGraphAgent
from usechat.turns.chat import Chat

pytestmark = pytest.mark.anyio


def at_once(*asked: tuple[str, dict[str, Any]]) -> Reply:
    """Calls of several tools, with the ids c1, c2 and so on."""
    return [chunk for n, (name, args) in enumerate(asked, 1) for chunk in calls(f"c{n}", name, args, n)]


def deep_agent(model: ScriptedModel, folder: Path, **options: Any) -> Any:
    backend = LocalShellBackend(root_dir=str(folder), virtual_mode=True)
    return create_deep_agent(model, [], backend=backend, middleware=[TodoListMiddleware()], **options)


async def events_of(agent: Any, *, said: str = "Go") -> list[tuple[str, Any]]:
    """The events of a turn that are of no sub-graph and no checkpoint, in the order of their names."""
    chunks = await GraphChat(agent).say(said)
    left_out = ("data-subagent", "data-checkpoint-saved", "data-checkpoint-loaded")
    shown = [chunk for chunk in chunks if chunk["type"].startswith("data-") and chunk["type"] not in left_out]
    called = {chunk["toolCallId"] for chunk in chunks if "toolCallId" in chunk}
    return [(chunk["type"].removeprefix("data-"), _as_the_model_calls_it(chunk["data"], called)) for chunk in shown]


def _as_the_model_calls_it(data: dict[str, Any], called: set[str]) -> dict[str, Any]:
    """The data of an event; where the model gives several calls the id c1, the stream has an id for each."""
    if "toolCallId" not in data:
        return data
    assert data["toolCallId"] in called
    return {**data, "toolCallId": data["toolCallId"] if len(data["toolCallId"]) == 2 else "c1"}


async def test_a_deep_agent_is_recognised(tmp_path: Path) -> None:
    model = ScriptedModel(replies=[])
    deep, other = deep_agent(model, tmp_path), create_agent(model, [])
    assert (is_deep_graph(deep), is_deep_graph(other), is_deep_graph("x")) == (True, False, False)
    assert type(agent_of(deep)) is DeepGraphAgent
    assert type(agent_of(other)) is LangGraphAgent


async def test_files_are_written_edited_read_and_found(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\n")
    replies = [
        at_once(("write_file", {"file_path": "/b.txt", "content": "bye bye\nnow"})),
        at_once(("edit_file", {"file_path": "/b.txt", "old_string": "now", "new_string": "then"})),
        at_once(("edit_file", {"file_path": "/none.txt", "old_string": "a", "new_string": "b"})),
        at_once(("read_file", {"file_path": "/a.txt"})),
        at_once(("read_file", {"file_path": "/a.txt", "offset": 1, "limit": 1})),
        at_once(("read_file", {"file_path": "/none.txt"})),
        at_once(("ls", {"path": "/"})),
        at_once(("ls", {"path": "/none"})),
        at_once(("glob", {"pattern": "*.txt", "path": "/"})),
        at_once(("glob", {"pattern": "*.md", "path": "/"})),
        at_once(("grep", {"pattern": "t", "path": "/"})),
        at_once(("grep", {"pattern": "t", "path": "/", "output_mode": "content"})),
        at_once(("grep", {"pattern": "bye", "path": "/", "output_mode": "count"})),
        at_once(("grep", {"pattern": "xyz", "path": "/"})),
        says("Done."),
    ]
    assert await events_of(deep_agent(ScriptedModel(replies=replies), tmp_path)) == [
        ("file-write-start", {"path": "/b.txt", "content": "bye bye\nnow", "toolCallId": "c1"}),
        ("file-written", {"path": "/b.txt", "content": "bye bye\nnow", "toolCallId": "c1"}),
        ("file-edited", {"path": "/b.txt", "occurrences": 1, "toolCallId": "c1"}),
        ("file-read", {"path": "/a.txt", "lines": 3, "toolCallId": "c1"}),
        ("file-read", {"path": "/a.txt", "lines": 1, "toolCallId": "c1"}),
        ("ls", {"path": "/", "count": 2, "toolCallId": "c1"}),
        ("glob", {"pattern": "*.txt", "count": 2, "toolCallId": "c1"}),
        ("glob", {"pattern": "*.md", "count": 0, "toolCallId": "c1"}),
        ("grep", {"pattern": "t", "count": 2, "toolCallId": "c1"}),
        ("grep", {"pattern": "t", "count": 3, "toolCallId": "c1"}),
        ("grep", {"pattern": "bye", "count": 1, "toolCallId": "c1"}),
        ("grep", {"pattern": "xyz", "count": 0, "toolCallId": "c1"}),
    ]


async def test_a_command_has_its_exit_code_and_todos_are_replaced(tmp_path: Path) -> None:
    todos = [{"content": "look", "status": "in_progress"}, {"content": "tell", "status": "pending"}]
    replies = [at_once(("execute", {"command": "exit 3"})), at_once(("write_todos", {"todos": todos})), says("Done.")]
    assert await events_of(deep_agent(ScriptedModel(replies=replies), tmp_path)) == [
        ("execute-start", {"command": "exit 3", "toolCallId": "c1"}),
        ("execute-finish", {"command": "exit 3", "exitCode": 3, "truncated": False, "toolCallId": "c1"}),
        (
            "todos-changed",
            {
                "todos": [
                    {"id": "todo-1", "content": "look", "status": "in_progress"},
                    {"id": "todo-2", "content": "tell", "status": "pending"},
                ],
                "toolCallId": "c1",
            },
        ),
    ]


def with_tasks(*asked: tuple[str, str]) -> ScriptedModel:
    """A model that gives these tasks to sub-agents, each of which writes a file and says so."""

    def reply(messages: list[BaseMessage]) -> Reply:
        task = next(str(message.content) for message in messages if message.type == "human")
        if task == "Go":
            tasks = [("task", {"subagent_type": name, "description": words}) for name, words in asked]
            return says("Done.") if messages[-1].type == "tool" else at_once(*tasks)
        write = calls(f"w-{task}", "write_file", {"file_path": f"/{task}.txt", "content": task})
        return says(f"{task} is written") if messages[-1].type == "tool" else write

    return ScriptedModel(replies=reply)


def of_task(name: str, task: str, call: str) -> list[tuple[str, Any]]:
    owner = {"toolCallId": call}
    wrote = {
        "toolName": "write_file",
        "args": {"file_path": f"/{task}.txt", "content": task},
        "result": f"Updated file /{task}.txt",
    }
    return [
        ("subagent-start", {"name": name, "task": task, **owner}),
        ("file-write-start", {"path": f"/{task}.txt", "content": task, **owner}),
        ("file-written", {"path": f"/{task}.txt", "content": task, **owner}),
        ("subagent-step", {"stepIndex": 0, "toolCalls": [wrote], **owner}),
        ("subagent-step", {"stepIndex": 1, "toolCalls": [], **owner}),
        ("subagent-finish", {"name": name, "result": f"{task} is written", **owner}),
    ]


async def test_a_sub_agent_has_its_steps_and_one_that_does_not_exist_never_starts(tmp_path: Path) -> None:
    model = with_tasks(("general-purpose", "poem"), ("nobody", "song"))
    assert await events_of(deep_agent(model, tmp_path)) == of_task("general-purpose", "poem", "c1")


async def test_two_sub_agents_of_one_name_are_told_apart_by_their_calls(tmp_path: Path) -> None:
    model = with_tasks(("general-purpose", "poem"), ("general-purpose", "song"))
    events = await events_of(deep_agent(model, tmp_path))
    for task, call in (("poem", "c1"), ("song", "c2")):
        own = [(name, data) for name, data in events if data["toolCallId"] == call]
        assert own == of_task("general-purpose", task, call)


async def test_a_thread_tells_what_it_has_and_what_it_saves(tmp_path: Path) -> None:
    replies = [at_once(("ls", {"path": "/"})), says("Empty."), says("Still empty.")]
    chat = GraphChat(deep_agent(ScriptedModel(replies=replies), tmp_path, checkpointer=InMemorySaver()))

    async def checkpoints(said: str) -> list[tuple[str, Any]]:
        chunks = await chat.say(said)
        return [(chunk["type"], chunk["data"]) for chunk in chunks if chunk["type"].startswith("data-checkpoint")]

    first = await checkpoints("Look")
    assert {(name, data["threadId"]) for name, data in first} == {("data-checkpoint-saved", "chat")}
    steps = [data["step"] for _, data in first]
    # Before each of two answers of the model, and at the end.
    assert (len(steps), steps) == (3, sorted(steps))
    again = await checkpoints("Look again")
    assert again[0] == ("data-checkpoint-loaded", {"threadId": "chat", "step": steps[-1], "messagesCount": 4})
    assert [name for name, _ in again[1:]] == ["data-checkpoint-saved"] * 2


async def test_a_sub_agent_that_waited_for_approval_does_not_start_again(tmp_path: Path) -> None:
    model = with_tasks(("general-purpose", "poem"))
    agent = deep_agent(model, tmp_path, interrupt_on={"write_file": True}, checkpointer=InMemorySaver())
    chat = GraphChat(agent)
    await chat.say("Go")
    [call_id] = await chat.approvals()
    assert not (tmp_path / "poem.txt").exists()
    await chat.answer({call_id: {"approved": True}})
    assert (tmp_path / "poem.txt").read_text() == "poem"
    parts = await chat.parts()
    kinds = [part["type"] for part in parts if part["type"].startswith("data-") and "checkpoint" not in part["type"]]
    assert [kind for kind in kinds if kind != "data-subagent"] == [
        f"data-{name}" for name, _ in of_task("general-purpose", "poem", "c1")
    ]
    assert [part["text"] for part in parts if part["type"] == "text"] == ["Done."]


async def test_tools_may_have_other_names_and_their_events_another_translator(tmp_path: Path) -> None:
    class Names:
        def __init__(self, chat: Chat) -> None:
            self._name = "name" if chat.text == "Go" else chat.text

        def translate(self, event: Any) -> list[AgentEvent]:
            return [Data(self._name, event["type"])]

        def end(self) -> list[AgentEvent]:
            return []

    replies = [at_once(("execute", {"command": "true"}), ("ls", {"path": "/"})), says("Done.")]
    agent = DeepGraphAgent(
        deep_agent(ScriptedModel(replies=replies), tmp_path), tools={"execute": "shell"}, side_events=Names
    )
    assert await events_of(agent) == [("name", "ls")]


async def test_a_message_to_a_deep_agent_is_answered_again(tmp_path: Path) -> None:
    model = ScriptedModel(replies=[says("one"), says("two"), says("three")])
    chat = GraphChat(deep_agent(model, tmp_path, checkpointer=InMemorySaver()))
    await chat.say("First")
    await chat.say("Second")
    await chat.post((await chat.messages())[2], "regenerate-message")
    assert heard(model)[-1][-3:] == [("human", "First"), ("ai", "one"), ("human", "Second")]
    assert [message.text for message in await chat.messages()] == ["First", "one", "Second", "three"]


WRITES = (("write_file", {"file_path": "/b.txt", "content": "now"}),)


@pytest.mark.parametrize("options", [{"events": {"file-written"}}, {"events": {"file-written"}, "throttle": 0.01}])
async def test_a_page_is_shown_what_was_chosen(tmp_path: Path, options: dict[str, Any]) -> None:
    graph = deep_agent(ScriptedModel(replies=[at_once(*WRITES), says("Done.")]), tmp_path)
    written = {"path": "/b.txt", "content": "now", "toolCallId": "c1"}
    assert await events_of(DeepAgent(graph, **options)) == [("file-written", written)]


async def test_several_events_are_shown_in_one_part(tmp_path: Path) -> None:
    graph = deep_agent(ScriptedModel(replies=[at_once(*WRITES), says("Done.")]), tmp_path)
    chunks = await GraphChat(DeepAgent(graph, batch=True)).say("Go")
    assert any(chunk["type"] == "data-file-written" or "file-written" in str(chunk.get("data")) for chunk in chunks)


def test_what_is_not_for_graphs_is_refused(tmp_path: Path) -> None:
    graph = deep_agent(ScriptedModel(replies=[]), tmp_path)
    with pytest.raises(TypeError, match="A graph has its own state and threads"):
        DeepAgent(graph, thread_id="t")
