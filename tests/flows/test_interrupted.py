"""Runs that end before their flow does: two nodes at once, at any moment, or because a node asks for it."""

import asyncio
from collections.abc import AsyncGenerator
from copy import deepcopy
from typing import Any

import pytest
from msgspec import UNSET

from flows.play import Play, edge, flow, node, reaches
from support.hang import HANG_SECONDS
from usechat import Chat
from usechat.flows import Event, FlowError, MemoryRunStore, NodeContext, RunSnapshot, agent_node

pytestmark = pytest.mark.anyio

TWO = flow([node("a", "ask"), node("b", "ask"), node("c")], [edge("a", "c"), edge("b", "c")])


async def ask(context: NodeContext, _value: dict[str, Any]) -> list[str]:
    """Hang at first, and give what was sent when the run goes on."""
    if context.resume_message is None:
        async with asyncio.timeout(HANG_SECONDS):
            await asyncio.Event().wait()
    return [command["message"] for command in context.inbox.drain()]


async def paused(play: Play, *, sending: bool) -> RunSnapshot:
    run = asyncio.create_task(play.run())
    await play.until("node:start b")
    for event in [event for event in play.events if event["type"] == "node:start" and sending]:
        play.runtime.dispatch({"type": "send", "runId": event["runId"], "message": f"for {event['nodeId']}"})
    play.runtime.dispatch({"type": "pause"})
    return await run


@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("sending", [True, False])
async def test_two_nodes_that_were_paused_go_on_with_what_was_sent_to_each(concurrency: int, *, sending: bool):
    store = MemoryRunStore()
    first = Play(TWO, {"ask": ask}, store, concurrency=2)
    left = await paused(first, sending=sending)
    assert left.node_status == {"a": "running", "b": "running", "c": "pending"}
    here, elsewhere = first, Play(TWO, {"ask": ask}, store, run_id=left.run_id, concurrency=concurrency)
    for play in (elsewhere, here):
        play.runtime.dispatch({"type": "resume", "message": "go on"})
        done = await play.run()
        unread = {name: [f"for {name}"] if sending else [] for name in "ab"}
        assert done.outputs == {**{name: [*unread[name], "go on"] for name in "ab"}, "c": {}}
        assert (done.status, done.inbox) == ("complete", [])
    runs = [{event["runId"] for event in elsewhere.events if event.get("nodeId") == name} for name in "ab"]
    assert [len(ids) for ids in runs] == [1, 1]
    assert runs[0] != runs[1]
    earlier = {event["runId"] for event in first.events if event["type"] == "node:start"}
    assert runs[0] | runs[1] <= earlier if sending else not (runs[0] | runs[1]) & earlier


async def test_a_node_that_was_interrupted_twice_before_it_ran_again_is_still_resumed():
    store = MemoryRunStore()
    left = await paused(Play(TWO, {"ask": ask}, store, concurrency=2), sending=False)
    second = Play(TWO, {"ask": ask}, store, run_id=left.run_id)
    second.on("node:complete a", lambda _: second.runtime.dispatch({"type": "pause"}))
    again = await second.run()
    assert again.node_status == {"a": "done", "b": "running", "c": "pending"}
    third = Play(TWO, {"ask": ask}, store, run_id=left.run_id)
    assert (await third.run()).outputs["b"] == ["continue"]
    assert (await second.run()).outputs["b"] == ["continue"]


async def test_a_node_that_is_skipped_when_its_run_goes_on_was_not_interrupted():
    nodes = [node("a", "ask", when="flow.input.wanted"), node("b", "ask")]
    play = Play(flow(nodes), {"ask": ask}, concurrency=2)
    run = asyncio.create_task(play.run({"wanted": True}))
    await play.until("node:start b")
    play.runtime.dispatch({"type": "pause"})
    await run
    done = await play.run({"wanted": False})
    assert (done.node_status, play.lines("node:skipped")) == ({"a": "done", "b": "done"}, ["node:skipped a when"])


async def test_the_only_unread_inbox_of_a_run_of_the_original_is_that_of_the_interrupted_node():
    sent = {"type": "send", "runId": "theirs", "message": "for a"}
    store = MemoryRunStore()
    kept = RunSnapshot(run_id="r", status="paused", node_status={"a": "running", "gone": "running"}, inbox=[sent])
    await store.save_snapshot("r", kept)
    play = Play(flow([node("a", "ask")]), {"ask": ask}, store, run_id="r")
    done = await play.run()
    assert (done.outputs["a"], play.events[-2]["runId"]) == (["for a", "continue"], "theirs")


