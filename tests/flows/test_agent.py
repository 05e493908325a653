import asyncio
import threading
from collections.abc import AsyncGenerator, Generator
from typing import Any

import pytest

from flows.play import Play, edge, flow, node
from support.hang import HANG_SECONDS
from usechat import Chat, Reasoning, StructuredOutput, ToolCall, ToolError, ToolProgress, ToolResult
from usechat.events import AgentEvent
from usechat.flows import FlowRuntime, agent_node
from usechat.protocol.chunks import Error, File, MessageMetadata
from usechat.transports import OpenHarnessChatTransport

pytestmark = pytest.mark.anyio


async def play_agent(agent: Any, **value: Any) -> Play:
    play = Play(flow([node("a", "agent", value or {"prompt": "Hi"})]), {"agent": agent_node(agent)})
    await play.run()
    return play


def told(play: Play, kind: str) -> list[dict[str, Any]]:
    left_out = ("timestamp", "nodeId", "runId", "durationMs", "type")
    return [
        {name: value for name, value in event.items() if name not in left_out}
        for event in play.events
        if event["type"] == kind
    ]


async def test_the_output_is_all_text_with_what_it_took():
    async def agent(chat: Chat) -> AsyncGenerator[AgentEvent]:
        yield "Let me look."
        yield ToolCall("c", "look", {})
        yield ToolResult("c", None)
        yield "It is "
        yield "blue."
        chat.write.metadata({"usage": {"inputTokens": 1, "outputTokens": 1}})
        chat.write.metadata({"usage": {"inputTokens": 12, "outputTokens": 34, "totalTokens": 46}})

    play = await play_agent(agent)
    snapshot = play.runtime.snapshot()
    output = snapshot.outputs["a"]
    assert output.pop("durationMs") >= 0
    usage = {"inputTokens": 12, "outputTokens": 34}
    session = snapshot.agent_sessions["a"]
    assert output == {"text": "Let me look.It is blue.", "usage": usage, "sessionId": session, "numTurns": 1}
    assert told(play, "agent:complete") == [{"result": "Let me look.It is blue.", "usage": usage, "numTurns": 1}]
    assert told(play, "agent:tool") == [{"toolName": "look", "toolInput": {}, "toolOutput": None}]


async def test_the_output_is_the_last_block_of_text_if_it_was_asked_for():
    async def agent(_chat: Chat) -> AsyncGenerator[AgentEvent]:
        yield "Let me look."
        yield ToolCall("c", "look", {})
        yield ToolResult("c", None)
        yield "It is "
        yield "blue."

    node_of = agent_node(agent, last_block=True)
    play = Play(flow([node("a", "agent", {"prompt": "Hi"})]), {"agent": node_of})
    assert (await play.run()).outputs["a"]["text"] == "It is blue."
    assert told(play, "agent:complete")[0]["result"] == "It is blue."


async def test_sources_files_and_data_are_told_and_handed_on():
    async def agent(chat: Chat) -> AsyncGenerator[AgentEvent]:
        yield "See "
        chat.write.source_url("https://a.example", title="A", source_id="s1")
        chat.write.source_document("B", "text/plain", source_id="s2")
        yield File("data:,x", "text/plain")
        yield {"type": "data-tide", "id": "d", "data": {"at": "dawn"}}
        yield {"type": "data-tide", "data": {"at": "dusk"}}
        yield {"type": "data-tide", "id": "d", "data": {"at": "noon"}}
        yield {"type": "data-moon", "id": "d", "data": "full"}
        chat.write.data("busy", 1, transient=True)
        yield "here."

    play = await play_agent(agent)
    sources = [
        {"type": "source-url", "sourceId": "s1", "url": "https://a.example", "title": "A"},
        {"type": "source-document", "sourceId": "s2", "mediaType": "text/plain", "title": "B"},
    ]
    files = [{"type": "file", "url": "data:,x", "mediaType": "text/plain"}]
    dawn, dusk, noon, moon = [
        {"type": "data-tide", "id": "d", "data": {"at": "dawn"}},
        {"type": "data-tide", "data": {"at": "dusk"}},
        {"type": "data-tide", "id": "d", "data": {"at": "noon"}},
        {"type": "data-moon", "id": "d", "data": "full"},
    ]
    busy = {"type": "data-busy", "data": 1, "transient": True}
    parts = [told_part["part"] for told_part in told(play, "agent:part")]
    assert parts == [*sources, *files, dawn, dusk, noon, moon, busy]
    output = play.runtime.snapshot().outputs["a"]
    assert (output["sources"], output["files"], output["data"]) == (sources, files, [noon, dusk, moon])
    assert output["text"] == "See here."


