"""The order of events: each case of the original's contract."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from flows.play import Play, edge, flow, node
from usechat import Chat, Reasoning, ToolCall, ToolResult
from usechat.events import AgentEvent
from usechat.flows import MemoryRunStore, NodeContext, agent_node

pytestmark = pytest.mark.anyio


async def talk(chat: Chat) -> AsyncGenerator[AgentEvent]:
    yield Reasoning("Hm")
    yield Reasoning(".")
    yield "Let me "
    yield "look."
    yield ToolCall("c1", "read", {"path": "x"})
    yield ToolResult("c1", {"lines": 1})
    yield Reasoning("So.")
    yield f"{chat.text}!"


async def fail(_chat: Chat) -> AsyncGenerator[AgentEvent]:
    yield "I will "
    raise OSError("no network")


async def hang(_chat: Chat) -> AsyncGenerator[AgentEvent]:
    yield "Once "
    yield "upon"
    await asyncio.Event().wait()


BLOCKS = [
    "agent:thinking:delta a Hm",
    "agent:thinking:delta a .",
    "agent:thinking a Hm.",
    "agent:text:delta a Let me ",
    "agent:text:delta a look.",
    "agent:text a Let me look.",
    "agent:tool a read",
    "agent:thinking:delta a So.",
    "agent:thinking a So.",
    "agent:text:delta a Hi!",
    "agent:text a Hi!",
]


def asks(agent: str) -> dict[str, Any]:
    return flow([node("a", agent, {"prompt": "Hi"})])


async def test_success():
    play = Play(
        flow([node("a", "talk", {"prompt": "Hi"}), node("b", value={"text": "{{ a.text }}"})], [edge("a", "b")]),
        {"talk": agent_node(talk)},
    )
    done = await play.run()
    assert play.lines() == [
        "flow:start",
        "node:start a",
        "agent:start a",
        *BLOCKS,
        "agent:complete a",
        "node:complete a",
        "edge:fire a->b",
        "node:start b",
        "node:complete b",
        "flow:complete complete",
    ]
    assert (done.status, done.outputs["b"]) == ("complete", {"text": "Let me look.Hi!"})


async def test_block_order_is_thinking_text_tool_and_then_again():
    play = Play(asks("talk"), {"talk": agent_node(talk)})
    await play.run()
    assert play.lines("agent:t") == BLOCKS


async def test_failure():
    play = Play(asks("fail"), {"fail": agent_node(fail)})
    done = await play.run()
    assert play.lines() == [
        "flow:start",
        "node:start a",
        "agent:start a",
        "agent:text:delta a I will ",
        "agent:error a no network",
        "node:error a no network",
        "flow:complete failed",
    ]
    assert (done.status, done.node_status, done.outputs) == (
        "complete",
        {"a": "failed"},
        {"a": {"error": "no network"}},
    )


async def test_abort():
    play = Play(asks("hang"), {"hang": agent_node(hang)})
    play.on("agent:text:delta a upon", lambda _: play.runtime.dispatch({"type": "abort", "reason": "enough"}))
    done = await play.run()
    assert play.lines()[-4:] == [
        "agent:text:delta a upon",
        "command:received abort",
        "flow:aborted",
        "agent:aborted a abort",
    ]
    assert (done.status, done.outputs) == ("aborted", {})


@pytest.mark.parametrize("command", [{"type": "abort", "resumable": True}, {"type": "pause"}])
async def test_pause(command: dict[str, Any]):
    play = Play(asks("hang"), {"hang": agent_node(hang)})
    play.on("agent:text:delta a upon", lambda _: play.runtime.dispatch(command))
    done = await play.run()
    assert play.lines()[-3:] == [f"command:received {command['type']}", "flow:paused", "agent:paused a"]
    assert (done.status, done.node_status) == ("paused", {"a": "running"})
    assert (done.outputs["a"]["text"], done.outputs["a"]["paused"]) == ("Once upon", True)


async def test_stop_is_an_abort():
    play = Play(asks("hang"), {"hang": agent_node(hang)})
    play.on("agent:text:delta a upon", lambda _: play.runtime.dispatch({"type": "stop"}))
    assert (await play.run()).status == "aborted"
    assert play.lines()[-3:] == ["command:received stop", "flow:aborted", "agent:aborted a abort"]


async def test_resume():
    asked: list[list[str]] = []

    async def once(chat: Chat) -> AsyncGenerator[AgentEvent]:
        asked.append([message.text for message in chat.messages])
        yield "Once "
        if len(asked) == 1:
            await asyncio.Event().wait()
        yield "more"

    play = Play(asks("once"), {"once": agent_node(once)})
    play.on("agent:text:delta a Once ", lambda _: play.runtime.dispatch({"type": "pause"}))
    paused = await play.run()
    play.events.clear()
    play.runtime.dispatch({"type": "resume", "message": "go on"})
    done = await play.run()
    assert play.lines() == [
        "command:received resume",
        "flow:resumed",
        "flow:resumed",
        "command:received send",
        "node:start a",
        "agent:start a",
        "agent:text:delta a Once ",
        "agent:text:delta a more",
        "agent:text a Once more",
        "agent:complete a",
        "node:complete a",
        "flow:complete complete",
    ]
    start = next(event for event in play.events if event["type"] == "agent:start")
    assert start["sessionId"] == paused.agent_sessions["a"]
    assert play.events[3]["command"] == {"type": "send", "runId": play.events[4]["runId"], "message": "go on"}
    assert asked == [["Hi"], ["Hi", "go on"]]
    assert done.status == "complete"


async def test_retry_starts_the_same_run_again():
    tries: list[int] = []

    async def second(chat: Chat) -> AsyncGenerator[AgentEvent]:
        tries.append(1)
        yield f"try {len(tries)}"
        if len(tries) == 1:
            raise OSError("no network")

    policy = {"retry": {"maxAttempts": 3, "backoffMs": 1}}
    play = Play(flow([node("a", "second", {"prompt": "Hi"}, policy=policy)]), {"second": agent_node(second)})
    await play.run()
    assert play.lines() == [
        "flow:start",
        "node:start a",
        "agent:start a",
        "agent:text:delta a try 1",
        "agent:error a no network",
        "agent:start a",
        "agent:text:delta a try 2",
        "agent:text a try 2",
        "agent:complete a",
        "node:complete a",
        "flow:complete complete",
    ]
    assert len({event["runId"] for event in play.events if "runId" in event}) == 1


async def test_what_a_listener_dispatches_comes_after_the_events_that_belong_together():
    play = Play(flow([node("a"), node("b")], [edge("a", "b")]))
    play.on("node:complete a", lambda _: play.runtime.dispatch({"type": "pause"}))
    later: list[str] = []
    play.runtime.on_event(lambda event: later.append(event["type"]))
    await play.run()
    assert play.lines()[1:] == [
        "node:start a",
        "node:complete a",
        "edge:fire a->b",
        "command:received pause",
        "flow:paused",
    ]
    assert later == [event["type"] for event in play.events]


async def test_a_listener_that_fails_is_logged_and_ignored(caplog: pytest.LogCaptureFixture):
    play = Play(flow([node("a")]))

    def listen(_event: Any) -> None:
        raise ValueError("deaf")

    heard: list[str] = []
    play.runtime.on_event(listen)
    play.runtime.on_event(lambda event: heard.append(event["type"]))
    await play.run()
    assert heard == ["flow:start", "node:start", "node:complete", "flow:complete"]
    assert [record.message for record in caplog.records] == ["a listener of a run failed"] * 4


async def test_a_listener_that_left_hears_nothing_more():
    play = Play(flow([node("a")]))
    heard: list[str] = []
    leave = play.runtime.on_event(lambda event: heard.append(event["type"]))
    play.on("node:start a", lambda _: leave())
    await play.run()
    leave()
    assert heard == ["flow:start", "node:start"]


async def test_every_event_has_its_fields_and_is_kept_in_this_order():
    store = MemoryRunStore()
    play = Play(asks("talk"), {"talk": agent_node(talk)}, store)
    done = await play.run()
    assert all(isinstance(event["timestamp"], int) and event["timestamp"] > 1_600_000_000_000 for event in play.events)
    assert await store.load_events(done.run_id) == play.events
    common = {"nodeId": "a", "runId": play.events[1]["runId"]}
    stable = [{name: value for name, value in event.items() if name != "timestamp"} for event in play.events]
    session = done.agent_sessions["a"]
    assert stable[2] == {"type": "agent:start", "sessionId": session, "prompt": "Hi", **common}
    assert stable[0] == {"type": "flow:start", "flowName": "played"}
    tool = next(event for event in stable if event["type"] == "agent:tool")
    duration = tool.pop("durationMs")
    about = {"toolName": "read", "toolInput": {"path": "x"}, "toolOutput": {"lines": 1}}
    assert (tool, duration >= 0) == ({"type": "agent:tool", **about, **common}, True)


async def test_a_node_emits_what_it_likes_and_its_ids_are_filled_in():
    async def patch(context: NodeContext, _value: dict[str, Any]) -> None:
        context.emit({"type": "state:patch", "patch": {"op": "set", "path": "n", "value": 1}, "nodeId": "forged"})

    play = Play(flow([node("a", "patch")]), {"patch": patch})
    await play.run()
    event = play.events[2]
    assert (event["type"], event["nodeId"], event["runId"]) == ("state:patch", "a", play.events[1]["runId"])


async def test_what_only_the_runtime_tells_is_not_told_by_a_node(caplog: pytest.LogCaptureFixture):
    own = ["flow:complete", "flow:paused", "flow:aborted", "node:complete", "edge:fire", "loop:iterate", "runtime:lost"]

    async def forge(context: NodeContext, _value: dict[str, Any]) -> None:
        for kind in [*own, "command:received", "flow:complete"]:
            context.emit({"type": kind, "flowName": "played", "status": "complete", "command": {}})
        context.emit({"type": "flowers", "content": "!"})
        context.emit({"type": 7})

    play = Play(flow([node("a", "forge"), node("b")], [edge("a", "b")]), {"forge": forge})
    await play.run()
    assert [event["type"] for event in play.events] == [
        *["flow:start", "node:start", "flowers", 7, "node:complete"],
        *["edge:fire", "node:start", "node:complete", "flow:complete"],
    ]
    told = [f"Only the runtime emits {kind!r}; a node did." for kind in [*own, "command:received"]]
    assert (list(play.runtime.unused.counts), play.runtime.unused.counts.total()) == (told, 9)
    assert [record.message for record in caplog.records] == told


async def test_of_a_frame_that_a_node_emits_the_event_counts_and_a_frame_in_a_frame_is_reported():
    async def wrap(context: NodeContext, _value: dict[str, Any]) -> None:
        event: dict[str, Any] = {"type": "flowers", "content": "!"}
        context.emit({"type": "event", "event": event})
        context.emit({"type": "event", "event": {"type": "event", "event": event}})

    play = Play(flow([node("a", "wrap")]), {"wrap": wrap})
    await play.run()
    assert [event["type"] for event in play.events] == [
        *["flow:start", "node:start", "flowers", "node:complete", "flow:complete"],
    ]
    assert play.runtime.unused.counts == {"A node emitted a frame in a frame.": 1}


async def test_what_a_node_emits_after_its_end_is_dropped():
    kept: list[NodeContext] = []

    async def keep(context: NodeContext, _value: dict[str, Any]) -> None:
        kept.append(context)

    play = Play(flow([node("a", "keep")]), {"keep": keep})
    await play.run()
    kept[0].emit({"type": "agent:text", "content": "late"})
    assert play.lines()[-1] == "flow:complete complete"
