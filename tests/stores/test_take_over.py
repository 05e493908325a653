"""What a take-over must not lose, in the store of one process."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager

import pytest

from stores.contract import Producer
from support.fast_loop import run_jumping
from support.hang import HANG_SECONDS
from usechat.stores import Claim, StopReason, TurnHead
from usechat.stores.memory import MemoryTurnStore

HEAD = TurnHead("turn", "chat", "owner", "m")


class Slow(list[bytes]):
    """Frames in the middle of which somebody else gets the turn."""

    def __init__(self, frames: list[bytes]) -> None:
        super().__init__(frames)
        self.begun = threading.Event()
        self.go_on = threading.Event()

    def __iter__(self) -> Iterator[bytes]:
        for frame in super().__iter__():
            yield frame
            self.begun.set()
            self.go_on.wait(0.2)


@asynccontextmanager
async def opened(store: MemoryTurnStore) -> AsyncGenerator[Claim, None]:
    claim = await store.claim(HEAD)
    await claim.open(Producer(), None, ())
    yield claim


@pytest.mark.anyio
async def test_what_a_thread_is_writing_is_in_the_log_before_a_new_owner_sees_it() -> None:
    store, seen = MemoryTurnStore(), list[list[bytes]]()
    frames = Slow([b"x", b"y"])

    async def lost(claim: Claim, _: StopReason | None) -> None:
        seen.append(list(claim.log.frames))
        frames.go_on.set()
        await asyncio.sleep(0)
        seen.append(list(claim.log.frames))
        await claim.seal((), "stopped")
        await claim.release()

    async with store.serve(lost), opened(store) as claim:
        thread = threading.Thread(target=claim.append, args=(frames,))
        thread.start()
        frames.begun.wait(HANG_SECONDS)
        await store.stop(HEAD, "stopped", 0.001)
        thread.join()
        seen.append(list(claim.log.frames))
    assert seen == [[b"x", b"y"]] * 3


def test_a_turn_that_is_taken_over_is_ended_although_whoever_stopped_it_has_gone() -> None:
    async def main() -> None:
        store, ended = MemoryTurnStore(), asyncio.Event()

        async def lost(claim: Claim, _: StopReason | None) -> None:
            await asyncio.sleep(5)
            await claim.seal((), "stopped")
            await claim.release()
            ended.set()

        async with store.serve(lost), opened(store):
            stopping = asyncio.create_task(store.stop(HEAD, "stopped", 1))
            await asyncio.sleep(2)
            stopping.cancel()
            await ended.wait()
            assert stopping.cancelled()
            assert await store.live(HEAD.chat) is None

    run_jumping(main())


def test_without_anybody_who_could_end_a_lost_turn_its_readers_end() -> None:
    async def main() -> None:
        store = MemoryTurnStore()
        async with opened(store) as claim:
            reader = claim.reader()
            claim.append([b"x"])
            await store.stop(HEAD, "stopped", 1)
            assert (reader.take_frame(), reader.ended, reader.log.outcome) == (b"x", True, "lost")

    run_jumping(main())
