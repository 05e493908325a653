"""What an agent can do to its turn: everything but keep it from ending, once."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import pytest

from fast_loop import run_fast
from usechat.protocol.chunks import Abort, Chunk, Error, Finish, Start
from usechat.protocol.codec import decode_chunk
from usechat.protocol.messages import UIMessage
from usechat.protocol.sse import payload_of
from usechat.protocol.writer import MessageWriter
from usechat.stores import TurnLog
from usechat.turns import Turn, TurnLimits

pytestmark = pytest.mark.anyio

FOREVER = TurnLimits(linger=None, idle=None, total=None)


def masked(_: BaseException) -> str:
    return "masked"


class Stage:
    """A turn, and how it ended."""

    def __init__(
        self,
        limits: TurnLimits = FOREVER,
        explain: Callable[[BaseException], str] = masked,
        failure: Exception | None = None,
    ) -> None:
        numbers = count(1)
        self.ends: list[str] = []
        self._failure = failure
        writer = MessageWriter("m", new_id=lambda: f"id-{next(numbers)}")
        log = TurnLog("turn", "chat", "")
        self.turn = Turn(log, writer, None, limits=limits, explain=explain, on_end=self._end)

    async def _end(self, outcome: str, message: UIMessage) -> None:
        self.ends.append(outcome)
        if self._failure is not None:
            raise self._failure

    def text(self, delta: str) -> None:
        self.turn.say(self.turn.writer.text, delta)

    async def play(self, work: Callable[[], Awaitable[None]]) -> list[Chunk]:
        self.turn.start(work)
        return await self.ended()

    async def ended(self) -> list[Chunk]:
        await asyncio.wait_for(self.turn.settled(), 5)
        return [decode_chunk(payload_of(frame)).chunk for frame in self.turn.log.frames]


async def hang() -> None:
    await asyncio.Event().wait()


async def test_threads_that_write_while_the_turn_is_stopped_end_it_once_and_legally() -> None:
    for _ in range(20):
        stage = Stage()
        stage.turn.start(hang)
        go = threading.Barrier(5)

        def write(stage: Stage = stage, go: threading.Barrier = go) -> None:
            go.wait(5)
            for _ in range(100):
                stage.text("x")

        def stop(stage: Stage = stage, go: threading.Barrier = go) -> None:
            go.wait(5)
            stage.turn.stop()

        await asyncio.gather(*map(asyncio.to_thread, [write, write, write, stop, stop]))
        chunks = await stage.ended()
        assert [chunk for chunk in chunks if isinstance(chunk, Abort | Finish | Error)] == [Abort()]
        assert isinstance(chunks[-1], Abort)
        assert (stage.ends, stage.turn.stopping.is_set()) == (["stopped"], True)


async def test_a_stop_from_a_thread_wakes_an_agent_that_waits_for_it() -> None:
    stage = Stage()
    heard = asyncio.Event()

    async def work() -> None:
        try:
            await stage.turn.stopping.wait()
        finally:
            heard.set()

    stage.turn.start(work)
    await asyncio.to_thread(stage.turn.stop)
    await asyncio.wait_for(heard.wait(), 5)
    assert (await stage.ended())[-1] == Abort()


async def test_what_fails_after_the_end_leaves_the_turn_ended() -> None:
    stage = Stage(failure=ValueError("the app's own fault"))

    async def work() -> None:
        stage.text("hello")

    assert (await stage.play(work))[-1] == Finish("stop")
    stage.turn.stop()
    stage.turn.fail("too late")
    stage.text("too late")
    assert (await stage.ended())[-1] == Finish("stop")
    assert stage.ends == ["done"]


async def test_an_agent_that_ignores_its_cancellation_is_not_waited_for() -> None:
    stage = Stage()
    over = asyncio.Event()
    release = asyncio.Event()

    async def work() -> None:
        stage.text("hello")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await release.wait()
            stage.text("too late")
            over.set()

    stage.turn.start(work)
    await asyncio.sleep(0)
    stage.turn.stop()
    chunks = await stage.ended()
    release.set()
    await asyncio.wait_for(over.wait(), 5)
    assert await stage.ended() == chunks
    assert (chunks[-1], stage.ends) == (Abort(), ["stopped"])


async def test_an_agent_that_leaves_the_process_leaves_only_its_turn() -> None:
    async def work() -> None:
        raise SystemExit(1)

    stage = Stage()
    assert await stage.play(work) == [Start("m"), Error("masked")]
    assert stage.ends == ["error"]


@pytest.mark.parametrize("text", [ValueError("the app's own fault"), 7])
async def test_a_text_of_an_error_that_fails_itself_is_replaced(text: Any) -> None:
    def explain(_: BaseException) -> Any:
        if isinstance(text, Exception):
            raise text
        return text

    async def work() -> None:
        raise KeyError("secret")

    stage = Stage(explain=explain)
    assert await stage.play(work) == [Start("m"), Error("Something went wrong.")]
    assert stage.ends == ["error"]


async def test_a_turn_that_is_stopped_before_it_starts_never_runs_its_agent() -> None:
    ran: list[str] = []

    async def work() -> None:
        ran.append("ran")

    stage = Stage()
    stage.turn.stop()
    assert await stage.play(work) == [Start("m"), Abort()]
    await asyncio.sleep(0)
    assert (ran, stage.ends) == ([], ["stopped"])


async def test_an_agent_that_ended_its_message_may_go_on() -> None:
    stage = Stage()
    cleaned = asyncio.Event()

    async def work() -> None:
        stage.turn.say(stage.turn.writer.finish)
        await asyncio.sleep(0)
        cleaned.set()

    assert await stage.play(work) == [Start("m"), Finish("stop")]
    await asyncio.wait_for(cleaned.wait(), 5)
    assert not stage.turn.stopping.is_set()


def test_an_agent_that_ended_its_message_may_not_go_on_for_ever() -> None:
    async def main() -> None:
        stage = Stage(TurnLimits())
        gone = asyncio.Event()

        async def work() -> None:
            stage.turn.say(stage.turn.writer.finish)
            try:
                await asyncio.Event().wait()
            finally:
                gone.set()

        began = asyncio.get_running_loop().time()
        stage.turn.start(work)
        await stage.turn.settled()
        assert await stage.ended() == [Start("m"), Finish("stop")]
        await gone.wait()
        assert asyncio.get_running_loop().time() - began >= 3600
        assert stage.ends == ["done"]

    run_fast(main(), 3600)


def test_the_idle_clock_hears_a_thread() -> None:
    async def main() -> None:
        stage = Stage(TurnLimits())
        loop = asyncio.get_running_loop()
        stage.turn.start(hang)
        began = loop.time()
        while loop.time() - began < 200:
            await asyncio.to_thread(stage.text, "x")
            await asyncio.sleep(10)
        assert stage.ends == []
        await stage.turn.settled()
        assert (await stage.ended())[-1] == Error("The agent did not answer in time.")

    run_fast(main(), 100)


async def test_a_deadline_tells_an_agent_that_only_looks_whether_it_should_stop() -> None:
    stage = Stage(TurnLimits(total=0.01))
    seen = threading.Event()

    def work() -> None:
        while not stage.turn.stopping.is_set():
            seen.wait(0.001)
        seen.set()

    stage.turn.start(lambda: asyncio.to_thread(work))
    assert (await stage.ended())[-1] == Error("The answer took too long.")
    assert await asyncio.to_thread(seen.wait, 5)
