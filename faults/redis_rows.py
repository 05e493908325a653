"""A Redis that is killed, restarted and emptied, and a network that is cut."""

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable
from typing import Final

from cluster import Cluster
from rows import Batch, Row, scripts
from runs import Expected, Stage
from tcp_proxy import TOXICS, TcpProxy

__all__ = ["CUT_NETWORK", "EMPTY_REDIS", "RESTART_REDIS_AOF", "RESTART_REDIS_NONE"]

_LEASE: Final = 1.5


async def _prepare(cluster: Cluster, lease: float, *, aof: bool) -> None:
    await cluster.replace_redis(aof=aof)
    await cluster.start(lease=lease)


async def _begin(stage: Stage, count: int) -> None:
    """Turns on both workers, and some of them past the first chunks."""
    for script in scripts(stage.draw, count, pieces=200, gap=0.01):
        expected = Expected.of("finish", whole=True, forgets=True)
        await stage.begin(script, stage.cluster.balancer.port, expected)
    await stage.draw.choice(stage.runs).followers[0].seen(stage.draw.randrange(40))


async def _restart_redis(stage: Stage, count: int) -> Batch:
    """Kill it once or twice in a turn, for a while that may be longer than the lease."""
    await _begin(stage, count)
    times, at = stage.draw.choice((1, 1, 2)), 0.0
    for _ in range(times):
        stage.cluster.redis.kill()
        await asyncio.sleep(stage.draw.choice((0.0, 0.2, 0.5, 1.3)) * stage.lease)
        await asyncio.to_thread(stage.cluster.redis.start)
        at = time.monotonic()
        await asyncio.sleep(stage.draw.uniform(0, 0.5))
    return Batch(faults=times, at=at)


async def _empty_redis(stage: Stage, count: int) -> Batch:
    await _begin(stage, count)
    times = stage.draw.choice((1, 2, 3))
    for _ in range(times):
        with stage.cluster.redis.client() as client:
            client.flushall()
        await asyncio.sleep(stage.draw.uniform(0, 0.5))
    return Batch(faults=times)


class _Cut:
    """The workers of this row reach Redis through a proxy each."""

    def __init__(self) -> None:
        self._proxies: list[TcpProxy] = []

    async def prepare(self, cluster: Cluster, lease: float) -> None:
        await cluster.end_workers()
        for proxy in self._proxies:
            await proxy.close()
        self._proxies = [TcpProxy(cluster.redis.port) for _ in cluster.ports]
        for port, proxy in zip(cluster.ports, self._proxies, strict=True):
            proxy.start()
            cluster.worker(port, lease=lease, store=f"redis://127.0.0.1:{proxy.port}/0")
        await cluster.ready()

    async def play(self, stage: Stage, count: int) -> Batch:
        """Poison the network of one worker or of both, three times in a row, for less than the lease each time."""
        draw = stage.draw
        await _begin(stage, count)
        times = 3
        for _ in range(times):
            proxies = draw.choice((self._proxies, self._proxies[:1], self._proxies[1:]))
            toxic, seconds = draw.choice(TOXICS), draw.uniform(0.05, 0.4) * stage.lease
            await asyncio.gather(*(proxy.poison(toxic, seconds, draw.uniform(0.01, 0.2)) for proxy in proxies))
            await asyncio.sleep(draw.uniform(0, 0.4))
        return Batch(faults=times)


def _prepared(*, aof: bool) -> Callable[[Cluster, float], Awaitable[None]]:
    return functools.partial(_prepare, aof=aof)


_CUT: Final = _Cut()
RESTART_REDIS_AOF = Row(
    "restart-redis-aof", "Redis killed and restarted, with AOF", 100, 5, _prepared(aof=True), _restart_redis, _LEASE
)
RESTART_REDIS_NONE = Row(
    "restart-redis-none",
    "Redis killed and restarted, nothing kept",
    100,
    5,
    _prepared(aof=False),
    _restart_redis,
    _LEASE,
)
EMPTY_REDIS = Row("empty-redis", "Redis emptied", 100, 5, _prepared(aof=False), _empty_redis, _LEASE)
CUT_NETWORK = Row("cut-network", "network cut between worker and Redis", 100, 4, _CUT.prepare, _CUT.play, _LEASE)
