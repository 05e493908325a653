"""The fault suite: `python suite.py` plays every row in full, or those that are named, and tells what came of them."""

import argparse
import asyncio
import random
import sys
from typing import Final

import report
from cluster import Cluster
from crash_rows import KILL_PRODUCER, KILL_READER, PAUSE_PRODUCER, ROLLING_RESTART
from crowd_rows import CROWD
from post_rows import POSTS_REJECT, POSTS_REPLACE
from race_rows import STOP
from redis_rows import CUT_NETWORK, EMPTY_REDIS, RESTART_REDIS_AOF, RESTART_REDIS_NONE
from rows import Result, Row, play_row
from support.postgres import Postgres
from support.redis_server import PROGRAMS

__all__ = ["ROWS", "play"]

ROWS: Final[tuple[Row, ...]] = (
    KILL_PRODUCER,
    KILL_READER,
    RESTART_REDIS_AOF,
    RESTART_REDIS_NONE,
    EMPTY_REDIS,
    PAUSE_PRODUCER,
    STOP,
    CUT_NETWORK,
    ROLLING_RESTART,
    POSTS_REPLACE,
    POSTS_REJECT,
    CROWD,
)


async def play(row: Row, cluster: Cluster, seed: int, runs: int, *, short: bool) -> Result:
    """Play a row, and tell what its workers complained about if something failed."""
    result = await play_row(row, cluster, seed, runs, short=short)
    if result.failures and cluster.errors.exists():
        lines = cluster.errors.read_text("utf-8").splitlines()
        result.failures.append("\n".join([line for line in lines if not line.startswith("INFO")][-40:]))
    return result


async def _main(given: argparse.Namespace, postgres: Postgres) -> bool:
    """Play the rows, each with processes of its own and its chats in a PostgreSQL; whether nothing failed."""
    failed = False
    for row in ROWS:
        if given.rows and row.name not in given.rows:
            continue
        cluster = Cluster(given.store, postgres.create())
        runs = given.runs or (row.short_runs if given.short else row.runs)
        try:
            result = await play(row, cluster, given.seed, runs, short=given.short)
        finally:
            await cluster.close()
        report.tell(result)
        if given.write:
            report.write(row, result)
        failed = failed or bool(result.failures)
    return not failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", choices=[[], *(row.name for row in ROWS)], metavar="row")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(31))
    parser.add_argument("--runs", type=int, default=0, help="so many runs of each row instead of all")
    parser.add_argument("--store", choices=PROGRAMS, default=PROGRAMS[0], help="what keeps the turns")
    parser.add_argument("--short", action="store_true", help="as in make test")
    parser.add_argument("--write", action="store_true", help="put the results into docs/faults.md")
    given = parser.parse_args()
    postgres = Postgres()
    try:
        passed = asyncio.run(_main(given, postgres))
    finally:
        postgres.close()
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
