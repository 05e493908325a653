"""Graphs inside graphs: as nodes, and as agents that a tool asks."""

import asyncio
from typing import Any

import pytest
from langchain_core.messages import BaseMessage

from support.frameworks import (
    END,
    START,
    HumanInTheLoopMiddleware,
    InMemorySaver,
    MessagesState,
    StateGraph,
    create_agent,
    tool,
)
from support.graph_chats import GraphChat, heard
from support.hang import HANG_SECONDS
from support.scripted_model import Reply, ScriptedModel, calls, says
from usechat.integrations.langgraph import LangGraphAgent
from usechat.protocol.messages import UIMessage

pytestmark = pytest.mark.anyio

STEP = {"type": "step-start"}


def text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def helper_of(words: str) -> Reply:
    """What a helper says to a task of its own."""
    return [*says("I look. "), *calls(f"look-{words}", "look", {"at": words})]


@tool
async def look(at: str) -> str:
    """Look at something."""
    return f"{at} is green"


def helper_model() -> ScriptedModel:
    def reply(messages: list[BaseMessage]) -> Reply:
        asked = str(messages[0].content)
        return says(f"{asked} is ", "green.") if messages[-1].type == "tool" else helper_of(asked)

    return ScriptedModel(replies=reply)


def with_helpers(*tasks: str, **options: Any) -> LangGraphAgent:
    """An agent that asks a helper for each task at the same time, and then says something itself."""
    helper = create_agent(helper_model(), [look], name="helper")

    @tool
    async def ask(task: str) -> str:
        """Ask a helper."""
        answer = await helper.ainvoke({"messages": [("user", task)]})
        return str(answer["messages"][-1].content)

    asked = [chunk for n, task in enumerate(tasks) for chunk in calls(f"c{n}", "ask", {"task": task}, n)]
    model = ScriptedModel(replies=[asked, says("All green.")])
    return LangGraphAgent(create_agent(model, [ask]), **options)


async def test_what_an_agent_of_a_tool_says_is_one_part_that_is_replaced() -> None:
    chat = GraphChat(with_helpers("grass"))
    chunks = await chat.say("Look")
    told = [chunk for chunk in chunks if chunk["type"] == "data-subagent"]
    assert len({chunk["id"] for chunk in told}) == 1
    texts = [chunk["data"]["text"] for chunk in told]
    assert texts[0] == "I look. "
    whole = {
        "id": told[-1]["id"],
        "name": "helper",
        "toolCallId": "c0",
        "status": "done",
        "text": "I look. \n\ngrass is green.",
        "tools": [{"toolCallId": "look-grass", "toolName": "look", "state": "done"}],
    }
    assert told[-1]["data"] == whole
    call, answer = (await chat.parts())[1], (await chat.parts())[-1]
    assert (call["output"], answer) == ("grass is green.", text("All green."))
    # What the helper used counts, too.
    metadata: Any = (await chat.messages())[-1].metadata
    assert metadata["usage"]["totalTokens"] == 60


async def test_two_agents_of_one_name_have_two_parts() -> None:
    chat = GraphChat(with_helpers("grass", "moss"))
    await chat.say("Look")
    told = [part["data"] for part in await chat.parts() if part["type"] == "data-subagent"]
    found = {data["toolCallId"]: (data["name"], data["text"]) for data in told}
    assert found == {
        "c0": ("helper", "I look. \n\ngrass is green."),
        "c1": ("helper", "I look. \n\nmoss is green."),
    }


async def test_sub_graphs_may_have_lanes_or_be_off() -> None:
    chat = GraphChat(with_helpers("grass", subgraphs="lanes"))
    await chat.say("Look")
    parts = [part for part in await chat.parts() if part["type"] != "step-start"]
    kinds = [(part["type"], part.get("text", part.get("output"))) for part in parts]
    assert kinds == [
        ("tool-ask", "grass is green."),
        ("text", "I look. "),
        ("tool-look", "grass is green"),
        ("text", "grass is green."),
        ("text", "All green."),
    ]
    chat = GraphChat(with_helpers("grass", subgraphs="off"))
    await chat.say("Look")
    assert [part["type"] for part in await chat.parts()] == ["step-start", "tool-ask", "step-start", "text"]


