"""What the driver of graphs does beside what a chat shows: graphs that are made, and turns that cannot go on."""

from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from support.driving import new_chat, user
from support.frameworks import (
    START,
    HumanInTheLoopMiddleware,
    InMemorySaver,
    MessagesState,
    StateGraph,
    create_agent,
    tool,
)
from support.graph_chats import GraphChat, heard
from support.scripted_model import ScriptedModel, calls, says
from usechat.errors import AgentError
from usechat.history import MemoryHistory
from usechat.integrations.langgraph import LangGraphAgent
from usechat.protocol.messages import UIMessage
from usechat.turns.chat import Approval, Chat

pytestmark = pytest.mark.anyio

APPROVAL = Approval("a", "c1", "send", {}, approved=True)


def speaker(*words: str, checkpointer: Any = None) -> Any:
    return create_agent(ScriptedModel(replies=[says(word) for word in words]), [], checkpointer=checkpointer)


async def run(agent: LangGraphAgent, chat: Chat) -> int:
    async with aclosing(agent.run(chat)) as parts:
        return len([part async for part in parts])


async def test_a_graph_is_made_with_the_first_turn_and_let_go_at_the_end() -> None:
    happened: list[str] = []

    @asynccontextmanager
    async def make() -> AsyncGenerator[Any, None]:
        happened.append("made")
        yield speaker("one", "two", checkpointer=InMemorySaver())
        happened.append("closed")

    chat = GraphChat(LangGraphAgent(make))
    assert happened == []
    for _ in range(2):
        await chat.say("Hello")
    assert [message.text for message in await chat.messages()] == ["Hello", "one", "Hello", "two"]
    await chat.endpoint.chats.drain(0)
    assert happened == ["made", "closed"]


async def test_a_chat_without_a_thread_has_nothing_to_forget() -> None:
    chat = GraphChat(LangGraphAgent(speaker("one")))
    await chat.say("Hello")
    await chat.endpoint.chats.delete("chat", None)
    assert await chat.messages() == []


@pytest.mark.parametrize(
    ("chat", "sentence"),
    [
        ({"approvals": [APPROVAL]}, "This answers no approval that is open."),
        ({"continues": user("x")}, "This answers no tool call that is open."),
    ],
)
async def test_a_turn_that_answers_nothing_ends_with_a_sentence(chat: dict[str, Any], sentence: str) -> None:
    agent = LangGraphAgent(speaker(checkpointer=InMemorySaver()))
    with pytest.raises(AgentError, match=sentence):
        await run(agent, new_chat(user("Hello"), **chat))


async def test_a_graph_without_a_checkpointer_has_no_approvals() -> None:
    with pytest.raises(AgentError, match="A graph without a checkpointer cannot wait for approvals"):
        await run(LangGraphAgent(speaker()), new_chat(user("Hello"), approvals=[APPROVAL]))


async def test_only_a_message_of_the_user_is_answered() -> None:
    said = UIMessage("a1", "assistant", [{"type": "text", "text": "Hi"}])
    with pytest.raises(AgentError, match="There is no message to answer"):
        await run(LangGraphAgent(speaker(checkpointer=InMemorySaver())), new_chat(said))


async def test_a_thread_whose_checkpoints_are_gone_cannot_go_back() -> None:
    saver = InMemorySaver()
    agent = LangGraphAgent(speaker("one", checkpointer=saver))
    await run(agent, new_chat(user("Hello")))
    [checkpoints] = [kept for namespaces in saver.storage.values() for kept in namespaces.values()]
    for checkpoint in list(checkpoints)[:-1]:
        del checkpoints[checkpoint]
    with pytest.raises(AgentError, match="The thread of this chat cannot go back before the message"):
        await run(agent, new_chat(user("Hello again")))


