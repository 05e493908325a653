"""Real graphs of LangGraph and LangChain, with a model that says what is written here."""

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest
from langchain.tools import ToolRuntime
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from pydantic import BaseModel

from support.frameworks import (
    END,
    START,
    InMemorySaver,
    MessagesState,
    StateGraph,
    SummarizationMiddleware,
    ToolStrategy,
    add_messages,
    create_agent,
    get_runtime,
    get_stream_writer,
    tool,
)
from support.graph_chats import GraphChat, heard
from support.scripted_model import Reply, ScriptedModel, calls, says, thinks
from usechat.integrations.langgraph import LangGraphAgent
from usechat.protocol.messages import UIMessage

pytestmark = pytest.mark.anyio

STEP = {"type": "step-start"}
USAGE = {
    "inputTokens": 20,
    "inputTokenDetails": {"noCacheTokens": 16, "cacheReadTokens": 4, "cacheWriteTokens": 0},
    "outputTokens": 10,
    "outputTokenDetails": {"textTokens": 8, "reasoningTokens": 2},
    "totalTokens": 30,
    "reasoningTokens": 2,
    "cachedInputTokens": 4,
}


@tool
async def weather(city: str) -> dict[str, Any]:
    """Look outside."""
    return {"city": city, "celsius": 12}


@tool
def clock(zone: str) -> str:
    """Look at the clock."""
    get_stream_writer()({"type": "data-clock", "data": {"zone": zone}, "id": "clock"})
    get_stream_writer()("tick")
    return "noon"


def text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def called(name: str, value: Any, call_id: str = "c1", **fields: Any) -> dict[str, Any]:
    given = {"state": "output-available"} if "output" in fields else {}
    return {"type": f"tool-{name}", "toolCallId": call_id, "input": value, **given, **fields}


async def test_text_and_reasoning_come_in_pieces() -> None:
    model = ScriptedModel(replies=[[*thinks("Hm", "."), *thinks("So.", index=1), *says("Good ", "day")]])
    chat = GraphChat(create_agent(model, []))
    chunks = await chat.say("Hello")
    deltas = [chunk["delta"] for chunk in chunks if "delta" in chunk]
    assert deltas == ["Hm", ".", "So.", "Good ", "day"]
    reasoning = [{"type": "reasoning", "text": text} for text in ("Hm.", "So.")]
    assert await chat.parts() == [STEP, *reasoning, text("Good day")]
    assert chunks[-1] == {"type": "finish", "finishReason": "stop"}


async def test_two_tools_run_at_once_with_streamed_arguments() -> None:
    reply = [*says("I look."), *calls("c1", "weather", {"city": "Bonn"}), *calls("c2", "clock", {"zone": "CET"}, 1)]
    model = ScriptedModel(replies=[reply, says("12 °C at noon.")])
    chat = GraphChat(create_agent(model, [weather, clock]))
    chunks = await chat.say("Weather?")
    written = [chunk["inputTextDelta"] for chunk in chunks if chunk["type"] == "tool-input-delta"]
    assert written == ['{"city":', ' "Bonn"}', '{"zone"', ': "CET"}']
    parts = await chat.parts()
    assert parts[:4] == [
        STEP,
        text("I look."),
        called("weather", {"city": "Bonn"}, output={"city": "Bonn", "celsius": 12}),
        called("clock", {"zone": "CET"}, "c2", output="noon"),
    ]
    # What a tool writes comes while the others work.
    assert sorted(parts[4:], key=str) == sorted(
        [
            {"type": "data-clock", "data": {"zone": "CET"}},
            {"type": "data-custom", "data": "tick"},
            STEP,
            text("12 °C at noon."),
        ],
        key=str,
    )
    assert (await chat.messages())[-1].metadata == {"usage": USAGE}


async def test_a_tool_shows_what_it_has_so_far() -> None:
    @tool
    async def count(runtime: ToolRuntime[Any, Any]) -> str:
        """Count."""
        runtime.emit_output_delta("one, ")
        runtime.emit_output_delta("two, " * 20)
        return "three"

    chat = GraphChat(create_agent(ScriptedModel(replies=[calls("c1", "count", {}), says("Done.")]), [count]))
    outputs = [chunk for chunk in await chat.say("Count") if chunk["type"] == "tool-output-available"]
    preliminary = {"type": "tool-output-available", "toolCallId": "c1", "preliminary": True}
    assert outputs == [
        {**preliminary, "output": "one, "},
        {**preliminary, "output": "one, " + "two, " * 20},
        {"type": "tool-output-available", "toolCallId": "c1", "output": "three"},
    ]


