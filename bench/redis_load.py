"""What a worker takes for a chunk on Redis, and a thousand turns at once on two workers, at 20 chunks a second each.

Run it with `make bench`. The turns are read where they run, and then all of them from the other worker. The load comes
from this process, on the same cores. Linux only.
"""

import asyncio
import itertools
import os
import re
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Final, Literal, TypeAlias

import uvloop
from apps import STEADY_CHUNKS
from chat_server import Server, serving
from load import read_streams

from support.redis_server import RedisServer

TURNS: Final = (250, 500, 1_000)
AT_ONCE: Final = 50
MOST: Final = 15
_STAMP: Final = re.compile(rb"@(\d+)@")
_TURN: Final = re.compile(rb"x-usechat-turn: (\S+)", re.IGNORECASE)
_numbers: Final = itertools.count()

Place: TypeAlias = Literal["same worker", "other worker"]


class Connection:
    """One request and what comes back."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def send(cls, port: int, request: str, body: str = "") -> "Connection":
        connection = cls(*await asyncio.open_connection("127.0.0.1", port))
        head = f"{request} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        connection._writer.write(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
        return connection

    async def head(self) -> bytes:
        return await self._reader.readuntil(b"\r\n\r\n")

    async def delays(self) -> list[float]:
        """How late each chunk came, to the end of the turn."""
        found, data = list[float](), b""
        while b"data: [DONE]" not in data:
            data = await self._reader.read(65536)
            assert data, "The connection ended before the turn."
            now = time.perf_counter()
            found += [now - int(stamp) / 1e9 for stamp in _STAMP.findall(data)]
        return found

    def close(self) -> None:
        self._writer.close()


async def play(ports: Sequence[int], number: int, place: Place) -> list[float]:
    """Post a turn to a worker, and read it there or from the other one."""
    chat, port = f"chat-{next(_numbers)}", ports[number % 2]
    message = '{"id":"m","role":"user","parts":[{"type":"text","text":"Tell me about the tides."}]}'
    posted = await Connection.send(port, "POST /api/chat", f'{{"id":"{chat}","messages":[{message}]}}')
    head = await posted.head()
    if place == "same worker":
        return await _read(posted)
    found = _TURN.search(head)
    assert found is not None, head
    path = f"/api/chat/{chat}/stream?after={found[1].decode()}.0"
    followed = await Connection.send(ports[(number + 1) % 2], f"GET {path}")
    await followed.head()
    posted.close()
    return await _read(followed)


async def _read(connection: Connection) -> list[float]:
    try:
        return await connection.delays()
    finally:
        connection.close()


def worker(redis: RedisServer, script: str) -> AbstractContextManager[Server]:
    return serving("redis", script, USECHAT_STORE=redis.url, USECHAT_SECRET="0" * 32)


async def measure_fast(streams: int) -> None:
    """What one chunk takes from the agent over Redis to the socket, if all are ready together."""
    with ExitStack() as stack:
        redis = RedisServer()
        stack.callback(redis.close)
        server = stack.enter_context(worker(redis, "fast"))
        await read_streams(server.port, 2)
        cpu, chunks = server.cpu(), 0
        for _ in range(400 // streams):
            chunks += sum(stream.count for stream in await read_streams(server.port, streams))
        spent = (server.cpu() - cpu) / chunks * 1e6
    met = "met" if spent < MOST else "missed"
    print(f"less than {MOST} µs: CPU of a worker for a chunk, ready together, {streams:3} streams{spent:8.2f}  {met}")


async def measure(place: Place, turns: int) -> None:
    with ExitStack() as stack:
        redis = RedisServer()
        stack.callback(redis.close)
        workers = [stack.enter_context(worker(redis, "steady")) for _ in range(2)]
        ports, processes = [worker.port for worker in workers], [*workers, Server(0, redis.pid), Server(0, os.getpid())]
        tasks = list[asyncio.Task[list[float]]]()
        # Not all in one moment, in which nothing but their beginning would be measured.
        for begin in range(0, turns, AT_ONCE):
            tasks += [asyncio.create_task(play(ports, number, place)) for number in range(begin, begin + AT_ONCE)]
            await asyncio.sleep(AT_ONCE / turns * 2)
        before, since = [process.cpu() for process in processes], time.perf_counter()
        await asyncio.sleep(STEADY_CHUNKS / 20 / 2)
        seconds = time.perf_counter() - since
        shares = [(process.cpu() - cpu) / seconds for process, cpu in zip(processes, before, strict=True)]
        memory = [process.memory() / 1024**2 for process in processes]
        delays = sorted(itertools.chain.from_iterable(await asyncio.gather(*tasks)))
        assert len(delays) == turns * STEADY_CHUNKS, f"{len(delays)} of {turns * STEADY_CHUNKS} chunks came"
    late = [delays[int(len(delays) * part)] * 1e3 for part in (0.5, 0.99)]
    cpu = "".join(f"{share * 100:10.0f}" for share in shares)
    sizes = "".join(f"{size:9.0f}" for size in memory[:3])
    spent = sum(shares[:2]) / (turns * 20) * 1e6
    print(f"{place:14}{turns:7,}{late[0]:10.1f}{late[1]:9.1f}{cpu}{spent:11.1f}{sizes}", flush=True)


async def main() -> None:
    heading = f"{'read at the':14}{'turns':>7}{'delay p50, p99 ms':>19}"
    for streams in (1, 10, 100):
        await measure_fast(streams)
    print()
    print(f"{heading}{'% of a core: workers, Redis, load':>40}{'µs/chunk':>11}{'MB: workers, Redis':>27}")
    for place in ("same worker", "other worker"):
        for turns in TURNS:
            await measure(place, turns)


if __name__ == "__main__":
    uvloop.run(main())
