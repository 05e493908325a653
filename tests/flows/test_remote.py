import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request

from flows.elsewhere import (
    ABORTED,
    COMPLETE,
    LOST,
    NODE,
    PAUSED,
    RESUMED,
    START,
    Harness,
    Listening,
    listening,
    paired,
    reaches,
    standing,
)
from support.fast_loop import run_jumping
from support.hang import HANG_SECONDS
from support.loopback import free_port
from usechat.flows import Event, FlowError, Runtime

pytestmark = pytest.mark.anyio

GOLDEN = Path(__file__).parent.parent / "golden" / "open_harness"


def golden(name: str) -> list[Any]:
    return [json.loads(line) for line in (GOLDEN / f"{name}.events.jsonl").read_text("utf-8").splitlines()]


async def test_a_run_elsewhere_is_told_here_as_it_was():
    events = golden("05b_branch_and_skip")
    async with standing() as harness:
        ears = Listening(harness.url)
        runtime: Runtime = ears.runtime
        run = asyncio.create_task(runtime.run({"topic": "tides"}))
        assert await harness.command() == {"type": "run", "input": {"topic": "tides"}}
        await harness.say(*events)
        done = await run
        assert ears.events == events
        assert (done.status, runtime.waiting) == ("complete", ())
        completed = {event["nodeId"]: event["output"] for event in events if event["type"] == "node:complete"}
        skipped = {
            event["nodeId"]: {"skipped": True, "reason": event["reason"]}
            for event in events
            if event["type"] == "node:skipped"
        }
        assert completed
        assert skipped
        assert done.outputs == completed | skipped
        assert done.node_status == dict.fromkeys(done.outputs, "done")


async def test_a_node_that_failed_elsewhere_is_in_the_snapshot():
    async with paired() as (harness, ears):
        run = ears.run()
        await harness.command()
        await harness.say(*golden("03_failure_agent_error"))
        done = await run
        [(name, status)] = done.node_status.items()
        assert (status, list(done.outputs[name])) == ("failed", ["error"])


async def test_the_envelopes_of_the_fixture_are_read_and_written():
    event, command = golden("92_ws_envelopes")
    async with paired() as (harness, ears):
        for frame in (event, command):
            await harness.frame(json.dumps(frame))
        await ears.until(event["event"])
        ears.runtime.dispatch(command["command"])
        assert await harness.heard.get() == command
        assert ears.events == [event["event"]]
        assert (ears.status, ears.runtime.snapshot().node_status) == ("running", {"a": "running"})


@pytest.mark.parametrize(
    "command",
    [
        {"type": "send", "message": "hello", "runId": "run-a1"},
        {"type": "reply", "promptId": "toolu_1", "content": "yes", "runId": "run-a1"},
        {"type": "abort"},
        {"type": "resume", "message": "go on"},
        {"type": "pause"},
        {"type": "stop"},
    ],
)
async def test_each_command_is_sent_as_it_is(command: dict[str, Any]):
    async with paired() as (harness, ears):
        ears.runtime.dispatch(command)
        assert await harness.command() == command


@pytest.mark.parametrize("command", [{}, {"type": "run"}, {"type": "send", "message": "x"}, {"type": "reply"}])
async def test_what_is_not_a_command_is_not_sent(command: dict[str, Any]):
    async with paired() as (harness, ears):
        with pytest.raises(FlowError):
            ears.runtime.dispatch(command)
        ears.runtime.dispatch({"type": "abort"})
        assert await harness.command() == {"type": "abort"}


async def test_a_command_that_is_no_json_is_refused():
    async with paired() as (_, ears):
        with pytest.raises(FlowError, match="JSON"):
            ears.runtime.dispatch({"type": "send", "runId": "r", "message": "\ud800"})