@pytest.mark.parametrize("passed", [True, False])
async def test_a_flow_branches_on_the_structured_output_of_an_agent(passed: bool):
    async def reviewer(_chat: Chat) -> AsyncGenerator[AgentEvent]:
        yield "Let me see."
        yield StructuredOutput({"passed": not passed})
        yield StructuredOutput({"passed": passed, "notes": ["short"]})

    played = flow(
        [
            node("reviewer", "review", {"prompt": "Hi"}),
            node("done", "note", {"passed": "{{ reviewer.structuredOutput.passed }}"}),
            node("again", "note"),
        ],
        [
            edge("reviewer", "done", when="reviewer.structuredOutput.passed"),
            edge("reviewer", "again", when="reviewer.structuredOutput.passed = false"),
        ],
    )
    play = Play(played, {"review": agent_node(reviewer)})
    outputs = (await play.run()).outputs
    assert play.started == (["done"] if passed else ["again"])
    assert outputs["done"] == ({"passed": True} if passed else {"skipped": True, "reason": "edge"})
    assert outputs["reviewer"]["structuredOutput"] == {"passed": passed, "notes": ["short"]}
    assert told(play, "agent:complete")[0]["structuredOutput"] == {"passed": passed, "notes": ["short"]}
    assert "data" not in outputs["reviewer"]


async def test_the_agent_sees_its_prompt_its_session_and_the_rest_of_the_input():
    seen: list[Any] = []

    async def agent(chat: Chat) -> str:
        seen.append((chat.id, chat.text, [message.role for message in chat.messages], chat.request.body, chat.user))
        return "ok"

    play = await play_agent(agent, prompt="What?", tone="kind")
    session = play.runtime.snapshot().agent_sessions["a"]
    assert seen == [(session, "What?", ["user"], {"tone": "kind"}, None)]


async def test_the_agent_may_be_given_messages_of_both_kinds():
    seen: list[Any] = []

    async def agent(chat: Chat) -> None:
        seen.append([chat.text, *((message.id, message.role, message.text) for message in chat.messages)])

    parts = [{"type": "text", "text": "And "}, {"type": "text", "text": "now?"}]
    given = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."},
        {"id": "u2", "role": "user", "parts": parts},
    ]
    play = await play_agent(agent, messages=given)
    text, *messages = seen[0]
    assert (text, messages[-1]) == ("And now?", ("u2", "user", "And now?"))
    assert [message[1:] for message in messages[:-1]] == [
        ("system", "Be brief."),
        ("user", "Hi"),
        ("assistant", "Hello."),
    ]
    assert told(play, "agent:start")[0]["prompt"] == given
    assert play.runtime.snapshot().outputs["a"]["text"] == ""


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"tone": "kind"}, "An agent node needs a prompt or messages in its input."),
        ({"prompt": "{{ 7 }}"}, "An agent node needs a prompt or messages in its input."),
        ({"prompt": "a", "messages": []}, "An agent node takes either a prompt or messages, not both."),
        ({"messages": ["a"]}, "A message of an agent node has a role, and a text as its content or parts."),
    ],
)
async def test_an_input_that_asks_nothing_fails_the_node(value: dict[str, Any], problem: str):
    async def agent(_chat: Chat) -> str:
        return "never"

    play = await play_agent(agent, **value)
    assert play.lines()[1:] == ["node:start a", f"node:error a {problem}", "flow:complete failed"]


def sync_agent(chat: Chat) -> Generator[AgentEvent]:
    chat.write.text("from a ")
    yield "thread"


async def write_agent(chat: Chat) -> None:
    chat.write.text("from a ")
    chat.write.text("thread")


class Stream:
    """An async iterable that is not a generator."""

    def __init__(self, chat: Chat) -> None:
        self._left = ["from a ", "thread"]

    def __aiter__(self) -> "Stream":
        return self

    async def __anext__(self) -> str:
        if not self._left:
            raise StopAsyncIteration
        return self._left.pop(0)


def iterable_agent(chat: Chat) -> Stream:
    return Stream(chat)


async def later_agent(chat: Chat) -> Stream:
    return Stream(chat)


class Driver:
    """An agent of the registry: a driver and a mapper."""

    def run(self, chat: Chat) -> Stream:
        return Stream(chat)

    def translator(self, _: Chat) -> None:
        pass


