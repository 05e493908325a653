"""The short form of the fault suite: a seeded run of every row of its table, and five in `make soak`."""

import asyncio
from collections.abc import Iterator

import pytest

from cluster import Cluster
from report import tell
from rows import Row
from suite import ROWS, play
from support.soak import SEED, draws


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    yield cluster
    asyncio.run(cluster.close())


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_what_must_hold_under_this_fault_holds(row: Row, cluster: Cluster):
    runs = draws(row.short_runs, 5)
    result = asyncio.run(play(row, cluster, SEED, runs, short=True))
    tell(result)
    assert (result.runs, result.failures) == (runs, [])