@pytest.mark.parametrize("subgraphs", ["data", "lanes", "off"])
async def test_an_agent_that_is_a_node_answers_for_the_graph(subgraphs: Any) -> None:
    graph = StateGraph(MessagesState).add_node("agent", create_agent(helper_model(), [look], name="helper"))
    graph.add_edge(START, "agent").add_edge("agent", END)
    chat = GraphChat(LangGraphAgent(graph.compile(checkpointer=InMemorySaver()), subgraphs=subgraphs))
    for _ in range(2):
        await chat.say("grass")
    kinds = [
        (part["type"], part.get("text", part.get("output")))
        for part in await chat.parts()
        if part["type"] not in ("step-start", "data-subagent")
    ]
    # The messages of the first turn are not said again.
    assert kinds == [("text", "I look. "), ("tool-look", "grass is green"), ("text", "grass is green.")]


async def test_a_call_of_a_sub_graph_waits_for_approval_in_the_message() -> None:
    gate = HumanInTheLoopMiddleware({"look": True})
    helper = create_agent(helper_model(), [look], name="helper", middleware=[gate])

    @tool
    async def ask(task: str) -> str:
        """Ask a helper."""
        answer = await helper.ainvoke({"messages": [("user", task)]})
        return str(answer["messages"][-1].content)

    asked = [*calls("c0", "ask", {"task": "grass"}), *calls("c1", "ask", {"task": "moss"}, 1)]
    model = ScriptedModel(replies=[asked, says("All green.")])
    chat = GraphChat(create_agent(model, [ask], checkpointer=InMemorySaver()))
    chunks = await chat.say("Look")
    asked_for = await chat.approvals()
    assert [call_id.partition(":")[2] for call_id in asked_for] == ["look-grass", "look-moss"]
    assert chunks[-1] == {"type": "finish", "finishReason": "tool-calls"}
    first, second = asked_for
    # One of two sub-graphs goes on, and the other still waits.
    await chat.answer({first: {"approved": True}})
    assert [*(await chat.approvals())] == [first, second]
    await chat.answer({second: {"approved": False}})
    parts = await chat.parts()
    states = {part["toolCallId"]: part["state"] for part in parts if "toolCallId" in part}
    assert states == {
        "c0": "output-available",
        "c1": "output-available",
        first: "output-available",
        second: "output-denied",
    }
    told = [part["data"] for part in parts if part["type"] == "data-subagent"]
    assert [data["text"] for data in told] == ["I look. \n\ngrass is green.", "I look. \n\nmoss is green."]
    assert parts[-1] == text("All green.")


async def stopped(chat: GraphChat, until: str) -> None:
    """Say something, and stop the turn as soon as this is in its stream."""
    reader = await chat.begin(UIMessage("s1", "user", [{"type": "text", "text": "Go"}]))
    async with asyncio.timeout(HANG_SECONDS):
        while until.encode() not in b"".join(reader.log.frames):
            await reader.log.changed()
        await chat.endpoint.chats.stop(chat.id, chat.user, None)
    reader.leave()


async def test_a_turn_that_is_stopped_in_the_model_leaves_the_thread_whole() -> None:
    model = ScriptedModel(replies=[[*says("Let me "), asyncio.Event()], says("Yes.")])
    chat = GraphChat(create_agent(model, [], checkpointer=InMemorySaver()))
    await stopped(chat, "Let me ")
    assert await chat.parts() == [STEP, text("Let me ")]
    await chat.say("Are you there?")
    assert heard(model)[-1] == [("human", "Go"), ("human", "Are you there?")]


async def test_a_turn_that_is_stopped_in_a_tool_leaves_no_call_without_a_result() -> None:
    cancelled = asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return ""

    model = ScriptedModel(replies=[[*calls("c1", "wait", {}), *calls("c2", "look", {"at": "x"}, 1)], says("Yes.")])
    chat = GraphChat(create_agent(model, [wait, look], checkpointer=InMemorySaver()))
    await stopped(chat, "x is green")
    async with asyncio.timeout(HANG_SECONDS):
        await cancelled.wait()
    states = [(part["toolCallId"], part["state"]) for part in await chat.parts() if "toolCallId" in part]
    assert states == [("c1", "output-error"), ("c2", "output-available")]
    await chat.say("Are you there?")
    said = heard(model)[-1]
    assert [kind for kind, _ in said] == ["human", "ai", "tool", "tool", "human"]
    assert ("tool", "This call has no result, since it was stopped or failed.") in said
