"""Turns on Redis beside npm `resumable-stream` on the same Redis: one producer, and 1, 10 and 100 readers elsewhere.

Run it with `make bench`. Producer, readers and Redis are processes of their own on loopback. Linux only.
"""

import json
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from support.redis_server import RedisServer

HERE: Final = Path(__file__).parent
OURS, THEIRS = "usechat", "resumable-stream 2.2.13"
COMMANDS: Final = {OURS: [sys.executable, HERE / "redis_roles.py"], THEIRS: ["node", HERE / "resumable.mjs"]}
READERS: Final = (1, 10, 100)
CHUNKS: Final = 2_000
RATE: Final = 200
ROUNDS: Final = 3
SUBSCRIBES: Final = ("subscribe", "unsubscribe", "ping")
SENT: Final = {
    OURS: ("eval", "evalsha", "xrange", "zrange", "zrem", *SUBSCRIBES),
    THEIRS: ("publish", "get", "set", "incr", *SUBSCRIBES),
}


class Figures(NamedTuple):
    """Of one run: times in seconds, `calls` of Redis, processor time for each chunk."""

    seconds: float
    calls: float
    producer: float
    readers: float
    redis: float
    delay: float
    late: float


class Role:
    """A process that plays the producer or the readers."""

    def __init__(self, name: str, url: str) -> None:
        self._process = subprocess.Popen(  # noqa: S603
            [*COMMANDS[name], url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def begin(self, op: str, **request: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"op": op, **request}) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def ask(self, op: str, **request: Any) -> dict[str, Any]:
        self.begin(op, **request)
        return self.answer()

    def close(self) -> None:
        self._process.communicate()


@contextmanager
def roles(name: str, redis: RedisServer) -> Generator[tuple[Role, Role]]:
    producer, readers = Role(name, redis.url), Role(name, redis.url)
    try:
        yield producer, readers
    finally:
        producer.close()
        readers.close()


def redis_cpu(redis: RedisServer) -> float:
    with redis.client() as client:
        told = client.info("cpu")
    return told["used_cpu_sys"] + told["used_cpu_user"]


def redis_calls(name: str, redis: RedisServer) -> int:
    """The commands that clients sent; not what a script called, which is not sent, nor what this benchmark asked."""
    with redis.client() as client:
        told = client.info("commandstats")
    return sum(command["calls"] for sent, command in told.items() if sent.removeprefix("cmdstat_") in SENT[name])


def measure(name: str, redis: RedisServer, count: int, rate: int, number: int) -> Figures:
    with roles(name, redis) as (producer, readers):
        turn = f"{number:08x}{count:08x}{rate:016x}"
        producer.ask("open", id=turn, chunks=CHUNKS, rate=rate)
        readers.ask("attach", id=turn, count=count)
        with redis.client() as client:
            client.config_resetstat()
        cpu = redis_cpu(redis)
        producer.begin("go")
        read = readers.ask("read")
        told = producer.answer()
        delays = sorted(read["delays"])
        assert len(delays) == CHUNKS * count, f"{name} lost chunks: {len(delays)} of {CHUNKS * count}"
        return Figures(
            read["ended"] - told["began"],
            redis_calls(name, redis),
            told["cpu"] / CHUNKS,
            read["cpu"] / CHUNKS,
            (redis_cpu(redis) - cpu) / CHUNKS,
            delays[len(delays) // 2],
            delays[int(len(delays) * 0.99)],
        )


def middle(runs: list[Figures]) -> Figures:
    return Figures(*(median(values) for values in zip(*runs, strict=True)))


def show(title: str, found: dict[tuple[str, int], Figures]) -> None:
    heading = f"{title:28}{'readers':>8}{'wall s':>9}{'calls':>9}"
    print(f"{heading}{'CPU µs/chunk: producer, readers, Redis':>42}{'delay ms p50, p99':>22}")
    for (name, count), run in found.items():
        cpu = "".join(f"{value * 1e6:14.1f}" for value in (run.producer, run.readers, run.redis))
        print(
            f"{name:28}{count:8}{run.seconds:9.2f}{run.calls:9,.0f}{cpu}{run.delay * 1e3:12.2f}{run.late * 1e3:10.1f}"
        )
    print()


def targets(fast: dict[tuple[str, int], Figures], paced: dict[tuple[str, int], Figures]) -> None:
    most = READERS[-1]
    ours, theirs = fast[OURS, most], fast[THEIRS, most]
    rows = [
        (f"at least 10x: Redis calls of resumable-stream / ours, {most} readers", theirs.calls / ours.calls, 10, 1),
        (f"at least 10x: its fan-out time / ours, {most} readers", theirs.seconds / ours.seconds, 10, 1),
        (f"at most 10 ms: p99 delay of a chunk, {most} readers, {RATE} chunks/s", paced[OURS, most].late * 1e3, 10, -1),
        ("at most 15 µs: CPU of the producer for a chunk, ready together", ours.producer * 1e6, 15, -1),
    ]
    for name, figure, target, sign in rows:
        print(f"{name:72}{figure:10.2f}  {'met' if figure * sign >= target * sign else 'missed'}")


def main() -> None:
    redis = RedisServer()
    try:
        found = dict[int, dict[tuple[str, int], Figures]]()
        for rate in (0, RATE):
            found[rate] = {
                (name, count): middle(
                    [measure(name, redis, count, rate, round_) for round_ in range(ROUNDS if not rate else 1)]
                )
                for count in READERS
                for name in COMMANDS
            }
        show("as fast as it goes", found[0])
        show(f"{RATE} chunks/s", found[RATE])
        targets(found[0], found[RATE])
    finally:
        redis.close()


if __name__ == "__main__":
    main()
