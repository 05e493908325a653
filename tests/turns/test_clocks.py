"""When a turn ends by itself: nobody reads it, its agent says nothing, or it takes too long."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from support.fast_loop import run_jumping
from turns.play import Played, play_drive
from usechat.events import SubAgent, ToolCall, ToolResult
from usechat.events.mapper import EventMapper
from usechat.protocol.chunks import Abort, Chunk, Error, Finish, Start
from usechat.turns.settings import TurnLimits

IDLE = Error("The agent did not answer in time.")
TOTAL = Error("The answer took too long.")


async def hang(_: Played) -> None:
    await asyncio.Event().wait()


def sleeps(seconds: float) -> Callable[[Played], Awaitable[None]]:
    async def drive(_: Played) -> None:
        await asyncio.sleep(seconds)

    return drive


def ends(limits: TurnLimits, drive: Callable[[Played], Awaitable[None]], *happens: Callable[[Played], None]) -> object:
    """The last chunk of a turn, and when it could be read; each second one more thing happens to the turn."""

    async def main() -> tuple[Chunk, float]:
        played = await play_drive(drive, limits)
        for happen in happens:
            happen(played)
            await asyncio.sleep(1)
        while played.claim.log.outcome is None:
            await played.claim.log.changed()
        return played.chunks[-1], round(asyncio.get_running_loop().time(), 6)

    return run_jumping(main())


def lingers(seconds: float | None) -> TurnLimits:
    return TurnLimits(linger=seconds, idle=None, total=None)


def joins(played: Played) -> None:
    played.claim.reader()


def leaves(played: Played) -> None:
    next(iter(played.claim.log.readers)).leave()


def nothing(_: Played) -> None:
    pass


def nobody_knows(played: Played) -> None:
    played.turn.readers_changed(None)


def nobody_reads(played: Played) -> None:
    played.turn.readers_changed(0)


def test_a_turn_that_nobody_ever_read_lingers_from_its_claim() -> None:
    assert ends(lingers(30), hang) == (Abort(), 30)
    assert ends(lingers(0), hang) == (Abort(), 0)
    assert ends(lingers(None), sleeps(1000)) == (Finish("stop"), 1000)


def test_a_turn_lingers_from_the_moment_its_last_reader_leaves() -> None:
    assert ends(lingers(30), hang, joins, joins, leaves, leaves) == (Abort(), 33)
    assert ends(lingers(30), sleeps(100), joins, joins, leaves) == (Finish("stop"), 100)
    assert ends(lingers(None), sleeps(100), joins, leaves) == (Finish("stop"), 100)


def test_without_linger_the_turn_stops_when_its_last_reader_leaves() -> None:
    async def main() -> None:
        played = Played(lingers(0))
        await played.begin(lambda _chat, _output: hang(played))
        readers = [played.reader, played.claim.reader()]
        await asyncio.sleep(10)
        readers[0].leave()
        assert played.turn.outcome is None
        readers[1].leave()
        assert (played.turn.outcome, played.turn.stopped) == ("stopped", "left")
        assert await played.ended() == [Start("m"), Abort()]

    run_jumping(main())


def test_whoever_comes_back_in_time_lets_the_turn_go_on() -> None:
    assert ends(lingers(3), sleeps(100), nothing, nothing, joins) == (Finish("stop"), 100)
    assert ends(lingers(3), sleeps(100), joins, leaves, nothing, joins) == (Finish("stop"), 100)
    assert ends(lingers(3), hang, joins, leaves, joins, leaves) == (Abort(), 6)


def test_the_linger_clock_holds_while_nobody_knows_who_reads() -> None:
    assert ends(lingers(3), sleeps(100), nothing, nobody_knows) == (Finish("stop"), 100)
    assert ends(lingers(3), hang, nothing, nobody_knows, nobody_reads) == (Abort(), 5)
    assert ends(lingers(3), hang, nothing, nobody_reads) == (Abort(), 3)


def test_a_turn_that_nobody_reads_is_told_that_it_was_left() -> None:
    async def main() -> None:
        played = await play_drive(hang, lingers(5))
        await played.ended()
        assert played.turn.stopped == "left"

    run_jumping(main())


def test_a_silent_agent_meets_its_deadline() -> None:
    async def drive(played: Played) -> None:
        for _ in range(3):
            await asyncio.sleep(100)
            played.text("x")
        await asyncio.Event().wait()

    assert ends(TurnLimits(linger=None), drive) == (IDLE, 420)
    assert ends(TurnLimits(linger=None, idle=None), drive) == (TOTAL, 3600)
    assert ends(TurnLimits(linger=None, idle=None, total=None), sleeps(10_000)) == (Finish("stop"), 10_000)


def test_an_agent_that_holds_the_idle_clock_may_be_silent() -> None:
    async def drive(played: Played) -> None:
        with played.chat.hold():
            await asyncio.sleep(500)
            with played.chat.hold():
                await asyncio.sleep(500)
            await asyncio.sleep(500)
        await asyncio.Event().wait()

    assert ends(TurnLimits(linger=None), drive) == (IDLE, 1620)
    assert ends(TurnLimits(linger=None, total=1000), drive) == (TOTAL, 1000)


def test_an_agent_that_fails_while_it_holds_the_idle_clock_leaves_no_clock() -> None:
    async def main() -> None:
        async def drive(played: Played) -> None:
            with played.chat.hold():
                raise ValueError

        played = await play_drive(drive, TurnLimits())
        assert (await played.ended())[-1] == Error("masked")
        # The loop has nothing more to do than forget the log.
        await asyncio.sleep(4000)
        assert await played.ended() == played.chunks

    run_jumping(main())


def test_the_idle_clock_stands_still_for_an_approval() -> None:
    async def drive(played: Played) -> None:
        played.chat.write.tool_input("a", "rm", {})
        played.chat.write.approval_request("a", approval_id="p")
        await asyncio.sleep(1000)
        played.chat.write.tool_denied("a")
        await asyncio.Event().wait()

    assert ends(TurnLimits(linger=None), drive) == (IDLE, 1120)
    assert ends(TurnLimits(linger=None, total=500), drive) == (TOTAL, 500)


def test_a_tool_may_run_silently_for_longer_than_the_idle_clock() -> None:
    async def drive(played: Played) -> None:
        played.chat.write.tool_input("a", "build", {})
        await asyncio.sleep(600)
        played.chat.write.tool_output("a", 1, preliminary=True)
        await asyncio.sleep(600)
        played.chat.write.tool_output("a", 2)
        await asyncio.Event().wait()

    assert ends(TurnLimits(linger=None), drive) == (IDLE, 1320)
    assert ends(TurnLimits(linger=None, total=500), drive) == (TOTAL, 500)


def test_a_tool_of_a_sub_agent_may_run_silently_as_well() -> None:
    async def drive(played: Played) -> None:
        turn = played.turn
        mapper = EventMapper(turn.writer)
        for event in (ToolCall("a", "build", {}), ToolResult("a", 1)):
            turn.write(mapper.map, SubAgent("s", "builder", event))
            await asyncio.sleep(600)

    assert ends(TurnLimits(linger=None), drive) == (IDLE, 720)


def test_a_call_whose_input_is_streamed_or_wrong_does_not_stop_the_idle_clock() -> None:
    async def streams(played: Played) -> None:
        played.chat.write.tool_input_start("a", "build")
        await asyncio.Event().wait()

    async def fails(played: Played) -> None:
        played.chat.write.tool_input_error("a", "build", "{", "No JSON.")
        await asyncio.Event().wait()

    assert ends(TurnLimits(linger=None), streams) == (IDLE, 120)
    assert ends(TurnLimits(linger=None), fails) == (IDLE, 120)


@pytest.mark.parametrize("happen", [joins, nobody_knows, nobody_reads])
def test_no_clock_runs_after_the_end(happen: Callable[[Played], None]) -> None:
    async def main() -> None:
        played = await play_drive(sleeps(1), TurnLimits())
        chunks = await played.ended()
        happen(played)
        await asyncio.sleep(10_000)
        assert (await played.ended(), played.turn.stopped) == (chunks, None)

    run_jumping(main())
