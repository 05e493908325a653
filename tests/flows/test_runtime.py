import asyncio
from typing import Any

import msgspec
import pytest

from flows.play import Play, edge, flow, node
from support.hang import HANG_SECONDS
from usechat.flows import FlowError, FlowRuntime, MemoryRunStore, NodeContext, RunSnapshot, Runtime

pytestmark = pytest.mark.anyio


async def hang(context: NodeContext, _value: dict[str, Any]) -> None:
    await asyncio.Event().wait()


async def ask(context: NodeContext, _value: dict[str, Any]) -> list[Any]:
    """Read two commands while running."""
    return [await context.inbox.next(), await context.inbox.next()]


def test_the_runtime_is_one():
    runtime: Runtime = FlowRuntime(flow([node("a")]), {})
    assert runtime.snapshot().status == "idle"


async def test_a_snapshot_has_the_original_names_as_json():
    play = Play(flow([node("a", value={"x": "{{ flow.input.n }}"})], state={"initial": {"s": 1}}))
    done = await play.run({"n": 1})
    assert msgspec.to_builtins(done) == {
        "runId": done.run_id,
        "status": "complete",
        "input": {"n": 1},
        "outputs": {"a": {"x": 1}},
        "state": {"s": 1},
        "nodeStatus": {"a": "done"},
        "edgeStatus": {},
        "loopCounters": {},
        "inbox": [],
        "agentSessions": {},
    }


async def test_a_snapshot_is_a_copy():
    play = Play(flow([node("a", value={"x": [1]})]))
    done = await play.run()
    done.outputs["a"]["x"].append(2)
    done.node_status.clear()
    assert play.runtime.snapshot().outputs == {"a": {"x": [1]}}
    assert play.runtime.snapshot().node_status == {"a": "done"}


async def test_nothing_that_a_node_holds_changes_what_was_told():
    shared: dict[str, Any] = {"list": [1]}

    async def keep(context: NodeContext, value: dict[str, Any]) -> dict[str, Any]:
        context.state.set("kept", shared)
        context.emit({"type": "agent:tool", "toolInput": shared})
        value["x"].append("changed")
        return shared

    play = Play(flow([node("a", "keep", {"x": [1]}), node("b", value={"x": "{{ a.list }}"})]), {"keep": keep})
    given = {"n": [1]}
    done = await play.run(given)
    shared["list"].append(2)
    given["n"].append(2)
    snapshot = play.runtime.snapshot()
    assert (snapshot.outputs, snapshot.state, snapshot.input) == (done.outputs, {"kept": {"list": [1]}}, {"n": [1]})
    assert play.events[2]["toolInput"] == {"list": [1]}


async def test_a_node_may_return_any_python_value():
    async def odd(_context: NodeContext, _value: dict[str, Any]) -> Any:
        return {"pair": (1, 2), 3: {4}, "half": "\ud83d", "not a number": float("nan")}

    store = MemoryRunStore()
    play = Play(flow([node("a", "odd"), node("b", value={"x": "{{ a.pair[-1] }}"})]), {"odd": odd}, store)
    done = await play.run()
    assert done.outputs == {
        "a": {"pair": [1, 2], "3": [4], "half": "\ufffd", "not a number": None},
        "b": {"x": 2},
    }
    assert await store.load_snapshot(done.run_id) == done


async def test_constant_gives_its_value_and_echo_its_input():
    nodes = [node("a", "constant", {"value": [1, None]}), node("b", "constant"), node("c", "echo", {"text": "t"})]
    done = await Play(flow(nodes)).run()
    assert done.outputs == {"a": {"value": [1, None]}, "b": {"value": None}, "c": {"text": "t"}}


async def test_a_node_type_of_the_app_goes_before_one_that_is_built_in():
    async def shout(_context: NodeContext, value: dict[str, Any]) -> str:
        return value["text"].upper()

    done = await Play(flow([node("a", "echo", {"text": "hi"})]), {"echo": shout}).run()
    assert done.outputs == {"a": "HI"}


