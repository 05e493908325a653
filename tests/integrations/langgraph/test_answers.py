"""Graphs that wait for a user: approvals in both modes of LangChain's middleware, and questions of a node."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from langchain_core.messages import AIMessage

from support.frameworks import (
    START,
    AsyncSqliteSaver,
    HumanInTheLoopMiddleware,
    InMemorySaver,
    MessagesState,
    StateGraph,
    create_agent,
    interrupt,
    tool,
)
from support.graph_chats import GraphChat, heard
from support.hang import HANG_SECONDS
from support.scripted_model import Reply, ScriptedModel, calls, says
from usechat.errors import RequestError
from usechat.history import MemoryHistory, Tail
from usechat.integrations.langgraph import LangGraphAgent
from usechat.protocol.messages import UIMessage

pytestmark = pytest.mark.anyio

STEP = {"type": "step-start"}
MODES = pytest.mark.parametrize("mode", ["batched", "per_call"])


class Post:
    """A tool whose calls wait for approval, and what it sent."""

    def __init__(self) -> None:
        self.sent: list[str] = []

        @tool
        async def send(to: str) -> str:
            """Send a letter."""
            self.sent.append(to)
            return f"sent to {to}"

        self.tool = send


@tool
async def weather(city: str) -> str:
    """Look outside."""
    return f"rain in {city}"


def text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def letter(to: str, call_id: str = "c1", **fields: Any) -> dict[str, Any]:
    return {"type": "tool-send", "toolCallId": call_id, "input": {"to": to}, **fields}


def agent_with(
    post: Post, model: ScriptedModel, mode: Any, allowed: list[Any] | None = None, saver: Any = None
) -> LangGraphAgent:
    gate: Any = True if allowed is None else {"allowed_decisions": allowed}
    # Older versions have only one.
    options = {} if mode == "batched" else {"interrupt_mode": mode}
    middleware = HumanInTheLoopMiddleware({"send": gate}, **options)
    graph = create_agent(model, [post.tool, weather], middleware=[middleware], checkpointer=saver or InMemorySaver())
    return LangGraphAgent(graph)


def one_letter(*rest: Reply) -> ScriptedModel:
    return ScriptedModel(replies=[[*says("May I?"), *calls("c1", "send", {"to": "Bonn"})], *rest])


@MODES
async def test_a_call_that_is_approved_runs_once_and_the_message_goes_on(mode: str) -> None:
    post, model = Post(), one_letter(says("It is sent."))
    chat = GraphChat(agent_with(post, model, mode))
    chunks = await chat.say("Write")
    approvals = await chat.approvals()
    asked = {"type": "tool-approval-request", "approvalId": approvals["c1"], "toolCallId": "c1"}
    assert [chunk for chunk in chunks if chunk["type"] == "tool-approval-request"] == [asked]
    assert (chunks[-1], post.sent) == ({"type": "finish", "finishReason": "tool-calls"}, [])

    [_, before] = await chat.messages()
    chunks = await chat.answer({"c1": {"approved": True}})
    [_, after] = await chat.messages()
    assert (after.id, post.sent) == (before.id, ["Bonn"])
    answered = letter("Bonn", state="output-available", output="sent to Bonn")
    answered["approval"] = {"id": approvals["c1"], "approved": True}
    assert await chat.parts() == [STEP, text("May I?"), answered, STEP, text("It is sent.")]
    # What was used before the user answered counts, too.
    metadata: Any = after.metadata
    assert metadata["usage"]["totalTokens"] == 30


@MODES
async def test_a_call_that_is_refused_does_not_run_and_the_model_is_told_why(mode: str) -> None:
    post, model = Post(), one_letter(says("It stays here."))
    chat = GraphChat(agent_with(post, model, mode))
    await chat.say("Write")
    await chat.answer({"c1": {"approved": False, "reason": "Too soon."}})
    _, _, refused, *rest = await chat.parts()
    assert (refused["state"], rest, post.sent) == ("output-denied", [STEP, text("It stays here.")], [])
    assert heard(model)[-1][-1] == ("tool", "User rejected the tool call for `send` with reason: Too soon.")


@MODES
async def test_a_call_may_be_edited_or_answered_in_place_of_its_tool(mode: str) -> None:
    post = Post()
    model = one_letter([*says("And?"), *calls("c2", "send", {"to": "Kiel"})], says("Done."))
    chat = GraphChat(agent_with(post, model, mode))
    await chat.say("Write")
    edit = {"type": "edit", "edited_action": {"name": "send", "args": {"to": "Köln"}}}
    await chat.answer({"c1": {"approved": True}}, approvals={(await chat.approvals())["c1"]: edit})
    assert post.sent == ["Köln"]
    respond = {"type": "respond", "message": "I sent it myself."}
    await chat.answer({"c2": {"approved": True}}, approvals={(await chat.approvals())["c2"]: respond})
    assert post.sent == ["Köln"]
    outputs = [part["output"] for part in await chat.parts() if "output" in part]
    assert outputs == ["sent to Köln", "I sent it myself."]


NOT_ALLOWED = "The call can be answered with approve, and not with {}."
OPPOSITE = "The decision on the call is none, or says the opposite of the answer."
OTHER_TOOL = "An edit can change the arguments of the call, and not its tool."


@MODES
@pytest.mark.parametrize(
    ("answer", "decision", "sentence"),
    [
        ({"approved": False}, None, NOT_ALLOWED.format("reject")),
        ({"approved": True}, {"type": "respond", "message": "x"}, NOT_ALLOWED.format("respond")),
        ({"approved": True}, {"type": "edit", "edited_action": {"name": "weather", "args": {}}}, OTHER_TOOL),
        ({"approved": False}, {"type": "approve"}, OPPOSITE),
        ({"approved": True}, {"type": "reject"}, OPPOSITE),
        ({"approved": False}, {"type": "reject"}, NOT_ALLOWED.format("reject")),
        ({"approved": False}, {"type": "reject", "message": "no"}, NOT_ALLOWED.format("reject")),
        ({"approved": True}, {"type": "sell"}, OPPOSITE),
        ({"approved": True}, "approve", OPPOSITE),
    ],
)
async def test_an_answer_that_is_not_allowed_leaves_the_approval_open(
    mode: str, answer: dict[str, Any], decision: Any, sentence: str
) -> None:
    post, model = Post(), one_letter(says("It is sent."))
    chat = GraphChat(agent_with(post, model, mode, ["approve"]))
    await chat.say("Write")
    body = {} if decision is None else {"approvals": {(await chat.approvals())["c1"]: decision}}
    with pytest.raises(RequestError) as refused:
        await chat.answer({"c1": answer}, **body)
    assert (str(refused.value), refused.value.status) == (sentence, 409)
    assert (await chat.parts())[-1]["state"] == "approval-requested"
    approve = {"approvals": {(await chat.approvals())["c1"]: {"type": "approve"}}}
    await chat.answer({"c1": {"approved": True}}, **approve)
    assert post.sent == ["Bonn"]


def two_letters(*rest: Reply) -> ScriptedModel:
    both = [
        *calls("c1", "send", {"to": "Bonn"}),
        *calls("c2", "weather", {"city": "Bonn"}, 1),
        *calls("c3", "send", {"to": "Kiel"}, 2),
    ]
    return ScriptedModel(replies=[both, *rest])


@MODES
async def test_several_calls_wait_at_once(mode: str) -> None:
    post, model = Post(), two_letters(says("One is sent."))
    chat = GraphChat(agent_with(post, model, mode))
    await chat.say("Write")
    waits = "This call waits until others are approved." if mode == "batched" else "rain in Bonn"
    assert [part.get("output") for part in await chat.parts()] == [None, None, waits, None]
    assert [*(await chat.approvals())] == ["c1", "c3"]
    await chat.answer({"c1": {"approved": True}, "c3": {"approved": False}})
    states = [(part.get("state"), part.get("output")) for part in await chat.parts()]
    assert states[1:4] == [
        ("output-available", "sent to Bonn"),
        ("output-available", "rain in Bonn"),
        ("output-denied", None),
    ]
    assert (post.sent, (await chat.parts())[-1]) == (["Bonn"], text("One is sent."))


async def test_calls_that_wait_together_are_answered_together() -> None:
    post, model = Post(), two_letters(says("Both are sent."))
    chat = GraphChat(agent_with(post, model, "batched"))
    await chat.say("Write")
    with pytest.raises(RequestError, match=r"The calls that wait together have to be answered together.") as refused:
        await chat.answer({"c1": {"approved": True}})
    assert refused.value.status == 409
    await chat.answer({"c1": {"approved": True}, "c3": {"approved": True}})
    assert post.sent == ["Bonn", "Kiel"]


async def test_calls_that_wait_on_their_own_may_be_answered_one_after_the_other() -> None:
    post, model = Post(), two_letters(says("Both are sent."))
    chat = GraphChat(agent_with(post, model, "per_call"))
    await chat.say("Write")
    chunks = await chat.answer({"c3": {"approved": True}})
    assert (post.sent, chunks[-1]) == (["Kiel"], {"type": "finish", "finishReason": "tool-calls"})
    await chat.answer({"c1": {"approved": True}})
    assert (post.sent, (await chat.parts())[-1]) == (["Kiel", "Bonn"], text("Both are sent."))


@MODES
async def test_a_message_in_place_of_an_answer_refuses_the_calls_and_is_answered(mode: str) -> None:
    post, model = Post(), two_letters(says("Something else, then."))
    chat = GraphChat(agent_with(post, model, mode))
    await chat.say("Write")
    await chat.say("Rather tell me a joke")
    assert (post.sent, await chat.parts()) == ([], [STEP, text("Something else, then.")])
    went_on = ("tool", "This call was not carried out: the user approved nothing, and went on with another message.")
    assert heard(model)[-1] == [
        ("human", "Write"),
        ("ai", ["c1", "c2", "c3"]),
        # Its result is not lost.
        ("tool", "rain in Bonn") if mode == "per_call" else went_on,
        went_on,
        went_on,
        ("human", "Rather tell me a joke"),
    ]


async def test_an_approval_that_the_thread_does_not_wait_for_is_refused() -> None:
    post, model = Post(), one_letter(says("Other."), says("Sent."))
    agent = agent_with(post, model, "batched")
    chat = GraphChat(agent)
    await chat.say("Write")
    # Another server with the same thread has gone on.
    await GraphChat(agent).say("Go on")
    with pytest.raises(RequestError, match=r"This answers no approval that is open.") as refused:
        await chat.answer({"c1": {"approved": True}})
    assert (refused.value.status, post.sent) == (409, [])


async def test_another_process_goes_on_from_the_checkpointer(tmp_path: Path) -> None:
    # What the page has of the chat goes there as well.
    asked = tmp_path / "asked.json"
    async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "threads.db")) as saver:
        chat = GraphChat(agent_with(Post(), one_letter(), "batched", saver=saver))
        await chat.say("Write")
        asked.write_bytes(msgspec.json.encode(await chat.messages()))
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    process = await asyncio.create_subprocess_exec(
        sys.executable, __file__, str(tmp_path), stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
    )
    async with asyncio.timeout(HANG_SECONDS):
        told, _ = await process.communicate()
    assert msgspec.json.decode(told) == {
        "sent": ["Bonn"],
        "heard": [[["human", "Write"], ["ai", ["c1"]], ["tool", "sent to Bonn"]]],
        "last": text("It is sent."),
    }


async def go_on(folder: Path) -> None:
    """The other process: the user approves there."""
    post, model, history = Post(), ScriptedModel(replies=[says("It is sent.")]), MemoryHistory()
    messages = msgspec.json.decode((folder / "asked.json").read_bytes(), type=list[UIMessage])
    await history.begin("chat", "", "turn", after=Tail(0), keep=0, new=messages, epoch=1)
    async with AsyncSqliteSaver.from_conn_string(str(folder / "threads.db")) as saver:
        chat = GraphChat(agent_with(post, model, "batched", saver=saver), history=history)
        await chat.answer({"c1": {"approved": True}})
        told = {"sent": post.sent, "heard": heard(model), "last": (await chat.parts())[-1]}
    sys.stdout.buffer.write(msgspec.json.encode(told))


def asks(*questions: str) -> LangGraphAgent:
    """A graph whose nodes ask at the same time, and then say what they were answered."""
    graph = StateGraph(MessagesState)

    def node(question: str) -> Any:
        async def ask(_state: Any) -> dict[str, Any]:
            return {"messages": [AIMessage(f"{question} {interrupt({'question': question})}.")]}

        return ask

    for question in questions:
        graph.add_node(question, node(question)).add_edge(START, question)
    return LangGraphAgent(graph.compile(checkpointer=InMemorySaver()))


async def test_the_question_of_a_node_is_answered_by_the_next_message() -> None:
    chat = GraphChat(asks("Who?"))
    chunks = await chat.say("Hello")
    [asked] = [chunk for chunk in chunks if chunk["type"] == "data-interrupt"]
    assert asked["data"] == {"id": asked["id"], "value": {"question": "Who?"}}
    assert chunks[-1] == {"type": "finish", "finishReason": "other"}
    await chat.say("Ann")
    assert await chat.parts() == [STEP, text("Who? Ann.")]


async def test_questions_are_answered_by_their_ids() -> None:
    chat = GraphChat(asks("Who?", "Where?"))
    chunks = await chat.say("Hello")
    ids = {chunk["data"]["value"]["question"]: chunk["id"] for chunk in chunks if chunk["type"] == "data-interrupt"}
    with pytest.raises(RequestError, match=r"Several questions are open, so each has to be answered by its id."):
        await chat.say("Ann")
    wrongs: list[Any] = [{"nothing": 1}, {}, [], "Ann"]
    for wrong in wrongs:
        with pytest.raises(RequestError, match=r"This answers no question that is open.") as refused:
            await chat.say("Ann", resume=wrong)
        assert refused.value.status == 409
    chunks = await chat.say("Ann", resume={ids["Who?"]: "Ann"})
    assert [chunk["id"] for chunk in chunks if chunk["type"] == "data-interrupt"] == [ids["Where?"]]
    await chat.say("In Bonn", resume={ids["Where?"]: {"city": "Bonn"}})
    assert (await chat.parts())[-1] == text("Where? {'city': 'Bonn'}.")


async def test_a_tool_may_ask() -> None:
    @tool
    async def ask(question: str) -> str:
        """Ask the user."""
        return f"They said {interrupt(question)}"

    model = ScriptedModel(replies=[calls("c1", "ask", {"question": "Who?"}), says("Hello Ann.")])
    chat = GraphChat(create_agent(model, [ask], checkpointer=InMemorySaver()))
    await chat.say("Hello")
    _, call, *rest = await chat.parts()
    assert (call["state"], call["output"], rest[0]["data"]["value"]) == (
        "output-available",
        "This call waits for an answer.",
        "Who?",
    )
    await chat.say("Ann")
    _, call, *rest = await chat.parts()
    assert (call["input"], call["output"], rest) == (
        {"question": "Who?"},
        "They said Ann",
        [STEP, text("Hello Ann.")],
    )


async def test_the_browser_may_run_a_tool_that_the_graph_leaves_to_it() -> None:
    model = ScriptedModel(replies=[calls("c1", "locate", {}), says("Bonn it is.")])

    async def node(state: Any) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    chat = GraphChat(
        StateGraph(MessagesState).add_node("node", node).add_edge(START, "node").compile(checkpointer=InMemorySaver())
    )
    chunks = await chat.say("Where am I?")
    assert chunks[-1] == {"type": "finish", "finishReason": "tool-calls"}
    last = (await chat.messages())[-1]
    last.parts[-1] |= {"state": "output-available", "output": {"city": "Bonn"}}
    await chat.post(last)
    assert heard(model)[-1] == [("human", "Where am I?"), ("ai", ["c1"]), ("tool", '{"city":"Bonn"}')]
    assert (await chat.parts())[-1] == text("Bonn it is.")


if __name__ == "__main__":
    asyncio.run(go_on(Path(sys.argv[1])))


NO_CHECKPOINTER = (
    "This graph asks the user, and without a checkpointer it cannot go on with the answer: compile it with "
    "`checkpointer=InMemorySaver()` of langgraph.checkpoint.memory, or with one that outlives the process."
)


def approving() -> Any:
    gate: Any = HumanInTheLoopMiddleware({"send": True})
    return create_agent(one_letter(), [Post().tool], middleware=[gate])


def questioning() -> Any:
    def node(state: Any) -> dict[str, Any]:
        return {"messages": [interrupt("Who?")]}

    return StateGraph(MessagesState).add_node("node", node).add_edge(START, "node").compile()


@pytest.mark.parametrize("make", [approving, questioning])
async def test_a_graph_that_could_not_go_on_with_the_answer_fails_before_it_asks(
    make: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    chat = GraphChat(make())
    chunks = await chat.say("Write")
    assert chunks[-1] == {"type": "error", "errorText": "RuntimeError"}
    assert {"tool-approval-request", "data-interrupt"}.isdisjoint(chunk["type"] for chunk in chunks)
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == [NO_CHECKPOINTER]
