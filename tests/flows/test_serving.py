import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from flows.elsewhere import LOST, TALK, Listening, converse, hang, listening, parrot, reaches, serving
from flows.play import edge, flow, line, node
from support.hang import HANG_SECONDS
from support.loopback import running
from usechat.flows import Event, FlowError, FlowRuntime, NodeContext, agent_node
from usechat.flows.serving import serve_runtime

pytestmark = pytest.mark.anyio

PROGRAM = """
import asyncio
from usechat.flows import FlowRuntime
from usechat.flows.serving import serve_runtime

async def hang(context, value):
    context.emit({"type": "agent:text", "content": "Working"})
    await asyncio.Event().wait()

async def main():
    flow = {"name": "f", "nodes": [{"id": "a", "type": "hang", "input": {}}], "edges": []}
    async with serve_runtime(lambda: FlowRuntime(flow, {"hang": hang})) as url:
        print(url, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def until(ears: Listening, words: str) -> Event:
    await reaches(lambda: any(line(event) == words for event in ears.events))
    return next(event for event in ears.events if line(event) == words)


async def test_a_run_over_a_socket_tells_and_gives_what_it_does_here():
    async with serving(agent_node(parrot)) as served, listening(served.url) as ears:
        done = await ears.runtime.run({"message": "hello"})
        here = served.runtimes[0].snapshot()
        assert ears.events == served.events
        assert [line(event) for event in ears.events if event["type"].startswith("agent:text")] == [
            "agent:text:delta a You said ",
            "agent:text:delta a hello",
            "agent:text a You said hello",
        ]
        assert (done.status, done.outputs, done.node_status) == (here.status, here.outputs, here.node_status)


async def test_a_run_follows_a_run_with_its_own_input():
    async with serving(agent_node(parrot)) as served, listening(served.url) as ears:
        for text in ("one", "two"):
            done = await ears.runtime.run({"message": text})
            assert done.outputs["a"]["text"] == f"You said {text}"
        assert len(served.runtimes) == 2
        assert ears.events == served.events


async def test_a_run_is_paused_and_resumed_over_a_socket():
    async with serving(hang) as served, listening(served.url) as ears:
        for resume in (False, True):
            if resume:
                ears.runtime.dispatch({"type": "resume", "message": "go on"})
            run = ears.run()
            await reaches(lambda: ears.status == "running")
            await reaches(lambda: line(ears.events[-1]) == "agent:text a Working")
            ears.runtime.dispatch({"type": "pause"})
            assert (await run).status == "paused"
            await reaches(lambda: len(ears.events) == len(served.events))
        assert [line(event) for event in ears.events] == [
            "flow:start",
            "node:start a",
            "agent:text a Working",
            "command:received pause",
            "flow:paused",
            "command:received resume",
            "flow:resumed",
            "flow:resumed",
            "command:received send",
            "node:start a",
            "agent:text a Working",
            "command:received pause",
            "flow:paused",
        ]


async def test_a_run_is_aborted_over_a_socket_and_another_one_follows():
    async with serving(hang) as served, listening(served.url) as ears:
        for number in (1, 2):
            run = ears.run()
            await reaches(lambda: [line(event) for event in ears.events].count("agent:text a Working") == number)  # noqa: B023
            ears.runtime.dispatch({"type": "abort"})
            assert (await run).status == "aborted"
        assert [runtime.snapshot().status for runtime in served.runtimes] == ["aborted", "aborted"]


async def test_what_a_run_still_says_is_not_told_in_the_next_one():
    released = asyncio.Event()

    async def linger(context: NodeContext, _value: dict[str, Any]) -> None:
        context.emit({"type": "agent:text", "content": "Working"})
        try:
            await asyncio.Event().wait()
        finally:
            await released.wait()
            context.emit({"type": "agent:text", "content": "Late"})

    async with serving(linger) as served, listening(served.url) as ears:
        for count in (1, 2):
            run = ears.run()
            await reaches(lambda: [line(event) for event in ears.events].count("agent:text a Working") == count)  # noqa: B023
            if count == 2:
                released.set()
                await reaches(lambda: "agent:text a Late" in [line(event) for event in served.events])
            ears.runtime.dispatch({"type": "abort"})
            await run
        lines = [line(event) for event in ears.events]
        assert "agent:text a Late" not in lines[: lines.index("flow:aborted", lines.index("flow:aborted") + 1)]


async def test_a_run_that_is_aborted_at_once_ends_and_the_next_one_runs():
    async with serving(hang) as served, listening(served.url) as ears:
        run = ears.run()
        await asyncio.sleep(0)
        ears.runtime.dispatch({"type": "abort"})
        assert (await run).status == "aborted"
        run = ears.run()
        await until(ears, "agent:text a Working")
        assert [runtime.snapshot().status for runtime in served.runtimes] == ["aborted", "running"]
        run.cancel()


async def test_messages_reach_a_node_that_waits_for_them():
    async with serving(converse) as served, listening(served.url) as ears:
        run = ears.run()
        run_id = (await until(ears, "node:start a"))["runId"]
        for text in ("one", "two"):
            ears.runtime.dispatch({"type": "send", "message": text, "runId": run_id})
            await until(ears, f"agent:text a {text}")
        ears.runtime.dispatch({"type": "send", "message": "end", "runId": run_id})
        assert (await run).outputs == {"a": ["one", "two"]}


async def test_runs_at_the_same_time_hear_nothing_of_each_other():
    async with serving(converse) as served, listening(served.url) as ann, listening(served.url) as bob:
        runs = [ann.run(), bob.run()]
        for ears, text in ((ann, "for ann"), (bob, "for bob")):
            run_id = (await until(ears, "node:start a"))["runId"]
            for message in (text, "end"):
                ears.runtime.dispatch({"type": "send", "message": message, "runId": run_id})
        assert [(await run).outputs for run in runs] == [{"a": ["for ann"]}, {"a": ["for bob"]}]
        assert [len(ears.events) for ears in (ann, bob)] == [len(served.events) // 2] * 2


async def test_a_run_that_nobody_hears_any_more_is_aborted():
    async with serving(hang) as served:
        ears = Listening(served.url)
        run = ears.run()
        await until(ears, "agent:text a Working")
        await ears.runtime.aclose()
        with pytest.raises(FlowError, match="was lost"):
            await run
        await reaches(lambda: served.runtimes[0].snapshot().status == "aborted")


async def test_a_run_that_cannot_go_on_is_told_as_failed():
    endless = flow([node("a"), node("b")], [edge("a", "b"), edge("b", "a", maxIterations=1)])
    async with serving(hang, endless) as served, listening(served.url) as ears:
        assert (await ears.runtime.run()).status == "complete"
        assert ears.events[:-1] == served.events
        assert line(ears.events[-1]) == "flow:complete failed"
        assert ears.events[-1]["flowName"] == "played"
        assert abs(ears.events[-1]["timestamp"] - ears.events[0]["timestamp"]) < 30_000


async def test_a_runtime_that_cannot_be_made_is_refused_before_anything_is_served():
    with pytest.raises(FlowError, match="no node type"):
        async with serve_runtime(lambda: FlowRuntime(TALK, {})):
            raise AssertionError


async def test_a_server_that_goes_away_in_a_run_ends_it_at_both_ends():
    ended = asyncio.Event()

    async def watch(context: NodeContext, _value: dict[str, Any]) -> None:
        context.emit({"type": "agent:text", "content": "Working"})
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with serving(watch) as served:
        ears = Listening(served.url)
        run = ears.run()
        await until(ears, "agent:text a Working")
    assert ended.is_set()
    with pytest.raises(FlowError, match="was lost"):
        await run
    assert ears.events[-1] == LOST


async def test_a_server_that_is_killed_ends_the_run_here(tmp_path: Path):
    with running((sys.executable, "-c", PROGRAM), tmp_path) as process:
        url = await asyncio.to_thread(process.first_line)
        ears = Listening(url.strip())
        run = ears.run()
        await until(ears, "agent:text a Working")
        process.send(signal.SIGKILL)
        with pytest.raises(FlowError, match="was lost"):
            await asyncio.wait_for(run, HANG_SECONDS)
        assert [line(event) for event in ears.events[-2:]] == ["agent:text a Working", "runtime:lost"]