async def test_frames_that_are_no_events_are_ignored_and_logged_once_a_kind(caplog: pytest.LogCaptureFixture):
    large = json.dumps({"type": "event", "event": {"type": "node:complete", "output": "x" * 5_000_000}})
    deep = "[" * 100_000
    async with paired() as (harness, ears):
        for frame in ("{", b"\xff\xfe", deep, "", large, large, "null", "[1]", '"x"', '{"type":"event"}'):
            await harness.frame(frame)
        wrong: list[Any] = [{}, [], "x", None, {"type": 1}, {"nodeId": "a"}]
        for event in wrong:
            await harness.frame(json.dumps({"type": "event", "event": event}))
        odd = [{"type": "node:start", "nodeId": 1}, {"type": "node:start"}, {"type": "of:tomorrow"}]
        await harness.say(*odd, START, NODE)
        await ears.until(NODE)
        assert ears.events == [*odd, START, NODE]
        assert (ears.status, harness.opened) == ("running", 1)
        told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert [words.split(";")[0] for words in told] == [
        "a frame of a remote runtime is not JSON",
        "a frame of a remote runtime is too large",
        "a frame of a remote runtime has no event",
    ]


async def test_a_listener_that_fails_does_not_keep_the_event_from_the_others():
    async with paired() as (harness, ears):
        heard: list[Event] = []

        def fail(_: Event) -> None:
            raise ValueError

        ears.runtime.on_event(fail)
        leave = ears.runtime.on_event(heard.append)
        await harness.say(START)
        await ears.until(START)
        leave()
        leave()
        await harness.say(NODE)
        await ears.until(NODE)
        assert heard == [START]


def test_a_runtime_that_does_not_know_our_run_command_does_not_start():
    async def run() -> None:
        async with standing() as harness:
            ears = Listening(harness.url)
            with pytest.raises(FlowError, match="did not start"):
                await ears.runtime.run()
            assert ears.status == "idle"
            await reaches(lambda: not harness.sockets)

    run_jumping(run())


async def test_a_run_that_the_other_side_refuses_fails_at_once():
    async with paired() as (harness, ears):
        run = ears.run()
        await harness.command()
        await harness.frame('{"type":"refused","command":"send"}')
        await harness.frame('{"type":"refused","command":"run"}')
        with pytest.raises(FlowError, match="refused the command"):
            await run
        assert (ears.status, ears.events) == ("idle", [])


async def test_a_resume_that_the_other_side_refuses_leaves_the_run_paused():
    async with paired() as (harness, ears):
        await harness.say(START, PAUSED)
        await ears.until(PAUSED)
        ears.runtime.dispatch({"type": "resume"})
        run = ears.run()
        await harness.command()
        await harness.frame('{"type":"refused","command":"resume"}')
        with pytest.raises(FlowError, match="refused the command"):
            await run
        assert ears.status == "paused"


async def test_what_still_comes_of_the_run_before_is_not_told_as_the_new_one():
    async with paired() as (harness, ears):
        run = ears.run()
        await harness.command()
        await harness.say(ABORTED, NODE, COMPLETE, START, COMPLETE)
        assert (await run).node_status == {}
        assert ears.events == [START, COMPLETE]


async def test_a_run_that_is_aborted_before_it_starts_ends():
    async with paired() as (harness, ears):
        run = ears.run()
        await harness.command()
        ears.runtime.dispatch({"type": "abort"})
        await harness.say(NODE, ABORTED)
        assert (await run).status == "aborted"
        assert ears.events == [ABORTED]


async def test_a_run_that_is_resumed_as_soon_as_it_is_paused_is_resumed_once():
    async with paired() as (harness, ears):
        resume = {"type": "resume"}
        ears.runtime.on_event(lambda event: ears.runtime.dispatch(resume) if event == PAUSED else None)
        run = ears.run()
        await harness.command()
        await harness.say(START, PAUSED)
        assert (await run).status == "paused"
        run = ears.run()
        assert await harness.command() == {"type": "resume"}
        await harness.say(RESUMED, COMPLETE)
        assert (await run).status == "complete"
        assert harness.heard.empty()