async def test_a_call_that_the_tool_refuses_is_an_error_of_the_tool() -> None:
    replies = [[*calls("c1", "weather", {"town": "Bonn"}), *calls("c2", "fly", {}, 1)], says("I cannot.")]
    chat = GraphChat(create_agent(ScriptedModel(replies=replies), [weather]))
    await chat.say("Weather?")
    _, first, second, *rest = await chat.parts()
    assert (first["state"], first["input"], second["state"]) == ("output-error", {"town": "Bonn"}, "output-error")
    assert "city" in first["errorText"]
    assert "fly is not a valid tool" in second["errorText"]
    assert rest == [STEP, text("I cannot.")]


async def test_an_exception_of_a_tool_ends_the_turn_and_its_text_stays_here() -> None:
    @tool
    async def broken() -> str:
        """Break."""
        raise ValueError("secret")

    model = ScriptedModel(replies=[[*says("Well"), *calls("c1", "broken", {})], says("Still here.")])
    chat = GraphChat(create_agent(model, [broken], checkpointer=InMemorySaver()))
    chunks = await chat.say("Go")
    assert chunks[-1] == {"type": "error", "errorText": "ValueError"}
    assert "secret" not in str(chunks)
    failed = called("broken", {}, state="output-error", errorText="The call was cut off by an error.")
    # The last step keeps a page from posting again by itself.
    assert await chat.parts() == [STEP, text("Well"), failed, STEP]
    await chat.say("And now?")
    assert heard(model)[-1] == [
        ("human", "Go"),
        ("ai", ["c1"]),
        ("tool", "This call has no result, since it was stopped or failed."),
        ("human", "And now?"),
    ]


async def test_an_error_of_the_model_ends_the_turn() -> None:
    chat = GraphChat(create_agent(ScriptedModel(replies=[[*says("Well"), ConnectionError("secret")]]), []))
    chunks = await chat.say("Go")
    assert chunks[-1] == {"type": "error", "errorText": "ConnectionError"}
    assert await chat.parts() == [STEP, text("Well")]


async def test_a_model_that_does_not_stream_says_all_at_once() -> None:
    replies = [[*says("I look."), *calls("c1", "weather", {"city": "Bonn"})], says("Cold.")]
    chat = GraphChat(create_agent(ScriptedModel(replies=replies, streams=False), [weather]))
    await chat.say("Weather?")
    output = {"city": "Bonn", "celsius": 12}
    answer = [STEP, text("I look."), called("weather", {"city": "Bonn"}, output=output), STEP, text("Cold.")]
    assert await chat.parts() == answer
    assert (await chat.messages())[-1].metadata == {"usage": USAGE}


async def test_a_node_without_a_model_speaks_as_well() -> None:
    async def fixed(_state: Any) -> dict[str, Any]:
        return {"messages": [AIMessage("Closed today.")]}

    graph = StateGraph(MessagesState).add_node("fixed", fixed).add_edge(START, "fixed")
    chat = GraphChat(graph.compile())
    await chat.say("Hello")
    assert await chat.parts() == [STEP, text("Closed today.")]


async def test_what_a_node_gives_anew_is_not_said_twice() -> None:
    model = ScriptedModel(replies=[says("Good ", "day")])

    async def copies(state: Any) -> dict[str, Any]:
        answer = await model.ainvoke(state["messages"])
        return {"messages": [AIMessage(answer.content)]}

    chat = GraphChat(StateGraph(MessagesState).add_node("copies", copies).add_edge(START, "copies").compile())
    await chat.say("Hello")
    assert await chat.parts() == [STEP, text("Good day")]


