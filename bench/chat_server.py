"""What one chunk costs from the agent to the socket, beside a bare Starlette response, pydantic-ai and Node's `ai` 7.

Run it with `make bench`. Each server is a process of its own on loopback, and this process is the load. Linux only.
"""

import asyncio
import itertools
import os
import platform
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import uvloop
from load import Stream, open_streams, read_streams

HERE: Final = Path(__file__).parent
OURS, BARE = "usechat", "starlette"
SERVERS: Final = {
    BARE: "Starlette, ready bytes",
    OURS: "usechat",
    "pydantic-ai-adapter": "pydantic-ai, adapter",
    "pydantic-ai-agent": "pydantic-ai, agent",
    "node": "Node, ai 7.0.169",
}
# How often that many streams are read in one go, so that each figure stands on enough chunks; an agent of pydantic-ai
# is so slow that it gets fewer.
BATCHES: Final = {1: 20, 10: 4, 100: 1, 1_000: 1}
SLOW_BATCHES: Final = {1: 2, 10: 1}
# 2,000 deltas, the six chunks around them and the end; pydantic-ai's agent has a metadata chunk more.
CHUNKS: Final = (2_007, 2_008)
ROUNDS: Final = 2
PACED_STREAMS: Final = 100
IDLE_STREAMS: Final = 1_000
OPENED_AT_ONCE: Final = 100
IDLE_CHUNKS: Final = 13


class Speed(NamedTuple):
    """The figures of one run; times in seconds, `cpu` for each chunk."""

    chunks: float
    cpu: float
    first_byte: float
    worst_first_byte: float
    delay: float = 0.0
    worst_delay: float = 0.0


class Server(NamedTuple):
    port: int
    pid: int

    def cpu(self) -> float:
        """The processor time that the server has taken, also of threads that have ended."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> int:
        """The bytes that are the server's own."""
        lines = Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) * 1024


@contextmanager
def serving(name: str, script: str, **environ: str) -> Generator[Server]:
    command = ["node", HERE / "peer.mjs", script]
    if name != "node":
        command = [sys.executable, HERE / "apps.py", name, script]
    environ = {**os.environ, **environ}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as process:  # noqa: S603
        assert process.stdout is not None
        try:
            yield Server(int(process.stdout.readline()), process.pid)
        finally:
            process.kill()


async def measure(server: Server, streams: int, batches: int) -> Speed:
    """Read that many turns at once, some times over."""
    cpu, begin, read = server.cpu(), time.perf_counter(), list[tuple[int, float, list[float]]]()
    for _ in range(batches):
        turns = await read_streams(server.port, streams)
        read += [(turn.count, turn.first_byte, turn.delays) for turn in turns]
    seconds, cpu = time.perf_counter() - begin, server.cpu() - cpu
    count = sum(chunks for chunks, _, _ in read)
    first_bytes = [first_byte for _, first_byte, _ in read]
    delays = list(itertools.chain.from_iterable(delays for _, _, delays in read)) or [0.0]
    late = (median(delays), worst(delays))
    return Speed(count / seconds, cpu / count, median(first_bytes), worst(first_bytes), *late)


def worst(times: list[float]) -> float:
    """The 99th percentile."""
    return sorted(times)[int(len(times) * 0.99)]


def best(runs: list[Speed]) -> Speed:
    """The best of each figure: what disturbs a run only makes it worse."""
    chunks, *times = zip(*runs, strict=True)
    return Speed(max(chunks), *map(min, times))


async def measure_fast(name: str) -> dict[int, Speed]:
    with serving(name, "fast") as server:
        for turn in await read_streams(server.port, 2):
            assert turn.count in CHUNKS, f"{name} sent {turn.count} events"
        batches = SLOW_BATCHES if name == "pydantic-ai-agent" else BATCHES
        return {streams: await measure(server, streams, count) for streams, count in batches.items()}


async def measure_paced(name: str) -> Speed:
    with serving(name, "paced") as server:
        # As many as are measured: Python is slower in what it has not done a few times, and a server has done it.
        await read_streams(server.port, PACED_STREAMS)
        return await measure(server, PACED_STREAMS, 1)