async def test_a_run_that_is_complete_is_not_resumable():
    play = Play(flow([node("a")]))
    done = await play.run()
    with pytest.raises(FlowError, match=f"Run {done.run_id} is not resumable"):
        await play.run()
    with pytest.raises(FlowError, match=f"Run {done.run_id} is not resumable"):
        play.runtime.dispatch({"type": "resume"})


async def test_a_run_that_was_aborted_is_not_resumable():
    play = Play(flow([node("a")]))
    play.runtime.dispatch({"type": "abort"})
    with pytest.raises(FlowError, match="is not resumable"):
        await play.run()
    assert play.lines() == ["command:received abort", "flow:aborted"]


@pytest.mark.parametrize("command", ["abort", "pause", "stop"])
async def test_a_run_that_is_over_stays_as_it_ended(command: str):
    play = Play(flow([node("a")]))
    await play.run()
    play.runtime.dispatch({"type": command})
    assert play.lines()[-2:] == ["flow:complete complete", f"command:received {command}"]
    assert play.runtime.snapshot().status == "complete"


async def test_a_run_that_no_node_can_go_on_with_is_stalled():
    store = MemoryRunStore()
    await store.save_snapshot("r", RunSnapshot(run_id="r", status="paused", node_status={"a": "done"}))
    play = Play(flow([node("a"), node("b")], [edge("a", "b")]), store=store, run_id="r")
    with pytest.raises(FlowError, match="Execution stalled: no ready nodes"):
        await play.run()
    assert play.lines() == ["flow:resumed"]


@pytest.mark.parametrize(
    "command",
    [
        {"type": "send", "message": "hi"},
        {"type": "reply", "runId": "", "content": "x"},
        {"type": "send", "runId": ["r"], "message": "hi"},
    ],
)
async def test_a_message_without_a_run_id_is_told_and_refused(command: dict[str, Any]):
    play = Play(flow([node("a")]))
    with pytest.raises(FlowError, match="Runtime command missing runId"):
        play.runtime.dispatch(command)
    assert [event["command"] for event in play.events] == [command]


async def test_a_run_that_is_paused_can_be_aborted():
    play = Play(flow([node("a"), node("b")], [edge("a", "b")]))
    play.on("node:complete a", lambda _: play.runtime.dispatch({"type": "pause"}))
    await play.run()
    play.runtime.dispatch({"type": "pause"})
    play.runtime.dispatch({"type": "abort"})
    assert play.lines()[-4:] == ["flow:paused", "command:received pause", "command:received abort", "flow:aborted"]
    with pytest.raises(FlowError, match="is not resumable"):
        await play.run()


async def test_a_resume_whose_message_is_no_text_says_to_continue():
    play = Play(flow([node("a", "ask_or_hang")]), {"ask_or_hang": _ask_or_hang})
    play.on("node:start a", lambda _: play.runtime.dispatch({"type": "pause"}))
    await play.run()
    play.runtime.dispatch({"type": "resume", "message": 7})
    assert (await play.run()).outputs == {"a": ["continue"]}


async def test_an_inbox_of_the_original_with_other_commands_is_read():
    store = MemoryRunStore()
    kept = RunSnapshot(run_id="r", status="paused", inbox=[{"type": "abort"}])
    await store.save_snapshot("r", kept)
    assert (await Play(flow([node("a")]), store=store, run_id="r").run()).status == "complete"


def test_at_least_one_node_must_be_able_to_run():
    with pytest.raises(ValueError, match="at least one node must be able to run"):
        FlowRuntime(flow([node("a")]), {}, concurrency=0)


async def test_an_unknown_command_is_refused():
    play = Play(flow([node("a")]))
    with pytest.raises(FlowError, match="There is no command 'jump'"):
        play.runtime.dispatch({"type": "jump"})
    assert play.events == []