async def test_models_that_speak_at_the_same_time_are_kept_apart() -> None:
    heard_both = asyncio.Event()

    def node(words: list[str], *, first: bool) -> Callable[[Any], Any]:
        async def speak(state: Any) -> dict[str, Any]:
            begin, rest = says(words[0]), says(*words[1:])
            if not first:
                heard_both.set()
            reply: Reply = [*begin, heard_both, *rest]
            return {"messages": [await ScriptedModel(replies=[reply]).ainvoke(state["messages"])]}

        return speak

    graph = StateGraph(MessagesState)
    graph.add_node("one", node(["a1 ", "a2"], first=True)).add_node("two", node(["b1 ", "b2"], first=False))
    chat = GraphChat(graph.add_edge(START, "one").add_edge(START, "two").compile())
    await chat.say("Go")
    assert sorted(part["text"] for part in await chat.parts() if part["type"] == "text") == ["a1 a2", "b1 b2"]


async def test_what_a_summary_says_is_not_shown() -> None:
    def reply(messages: list[BaseMessage]) -> Reply:
        return says("SUMMARY") if "Messages to summarize" in str(messages[0].content) else says("Answer.")

    model = ScriptedModel(replies=reply)
    summarize = SummarizationMiddleware(model, trigger=("messages", 3), keep=("messages", 1))
    chat = GraphChat(create_agent(model, [], middleware=[summarize], checkpointer=InMemorySaver()))
    await chat.say("One")
    chunks = await chat.say("Two")
    assert len(model.seen) == 3
    assert "SUMMARY" not in str(chunks)
    assert await chat.parts() == [STEP, text("Answer.")]


class Report(BaseModel):
    celsius: int


async def test_a_structured_output_is_data_and_no_tool_call() -> None:
    replies = [calls("c1", "weather", {"city": "Bonn"}), [*says("So: "), *calls("c2", "Report", {"celsius": 12})]]
    chat = GraphChat(create_agent(ScriptedModel(replies=replies), [weather], response_format=ToolStrategy(Report)))
    await chat.say("Weather?")
    assert (await chat.parts())[2:] == [STEP, text("So: "), {"type": "data-output", "data": {"celsius": 12}}]


async def test_keys_of_the_state_are_shown_when_they_change() -> None:
    class State(TypedDict):
        messages: Annotated[list[Any], add_messages]
        plan: list[str]
        secret: str

    async def first(_state: Any) -> dict[str, Any]:
        return {"plan": ["look"], "secret": "s"}

    async def second(state: Any) -> dict[str, Any]:
        return {"plan": [*state["plan"], "tell"], "messages": [AIMessage("Done.")]}

    graph = StateGraph(State).add_node("first", first).add_node("second", second)
    graph.add_edge(START, "first").add_edge("first", "second")
    agent = LangGraphAgent(graph.compile(checkpointer=InMemorySaver()), state=["plan"])
    chat = GraphChat(agent)
    chunks = await chat.say("Go")
    plans = [chunk["data"] for chunk in chunks if chunk["type"] == "data-plan"]
    assert plans == [["look"], ["look", "tell"]]
    assert "secret" not in str(chunks)


async def test_citations_files_and_calls_of_the_provider_are_shown() -> None:
    cited = {"type": "citation", "url": "https://a.example", "title": "A"}
    blocks: list[Any] = [
        [{"type": "server_tool_call", "id": "s1", "name": "web_search", "args": {"query": "tides"}}],
        [{"type": "server_tool_result", "tool_call_id": "s1", "status": "success", "output": [{"url": "x"}]}],
        [{"type": "text", "text": "High tide.", "annotations": [cited, cited]}],
        [{"type": "image", "base64": "iVBORw0KGgo=", "mime_type": "image/png"}],
    ]
    version = {"output_version": "v1"}
    reply = [AIMessageChunk(content=block, response_metadata=version) for block in blocks]
    chat = GraphChat(create_agent(ScriptedModel(replies=[reply]), []))
    await chat.say("Tides?")
    parts = await chat.parts()
    searched = called("web_search", {"query": "tides"}, "s1", output=[{"url": "x"}], providerExecuted=True)
    assert parts[:3] == [STEP, searched, text("High tide.")]
    source_id = parts[3].pop("sourceId")
    assert source_id
    assert parts[3:] == [
        {"type": "source-url", "url": "https://a.example", "title": "A"},
        {"type": "file", "url": "data:image/png;base64,iVBORw0KGgo=", "mediaType": "image/png"},
    ]