async def test_one_connection_takes_one_run_after_the_other():
    async with paired() as (harness, ears):
        for name in ("a", "b"):
            run = ears.run()
            await harness.command()
            await harness.say(START, {"type": "node:complete", "nodeId": name, "runId": "r", "output": name}, COMPLETE)
            assert (await run).outputs == {name: name}
        await harness.say(START)
        await reaches(lambda: ears.status == "running")
        assert (harness.opened, ears.runtime.snapshot().outputs) == (1, {})


async def test_what_a_stopped_agent_says_at_last_does_not_set_its_run_going():
    async with paired() as (harness, ears):
        last: Event = {"type": "agent:aborted", "nodeId": "a", "runId": "r", "reason": "abort"}
        await harness.say(START, ABORTED, NODE, last)
        await ears.until(last)
        assert ears.status == "aborted"


async def test_a_paused_run_goes_on_with_one_resume():
    async with standing() as harness:
        ears = Listening(harness.url)
        run = ears.run()
        await harness.command()
        await harness.say(START, PAUSED)
        assert (await run).status == "paused"
        for command in ({"type": "resume", "message": "go on"}, {"type": "resume"}):
            if "message" in command:
                ears.runtime.dispatch(command)
            run = ears.run()
            assert await harness.command() == command
            await harness.say(RESUMED, RESUMED, PAUSED)
            assert (await run).status == "paused"
        assert harness.heard.empty()
        await ears.runtime.aclose()


async def test_a_runtime_that_was_only_run_leaves_when_the_run_is_over():
    async with standing() as harness:
        ears = Listening(harness.url)
        for opened in (1, 2):
            run = ears.run()
            await harness.command()
            await harness.say(START, COMPLETE)
            await run
            await reaches(lambda: not harness.sockets)
            assert (harness.opened, ears.runtime.connected) == (opened, False)
        assert LOST not in ears.events


async def test_runs_that_follow_at_once_connect_anew():
    async with standing() as harness:
        ears = Listening(harness.url)

        async def answer() -> None:
            for _ in range(3):
                await harness.command()
                await harness.say(START, COMPLETE)

        answering = asyncio.create_task(answer())
        for _ in range(3):
            assert (await ears.runtime.run()).status == "complete"
        await answering
        assert harness.opened == 3


async def test_a_run_that_is_stopped_while_it_connects_does_not_start():
    asked, let_in = asyncio.Event(), asyncio.Event()
    harness = Harness(port := free_port())

    async def wait(_connection: ServerConnection, _request: Request) -> None:
        asked.set()
        await let_in.wait()

    async with serve(harness.attend, "127.0.0.1", port, process_request=wait):
        ears = Listening(harness.url)
        run = ears.run()
        await asked.wait()
        ears.runtime.dispatch({"type": "abort"})
        let_in.set()
        with pytest.raises(FlowError, match="stopped before it started"):
            await run
        await reaches(lambda: harness.opened == 1 and not harness.sockets)
        assert harness.heard.empty()


async def test_commands_that_nobody_takes_do_not_gather_without_end():
    async with paired() as (_, ears):
        for _ in range(1000):
            ears.runtime.dispatch({"type": "pause"})
        with pytest.raises(FlowError, match="reads no commands"):
            ears.runtime.dispatch({"type": "pause"})


async def test_a_run_that_nobody_waits_for_is_left_when_it_is_over():
    async with standing() as harness:
        ears = Listening(harness.url)
        run = ears.run()
        await harness.command()
        await harness.say(START)
        await ears.until(START)
        run.cancel()
        await asyncio.wait([run])
        assert ears.runtime.connected
        await harness.say(COMPLETE)
        await reaches(lambda: not harness.sockets)
        assert ears.status == "complete"