async def test_an_inbox_is_read_while_the_node_runs():
    play = Play(flow([node("a", "ask")]), {"ask": ask})
    run = asyncio.create_task(play.run())
    run_id = (await play.until("node:start a"))["runId"]
    await asyncio.sleep(0)
    assert play.runtime.waiting == [run_id]
    first = {"type": "send", "runId": run_id, "message": "one"}
    second = {"type": "reply", "runId": run_id, "promptId": "p", "content": "two"}
    play.runtime.dispatch(first)
    play.runtime.dispatch(second)
    done = await run
    assert (done.outputs, done.inbox) == ({"a": [first, second]}, [])
    assert play.runtime.waiting == []
    assert play.lines()[-4:] == [
        "command:received send",
        "command:received reply",
        "node:complete a",
        "flow:complete complete",
    ]


async def test_a_message_that_a_node_did_not_read_is_gone_with_it():
    play = Play(flow([node("a")]))
    play.on(
        "node:start a",
        lambda event: play.runtime.dispatch({"type": "send", "runId": event["runId"], "message": "unread"}),
    )
    assert (await play.run()).inbox == []


async def test_a_message_reaches_only_the_invocation_that_it_names():
    nodes = [node("a", "ask"), node("b", "ask")]
    play = Play(flow(nodes), {"ask": ask}, concurrency=2)
    run = asyncio.create_task(play.run())
    await play.until("node:start b")
    a, b = (event["runId"] for event in play.events if event["type"] == "node:start")
    for message in ("1", "2"):
        play.runtime.dispatch({"type": "send", "runId": b, "message": message})
    await play.until("node:complete b")
    for message in ("3", "4"):
        play.runtime.dispatch({"type": "send", "runId": a, "message": message})
    outputs = (await run).outputs
    assert [[command["message"] for command in outputs[name]] for name in "ab"] == [["3", "4"], ["1", "2"]]


async def test_pause_after_a_node_then_resume_by_run_id_runs_the_next():
    store = MemoryRunStore()
    played = flow(
        [node("a", "note", {"n": 1}), node("b", "note", {"n": "{{ a.n }}{{ flow.input.x }}"})], [edge("a", "b")]
    )
    first = Play(played, store=store)
    first.on("node:complete a", lambda _: first.runtime.dispatch({"type": "pause"}))
    paused = await first.run({"x": "!"})
    assert (paused.status, first.started) == ("paused", ["a"])
    second = Play(played, store=store, run_id=paused.run_id)
    done = await second.run()
    assert (done.status, second.started, done.outputs["b"]) == ("complete", ["b"], {"n": "1!"})
    assert await store.load_events(paused.run_id) == first.events + second.events


async def test_a_resumed_run_may_be_given_another_input():
    play = Play(flow([node("a"), node("b", value={"x": "{{ flow.input.x }}"})], [edge("a", "b")]))
    play.on("node:complete a", lambda _: play.runtime.dispatch({"type": "pause"}))
    await play.run({"x": 1})
    assert (await play.run({"x": 2})).outputs["b"] == {"x": 2}


async def test_a_paused_node_runs_again_with_its_session_and_the_message():
    seen: list[Any] = []
    begun = asyncio.Event()

    async def remember(context: NodeContext, _value: dict[str, Any]) -> Any:
        seen.append((context.session, context.resume_message, context.inbox.drain()))
        context.set_session("s1")
        begun.set()
        if len(seen) == 1:
            await asyncio.Event().wait()
        return "done"

    store = MemoryRunStore()
    first = Play(flow([node("a", "remember")]), {"remember": remember}, store)
    run = asyncio.create_task(first.run())
    await begun.wait()
    first.runtime.dispatch({"type": "pause"})
    paused = await run
    assert (paused.node_status, paused.agent_sessions, paused.outputs) == ({"a": "running"}, {"a": "s1"}, {})
    second = Play(flow([node("a", "remember")]), {"remember": remember}, store, run_id=paused.run_id)
    second.runtime.dispatch({"type": "resume", "message": "more"})
    await second.run()
    sent = {"type": "send", "runId": second.events[-2]["runId"], "message": "more"}
    assert seen == [(None, None, []), ("s1", "more", [sent])]
    assert second.lines() == [
        "command:received resume",
        "flow:resumed",
        "flow:resumed",
        "command:received send",
        "node:start a",
        "node:complete a",
        "flow:complete complete",
    ]


