"""What an agent can do to its turn: everything but keep it from ending, once."""

import asyncio
import gc
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, cast

import pytest

from support.fast_loop import run_fast, run_jumping
from support.hang import HANG_SECONDS
from turns.play import CLOSED, FOREVER, GREETING, HEAD, Played, play, play_drive
from usechat.protocol.chunks import (
    Abort,
    Error,
    Finish,
    FinishStep,
    MessageMetadata,
    Start,
    StartStep,
    ToolApprovalRequest,
    ToolInputAvailable,
    ToolOutputError,
)
from usechat.turns.chat import Chat
from usechat.turns.settings import TurnLimits

pytestmark = pytest.mark.anyio


class OwnError(BaseException):
    pass


RAISED = [
    ValueError("secret"),
    OwnError("secret"),
    GeneratorExit(),
    KeyboardInterrupt(),
    SystemExit(1),
    asyncio.CancelledError(),
    StopIteration("secret"),
    StopAsyncIteration("secret"),
]
raised = pytest.mark.parametrize("error", RAISED, ids=[type(error).__name__ for error in RAISED])


async def hang(_: Played) -> None:
    await asyncio.Event().wait()


@raised
async def test_whatever_a_driver_raises_ends_its_turn_at_once(error: BaseException) -> None:
    async def drive(played: Played) -> None:
        played.text("hello")
        raise error

    played = await play_drive(drive)
    assert await played.ended() == [*GREETING, *CLOSED, Error("masked")]
    assert await played.store.live(HEAD.chat) is None


@raised
@pytest.mark.parametrize("shape", ["async generator", "coroutine", "generator", "function"])
async def test_whatever_an_agent_raises_ends_its_turn_at_once(error: BaseException, shape: str) -> None:
    async def async_generator(chat: Chat) -> AsyncIterator[str]:
        yield "hello"
        raise error

    async def coroutine(chat: Chat) -> None:
        chat.write.text("hello")
        raise error

    def generator(chat: Chat) -> Iterator[str]:
        yield "hello"
        raise error

    def function(chat: Chat) -> None:
        chat.write.text("hello")
        raise error

    shapes: dict[str, Callable[[Chat], Any]] = {
        "async generator": async_generator,
        "coroutine": coroutine,
        "generator": generator,
        "function": function,
    }
    played = await play(shapes[shape])
    assert await played.ended() == [*GREETING, *CLOSED, Error("masked")]


@raised
@pytest.mark.parametrize("shape", ["async generator", "nested", "coroutine"])
async def test_whatever_a_task_raises_that_an_agent_waits_for_ends_its_turn_and_closes_the_agent(
    error: BaseException, shape: str, caplog: pytest.LogCaptureFixture
) -> None:
    closed = list[str]()

    async def fail() -> None:
        raise error

    async def wait() -> None:
        try:
            # The loop itself ends by these two, so they cannot come out of a task.
            direct = isinstance(error, KeyboardInterrupt | SystemExit)
            await (fail() if direct else asyncio.create_task(fail()))
        finally:
            closed.append(shape)

    async def async_generator(chat: Chat) -> AsyncIterator[str]:
        yield "hello"
        await wait()

    async def nested(chat: Chat) -> AsyncIterator[str]:
        return async_generator(chat)

    async def coroutine(chat: Chat) -> None:
        chat.write.text("hello")
        await wait()

    shapes: dict[str, Callable[[Chat], Any]] = {
        "async generator": async_generator,
        "nested": nested,
        "coroutine": coroutine,
    }
    played = await play(shapes[shape])
    assert await played.ended() == [*GREETING, *CLOSED, Error("masked")]
    gc.collect()
    await asyncio.sleep(0)
    assert (closed, [record.getMessage() for record in caplog.records if record.name == "asyncio"]) == ([shape], [])


