"""How a turn ends: one outcome, stored before anybody reads it, with the chat free at that moment."""

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from support.fast_loop import run_jumping
from support.hang import HANG_SECONDS
from turns.play import CLOSED, GREETING, HEAD, Played, play_drive
from usechat.protocol.chunks import Abort, Chunk, Error, Finish
from usechat.stores import Outcome

pytestmark = pytest.mark.anyio


async def hang(_: Played) -> None:
    await asyncio.Event().wait()


def finish(played: Played) -> None:
    played.chat.write.finish()


def fail(played: Played) -> None:
    played.turn.fail(ValueError())


def stop(played: Played) -> None:
    played.turn.stop("stopped")


ENDS: list[tuple[Callable[[Played], None], Chunk, Outcome]] = [
    (finish, Finish("stop"), "done"),
    (fail, Error("masked"), "error"),
    (stop, Abort(), "stopped"),
]
ends = pytest.mark.parametrize(("end", "last", "outcome"), ENDS)


@ends
async def test_nothing_of_the_end_is_readable_before_the_answer_is_stored(
    end: Callable[[Played], None], last: Chunk, outcome: Outcome
) -> None:
    storing, go = asyncio.Event(), asyncio.Event()

    async def store() -> None:
        storing.set()
        await go.wait()

    played = await play_drive(hang)
    played.store_answer = store
    played.text("hello")
    reader = await played.store.follow(HEAD)
    assert reader is not None
    end(played)
    async with asyncio.timeout(HANG_SECONDS):
        await storing.wait()
    assert (played.chunks, played.claim.log.outcome, played.turn.outcome) == (GREETING, None, outcome)
    assert (await played.store.live(HEAD.chat), played.events) == (HEAD, [])
    go.set()
    assert await played.ended() == [*GREETING, *CLOSED, last]
    assert (reader.take(10_000), reader.ended) == (b"".join(played.claim.log.frames), True)


@ends
def test_an_answer_that_takes_long_to_store_delays_the_end(
    end: Callable[[Played], None], last: Chunk, outcome: Outcome
) -> None:
    async def main() -> None:
        async def read() -> float:
            while played.claim.log.outcome is None:
                await played.claim.log.changed()
            return asyncio.get_running_loop().time()

        played = await play_drive(hang)
        played.store_answer = partial(asyncio.sleep, 4)
        end(played)
        assert await read() == pytest.approx(4)
        assert (await played.ended())[-1] == last

    run_jumping(main())
    assert outcome


@ends
async def test_whoever_was_told_of_the_end_finds_the_chat_free(
    end: Callable[[Played], None], last: Chunk, outcome: Outcome
) -> None:
    seen = list[object]()

    async def look() -> None:
        live = await played.store.live(HEAD.chat)
        seen.append((live, played.claim.log.outcome, played.chunks[-1:]))

    played = await play_drive(hang)
    played.on_end = look
    end(played)
    await played.ended()
    assert seen == [(None, outcome, [last])]


def test_on_end_may_hang_without_keeping_the_chat() -> None:
    async def main() -> None:
        played = await play_drive(hang)
        played.on_end = partial(asyncio.sleep, 1000)
        played.turn.stop("stopped")
        await played.released()
        assert (await played.store.live(HEAD.chat), asyncio.get_running_loop().time()) == (None, 0)
        await played.ended(2000)
        assert asyncio.get_running_loop().time() == pytest.approx(1000)

    run_jumping(main())


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Threads that get their turn as often as can be."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("eager_threads")
async def test_of_all_that_end_a_turn_at_once_one_counts() -> None:
    seen = set[Outcome | None]()
    for number in range(60):
        played = await play_drive(hang)
        played.text("hello")
        go = threading.Barrier(4)

        def run(end: Callable[[Played], None], played: Played = played, go: threading.Barrier = go) -> None:
            go.wait(HANG_SECONDS)
            end(played)

        order = [finish, fail, stop, played_text][number % 4 :] + [finish, fail, stop, played_text][: number % 4]
        await asyncio.gather(*(asyncio.to_thread(run, end) for end in order))
        chunks = await played.ended()
        last = {outcome: chunk for _, chunk, outcome in ENDS}
        assert played.turn.outcome is not None
        assert [chunk for chunk in chunks if isinstance(chunk, Abort | Finish | Error)] == [last[played.turn.outcome]]
        assert chunks[-1] == last[played.turn.outcome]
        seen.add(played.turn.outcome)
    assert len(seen) > 1


def played_text(played: Played) -> None:
    played.text("x")


async def test_whoever_wins_in_the_loop_and_a_thread_chooses_once() -> None:
    for _ in range(30):
        played = await play_drive(hang)
        thread = threading.Thread(target=played.turn.stop, args=("stopped",))
        thread.start()
        played.turn.fail(ValueError())
        thread.join()
        assert (await played.ended())[-1] == (Abort() if played.turn.outcome == "stopped" else Error("masked"))