@pytest.mark.parametrize("agent", [sync_agent, write_agent, iterable_agent, later_agent, Driver()])
async def test_every_kind_of_agent_is_run(agent: Any):
    play = await play_agent(agent)
    assert play.lines("agent:text") == [
        "agent:text:delta a from a ",
        "agent:text:delta a thread",
        "agent:text a from a thread",
    ]


@pytest.mark.parametrize("kind", ["coroutine", "function"])
async def test_an_agent_may_return_its_text(kind: str):
    async def coroutine(chat: Chat) -> str:
        return f"You said {chat.text}."

    def function(chat: Chat) -> str:
        return f"You said {chat.text}."

    play = await play_agent(coroutine if kind == "coroutine" else function)
    assert play.lines("agent:text:") == ["agent:text:delta a You said Hi."]


@pytest.mark.parametrize("many", [False, True])
async def test_a_flow_is_an_agent_of_another_flow(many: bool):
    async def agent(chat: Chat) -> AsyncGenerator[AgentEvent]:
        yield f"You said {chat.text}."
        yield File("data:,x", "text/plain")

    inner = flow([node("inner", "agent", {"prompt": "{{ flow.input.message }}"})])
    nodes = {"agent": agent_node(agent)}
    made = OpenHarnessChatTransport(lambda: FlowRuntime(inner, nodes)) if many else FlowRuntime(inner, nodes)
    play = await play_agent(made)
    output = play.runtime.snapshot().outputs["a"]
    assert output["text"] == "You said Hi."
    assert output["files"] == [{"type": "file", "url": "data:,x", "mediaType": "text/plain"}]


async def test_what_an_agent_writes_in_a_thread_is_told_in_the_thread_of_the_loop():
    heard: set[int] = set()
    play = Play(flow([node("a", "agent", {"prompt": "Hi"})]), {"agent": agent_node(sync_agent)})
    play.runtime.on_event(lambda _event: heard.add(threading.get_ident()))
    await play.run()
    assert heard == {threading.get_ident()}


async def test_what_an_agent_writes_after_its_end_is_dropped():
    kept: list[Chat] = []

    async def agent(chat: Chat) -> None:
        kept.append(chat)

    play = await play_agent(agent)
    kept[0].write.text("late")
    assert play.lines("agent:text") == []


async def test_something_that_is_no_agent_is_refused_before_it_runs():
    with pytest.raises(TypeError, match="int is not an agent"):
        agent_node(7)


async def test_a_tool_that_fails_is_told_with_its_error_and_the_agent_goes_on():
    async def agent(_chat: Chat) -> AsyncGenerator[AgentEvent]:
        yield ToolCall("c", "read", {"path": "x"})
        yield ToolProgress("c", "half")
        yield ToolError("c", "EACCES")
        yield "I could not."

    play = await play_agent(agent)
    about = {"toolName": "read", "toolInput": {"path": "x"}}
    assert told(play, "agent:tool") == [{**about, "toolOutput": {"error": "EACCES"}, "error": "EACCES"}]
    assert play.lines()[-1] == "flow:complete complete"


async def test_a_call_that_never_became_one_and_a_call_that_was_denied_are_told_as_failed():
    async def agent(chat: Chat) -> None:
        chat.write.tool_input_error("c1", "read", {"path": 1}, "path must be a text")
        chat.write.tool_input("c2", "delete", {})
        chat.write.approval_request("c2")
        chat.write.tool_denied("c2")

    play = await play_agent(agent)
    assert play.lines("agent:tool") == [
        "agent:tool a read path must be a text",
        "agent:tool a delete The call was denied.",
    ]


async def test_a_call_without_a_result_has_failed_at_the_end():
    async def agent(_chat: Chat) -> AsyncGenerator[AgentEvent]:
        yield ToolCall("c", "ask_browser", {"q": 1})

    play = await play_agent(agent)
    error = "The call ended without a result."
    about = {"toolName": "ask_browser", "toolInput": {"q": 1}}
    assert told(play, "agent:tool") == [{**about, "toolOutput": {"error": error}, "error": error}]
    assert play.lines()[-4:] == [
        f"agent:tool a ask_browser {error}",
        "agent:complete a",
        "node:complete a",
        "flow:complete complete",
    ]


async def test_an_error_chunk_fails_the_node():
    async def agent(_chat: Chat) -> AsyncGenerator[AgentEvent]:
        yield "So "
        yield Error("rate limit")

    play = await play_agent(agent)
    assert play.lines()[-3:] == ["agent:error a rate limit", "node:error a rate limit", "flow:complete failed"]