async def test_a_node_that_is_resumed_without_a_message_is_told_to_continue():
    play = Play(flow([node("a", "ask_or_hang")]), {"ask_or_hang": _ask_or_hang})
    play.on("node:start a", lambda _: play.runtime.dispatch({"type": "pause"}))
    await play.run()
    assert (await play.run()).outputs == {"a": ["continue"]}


async def _ask_or_hang(context: NodeContext, _value: dict[str, Any]) -> Any:
    return [command["message"] for command in [await context.inbox.next()]]


async def test_a_message_that_was_not_read_gives_the_resumed_node_its_run_id_back():
    store = MemoryRunStore()
    first = Play(flow([node("a", "hang")]), {"hang": hang}, store)
    run = asyncio.create_task(first.run())
    run_id = (await first.until("node:start a"))["runId"]
    unread = {"type": "send", "runId": run_id, "message": "unread"}
    first.runtime.dispatch(unread)
    first.runtime.dispatch({"type": "pause"})
    paused = await run
    assert paused.inbox == [unread]
    second = Play(flow([node("a", "hang")]), {"hang": ask}, store, run_id=paused.run_id)
    done = await second.run()
    assert done.outputs["a"] == [unread, {"type": "send", "runId": run_id, "message": "continue"}]
    assert [event["runId"] for event in second.events if event["type"] == "node:start"] == [run_id]


async def test_a_paused_node_may_give_what_it_has():
    async def partly(context: NodeContext, _value: dict[str, Any]) -> Any:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if context.cancel.reason == "pause":
                return {"text": "half", "paused": True}
            raise

    play = Play(flow([node("a", "partly")]), {"partly": partly})
    run = asyncio.create_task(play.run())
    await play.until("node:start a")
    await asyncio.sleep(0)
    play.runtime.dispatch({"type": "pause"})
    assert (await run).outputs == {"a": {"text": "half", "paused": True}}


async def test_a_pause_interrupts_the_wait_for_another_attempt():
    tries: list[int] = []

    async def fail_once(_context: NodeContext, _value: dict[str, Any]) -> str:
        tries.append(1)
        if len(tries) == 1:
            raise OSError
        return "done"

    policy = {"retry": {"maxAttempts": 2, "backoffMs": 60_000}}
    play = Play(flow([node("a", "fail_once", policy=policy)]), {"fail_once": fail_once})
    run = asyncio.create_task(play.run())
    await play.until("node:start a")
    for _ in range(10):
        await asyncio.sleep(0)
    assert tries == [1]
    play.runtime.dispatch({"type": "pause"})
    assert (await asyncio.wait_for(run, HANG_SECONDS)).node_status == {"a": "running"}
    assert (await play.run()).outputs == {"a": "done"}


async def test_a_pause_and_a_resume_at_once_run_the_node_again():
    play = Play(flow([node("a", "once")]), {"once": _once(asyncio.Event())})
    run = asyncio.create_task(play.run())
    await play.until("node:start a")
    await asyncio.sleep(0)
    play.runtime.dispatch({"type": "pause"})
    play.runtime.dispatch({"type": "resume"})
    assert (await play.run()).outputs == {"a": "again"}
    assert (await run).run_id == play.runtime.snapshot().run_id


def _once(ever: asyncio.Event) -> Any:
    tries: list[int] = []

    async def once(_context: NodeContext, _value: dict[str, Any]) -> str:
        tries.append(1)
        if len(tries) == 1:
            await ever.wait()
        return "again"

    return once


