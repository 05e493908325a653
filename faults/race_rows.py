"""Stops from another worker, and messages that come to one chat at the same time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from cluster import PATH, Cluster
from rows import Batch, Row, scripts
from runs import Expected, Run, Stage
from speaker import Script, script_text
from support.hang import HANG_SECONDS

__all__ = ["STOP"]


async def _prepare(cluster: Cluster, lease: float) -> None:
    await cluster.start(lease=lease)


async def _stop(stage: Stage, count: int) -> Batch:
    """Stop each turn of the batch from the worker that does not run it, each in another way."""
    batch, stops = Batch(faults=count), list[Awaitable[None]]()
    ways = stage.draw.sample(_WAYS, len(_WAYS))
    for number, script in enumerate(scripts(stage.draw, count, pieces=600, lasts=HANG_SECONDS)):
        producer, other = stage.draw.sample(stage.cluster.ports, 2)
        stops.append(await ways[number % len(ways)](stage, batch, script, producer, other))
    await asyncio.gather(*stops)
    return batch


async def _begin(stage: Stage, script: Script, producer: int, other: int, *ends: str, chat: str | None = None) -> Run:
    first = stage.cluster.balancer.first[producer]
    return await stage.begin(script, first, Expected.of(*ends), ((producer,), (other,)), chat)


async def _stopped(run: Run, batch: Batch, *ports: int) -> None:
    """Stop it, and note how long it took until the abort could be read."""
    turn = run.stage.draw.choice((None, run.turn))
    stopped = await asyncio.gather(*(run.stop(port, turn) for port in ports))
    await run.followed()
    asked = min(asked for asked, _ in stopped)
    aborts = [follower.frames[-1].at - asked for follower in run.followers if follower.ended_at is not None]
    batch.figures.setdefault("from the stop to the abort", []).extend(aborts)
    batch.figures.setdefault("from the stop to its answer", []).extend(said - asked for asked, said in stopped)


async def _stop_running(stage: Stage, batch: Batch, script: Script, producer: int, other: int) -> Awaitable[None]:
    """At a random chunk."""
    run, chunk = await _begin(stage, script, producer, other, "abort"), stage.draw.randrange(1, 80)

    async def stop() -> None:
        await run.followers[0].seen(chunk)
        await _stopped(run, batch, other)

    return stop()


async def _stop_twice(stage: Stage, batch: Batch, script: Script, producer: int, other: int) -> Awaitable[None]:
    """From both workers at once."""
    run, chunk = await _begin(stage, script, producer, other, "abort"), stage.draw.randrange(1, 80)

    async def stop() -> None:
        await run.followers[0].seen(chunk)
        await _stopped(run, batch, other, producer)

    return stop()


async def _stop_before(stage: Stage, batch: Batch, script: Script, producer: int, other: int) -> Awaitable[None]:
    """Before the agent has said anything."""
    held = Script(seed=script.seed, pieces=script.pieces, hold=HANG_SECONDS)
    return _stopped(await _begin(stage, held, producer, other, "abort"), batch, other)


async def _stop_late(stage: Stage, batch: Batch, script: Script, producer: int, other: int) -> Awaitable[None]:
    """At the moment at which the answer ends by itself: either end is right, but only one."""
    short = Script(seed=script.seed, pieces=30)
    run, pause = await _begin(stage, short, producer, other, "abort", "finish"), stage.draw.uniform(0, 0.05)

    async def stop() -> None:
        await run.followers[1].seen(short.pieces)
        await asyncio.sleep(pause)
        await run.stop(other, run.turn)

    return stop()


async def _stop_older(stage: Stage, batch: Batch, script: Script, producer: int, other: int) -> Awaitable[None]:
    """After the last chunk, for a turn that has ended, while the next one runs: that one is left alone."""
    chat, older = f"older-{script.seed}", Script(seed=script.seed + 1, pieces=3)
    question = {"id": f"user-{script.seed}", "role": "user", "parts": [{"type": "text", "text": script_text(older)}]}
    answer = await stage.http.post(f"http://127.0.0.1:{producer}{PATH}", json={"id": chat, "message": question})
    assert answer.status_code == 200, answer.text
    turn = answer.headers["x-usechat-turn"]
    newer = Script(seed=script.seed, pieces=60)
    run, chunk = await _begin(stage, newer, producer, other, "finish", chat=chat), stage.draw.randrange(30)

    async def stop() -> None:
        await run.stop(other, turn)
        await run.followers[1].seen(chunk)
        await run.stop(other, turn)

    return stop()


_Way = Callable[[Stage, Batch, Script, int, int], Awaitable[Awaitable[None]]]
_WAYS: Final[tuple[_Way, ...]] = (_stop_running, _stop_twice, _stop_before, _stop_late, _stop_older)

STOP = Row("stop", "stop from another worker at a random chunk", 200, 5, _prepare, _stop, short_runs=len(_WAYS))
