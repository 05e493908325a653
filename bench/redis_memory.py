"""What a turn takes in Redis: memory, and time of its one core. The deployment guide sizes with it.

PYTHONPATH=src:tests python -P bench/redis_memory.py
"""

import asyncio
from typing import Any, Final

from support.redis_server import SECRET, RedisServer
from usechat.ids import new_turn_id
from usechat.protocol.chunks import TextDelta
from usechat.protocol.frames import Frames
from usechat.stores import Claim, StopReason, TurnHead
from usechat.stores.redis import RedisTurnStore
from usechat.stores.redis.claim import RedisClaim

TURNS: Final = 20
DELTA: Final = TextDelta("DLhYZ0X6FCS470_0", "word of ")


class Producer:
    def stop(self, why: StopReason) -> None: ...

    def readers_changed(self, count: int | None) -> None: ...

    def fenced(self, *, is_here: bool) -> None: ...


async def end_nothing(_claim: Claim, _why: StopReason | None) -> None: ...


async def acknowledged(claim: RedisClaim) -> None:
    while claim.log.end < len(claim.log.frames):
        await claim.log.changed()


async def play(store: RedisTurnStore, chunks: int, together: int) -> tuple[int, bytes]:
    """Play a turn whose chunks come in batches; give the bytes of its frames, and the key of its log."""
    head = TurnHead(turn=new_turn_id(), chat=new_turn_id(), owner="ada", message_id="message")
    claim = await store.claim(head)
    await claim.open(Producer(), None, ())
    frames = Frames(head.turn[:8])
    made = [frames.frame(index + 1, DELTA) for index in range(chunks)]
    for first in range(0, chunks, together):
        claim.append(made[first : first + together])
        await acknowledged(claim)
    await claim.seal((b'data: {"type":"finish"}\n\n',), "done")
    await claim.release()
    return sum(map(len, made)), store.keys.of(head).log


async def measure(server: RedisServer, client: Any, chunks: int, together: int) -> str:
    store = RedisTurnStore(server.url, secret=SECRET)
    client.config_resetstat()
    async with store.serve(end_nothing):
        turns = [await play(store, chunks, together) for _ in range(TURNS)]
    size, log = turns[-1]
    memory = client.memory_usage(log, samples=0)
    scripts = client.info("commandstats")["cmdstat_evalsha"]
    return (
        f"| {chunks:,} | {together} | {size / 1000:.0f} KB | {memory / 1000:.0f} KB, {memory / size:.2f}× "
        f"| {scripts['usec'] / TURNS / chunks:.1f} µs |"
    )


def main() -> None:
    server = RedisServer()
    try:
        with server.client() as client:
            print("| chunks | together | frames | log in Redis | Redis, for each chunk |\n|---|---:|---:|---:|---:|")
            for chunks, together in ((500, 1), (500, 5), (500, 20), (2000, 1), (2000, 20)):
                print(asyncio.run(measure(server, client, chunks, together)))
    finally:
        server.close()


if __name__ == "__main__":
    main()
