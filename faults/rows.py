"""What every row of the table is made of: batches of runs to which the same fault happens, and what came of them."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable

import httpx
from msgspec import Struct, field

from cluster import Cluster
from runs import Record, Stage
from speaker import Note, Script
from support.hang import HANG_SECONDS
from verdicts import problems, start_of, terminal

__all__ = ["LEASE", "Batch", "Result", "Row", "play_row", "scripts"]

LEASE = 1.0
# One that does not end while its owner lives, also where a busy machine holds the process for a second.
_LIVING = 2.0


class Batch(Struct):
    """What was done to the runs of a batch, and when."""

    faults: int = 1
    # How many runs it counts as, if not one for each turn.
    runs: int | None = None
    at: float = 0.0
    # The clients must have seen the end so many seconds after the fault, if the row says so.
    bound: float | None = None
    figures: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    # What the row demands beside what holds for every turn.
    judge: Callable[[list[Record], list[Note]], list[str]] = lambda _records, _notes: []


class Result(Struct):
    """What came of a row."""

    row: str
    seed: int
    runs: int = 0
    faults: int = 0
    failures: list[str] = field(default_factory=list[str])
    ends: dict[str, int] = field(default_factory=dict[str, int])
    figures: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    seconds: float = 0.0

    def add(self, figure: str, values: Iterable[float]) -> None:
        self.figures.setdefault(figure, []).extend(values)


class Row(Struct, frozen=True):
    """A row of the table: how its batches are played, its runs in the long form, and how many share one fault."""

    name: str
    title: str
    runs: int
    size: int
    prepare: Callable[[Cluster, float], Awaitable[None]]
    play: Callable[[Stage, int], Awaitable[Batch]]
    lease: float = LEASE
    # The same in the short form, which may not fail because the machine is busy.
    short_lease: float = _LIVING
    short_runs: int = 1


async def play_row(row: Row, cluster: Cluster, seed: int, runs: int, *, short: bool) -> Result:
    """Play so many runs, and judge them; the long form also counts the clients that saw the end too late."""
    result, began = Result(row.name, seed), time.monotonic()
    lease = row.short_lease if short else row.lease
    await row.prepare(cluster, lease)
    while result.runs < runs and len(result.failures) < 20:
        draw = random.Random(f"{seed} {row.name} {result.runs}")  # noqa: S311
        await _play(row, cluster, draw, min(row.size, runs - result.runs), result, lease, short=short)
    result.failures += _told_twice(cluster.notes.read())
    result.seconds = time.monotonic() - began
    return result


async def _play(
    row: Row, cluster: Cluster, draw: random.Random, count: int, result: Result, lease: float, *, short: bool
) -> None:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(trust_env=False, timeout=HANG_SECONDS, limits=limits) as http:
        stage = Stage(cluster, draw, http, lease, short=short)
        batch = await row.play(stage, count)
        records = await stage.end()
    notes = await _ended_notes(cluster, records)
    await cluster.close_pages()
    for record in records:
        found = problems(record, notes)
        result.failures += found
        end = terminal(record)
        result.ends[end] = result.ends.get(end, 0) + 1
        if batch.at and not found:
            late = [end - batch.at for end in record.ends if end is not None]
            result.add("from the fault to the end", late)
            if not short and batch.bound is not None and max(late) > batch.bound:
                result.failures.append(f"seed {record.script.seed}: the end came {max(late):.2f} s after the fault")
    result.failures += batch.judge(records, notes)
    for name, values in batch.figures.items():
        result.add(name, values)
    result.runs += len(records) if batch.runs is None else batch.runs
    result.faults += batch.faults


async def _ended_notes(cluster: Cluster, records: list[Record]) -> list[Note]:
    """What the workers noted, as soon as all turns are among it; `on_end` comes after the end."""
    wanted = {start_of(record) for record in records}
    deadline = time.monotonic() + HANG_SECONDS
    while True:
        notes = cluster.notes.read()
        if wanted <= {note.subject for note in notes if note.what == "ended"} or time.monotonic() > deadline:
            return notes
        await asyncio.sleep(0.01)


def _told_twice(notes: list[Note]) -> list[str]:
    ended = [note.subject for note in notes if note.what == "ended"]
    return [f"on_end was told twice of {subject}" for subject in {*ended} if ended.count(subject) > 1]


def scripts(
    draw: random.Random, count: int, *, pieces: int, gap: float = 0.01, lasts: float = 0.0, waits: bool = False
) -> list[Script]:
    """So many different answers of about that length."""
    return [
        Script(seed=draw.randrange(2**31), pieces=draw.randint(pieces // 2, pieces), gap=gap, lasts=lasts, waits=waits)
        for _ in range(count)
    ]