class Remembered(MemoryRunStore):
    """Remembers all that it had at each moment, which is what a process that dies then leaves behind."""

    def __init__(self) -> None:
        super().__init__()
        self.moments: list[MemoryRunStore] = []

    async def append_event(self, run_id: str, *events: Event) -> None:
        await asyncio.sleep(0)
        await super().append_event(run_id, *events)
        self._remember()

    async def save_snapshot(self, run_id: str, snapshot: RunSnapshot, *events: Event) -> None:
        await super().save_snapshot(run_id, snapshot, *events)
        # Without what `append_event` remembered, since this is one transaction.
        self.moments.pop()
        self._remember()

    def _remember(self) -> None:
        moment = MemoryRunStore()
        moment.__dict__.update(deepcopy({name: self.__dict__[name] for name in moment.__dict__}))
        self.moments.append(moment)


async def test_whenever_a_process_dies_its_run_goes_on_and_no_node_that_was_over_runs_again():
    async def work(context: NodeContext, value: dict[str, Any]) -> dict[str, Any]:
        context.emit({"type": "agent:text:delta", "content": "So"})
        for _ in range(3):
            await asyncio.sleep(0)
        return {**value, "n": value.get("n", 0) + 1}

    nodes = [
        node("a", "work"),
        node("b", "work", {"n": "{{ b.n }}"}),
        node("c", "work", when="false"),
        node("d", "work", {"both": "{{ a.n + b.n }}"}),
    ]
    loops = edge("b", "b", when="b.n < 3", maxIterations=5)
    played = flow(nodes, [edge("a", "d"), loops, edge("b", "d", when="b.n >= 3"), edge("c", "d")])
    store = Remembered()
    done = await Play(played, {"work": work}, store, concurrency=2).run()
    assert (done.status, done.outputs["b"], len(store.moments) > 10) == ("complete", {"n": 3}, True)
    for moment in store.moments:
        found = await moment.load_snapshot(done.run_id)
        told = await moment.load_events(done.run_id)
        if found is None or found.status == "complete":
            continue
        again = Play(played, {"work": work}, moment, run_id=done.run_id, concurrency=2)
        result = await again.run()
        assert (result.status, result.outputs, result.edge_status) == ("complete", done.outputs, done.edge_status)
        ended = [event["nodeId"] for event in told + again.events if event["type"] == "node:complete"]
        assert sorted(ended) == ["a", "b", "b", "b", "d"]


async def test_a_process_that_dies_while_a_run_that_cannot_go_on_ends_leaves_what_was_over_as_it_was():
    async def slow(_context: NodeContext, _value: dict[str, Any]) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(20):
                await asyncio.sleep(0)

    store = Remembered()
    nodes, loops = [node("a"), node("b", "slow")], edge("a", "a", maxIterations=1)
    play = Play(flow(nodes, [loops]), {"slow": slow}, store, concurrency=2)
    with pytest.raises(FlowError, match="exceeded 1"):
        await play.run()
    told = [await moment.load_events(play.runtime.snapshot().run_id) for moment in store.moments]
    kept = [await moment.load_snapshot(play.runtime.snapshot().run_id) for moment in store.moments]
    after = [
        snapshot and snapshot.node_status["a"]
        for snapshot, events in zip(kept, told, strict=True)
        if any(event["type"] == "node:complete" for event in events)
    ]
    assert set(after) == {"pending"}


async def test_a_node_that_has_ended_when_the_run_is_paused_does_not_run_again():
    async def ends(context: NodeContext, _value: dict[str, Any]) -> str:
        asyncio.get_running_loop().call_soon(lambda: play.runtime.dispatch({"type": "pause"}))
        return f"told {context.resume_message}"

    play = Play(flow([node("a", "ends"), node("b")], [edge("a", "b")]), {"ends": ends})
    left = await play.run()
    assert (left.status, left.node_status, left.outputs) == (
        "paused",
        {"a": "done", "b": "pending"},
        {"a": "told None"},
    )
    assert play.lines()[-4:] == ["command:received pause", "flow:paused", "node:complete a", "edge:fire a->b"]
    assert (await play.run()).status == "complete"