@raised
async def test_whatever_an_agent_raises_while_an_approval_is_open_ends_its_turn_at_once(error: BaseException) -> None:
    async def agent(chat: Chat) -> None:
        chat.write.tool_input("a", "rm", {})
        chat.write.approval_request("a", approval_id="p")
        raise error

    assert await (await play(agent)).ended() == [
        Start("m"),
        StartStep(),
        ToolInputAvailable("a", "rm", {}),
        ToolApprovalRequest("p", "a"),
        ToolOutputError("a", "The call was cut off by an error."),
        FinishStep(),
        StartStep(),
        MessageMetadata({}),
        FinishStep(),
        Error("masked"),
    ]


@raised
async def test_whatever_an_agent_raises_after_its_turn_was_stopped_is_its_own_affair(error: BaseException) -> None:
    async def agent(chat: Chat) -> AsyncIterator[str]:
        yield "hello"
        try:
            await asyncio.Event().wait()
        finally:
            raise error

    played = await play(agent)
    await played.changed()
    played.turn.stop("stopped")
    assert await played.ended() == [*GREETING, *CLOSED, Abort()]


async def test_a_chunk_that_cannot_be_written_leaves_no_gap() -> None:
    async def agent(chat: Chat) -> None:
        chat.write.text("hello")
        wrong: Any = 7
        chat.write.source_url(wrong)

    played = await play(agent)
    assert await played.ended() == [*GREETING, *CLOSED, Error("masked")]
    numbers = [frame.split(b"\n")[0] for frame in played.claim.log.frames]
    assert numbers == [f"id: turn.{number}".encode() for number in range(1, 8)]


async def test_threads_that_write_while_the_turn_is_stopped_end_it_once_and_legally() -> None:
    for _ in range(20):
        played = await play_drive(hang)
        go = threading.Barrier(5)

        def write(played: Played = played, go: threading.Barrier = go) -> None:
            go.wait(HANG_SECONDS)
            for _ in range(100):
                played.text("x")

        def stop(played: Played = played, go: threading.Barrier = go) -> None:
            go.wait(HANG_SECONDS)
            played.turn.stop("stopped")

        await asyncio.gather(*map(asyncio.to_thread, [write, write, write, stop, stop]))
        chunks = await played.ended()
        assert [chunk for chunk in chunks if isinstance(chunk, Abort | Finish | Error)] == [Abort()]
        assert isinstance(chunks[-1], Abort)
        assert played.turn.stopping.is_set()


async def test_a_stop_from_a_thread_wakes_an_agent_that_waits_for_it() -> None:
    heard = asyncio.Event()

    async def drive(played: Played) -> None:
        try:
            await played.turn.stopping.wait()
        finally:
            heard.set()

    played = await play_drive(drive)
    await asyncio.to_thread(played.turn.stop, "stopped")
    async with asyncio.timeout(HANG_SECONDS):
        await heard.wait()
    assert (await played.ended())[-1] == Abort()


async def test_what_fails_after_the_end_leaves_the_turn_ended() -> None:
    async def fail() -> None:
        raise ValueError("the app's own fault")

    async def drive(played: Played) -> None:
        played.on_end = fail
        played.text("hello")

    played = await play_drive(drive)
    assert (await played.ended())[-1] == Finish("stop")
    played.turn.stop("stopped")
    played.turn.fail(ValueError("too late"))
    played.text("too late")
    assert await played.ended() == [*GREETING, *CLOSED, Finish("stop")]


async def test_an_answer_that_cannot_be_stored_frees_the_chat() -> None:
    async def fail() -> None:
        raise ValueError("no database")

    played = await play_drive(hang)
    played.store_answer = fail
    played.on_end = fail
    played.turn.stop("stopped")
    async with asyncio.timeout(HANG_SECONDS):
        await played.released()
    assert (await played.store.live(HEAD.chat), played.chunks) == (None, [Start("m"), Abort()])