async def test_an_original_is_for_one_at_a_time_and_free_when_its_run_is_over():
    async with standing() as harness:
        first = Listening(harness.url)
        run = first.run()
        await harness.command()
        for name in ("127.0.0.1", "localhost", "LOCALHOST"):
            second = Listening(harness.url.replace("127.0.0.1", name))
            with pytest.raises(FlowError, match="busy with another run"):
                await second.runtime.run()
            with pytest.raises(FlowError, match="busy with another run"):
                await second.runtime.connect()
            assert not second.runtime.connected
        await harness.say(START, PAUSED)
        assert (await run).status == "paused"
        with pytest.raises(FlowError, match="busy with another run"):
            await second.runtime.run()
        run = first.run()
        await harness.command()
        await harness.say(RESUMED, COMPLETE)
        await run
        run = second.run()
        await harness.command()
        await harness.say(START, COMPLETE)
        assert (await run).status == "complete"
        assert (len(first.events), second.events, harness.heard.empty()) == (4, [START, COMPLETE], True)


@pytest.mark.parametrize("end", ["closed", "lost", "refused", "forgotten"])
async def test_an_original_is_free_when_whoever_had_it_is_gone(end: str):
    async with standing() as harness:
        first, second = Listening(harness.url), Listening(harness.url)
        run = first.run()
        await harness.command()
        if end == "refused":
            await harness.frame('{"type":"refused","command":"run"}')
        elif end == "lost":
            harness.die()
        elif end == "closed":
            await first.runtime.aclose()
        else:
            run.cancel()
        await asyncio.gather(run, return_exceptions=True)
        run = second.run()
        await harness.command()
        await harness.say(START, COMPLETE)
        assert (await run).status == "complete"


async def test_what_an_original_tells_before_the_run_is_asked_for_is_not_heard():
    async with asyncio.timeout(HANG_SECONDS), serve(_tells_at_once, "127.0.0.1", port := free_port()):
        ears = Listening(f"ws://127.0.0.1:{port}/ws")
        assert (await ears.runtime.run()).node_status == {}
        assert ears.events == [START, COMPLETE]


async def _tells_at_once(socket: ServerConnection) -> None:
    """A runtime that is in the middle of a run when somebody connects."""
    await socket.send(json.dumps({"type": "event", "event": NODE}))
    async for _ in socket:
        for event in (COMPLETE, START, COMPLETE):
            await socket.send(json.dumps({"type": "event", "event": event}))


@pytest.mark.parametrize("command", ["abort", "pause"])
def test_a_run_that_does_not_stop_is_given_up(command: str):
    async def stop() -> None:
        async with standing() as harness:
            ears = Listening(harness.url)
            run = ears.run()
            await harness.command()
            await harness.say(START)
            await ears.until(START)
            ears.runtime.dispatch({"type": command})
            with pytest.raises(FlowError, match="the run was interrupted"):
                await run
            assert (ears.status, ears.events) == ("aborted", [START, LOST])
            await reaches(lambda: not harness.sockets)

    run_jumping(stop())


async def test_only_frames_that_name_the_run_are_heard_where_runs_have_names():
    async with standing(names_runs=True) as harness, listening(harness.url) as ears:
        with pytest.raises(FlowError, match="There is no run yet"):
            ears.runtime.dispatch({"type": "abort"})
        await harness.say(START)
        run = ears.run()
        name = (await harness.heard.get())["run"]
        for other in ({}, {"run": "another"}, {"run": ""}, {"run": None}):
            for event in (START, COMPLETE):
                await harness.frame(json.dumps({"type": "event", "event": event, **other}))
            await harness.frame(json.dumps({"type": "refused", "command": "run", **other}))
        for event in (START, COMPLETE):
            await harness.frame(json.dumps({"type": "event", "run": name, "event": event}))
        assert (await run).run_id == name
        assert ears.events == [START, COMPLETE]


async def test_an_original_that_is_away_is_free_when_whoever_waits_for_it_is_closed():
    port = free_port()
    ears = Listening(f"ws://127.0.0.1:{port}/ws", first_pause=600, longest_pause=600)
    async with standing(port):
        await ears.runtime.connect()
    await reaches(lambda: not ears.runtime.connected)
    async with standing(port) as harness:
        other = Listening(harness.url)
        with pytest.raises(FlowError, match="busy with another run"):
            await other.runtime.connect()
        await ears.runtime.aclose()
        await other.runtime.connect()
        await other.runtime.aclose()