@pytest.mark.parametrize("waits", [True, False])
async def test_a_node_pauses_the_run_and_is_given_the_answer(*, waits: bool):
    async def approve(context: NodeContext, value: dict[str, Any]) -> dict[str, Any]:
        if context.resume_message is None:
            context.emit({"type": "agent:text", "content": f"May I {value['what']}?"})
            context.pause()
            if waits:
                await asyncio.Event().wait()
            return {"asked": True}
        return {"answer": context.resume_message}

    store = MemoryRunStore()
    played = flow([node("a", "approve", {"what": "go"}), node("b", value={"x": "{{ a.answer }}"})], [edge("a", "b")])
    first = Play(played, {"approve": approve}, store)
    left = await first.run()
    assert first.lines()[1:] == ["node:start a", "agent:text a May I go?", "command:received pause", "flow:paused"]
    assert (left.status, left.node_status) == ("paused", {"a": "running", "b": "pending"})
    assert left.outputs == ({} if waits else {"a": {"asked": True}})
    second = Play(played, {"approve": approve}, store, run_id=left.run_id)
    second.runtime.dispatch({"type": "resume", "message": "yes"})
    assert (await second.run()).outputs == {"a": {"answer": "yes"}, "b": {"x": "yes"}}


async def test_a_node_that_pauses_the_run_interrupts_the_others_once():
    async def pause(context: NodeContext, _value: dict[str, Any]) -> None:
        if context.resume_message is None:
            context.pause()
            context.pause()

    async def once(context: NodeContext, _value: dict[str, Any]) -> list[str]:
        if not began:
            began.append(context.node_id)
            await asyncio.Event().wait()
        return [command["message"] for command in context.inbox.drain()]

    began: list[str] = []
    play = Play(flow([node("a", "once"), node("b", "pause")]), {"once": once, "pause": pause}, concurrency=2)
    left = await play.run()
    assert (left.node_status, play.lines("flow:paused")) == ({"a": "running", "b": "running"}, ["flow:paused"])
    assert (await play.run()).outputs == {"a": [], "b": None}