async def test_without_a_checkpointer_the_graph_gets_all_messages() -> None:
    model = ScriptedModel(replies=[calls("c1", "weather", {"city": "Bonn"}), says("Cold."), says("You asked that.")])
    chat = GraphChat(create_agent(model, [weather]))
    await chat.say("Weather?")
    await chat.say("What did I ask?")
    assert heard(model)[-1] == [
        ("human", "Weather?"),
        ("ai", ["c1"]),
        ("tool", '{"city":"Bonn","celsius":12}'),
        ("ai", "Cold."),
        ("human", "What did I ask?"),
    ]


async def test_a_thread_holds_the_history_and_is_its_users_own() -> None:
    model = ScriptedModel(replies=[says("Hi Ann."), says("Hi Bob."), says("Again.")])
    agent = LangGraphAgent(create_agent(model, [], checkpointer=InMemorySaver()))
    ann, bob = GraphChat(agent, user="ann"), GraphChat(agent, user="bob")
    await ann.say("I am Ann")
    await bob.say("I am Bob")
    await ann.say("Who am I?")
    assert heard(model)[1:] == [
        [("human", "I am Bob")],
        [("human", "I am Ann"), ("ai", "Hi Ann."), ("human", "Who am I?")],
    ]
    await ann.endpoint.chats.delete("chat", "ann")
    model.replies = [says("Who?")]
    await ann.say("Who am I?")
    assert heard(model)[-1] == [("human", "Who am I?")]


async def test_a_message_is_answered_again_from_where_it_stood() -> None:
    class State(TypedDict):
        messages: Annotated[list[Any], add_messages]
        turns: int

    model = ScriptedModel(replies=[says("one"), says("two"), says("three"), says("four")])

    async def node(state: Any) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])], "turns": state.get("turns", 0) + 1}

    graph = StateGraph(State).add_node("node", node).add_edge(START, "node").add_edge("node", END)
    agent = LangGraphAgent(graph.compile(checkpointer=InMemorySaver()), state=["turns"])
    chat = GraphChat(agent)
    await chat.say("First")
    await chat.say("Second")
    [first, _, second, _] = await chat.messages()
    again = await chat.post(second, "regenerate-message")
    assert heard(model)[-1] == [("human", "First"), ("ai", "one"), ("human", "Second")]
    # The rest of the state goes back, too.
    assert [chunk["data"] for chunk in again if chunk["type"] == "data-turns"] == [2]
    await chat.say("First, edited", first.id)
    assert heard(model)[-1] == [("human", "First, edited")]
    assert [message.text for message in await chat.messages()] == ["First, edited", "four"]


class Context(BaseModel):
    user: str | None


async def test_a_graph_gets_the_context_and_the_config_of_its_run() -> None:
    seen: list[Any] = []

    async def node(_state: Any, config: RunnableConfig) -> dict[str, Any]:
        seen.append((get_runtime(Context).context.user, config.get("configurable", {})["tone"]))
        return {"messages": [AIMessage("Hi")]}

    graph = StateGraph(MessagesState, context_schema=Context).add_node("node", node).add_edge(START, "node")
    agent = LangGraphAgent(
        graph.compile(), config={"configurable": {"tone": "dry"}}, context=lambda chat: Context(user=chat.user)
    )
    await GraphChat(agent, user="ann").say("Hello")
    assert seen == [("ann", "dry")]


async def test_the_file_and_the_text_of_a_message_reach_the_model() -> None:
    model = ScriptedModel(replies=[says("A cat.")])
    chat = GraphChat(create_agent(model, [], checkpointer=InMemorySaver()))
    file = {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,iVBORw0KGgo="}
    await chat.post(UIMessage("u1", "user", [{"type": "text", "text": "What is it?"}, file]))
    [[message]] = model.seen
    assert isinstance(message, HumanMessage)
    assert (message.id, message.content) == (
        "u1",
        [
            {"type": "text", "text": "What is it?"},
            {"type": "image", "base64": "iVBORw0KGgo=", "mime_type": "image/png"},
        ],
    )


async def test_what_is_no_compiled_graph_is_refused() -> None:
    with pytest.raises(TypeError, match=r"StateGraph is not a compiled graph: call its compile\(\) first\."):
        LangGraphAgent(StateGraph(MessagesState))