async def test_a_run_that_is_cancelled_leaves_no_node_behind_and_can_be_resumed():
    ended = asyncio.Event()

    async def clean_up(_context: NodeContext, _value: dict[str, Any]) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    store = MemoryRunStore()
    play = Play(flow([node("a", "x")]), {"x": clean_up}, store)
    run = asyncio.create_task(play.run())
    await play.until("node:start a")
    await asyncio.sleep(0)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert ended.is_set()
    stored = await store.load_snapshot(play.runtime.snapshot().run_id)
    assert stored is not None
    assert (stored.status, stored.node_status) == ("running", {"a": "running"})


async def test_a_node_that_cancels_itself_has_failed():
    async def leave(_context: NodeContext, _value: dict[str, Any]) -> None:
        raise asyncio.CancelledError

    assert (await Play(flow([node("a", "leave")]), {"leave": leave}).run()).outputs == {
        "a": {"error": "The node cancelled itself."}
    }


async def test_a_run_that_is_not_in_the_store_cannot_be_resumed():
    play = Play(flow([node("a")]), store=MemoryRunStore(), run_id="gone")
    with pytest.raises(FlowError, match="No snapshot found for runId gone"):
        await play.run()
    with pytest.raises(FlowError, match="The run is not loaded yet"):
        play.runtime.dispatch({"type": "abort"})
    with pytest.raises(FlowError, match="A run cannot be resumed without a store"):
        FlowRuntime(flow([node("a")]), {}, run_id="gone")


async def test_a_run_of_the_store_can_be_looked_at_before_it_goes_on():
    store = MemoryRunStore()
    kept = RunSnapshot(run_id="r", status="paused", state={"n": 1}, node_status={"a": "done"}, answers={})
    await store.save_snapshot("r", kept)
    play = Play(flow([node("a")]), store=store, run_id="r")
    assert play.runtime.snapshot().status == "idle"
    await play.runtime.load()
    assert play.runtime.snapshot() == kept
    assert (await play.run()).status == "complete"


async def test_a_store_that_fails_ends_the_run_with_its_error():
    class Full(MemoryRunStore):
        async def append_event(self, run_id: str, *events: Any) -> None:
            raise OSError("disk full")

    play = Play(flow([node("a", "note"), node("b", "note")]), store=Full())
    with pytest.raises(OSError, match="disk full"):
        await play.run()
    assert play.started == []


async def test_what_a_store_did_not_take_is_given_to_it_again():
    class Shaky(MemoryRunStore):
        broken = True

        async def append_event(self, run_id: str, *events: Any) -> None:
            if self.broken:
                raise OSError("disk full")
            await super().append_event(run_id, *events)

    store = Shaky()
    play = Play(flow([node("a")]), store=store)
    with pytest.raises(OSError, match="disk full"):
        await play.run()
    store.broken = False
    done = await play.run()
    assert await store.load_events(done.run_id) == play.events


def test_what_is_dispatched_outside_of_a_loop_is_stored_by_the_next_run():
    store = MemoryRunStore()
    play = Play(flow([node("a")]), store=store)
    play.runtime.dispatch({"type": "pause"})

    async def go_on() -> list[Any]:
        return await store.load_events((await play.run()).run_id)

    assert asyncio.run(go_on()) == play.events
    assert play.lines()[:3] == ["command:received pause", "flow:paused", "flow:resumed"]


async def test_a_hundred_runs_at_once_keep_their_events_apart():
    async def talk(context: NodeContext, value: dict[str, Any]) -> Any:
        for number in range(20):
            context.emit({"type": "agent:text:delta", "content": f"{value['n']}:{number}"})
            await asyncio.sleep(0)
        return value["n"]

    played = flow([node("a", "talk", {"n": "{{ flow.input.n }}"})])
    plays = [Play(played, {"talk": talk}) for _ in range(100)]
    await asyncio.gather(*(play.run({"n": number}) for number, play in enumerate(plays)))
    for number, play in enumerate(plays):
        said = [event["content"] for event in play.events if event["type"] == "agent:text:delta"]
        assert said == [f"{number}:{delta}" for delta in range(20)]