async def test_a_thread_that_was_lost_is_made_anew_from_the_chat() -> None:
    def reply(messages: list[Any]) -> Any:
        return says(f"answer {len(messages)}")

    model, history = ScriptedModel(replies=reply), MemoryHistory()

    def restarted() -> GraphChat:
        return GraphChat(create_agent(model, [], checkpointer=InMemorySaver()), history=history)

    await restarted().say("I am Ann", "u1")
    chat = restarted()
    await chat.say("Who am I?", "u2")
    await chat.say("Are you sure?", "u3")
    before = [("human", "I am Ann"), ("ai", "answer 1"), ("human", "Who am I?")]
    assert heard(model)[1:] == [before, [*before, ("ai", "answer 3"), ("human", "Are you sure?")]]
    # What came with the first message after that is known by its id.
    await chat.say("Who am I, then?", "u2")
    assert heard(model)[-1] == [*before[:2], ("human", "Who am I, then?")]
    await chat.say("I am Bob", "u1")
    assert heard(model)[-1] == [("human", "I am Bob")]


class Torn(InMemorySaver):
    """A checkpointer that fails to save one step, of which it has what the nodes gave, as if the process had died."""

    torn = 0

    async def aput(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        if metadata["step"] == self.torn:
            raise OSError("no room")
        saver: Any = super()
        return await saver.aput(config, checkpoint, metadata, new_versions)


@pytest.mark.parametrize(
    ("torn", "results"),
    [
        (1, [("tool", "This call has no result, since it was stopped or failed.")]),
        (2, [("tool", "rain")]),
        (3, [("tool", "rain"), ("ai", "It rains.")]),
    ],
)
async def test_a_thread_that_was_torn_has_no_call_without_a_result_and_no_result_without_a_call(
    torn: int, results: list[tuple[str, str]]
) -> None:
    @tool
    async def look() -> str:
        """Look."""
        return "rain"

    saver = Torn()
    model = ScriptedModel(replies=[[*says("I look."), *calls("c1", "look", {})], says("It rains.")])
    chat = GraphChat(create_agent(model, [look], checkpointer=saver))
    saver.torn = torn
    await chat.say("Weather?")
    saver.torn, model.replies = 0, [says("Yes."), says("Yes.")]
    await chat.say("Still there?")
    thread = [("human", "Weather?"), ("ai", ["c1"]), *results, ("human", "Still there?")]
    assert heard(model)[-1] == thread
    # All of it is in the thread now, once.
    await chat.say("Sure?")
    assert heard(model)[-1] == [*thread, ("ai", "Yes."), ("human", "Sure?")]


async def test_what_the_browser_did_not_answer_has_a_result_as_well() -> None:
    asked = [*calls("c1", "locate", {}), *calls("c2", "locate", {}, 1)]
    model = ScriptedModel(replies=[asked, says("I see.")])

    async def node(state: Any) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState).add_node("node", node).add_edge(START, "node")
    chat = GraphChat(graph.compile(checkpointer=InMemorySaver()))
    await chat.say("Where am I?")
    last = (await chat.messages())[-1]
    last.parts[1] |= {"state": "output-error", "errorText": "No satellites."}
    await chat.post(last)
    assert heard(model)[-1][2:] == [
        ("tool", "No satellites."),
        ("tool", "This call has no result, since it was stopped or failed."),
    ]


class Counted:
    """A graph that counts how often its thread is loaded."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self.loaded = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._graph, name)

    async def aget_state(self, config: Any) -> Any:
        self.loaded += 1
        return await self._graph.aget_state(config)


async def test_a_turn_loads_its_thread_once() -> None:
    @tool
    async def send() -> str:
        """Send a letter."""
        return "sent"

    model = ScriptedModel(replies=[calls("c1", "send", {}), says("It is sent."), says("Again.")])
    gate = HumanInTheLoopMiddleware({"send": True})
    graph = Counted(create_agent(model, [send], middleware=[gate], checkpointer=InMemorySaver()))
    chat = GraphChat(LangGraphAgent(graph))
    await chat.say("Write")
    assert graph.loaded == 1
    await chat.answer({"c1": {"approved": True}})
    assert graph.loaded == 2
    await chat.post((await chat.messages())[0], "regenerate-message")
    assert (graph.loaded, (await chat.messages())[-1].text) == (3, "Again.")