def test_an_agent_that_ignores_its_cancellation_is_not_waited_for() -> None:
    async def main() -> None:
        over, release = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        async def drive(played: Played) -> None:
            played.text("hello")
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await release.wait()
                played.text("too late")
                over.set()

        played = await play_drive(drive)
        await asyncio.sleep(0)
        began = loop.time()
        played.turn.stop("stopped")
        assert await played.ended() == [*GREETING, *CLOSED, Abort()]
        assert loop.time() - began == pytest.approx(1)
        assert await played.store.live(HEAD.chat) is None
        release.set()
        await over.wait()
        assert await played.ended() == [*GREETING, *CLOSED, Abort()]

    run_jumping(main())


def test_an_agent_that_cleans_up_is_waited_for_before_the_chat_is_free() -> None:
    async def main() -> None:
        steps = list[str]()

        async def drive(_: Played) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.5)
                steps.append("cleaned")

        played = await play_drive(drive)
        await asyncio.sleep(0)
        played.turn.stop("stopped")
        await played.released()
        assert (steps, asyncio.get_running_loop().time()) == (["cleaned"], pytest.approx(0.5))

    run_jumping(main())


@pytest.mark.parametrize("text", [ValueError("the app's own fault"), SystemExit(), 7])
async def test_a_text_of_an_error_that_fails_itself_is_replaced(text: Any) -> None:
    def explain(_: BaseException) -> Any:
        if isinstance(text, BaseException):
            raise text
        return text

    async def agent(chat: Chat) -> None:
        raise KeyError("secret")

    played = await play(agent, error_text=explain)
    *before, last = await played.ended()
    assert (before, isinstance(last, Error)) == ([Start("m")], True)
    assert re.fullmatch(r"Something went wrong\. \(Error [0-9a-f]{8}\)", cast("Error", last).error_text)


async def test_an_agent_that_ended_its_message_may_go_on() -> None:
    cleaned = asyncio.Event()

    async def drive(played: Played) -> None:
        played.chat.write.finish()
        await asyncio.sleep(0)
        cleaned.set()

    played = await play_drive(drive)
    assert await played.ended() == [Start("m"), Finish("stop")]
    async with asyncio.timeout(HANG_SECONDS):
        await cleaned.wait()
    assert not played.turn.stopping.is_set()


def test_an_agent_that_ended_its_message_may_not_go_on_for_ever() -> None:
    async def main() -> None:
        gone = asyncio.Event()

        async def drive(played: Played) -> None:
            played.chat.write.finish()
            try:
                await asyncio.Event().wait()
            finally:
                gone.set()

        played = await play_drive(drive, TurnLimits())
        assert await played.ended() == [Start("m"), Finish("stop")]
        await gone.wait()
        assert asyncio.get_running_loop().time() == pytest.approx(3600)

    run_jumping(main())


def test_the_idle_clock_hears_a_thread() -> None:
    async def main() -> None:
        played = await play_drive(hang, TurnLimits(linger=None))
        loop = asyncio.get_running_loop()
        began = loop.time()
        while loop.time() - began < 200:
            await asyncio.to_thread(played.text, "x")
            await asyncio.sleep(10)
        assert played.turn.outcome is None
        assert (await played.ended(1000))[-1] == Error("The agent did not answer in time.")

    run_fast(main(), 100)


async def test_a_deadline_tells_an_agent_that_only_looks_whether_it_should_stop() -> None:
    seen = threading.Event()

    async def drive(played: Played) -> None:
        def work() -> None:
            while not played.turn.stopping.is_set():
                seen.wait(0.001)
            seen.set()

        await asyncio.to_thread(work)

    played = await play_drive(drive, TurnLimits(linger=None, total=0.01))
    assert (await played.ended())[-1] == Error("The answer took too long.")
    assert await asyncio.to_thread(seen.wait, HANG_SECONDS)


async def test_a_turn_that_another_owner_took_over_says_and_stores_nothing() -> None:
    played = await play_drive(hang, FOREVER)
    played.text("hello")
    played.turn.fenced(is_here=True)
    played.text("too late")
    await played.over()
    assert (played.chunks, played.turn.outcome, played.events) == (GREETING, "lost", [])
