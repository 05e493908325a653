"""How long a piece of text takes from an Open Harness runtime to the socket; do long runs keep order and memory?

Run it with `make bench`. The flow runs in a server of its own on loopback, and this process is the client. Linux only.
"""

import asyncio
import platform
import re
from typing import Final

import uvloop
from chat_server import Speed, measure, serving
from load import Stream, open_streams

SERVER: Final = "open-harness"
RUNS: Final = 100
PIECES: Final = 10_000
NUMBER: Final = re.compile(rb'"delta":"(\d+) "')


class Listener(Stream):
    """A stream that keeps what it read."""

    def __init__(self) -> None:
        super().__init__()
        self.body = bytearray()

    def data_received(self, data: bytes) -> None:
        self.body += data
        super().data_received(data)


async def measure_delays(streams: int) -> Speed:
    with serving(SERVER, "paced") as server:
        await measure(server, 1, 1)
        return await measure(server, streams, 1)


async def read_long_runs() -> list[int]:
    """Read long runs at once, four times over; the memory of the server after each time."""
    memory: list[int] = []
    with serving(SERVER, "numbers") as server:
        for _ in range(4):
            streams = await open_streams(server.port, RUNS, Listener)
            await asyncio.gather(*(stream.ended for stream in streams))
            for stream in streams:
                assert list(map(int, NUMBER.findall(stream.body))) == list(range(PIECES))
            memory.append(server.memory())
    return memory


async def main() -> None:
    print(f"CPython {platform.python_version()}: from `agent:text:delta` to the client, one piece every 20 ms each\n")
    print(f"{'streams':>8}{'p50 ms':>10}{'p99 ms':>10}")
    alone = await measure_delays(1)
    for streams, speed in ((1, alone), (RUNS, await measure_delays(RUNS))):
        print(f"{streams:8}{speed.delay * 1e3:10.2f}{speed.worst_delay * 1e3:10.2f}")
    # After the first time the server keeps the logs of ended turns for a minute, 64 MB of them, beside those that run.
    _, second, _, last = await read_long_runs()
    print(f"\n{RUNS} runs of {PIECES:,} pieces at once, four times: every piece came in its order\n")
    for name, figure, most in (
        ("at most 2 ms: p99 of one stream", alone.worst_delay * 1e3, 2),
        ("at most 1.1x: memory after the fourth time / after the second", last / second, 1.1),
    ):
        print(f"{name:70}{figure:8.2f}  {'met' if figure <= most else 'missed'}")


if __name__ == "__main__":
    uvloop.run(main())