async def test_what_is_sent_while_the_agent_answers_is_answered_after_it():
    asked: list[list[str]] = []
    sent = asyncio.Event()

    async def agent(chat: Chat) -> AsyncGenerator[AgentEvent]:
        asked.append([message.text for message in chat.messages])
        yield f"To {chat.text}"
        await sent.wait()
        chat.write.metadata({"usage": {"inputTokens": 2, "outputTokens": 3}})

    play = Play(flow([node("a", "agent", {"prompt": "one"})]), {"agent": agent_node(agent)})
    run = asyncio.create_task(play.run())
    run_id = (await play.until("agent:text:delta a To one"))["runId"]
    play.runtime.dispatch({"type": "send", "runId": run_id, "message": "two"})
    play.runtime.dispatch({"type": "reply", "runId": run_id, "promptId": "p", "content": "three"})
    sent.set()
    output = (await run).outputs["a"]
    assert asked == [["one"], ["one", "To one", "two", "three"]]
    assert (output["text"], output["numTurns"]) == ("To three", 2)
    assert output["usage"] == {"inputTokens": 4, "outputTokens": 6}
    assert play.lines("agent:start", "agent:complete") == ["agent:start a", "agent:complete a"]


async def test_an_agent_that_is_resumed_without_a_message_answers_its_prompt_again():
    asked: list[str] = []

    async def agent(chat: Chat) -> AsyncGenerator[AgentEvent]:
        asked.append(chat.text)
        yield "So"
        if len(asked) == 1:
            await asyncio.Event().wait()

    play = Play(flow([node("a", "agent", {"prompt": "Hi"})]), {"agent": agent_node(agent)})
    play.on("agent:text:delta a So", lambda _: play.runtime.dispatch({"type": "pause"}))
    await play.run()
    await play.run()
    assert asked == ["Hi", "Hi"]


async def test_the_chat_says_that_it_is_stopping_and_the_agent_is_closed():
    seen: list[Any] = []

    async def agent(chat: Chat) -> AsyncGenerator[AgentEvent]:
        try:
            yield "So"
            await asyncio.Event().wait()
        finally:
            seen.append(chat.stopping.is_set())

    play = Play(flow([node("a", "agent", {"prompt": "Hi"})]), {"agent": agent_node(agent)})
    play.on("agent:text:delta a So", lambda _: play.runtime.dispatch({"type": "stop"}))
    await play.run()
    assert seen == [True]


async def test_an_agent_that_waits_for_nothing_still_hears_an_abort():
    async def agent(_chat: Chat) -> AsyncGenerator[AgentEvent]:
        while True:
            yield "."

    play = Play(flow([node("a", "agent", {"prompt": "Hi"})]), {"agent": agent_node(agent)})
    run = asyncio.create_task(play.run())
    await play.until("agent:text:delta a .")
    play.runtime.dispatch({"type": "stop"})
    assert (await asyncio.wait_for(run, HANG_SECONDS)).status == "aborted"


async def test_an_agent_that_takes_too_long_fails_without_an_end_of_its_own():
    async def agent(_chat: Chat) -> AsyncGenerator[AgentEvent]:
        yield "So"
        await asyncio.Event().wait()

    slow = node("a", "agent", {"prompt": "Hi"}, policy={"timeoutMs": 30})
    play = Play(flow([slow]), {"agent": agent_node(agent)})
    await play.run()
    assert play.lines()[3:] == [
        "agent:text:delta a So",
        "node:error a Node execution timed out after 30ms",
        "flow:complete failed",
    ]


async def test_an_agent_of_another_framework_is_run_with_its_translator():
    class Thinker:
        async def run(self, _chat: Chat) -> AsyncGenerator[dict[str, str]]:
            yield {"thought": "Hm"}

        def translator(self, _chat: Chat) -> "Thinker":
            return self

        def translate(self, event: dict[str, str]) -> list[Reasoning]:
            return [Reasoning(event["thought"])]

        def end(self) -> list[Reasoning]:
            return []

    play = await play_agent(Thinker())
    assert play.lines("agent:thinking") == ["agent:thinking:delta a Hm", "agent:thinking a Hm"]


async def test_metadata_that_is_no_usage_counts_nothing():
    async def agent(_chat: Chat) -> AsyncGenerator[AgentEvent]:
        yield MessageMetadata({"usage": {"inputTokens": "many"}})
        yield Reasoning("Hm")

    play = await play_agent(agent)
    assert told(play, "agent:complete")[0]["usage"] == {"inputTokens": 0, "outputTokens": 0}