class Approvals:
    """Nodes like the guide's: they work, ask, and work with the answer until they are let go."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.before = {"a": asyncio.Event(), "b": asyncio.Event()}
        self.after = {"a": asyncio.Event(), "b": asyncio.Event()}

    async def approve(self, context: NodeContext, _value: dict[str, Any]) -> str:
        name = context.node_id
        self.told.append(f"{name} {context.resume_message}")
        if context.resume_message is None:
            await self.before[name].wait()
            context.emit({"type": "agent:text", "content": "May I?"})
            context.pause()
            await asyncio.Event().wait()
        await self.after[name].wait()
        return f"{context.resume_message}"


@pytest.mark.parametrize("elsewhere", [True, False])
async def test_an_answer_is_for_the_node_that_asked_and_stays_with_it(*, elsewhere: bool):
    approvals, store = Approvals(), MemoryRunStore()
    nodes, played = {"approve": approvals.approve}, flow([node("b", "approve"), node("a", "approve")])
    play = Play(played, nodes, store, concurrency=2)

    def resume(message: str) -> asyncio.Task[RunSnapshot]:
        nonlocal play
        approvals.told.clear()
        if elsewhere:
            run_id = play.runtime.snapshot().run_id
            play = Play(played, nodes, store, run_id=run_id, concurrency=2)
        play.runtime.dispatch({"type": "resume", "message": message})
        return asyncio.create_task(play.run())

    approvals.before["a"].set()
    left = await play.run()
    assert (left.node_status, left.answers) == ({"a": "running", "b": "running"}, {"a": None})
    # While a works with its answer, b asks for its own.
    run = resume("yes, paint")
    await reaches(lambda: len(approvals.told) == 2)
    approvals.before["b"].set()
    left = await run
    assert (sorted(approvals.told), left.answers) == (["a yes, paint", "b None"], {"a": "yes, paint", "b": None})
    approvals.after["a"].set()
    approvals.after["b"].set()
    done = await resume("no, do not burn")
    assert done.outputs == {"a": "yes, paint", "b": "no, do not burn"}
    assert (done.status, done.answers) == ("complete", UNSET)


async def test_an_answer_waits_for_its_node_while_another_one_asks():
    approvals, store = Approvals(), MemoryRunStore()
    nodes, played = {"approve": approvals.approve}, flow([node("b", "approve"), node("a", "approve")])
    approvals.before["a"].set()
    left = await Play(played, nodes, store, concurrency=2).run()
    for event in (approvals.before["b"], approvals.after["a"], approvals.after["b"]):
        event.set()
    for message in ("paint", "burn"):
        # One after the other: b, which has not asked yet, comes first.
        play = Play(played, nodes, store, run_id=left.run_id)
        play.runtime.dispatch({"type": "resume", "message": message})
        last = await play.run()
    assert last.outputs == {"a": "paint", "b": "burn"}


@pytest.mark.parametrize("how", ["a crash", "a shutdown", "a pause"])
async def test_a_message_answers_nothing_in_a_node_that_was_only_interrupted(how: str):
    approvals, store = Approvals(), Remembered()
    played = flow([node("a", "approve")])
    play = Play(played, {"approve": approvals.approve}, store)
    run = asyncio.create_task(play.run())
    await play.until("node:start a")
    await reaches(lambda: bool(approvals.told))
    if how != "a crash":
        abort = {"type": "abort", "resumable": True, "reason": "shutdown"}
        play.runtime.dispatch({"type": "pause"} if how == "a pause" else abort)
        await run
    kept = store.moments[-1]
    run.cancel()
    await asyncio.wait([run])
    for event in (approvals.before["a"], approvals.after["a"]):
        event.set()
    again = Play(played, {"approve": approvals.approve}, kept, run_id=play.runtime.snapshot().run_id)
    again.runtime.dispatch({"type": "resume", "message": "hello?"})
    left = await again.run()
    # Whoever pauses a run from outside speaks to what was running.
    told = ["a None", "a hello?"] if how == "a pause" else ["a None", "a None"]
    assert (approvals.told, left.status) == (told, "complete" if how == "a pause" else "paused")


async def test_an_answer_that_its_node_did_not_live_to_use_is_given_to_it_again_and_once():
    async def approve(context: NodeContext, _value: dict[str, Any]) -> list[str]:
        if context.resume_message is None:
            context.pause()
        elif context.resume_message not in heard:
            heard.append(context.resume_message)
            await asyncio.Event().wait()
        return [command["message"] for command in context.inbox.drain()]

    heard: list[str] = []
    store, played = Remembered(), flow([node("a", "approve")])
    left = await Play(played, {"approve": approve}, store).run()
    second = Play(played, {"approve": approve}, store, run_id=left.run_id)
    second.runtime.dispatch({"type": "resume", "message": "yes"})
    run = asyncio.create_task(second.run())
    await second.until("node:start a")
    await reaches(lambda: bool(heard))
    third = Play(played, {"approve": approve}, store.moments[-1], run_id=left.run_id)
    third.runtime.dispatch({"type": "resume", "message": "hello?"})
    assert (await third.run()).outputs == {"a": ["yes"]}
    run.cancel()
    await asyncio.wait([run])


@pytest.mark.parametrize("asks", [True, False])
async def test_an_agent_is_given_the_message_unless_another_node_has_asked(*, asks: bool):
    async def writer(chat: Chat) -> AsyncGenerator[str]:
        said.append([message.text for message in chat.messages])
        yield "So"
        if len(said) == 1:
            await asyncio.Event().wait()

    async def other(context: NodeContext, _value: dict[str, Any]) -> None:
        if context.resume_message is None and len(said) == 1 and asks:
            context.pause()
        elif len(said) == 1:
            play.runtime.dispatch({"type": "abort", "resumable": True, "reason": "shutdown"})

    said: list[list[str]] = []
    nodes = [node("a", "writer", {"prompt": "Write."}), node("b", "wait"), node("c", "other")]

    async def wait(_context: NodeContext, _value: dict[str, Any]) -> None:
        await reaches(lambda: bool(said))

    types = {"writer": agent_node(writer), "wait": wait, "other": other}
    play = Play(flow(nodes, [edge("b", "c")]), types, concurrency=2)
    await play.run()
    play.runtime.dispatch({"type": "resume", "message": "yes"})
    assert (await play.run()).status == "complete"
    assert said == [["Write."], ["Write."] if asks else ["Write.", "yes"]]


async def test_a_node_that_is_over_pauses_nothing():
    kept: list[NodeContext] = []

    async def keep(context: NodeContext, _value: dict[str, Any]) -> None:
        kept.append(context)

    async def late(_context: NodeContext, _value: dict[str, Any]) -> None:
        kept[0].pause()
        kept[0].state.set("late", 1)
        kept[0].state.patch({"op": "merge", "path": "", "value": {"late": 1}})
        kept[0].set_session("late")

    play = Play(flow([node("a", "keep"), node("b", "late")]), {"keep": keep, "late": late})
    done = await play.run()
    assert (done.status, done.state, done.agent_sessions) == ("complete", {}, {})
