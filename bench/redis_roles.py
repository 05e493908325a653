"""usechat's store in the benchmark of turns on Redis: `redis_roles.py <url>` plays the producer or the subscribers.

One JSON request a line on stdin, one JSON answer a line on stdout, as `resumable.mjs`.
"""

import asyncio
import json
import re
import sys
import time
from typing import Any, Final

import uvloop

from usechat.stores import Claim, Reader, StopReason, TurnHead
from usechat.stores.redis import RedisTurnStore

STAMP: Final = re.compile(rb"@(\d+)@")
# As many as are ready when a model's answer comes in one piece.
TOGETHER: Final = 64


class Producer:
    """What the store tells a turn, which does not matter here."""

    def stop(self, why: StopReason) -> None: ...

    def readers_changed(self, count: int | None) -> None: ...

    def fenced(self, *, is_here: bool) -> None:
        raise RuntimeError("Another owner has the turn.")


def head(turn: str) -> TurnHead:
    return TurnHead(turn=turn, chat=f"chat of {turn}", owner="", message_id="m")


def frame(index: int) -> bytes:
    stamp = time.monotonic_ns()
    return b'id: 0123abcd.%d\ndata: {"type":"text-delta","id":"0","delta":"@%d@"}\n\n' % (index, stamp)


class Roles:
    def __init__(self, store: RedisTurnStore) -> None:
        self._store = store
        self._claim: Claim | None = None
        self._chunks = 0
        self._rate = 0
        self._cpu = 0.0
        self._reading: list[asyncio.Task[list[float]]] = []

    async def open(self, id: str, chunks: int, rate: int) -> dict[str, Any]:  # noqa: A002
        self._chunks, self._rate = chunks, rate
        self._claim = await self._store.claim(head(id))
        await self._claim.open(Producer(), None, ())
        return {}

    async def go(self) -> dict[str, Any]:
        claim = self._claim
        assert claim is not None
        began, cpu = time.monotonic(), time.process_time()
        for index in range(1, self._chunks + 1):
            if self._rate:
                await asyncio.sleep(max(0.0, began + (index - 1) / self._rate - time.monotonic()))
            elif index % TOGETHER == 0:
                await claim.drain()
                await asyncio.sleep(0)
            claim.append([frame(index)])
            # As a turn does it for the readers of its process.
            claim.log.wake()
        await claim.seal([], "done")
        await claim.release()
        return {"began": began, "cpu": time.process_time() - cpu}

    async def attach(self, id: str, count: int) -> dict[str, Any]:  # noqa: A002
        readers = [await self._store.follow(head(id)) for _ in range(count)]
        self._cpu = time.process_time()
        self._reading = [asyncio.create_task(read_all(reader)) for reader in readers if reader is not None]
        assert len(self._reading) == count
        return {}

    async def read(self) -> dict[str, Any]:
        delays = await asyncio.gather(*self._reading)
        ended = time.monotonic()
        return {
            "ended": ended,
            "cpu": time.process_time() - self._cpu,
            "delays": [one for some in delays for one in some],
        }


async def read_all(reader: Reader) -> list[float]:
    delays = list[float]()
    while not reader.ended:
        taken = reader.take(65536)
        if taken:
            now = time.monotonic_ns()
            delays += [(now - int(stamp)) / 1e9 for stamp in STAMP.findall(taken)]
        else:
            await reader.log.changed()
    reader.leave()
    return delays


async def main(url: str) -> None:
    store = RedisTurnStore(url, secret="0" * 32)

    async def lost(_claim: Claim, _why: StopReason | None) -> None:
        raise RuntimeError("A turn was lost.")

    async with store.serve(lost):
        roles, loop = Roles(store), asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            request = json.loads(line)
            answer = await getattr(roles, request.pop("op"))(**request)
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
