"""A thousand readers that are slow or dead."""

import asyncio
import socket
import time
from typing import Final

from cluster import PATH, Cluster
from rows import Batch, Row
from runs import Expected, Stage
from speaker import Script

__all__ = ["CROWD"]

# What a worker may keep for a reader that does not read: what its server holds for a connection, and a batch in flight.
_PER_READER: Final = 256 * 1024
# What the copies of the log may take, of a turn that is so many times smaller.
_COPIES: Final = 4
# What a worker takes when it works for the first time.
_WARM: Final = 16 * 1024 * 1024


async def _prepare(cluster: Cluster, lease: float) -> None:
    await cluster.start(lease=lease)


async def _crowd(stage: Stage, _count: int) -> Batch:
    """Read one large turn a thousand times, half of them slowly and half of them not at all."""
    cluster, draw = stage.cluster, stage.draw
    readers = 100 if stage.short else 1_000
    script = Script(seed=draw.randrange(2**31), pieces=300 if stage.short else 700, gap=0.002, hold=0.5, size=5_000)
    before, redis_before = [cluster.workers[port].memory for port in cluster.ports], _used(cluster)
    one, two = cluster.ports
    run = await stage.begin(script, one, Expected.of("finish", whole=True), ((one,), (two,)))
    sockets = [_connect(cluster.ports[number % 2], run.chat, run.turn) for number in range(readers)]
    slow = [asyncio.create_task(_read_slowly(each)) for each in sockets[::2]]
    peaks, redis_peak = await _watch(stage, before, redis_before)
    await asyncio.gather(*(run.followed() for run in stage.runs))
    for task in slow:
        task.cancel()
    for each in sockets:
        each.close()
    size = sum(len(frame.event) for frame in run.followers[0].frames)
    bound = _WARM + _COPIES * size + readers // 2 * _PER_READER
    grown = [peak - least for peak, least in zip(peaks, before, strict=True)]
    found = [f"seed {script.seed}: a worker took {memory} bytes more, of {bound}" for memory in grown if memory > bound]
    if redis_peak - redis_before > _COPIES * size:
        found.append(f"seed {script.seed}: Redis took {redis_peak - redis_before} bytes more for {size}")
    figures = {
        "MB of the turn": [size / 1e6],
        "MB that a worker took": [memory / 1e6 for memory in grown],
        "MB that Redis took": [(redis_peak - redis_before) / 1e6],
    }
    return Batch(runs=1, figures=figures, judge=lambda _records, _notes: found)


def _connect(port: int, chat: str, turn: str) -> socket.socket:
    connection = socket.socket()
    # So that the system takes in little for it.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", port))
    connection.sendall(f"GET {PATH}/{chat}/stream?after={turn}.0 HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
    connection.setblocking(False)
    return connection


async def _read_slowly(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    while await loop.sock_recv(connection, 1024):
        await asyncio.sleep(0.2)


async def _watch(stage: Stage, before: list[int], redis_before: int) -> tuple[list[int], int]:
    """The most that the workers and Redis took until the turn had ended, and for a moment longer."""
    cluster, peaks, redis_peak = stage.cluster, before, redis_before
    until: float | None = None
    followers = stage.runs[0].followers
    while until is None or time.monotonic() < until:
        await asyncio.sleep(0.1)
        peaks = [max(peak, cluster.workers[port].memory) for peak, port in zip(peaks, cluster.ports, strict=True)]
        redis_peak = max(redis_peak, _used(cluster))
        if until is None and all(follower.ended_at is not None for follower in followers):
            until = time.monotonic() + 0.5
    return peaks, redis_peak


def _used(cluster: Cluster) -> int:
    with cluster.redis.client() as client:
        return client.info("memory")["used_memory"]


CROWD = Row("crowd", "slow and dead readers, 1,000 of them", 5, 1, _prepare, _crowd)
