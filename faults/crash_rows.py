"""Workers that are killed, paused and restarted."""

import asyncio
import signal
import time

from cluster import Cluster
from rows import LEASE, Batch, Row, scripts
from runs import Expected, Stage
from support.hang import HANG_SECONDS

__all__ = ["KILL_PRODUCER", "KILL_READER", "PAUSE_PRODUCER", "ROLLING_RESTART"]

_GRACE = 1.0


async def _prepare(cluster: Cluster, lease: float) -> None:
    await cluster.start(lease=lease, grace=_GRACE)


async def _kill_producer(stage: Stage, count: int) -> Batch:
    """Kill the worker of all turns of the batch, each of which is at another chunk."""
    cluster, draw = stage.cluster, stage.draw
    victim = draw.choice(cluster.ports)
    for script in scripts(draw, count, pieces=400, lasts=HANG_SECONDS):
        await stage.begin(script, cluster.balancer.first[victim], Expected.of("error"))
    await draw.choice(stage.runs).followers[1].seen(draw.randrange(80))
    cluster.workers[victim].send(signal.SIGKILL)
    at = time.monotonic()
    await cluster.workers[victim].gone()
    # Whoever starts workers again may be quick or slow.
    await asyncio.sleep(draw.choice((0.0, 0.5, 2.5)) * stage.lease)
    cluster.worker(victim, lease=stage.lease, grace=_GRACE)
    await cluster.ready()
    return Batch(at=at, bound=2 * stage.lease)


async def _kill_reader(stage: Stage, count: int) -> Batch:
    """Kill the worker from which pages and raw readers follow turns of the other one."""
    cluster, draw = stage.cluster, stage.draw
    victim, other = draw.sample(cluster.ports, 2)
    first = cluster.balancer.first
    readers = ((victim, other), (first[victim],), (other, victim))
    # A page that has read the chat and comes to the turn only when it is over would show the question alone.
    for script in scripts(draw, count, pieces=120, waits=True):
        run = await stage.begin(script, first[other], Expected.of("finish", whole=True), readers)
        await run.resume(first[victim])
    await draw.choice(stage.runs).followers[0].seen(draw.randrange(60))
    cluster.workers[victim].send(signal.SIGKILL)
    await cluster.workers[victim].gone()
    await asyncio.sleep(draw.choice((0.0, 0.3)))
    cluster.worker(victim, lease=stage.lease, grace=_GRACE)
    await cluster.ready()
    for run in stage.runs:
        run.let_go()
    return Batch()


async def _pause_producer(stage: Stage, count: int) -> Batch:
    """Pause the worker of all turns for longer than its lease, while both workers have readers."""
    cluster, draw = stage.cluster, stage.draw
    victim, other = draw.sample(cluster.ports, 2)
    for script in scripts(draw, count, pieces=600, lasts=HANG_SECONDS):
        await stage.begin(script, cluster.balancer.first[victim], Expected.of("error"), ((victim,), (other,)))
    await draw.choice(stage.runs).followers[1].seen(draw.randrange(60))
    sleeper = cluster.workers[victim]
    sleeper.send(signal.SIGSTOP)
    at = time.monotonic()
    # Those at the other worker see that the sleeper is taken for dead.
    await asyncio.wait([run.reading[1] for run in stage.runs], timeout=HANG_SECONDS)
    ended = [run.followers[1].ended_at for run in stage.runs]
    await asyncio.sleep(draw.choice((0.0, 0.5 * stage.lease)))
    sleeper.send(signal.SIGCONT)
    await asyncio.gather(*(run.followed() for run in stage.runs))
    figures = {"from the pause to the end at the other worker": [end - at for end in ended if end is not None]}
    running = await _not_cancelled(stage)
    return Batch(figures=figures, judge=lambda _records, _notes: [f"the agent of {each} goes on" for each in running])


async def _not_cancelled(stage: Stage) -> list[str]:
    """Wait until the agents of all turns have been cancelled; those that have not been."""
    wanted = {f"{run.chat} {run.script.seed}" for run in stage.runs}
    deadline = time.monotonic() + HANG_SECONDS
    while True:
        running = wanted - {note.subject for note in stage.cluster.notes.read() if note.what == "cancelled"}
        if not running or time.monotonic() > deadline:
            return sorted(running)
        await asyncio.sleep(0.02)


async def _rolling_restart(stage: Stage, _count: int) -> Batch:
    """Restart both workers, one after the other, while turns run on both; one batch is one run."""
    cluster, draw = stage.cluster, stage.draw
    port = cluster.balancer.port
    for _ in range(10 if stage.short else 50):
        seconds = draw.uniform(0.3, 2 if stage.short else 4)
        (script,) = scripts(draw, 1, pieces=int(seconds / 0.02), gap=0.02)
        await stage.begin(script, port, Expected.of("finish", "abort"), ((port,),))
    for port in draw.sample(cluster.ports, 2):
        worker = cluster.workers[port]
        worker.send(signal.SIGTERM)
        async with asyncio.timeout(HANG_SECONDS):
            await worker.gone()
        cluster.worker(port, lease=stage.lease, grace=_GRACE)
        await cluster.ready()
    return Batch(faults=2, runs=1)


KILL_PRODUCER = Row(
    "kill-producer",
    "kill -9 of the producing worker at a random chunk",
    200,
    4,
    _prepare,
    _kill_producer,
    short_lease=LEASE,
)
KILL_READER = Row("kill-reader", "kill -9 of the worker a client reads from", 200, 4, _prepare, _kill_reader)
PAUSE_PRODUCER = Row(
    "pause-producer", "producer paused longer than its lease", 50, 2, _prepare, _pause_producer, short_lease=LEASE
)
ROLLING_RESTART = Row(
    "rolling-restart", "rolling restart of both workers under 50 running turns", 20, 1, _prepare, _rolling_restart
)
