"""Workers that share a Redis, each a store of its own, for tests that break the Redis or a worker."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from itertools import count

from stores.contract import Producer
from support.hang import HANG_SECONDS
from support.redis_server import SECRET, RedisServer
from usechat.protocol.chunks import TextDelta
from usechat.protocol.frames import Frames
from usechat.stores import Claim, Reader, StopReason, TurnHead
from usechat.stores.redis import RedisTurnStore
from usechat.stores.redis.claim import RedisClaim

__all__ = ["LIVING", "Worker", "frames", "head", "opened", "read_all", "sent", "until", "without_patience", "worker"]

# A lease that does not end while its owner lives, also where a busy machine holds the process for a second.
LIVING = 2.0
_numbers = count(1)


class Worker:
    """A store, and the turns that it was given to end."""

    def __init__(self, store: RedisTurnStore) -> None:
        self.store = store
        self.lost: list[tuple[Claim, StopReason | None]] = []

    async def end_lost(self, claim: Claim, why: StopReason | None) -> None:
        self.lost.append((claim, why))
        if claim.sealed is None:
            await claim.seal(frames("last"), "lost")
        await claim.release()


@asynccontextmanager
async def worker(server: RedisServer, *, url: str | None = None, lease: float = 60.0) -> AsyncGenerator[Worker, None]:
    """A worker until its end, at which it leaves everything as it is, as one that was killed.

    It refuses nothing because a busy machine keeps it waiting; `without_patience` is for what Redis cannot answer.
    """
    store = RedisTurnStore(url or server.url, secret=SECRET, lease=lease, patience=HANG_SECONDS)
    mine = Worker(store)
    async with asyncio.timeout(HANG_SECONDS), store.serve(mine.end_lost):
        yield mine


@contextmanager
def without_patience(at: Worker) -> Generator[None, None, None]:
    """Let it give up at once what it asks of Redis."""
    settings = at.store.settings
    usual, settings.patience = settings.patience, 0.01
    try:
        yield
    finally:
        settings.patience = usual


def head(chat: str = "chat") -> TurnHead:
    number = next(_numbers)
    return TurnHead(f"{number:08x}-turn", chat, "owner", f"m{number}")


def frames(*texts: str) -> list[bytes]:
    return [Frames("mark").frame(None, TextDelta("t", text)) for text in texts]


async def opened(at: Worker, of: TurnHead | None = None) -> tuple[RedisClaim, Producer]:
    claim, producer = await at.store.claim(of or head()), Producer()
    await claim.open(producer, None, ())
    return claim, producer


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(HANG_SECONDS):
        # What it waits for happens in Redis or in a thread.
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def sent(claim: RedisClaim) -> None:
    """Wait until Redis has what was appended."""
    await until(lambda: claim.log.end == len(claim.log.frames))


async def read_all(reader: Reader) -> Sequence[bytes]:
    """All frames of a turn, to its end."""
    taken = list[bytes]()
    async with asyncio.timeout(HANG_SECONDS):
        while not reader.ended:
            frame = reader.take_frame()
            if frame:
                taken.append(frame)
            else:
                await reader.log.changed()
    reader.leave()
    return taken