async def measure_memory(name: str) -> float:
    """What one more open stream takes, after ten chunks, beside a hundred that were there before.

    They come a hundred at a time: what is needed to begin all of them at once is not what one of them keeps.
    """
    with serving(name, "idle") as server:
        opened = await open_idle(server, OPENED_AT_ONCE)
        memory = server.memory()
        for _ in range(IDLE_STREAMS // OPENED_AT_ONCE):
            opened += await open_idle(server, OPENED_AT_ONCE)
        memory = server.memory() - memory
        for stream in opened:
            stream.close()
        return memory / IDLE_STREAMS


async def open_idle(server: Server, count: int) -> list[Stream]:
    streams = await open_streams(server.port, count)
    await asyncio.gather(*(stream.wait_for(IDLE_CHUNKS) for stream in streams))
    return streams


def print_fast(runs: dict[str, dict[int, Speed]]) -> None:
    heading = f"{'as fast as it goes':26}{'streams':>8}{'chunks/s':>11}{'CPU µs/chunk':>14}"
    print(f"{heading}{'to bare':>9}{'TTFB p50, p99 ms':>20}")
    for streams, (name, speeds) in itertools.product(BATCHES, runs.items()):
        if streams in speeds:
            speed, ratio = speeds[streams], runs[BARE][streams].cpu / speeds[streams].cpu
            figures = f"{speed.chunks:11,.0f}{speed.cpu * 1e6:14.2f}{ratio:8.2f}x"
            print(f"{SERVERS[name]:26}{streams:8,}{figures}{in_ms(speed.first_byte, speed.worst_first_byte)}")
    print()


def print_paced(runs: dict[str, Speed], memory: dict[str, float]) -> None:
    heading = f"{f'{PACED_STREAMS} streams, 50 chunks/s each':34}{'CPU µs/chunk':>14}"
    print(f"{heading}{'TTFB p50, p99 ms':>20}{'delay p50, p99 ms':>20}{'KB per idle stream':>20}")
    for name, speed in runs.items():
        times = in_ms(speed.first_byte, speed.worst_first_byte) + in_ms(speed.delay, speed.worst_delay)
        print(f"{SERVERS[name]:34}{speed.cpu * 1e6:14.2f}{times}{memory[name] / 1024:20.1f}")
    print()


def in_ms(middle: float, high: float) -> str:
    return f"{middle * 1e3:11,.1f}{high * 1e3:9,.1f}"


def print_targets(fast: dict[str, dict[int, Speed]], paced: dict[str, Speed], memory: dict[str, float]) -> None:
    ours, bare = fast[OURS], fast[BARE]
    peers = [(name, streams) for name in fast if name not in (OURS, BARE) for streams in fast[name]]
    ahead = min(fast[name][streams].cpu / ours[streams].cpu for name, streams in peers)
    rows = [
        ("at least 2x: CPU of bare / of usechat, at worst", min(bare[n].cpu / ours[n].cpu for n in ours), 2, 1),
        (
            "at least 2x: chunks/s of usechat / of bare, at worst",
            min(ours[n].chunks / bare[n].chunks for n in ours),
            2,
            1,
        ),
        ("more than 1x: CPU of the best peer / of usechat, at worst", ahead, 1, 1),
        ("at most 1.2x: CPU of a paced chunk of usechat / of bare", paced[OURS].cpu / paced[BARE].cpu, 1.2, -1),
        (
            "at most 2x: p50 to first byte, paced, usechat / bare",
            paced[OURS].first_byte / paced[BARE].first_byte,
            2,
            -1,
        ),
        ("at most 1.2x: memory of an idle stream, usechat / bare", memory[OURS] / memory[BARE], 1.2, -1),
        ("at most 200 ms: p99 to first byte, 100 fast streams", ours[100].worst_first_byte * 1e3, 200, -1),
        ("at most 200 ms: p99 to first byte, 100 paced streams", paced[OURS].worst_first_byte * 1e3, 200, -1),
        ("at most 5 ms: p99 delay of a frame", paced[OURS].worst_delay * 1e3, 5, -1),
        ("at most 15 KB: memory of an idle stream, all of it", memory[OURS] / 1024, 15, -1),
        ("at most 15 KB: the same beyond the bare response's", (memory[OURS] - memory[BARE]) / 1024, 15, -1),
    ]
    for name, figure, target, sign in rows:
        print(f"{name:70}{figure:8.2f}  {'met' if figure * sign >= target * sign else 'missed'}")


async def main() -> None:
    names = list(SERVERS)
    fast_runs = [{name: await measure_fast(name) for name in names} for _ in range(ROUNDS)]
    fast = {name: {n: best([run[name][n] for run in fast_runs]) for n in fast_runs[0][name]} for name in names}
    paced_runs = [{name: await measure_paced(name) for name in names} for _ in range(ROUNDS)]
    paced = {name: best([run[name] for run in paced_runs]) for name in names}
    memory = {name: await measure_memory(name) for name in names}
    print(f"CPython {platform.python_version()}, {os.cpu_count()} cores, best of {ROUNDS} rounds\n")
    print_fast(fast)
    print_paced(paced, memory)
    print_targets(fast, paced, memory)


if __name__ == "__main__":
    uvloop.run(main())
