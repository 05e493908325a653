"""How many threads agents get: a bound on threads, whatever becomes of the turns that started them."""

import asyncio
import threading
from collections.abc import Iterator
from contextvars import ContextVar

import pytest

from support.hang import HANG_SECONDS
from turns.play import CLOSED, GREETING, play
from usechat.protocol.chunks import Abort, Finish
from usechat.turns.chat import Chat
from usechat.turns.threads import Threads

pytestmark = pytest.mark.anyio


class Blocked:
    """Work that goes on until it is let go; it knows how many do so at once."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.running = 0
        self.most = 0
        self._lock = threading.Lock()
        self._begun = threading.Semaphore(0)

    def __call__(self) -> str:
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)
        self._begun.release()
        self.go.wait(HANG_SECONDS)
        with self._lock:
            self.running -= 1
        return "done"

    async def begun(self, count: int) -> None:
        for _ in range(count):
            assert await asyncio.to_thread(self._begun.acquire, timeout=HANG_SECONDS)


async def test_no_more_threads_run_than_may() -> None:
    threads, blocked = Threads(2), Blocked()
    tasks = [asyncio.create_task(threads.run(blocked)) for _ in range(10)]
    await blocked.begun(2)
    blocked.go.set()
    assert await asyncio.gather(*tasks) == ["done"] * 10
    assert blocked.most == 2


async def test_a_thread_that_nobody_waits_for_keeps_its_place() -> None:
    threads, blocked, later = Threads(1), Blocked(), Blocked()
    first = asyncio.create_task(threads.run(blocked))
    await blocked.begun(1)
    first.cancel()
    second = asyncio.create_task(threads.run(later))
    await asyncio.wait([first])
    for _ in range(10):
        await asyncio.sleep(0)
    assert (first.cancelled(), later.running) == (True, 0)
    blocked.go.set()
    later.go.set()
    assert await asyncio.wait_for(second, HANG_SECONDS) == "done"


async def test_a_stopped_turn_whose_thread_hangs_keeps_the_place_of_the_next() -> None:
    threads, release = Threads(1), threading.Event()

    def hangs(chat: Chat) -> Iterator[str]:
        yield "hello"
        release.wait(HANG_SECONDS)

    def greets(chat: Chat) -> Iterator[str]:
        yield "hello"

    first = await play(hangs, threads=threads)
    await first.changed()
    first.turn.stop("stopped")
    assert await first.ended() == [*GREETING, *CLOSED, Abort()]
    second = await play(greets, threads=threads)
    for _ in range(10):
        await asyncio.sleep(0)
    assert second.chunks == GREETING[:1]
    release.set()
    assert await second.ended() == [*GREETING, *CLOSED, Finish("stop")]


async def test_whoever_is_cancelled_while_it_waits_loses_no_place() -> None:
    threads, blocked = Threads(1), Blocked()
    first = asyncio.create_task(threads.run(blocked))
    await blocked.begun(1)
    waiting = [asyncio.create_task(threads.run(blocked)) for _ in range(6)]
    await asyncio.sleep(0)
    for task in waiting[::2]:
        task.cancel()
    blocked.go.set()
    assert await asyncio.gather(first, *waiting[1::2]) == ["done"] * 4
    assert [task.cancelled() for task in waiting] == [True, False] * 3
    assert await asyncio.wait_for(threads.run(blocked), HANG_SECONDS) == "done"


async def test_whoever_is_cancelled_when_it_was_given_a_place_gives_it_on() -> None:
    # At any moment around the one at which the place is given.
    for rounds in range(300):
        threads, go = Threads(1), threading.Event()
        first = asyncio.create_task(threads.run(go.wait, HANG_SECONDS))
        second = asyncio.create_task(threads.run(str, 2))
        await asyncio.sleep(0)
        go.set()
        for _ in range(rounds % 60):
            await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait([first, second])
        assert await asyncio.wait_for(threads.run(str, 3), HANG_SECONDS) == "3"


async def test_a_thread_that_cannot_be_started_loses_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    threads = Threads(1)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await threads.run(str)
    assert await asyncio.wait_for(threads.run(str, 7), HANG_SECONDS) == "7"


async def test_work_in_a_thread_has_the_context_of_whoever_started_it() -> None:
    variable: ContextVar[str] = ContextVar("variable")
    variable.set("mine")
    assert await Threads(1).run(variable.get) == "mine"
