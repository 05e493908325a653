import asyncio
import logging
from itertools import islice, pairwise

import pytest
from websockets.asyncio.server import ServerConnection, serve

from flows.elsewhere import (
    COMPLETE,
    LOST,
    NODE,
    PAUSED,
    RESUMED,
    START,
    Listening,
    listening,
    paired,
    reaches,
    standing,
)
from support.loopback import free_port
from support.session_clients import no_more_tasks
from usechat.flows import Event, FlowError
from usechat.flows.remote import RemoteRuntime, pauses

pytestmark = pytest.mark.anyio


async def test_a_run_that_is_lost_ends_here_and_its_listeners_are_told_once():
    async with paired() as (harness, ears):
        run = ears.run()
        await harness.command()
        await harness.say(START, NODE)
        await ears.until(NODE)
        harness.die()
        with pytest.raises(FlowError, match="was lost, so the run was interrupted"):
            await run
        assert ears.events == [START, NODE, LOST]
        assert ears.status == "aborted"
        await reaches(lambda: len(harness.sockets) == 1)
        harness.die()
        await reaches(lambda: harness.opened == 3)
        assert ears.events == [START, NODE, LOST]


async def test_a_run_that_nobody_waits_for_is_told_as_lost_too():
    async with paired() as (harness, ears):
        await harness.say(START)
        await ears.until(START)
        harness.die()
        await ears.until(LOST)


async def test_a_run_that_is_lost_before_it_starts_fails():
    async with paired() as (harness, ears):
        run = ears.run()
        await harness.command()
        harness.die()
        with pytest.raises(FlowError, match="was lost"):
            await run
        assert ears.events == [LOST]


async def test_what_is_heard_again_of_a_lost_run_is_passed_on():
    async with paired() as (harness, ears):
        await harness.say(START)
        await ears.until(START)
        harness.die()
        await reaches(lambda: harness.opened == 2 and ears.runtime.connected)
        await harness.say(NODE)
        await ears.until(NODE)
        assert ears.status == "running"
        run = ears.run()
        await harness.say(COMPLETE)
        assert (await run).status == "complete"
        assert harness.heard.empty()


@pytest.mark.parametrize("events", [[], [START, COMPLETE], [START, PAUSED]])
async def test_a_connection_that_is_lost_while_nothing_runs_is_not_told(events: list[Event]):
    async with paired() as (harness, ears):
        await harness.say(*events)
        await reaches(lambda: ears.events == events)
        status = ears.status
        harness.die()
        await reaches(lambda: harness.opened == 2 and ears.runtime.connected)
        assert (ears.events, ears.status) == (events, status)


async def test_a_paused_run_waits_for_its_runtime_to_come_back():
    async with standing() as harness:
        ears = Listening(harness.url)
        run = ears.run()
        await harness.command()
        await harness.say(START, PAUSED)
        await run
        harness.die()
        await reaches(lambda: not ears.runtime.connected)
        with pytest.raises(FlowError, match="is not connected"):
            ears.runtime.dispatch({"type": "resume"})
        await reaches(lambda: ears.runtime.connected)
        run = ears.run()
        assert await harness.command() == {"type": "resume"}
        await harness.say(RESUMED, COMPLETE)
        assert (await run).status == "complete"


async def test_a_runtime_that_was_only_run_stays_away_when_it_is_lost():
    async with standing() as harness:
        ears = Listening(harness.url)
        run = ears.run()
        await harness.command()
        await harness.say(START)
        await ears.until(START)
        harness.die()
        with pytest.raises(FlowError, match="was lost"):
            await run
        run = ears.run()
        await harness.command()
        await harness.say(START, COMPLETE)
        await run
        assert harness.opened == 2


async def test_a_lost_run_that_nobody_waits_for_is_not_called_again():
    async with standing() as harness:
        before = asyncio.all_tasks()
        ears = Listening(harness.url)
        run = ears.run()
        await harness.command()
        await harness.say(START)
        await ears.until(START)
        run.cancel()
        await asyncio.wait([run])
        harness.die()
        await ears.until(LOST)
        # Nobody is left who could.
        await no_more_tasks(before)
        assert harness.opened == 1


async def test_a_runtime_that_comes_back_after_a_while_is_found_again():
    port = free_port()
    async with standing(port) as harness:
        ears = Listening(harness.url)
        await ears.runtime.connect()
    await reaches(lambda: not ears.runtime.connected)
    with pytest.raises(FlowError, match="cannot be reached"):
        await ears.runtime.run()
    async with standing(port) as harness:
        await reaches(lambda: ears.runtime.connected)
        run = ears.run()
        await harness.command()
        await harness.say(START, COMPLETE)
        assert (await run).status == "complete"
        await ears.runtime.aclose()
        await reaches(lambda: not harness.sockets)


async def test_a_run_does_not_wait_for_the_next_attempt():
    port = free_port()
    async with standing(port) as harness:
        ears = Listening(harness.url, first_pause=600, longest_pause=600)
        await ears.runtime.connect()
    await reaches(lambda: not ears.runtime.connected)
    async with standing(port) as harness:
        run = ears.run()
        await harness.command()
        await harness.say(START, COMPLETE)
        assert (await run).status == "complete"
        await ears.runtime.aclose()


async def test_a_server_that_hangs_up_at_once_is_called_less_and_less():
    loop = asyncio.get_running_loop()
    calls: list[float] = []

    async def hang_up(_: ServerConnection) -> None:
        calls.append(loop.time())

    async with serve(hang_up, "127.0.0.1", port := free_port()):
        async with listening(f"ws://127.0.0.1:{port}/ws", first_pause=0.02, longest_pause=0.3):
            await reaches(lambda: len(calls) >= 6)
        gaps = [later - earlier for earlier, later in pairwise(calls)]
        assert all(gap >= least for gap, least in zip(gaps, (0.01, 0.02, 0.04, 0.08, 0.15), strict=False))


def test_the_pauses_grow_up_to_the_longest_and_are_not_the_same_for_all():
    bounds = [0.25, 0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    drawn = [list(islice(pauses(0.25, 30), len(bounds))) for _ in range(20)]
    for several in drawn:
        assert all(bound / 2 <= pause <= bound for pause, bound in zip(several, bounds, strict=True))
    assert len({several[0] for several in drawn}) > 1


async def test_closing_ends_an_open_run():
    async with standing() as harness, listening(harness.url) as ears:
        run = ears.run()
        await harness.command()
        await harness.say(START)
        await ears.until(START)
        await ears.runtime.aclose()
        with pytest.raises(FlowError, match="was lost"):
            await run
        assert ears.events == [START, LOST]
        await reaches(lambda: not harness.sockets)


async def test_nobody_there_is_told_in_a_sentence_without_secrets(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG, "usechat")
    ears = Listening(f"ws://me:hunter2@127.0.0.1:{free_port()}/ws")
    for _ in range(2):
        with pytest.raises(FlowError) as refused:
            await ears.runtime.run()
        assert str(refused.value) == "The remote runtime cannot be reached. Start it, or correct its URL."
    with pytest.raises(FlowError, match="cannot be reached"):
        await ears.runtime.connect()
    with pytest.raises(FlowError, match="is not connected"):
        ears.runtime.dispatch({"type": "abort"})
    assert ears.events == []
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize("url", ["http://localhost/ws", "ws://", "hunter2", "ws://hunter2:x@host:99999999/ws"])
def test_a_url_that_is_wrong_is_refused_at_once(url: str):
    with pytest.raises(FlowError, match="URL") as refused:
        RemoteRuntime(url)
    assert "hunter2" not in str(refused.value)
