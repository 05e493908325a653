"""What the gateway adds to a session: the delay of a frame, the requests that it takes a second, memory per stream.

Run it with `make bench`. A session agent, the gateway and the load are a process each, on loopback. Linux only.
"""

import asyncio
import itertools
import os
import platform
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Final, NamedTuple, TypeVar, cast

import uvicorn
import uvloop
from chat_server import Server, worst

from usechat.database import Database
from usechat.gateway.directory import SessionDirectory
from usechat.gateway.gateway import sessions_gateway
from usechat.gateway.settings import GatewaySettings
from usechat.integrations.agent_ops.options import SocketLimits
from usechat.session_agent import SessionAgent, SessionSettings

SESSIONS: Final = 1_100
STREAMS: Final = 100
FRAMES: Final = 100
PACE: Final = 0.05
ROUNDS: Final = 3
RATES: Final = (20, 40, 60, 80, 100, 120, 150, 200, 300)
RATE_SECONDS: Final = 4
FIRST_BYTE: Final = 0.2
OPENED_AT_ONCE: Final = 100
_DIRECT: Final = re.compile(rb'"type":"chunk","content":"(\d+) "')
_STREAMED: Final = re.compile(rb'"delta":"(\d+) "')
_CUT_OFF: Final = 64


class Reader(asyncio.Protocol):
    """A connection that says one thing, and notes when each numbered frame has come."""

    def __init__(self, says: bytes, numbered: re.Pattern[bytes]) -> None:
        self.times: dict[int, float] = {}
        self.first_byte = 0.0
        self.greeted = asyncio.get_running_loop().create_future()
        self.spoke = asyncio.get_running_loop().create_future()
        self.ended = asyncio.get_running_loop().create_future()
        self._says = says
        self._numbered = numbered
        self._began = 0.0
        self._rest: bytes = b""
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._began = time.perf_counter()
        # uvloop's transports do not inherit from asyncio's.
        self._transport = cast("asyncio.WriteTransport", transport)
        self._transport.write(self._says)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        data = self._rest + data
        end = 0
        for match in self._numbered.finditer(data):
            self.times[int(match[1])] = now
            end = match.end()
        if not self.first_byte and b"data: " in data:
            self.first_byte = now - self._began
        # What a read cut off is short, and not found twice.
        self._rest = data[max(end, len(data) - _CUT_OFF) :]
        if not self.greeted.done():
            assert data.startswith((b"HTTP/1.1 200", b"HTTP/1.1 101")), data
            self.greeted.set_result(None)
        _mark(self.spoke, happened=b'"text-delta"' in data)
        _mark(self.ended, happened=b"data: [DONE]" in data)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_exception(ConnectionError("The connection was closed before the end of the turn."))

    def close(self) -> None:
        _mark(self.ended, happened=True)
        assert self._transport is not None
        self._transport.close()


def _mark(future: asyncio.Future[None], *, happened: bool) -> None:
    if happened and not future.done():
        future.set_result(None)


class Gateway(NamedTuple):
    """The gateway's process, the session agent behind it, and a user's token."""

    server: Server
    agent: Server
    token: str

    async def ask(self, session: int, prompt: str) -> Reader:
        body = f'{{"id":"c","messages":[{{"id":"m","role":"user","parts":[{{"type":"text","text":"{prompt}"}}]}}]}}'
        head = f"host: bench\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        head += f"\r\nauthorization: Bearer {self.token}"
        request = f"POST /api/sessions/s{session}/chat HTTP/1.1\r\n{head}\r\n\r\n{body}"
        return await _open(self.server, request, _STREAMED)

    async def watch(self, session: int) -> Reader:
        """Read the session directly."""
        head = "host: bench\r\nauthorization: Bearer b\r\nupgrade: websocket\r\nconnection: Upgrade"
        key = "sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ=="
        path = f"/api/sessions/s{session}/ws?role=client&userId=bob"
        return await _open(self.agent, f"GET {path} HTTP/1.1\r\n{head}\r\n{key}\r\n\r\n", _DIRECT)


async def _open(server: Server, says: str, numbered: re.Pattern[bytes]) -> Reader:
    make = partial(Reader, says.encode(), numbered)
    _, reader = await asyncio.get_running_loop().create_connection(make, "127.0.0.1", server.port)
    return reader


@contextmanager
def serving(pace: float) -> Generator[Gateway]:
    with _process("agent", str(pace)) as (agent, _), _process("gateway", str(agent.port)) as (server, token):
        yield Gateway(server, agent, token)


@contextmanager
def _process(*arguments: str) -> Generator[tuple[Server, str]]:
    with subprocess.Popen([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        assert process.stdout is not None
        try:
            port, _, rest = process.stdout.readline().strip().partition(" ")
            yield Server(int(port), process.pid), rest
        finally:
            process.kill()


async def serve_agent(pace: str) -> None:
    async with SessionAgent(SessionSettings(pace=float(pace))).serving() as agent:
        print(agent.port, flush=True)
        await asyncio.get_running_loop().create_future()


async def serve_gateway(port: str) -> None:
    directory = SessionDirectory(Database("sqlite://"))
    await directory.add_user("ana")
    for number in range(SESSIONS):
        await directory.add_session(f"s{number}", "ana")
    # One user has them all.
    settings = GatewaySettings(
        enabled=True, turns_per_user=SESSIONS, sockets=SocketLimits(per_user=2 * SESSIONS, in_all=2 * SESSIONS)
    )
    app = sessions_gateway(upstream=f"ws://127.0.0.1:{port}", directory=directory, settings=settings)
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    print(listener.getsockname()[1], await directory.add_token("ana", 3600), flush=True)
    config = uvicorn.Config(app, http="httptools", log_level="warning", access_log=False)
    await uvicorn.Server(config).serve([listener])


class Delays(NamedTuple):
    """What a frame takes beyond the direct reader's, in seconds, and what it costs the gateway's processor."""

    middle: float
    high: float
    cpu: float


async def measure_delays(streams: int) -> Delays:
    """Look at the frames that come once all streams have begun."""
    with serving(PACE) as gateway:
        watching = [await gateway.watch(number) for number in range(streams)]
        await asyncio.gather(*(reader.greeted for reader in watching))
        asked = [await gateway.ask(number, f"long {FRAMES}") for number in range(streams)]
        await asyncio.gather(*(reader.spoke for reader in asked))
        begin, cpu = time.perf_counter(), gateway.server.cpu()
        await asyncio.gather(*(reader.ended for reader in asked))
        cpu = gateway.server.cpu() - cpu
        for direct, streamed in zip(watching, asked, strict=True):
            assert set(streamed.times) == set(direct.times) == set(range(FRAMES))
        delays = [
            streamed.times[number] - came
            for direct, streamed in zip(watching, asked, strict=True)
            for number, came in direct.times.items()
            if came >= begin
        ]
        for reader in watching:
            reader.close()
    return Delays(median(delays), worst(delays), cpu / len(delays))


class Rate(NamedTuple):
    """Requests a second, and the 99th percentile of the time to their first bytes."""

    requests: int
    first_byte: float


async def measure_rates() -> list[Rate]:
    """Ask more and more often, until the first byte takes too long."""
    rates: list[Rate] = []
    sessions = itertools.cycle(range(SESSIONS))
    with serving(0.0) as gateway:
        for rate in (RATES[0], *RATES):
            asked: list[asyncio.Task[float]] = []
            begin = time.perf_counter()
            for number in range(rate * RATE_SECONDS):
                await asyncio.sleep(begin + number / rate - time.perf_counter())
                asked.append(asyncio.create_task(_first_byte(gateway, next(sessions))))
            rates.append(Rate(rate, worst(await asyncio.gather(*asked))))
            # The first one warms the gateway up.
            if len(rates) > 1 and rates[-1].first_byte > FIRST_BYTE:
                break
    return rates[1:]


async def _first_byte(gateway: Gateway, session: int) -> float:
    reader = await gateway.ask(session, "Hello")
    await reader.ended
    reader.close()
    return reader.first_byte


async def measure_memory() -> float:
    """What one more stream takes whose turn hangs, beside a hundred that were there before."""
    with serving(0.0) as gateway:
        opened = await _open_idle(gateway, range(OPENED_AT_ONCE))
        memory = gateway.server.memory()
        for first in range(OPENED_AT_ONCE, SESSIONS, OPENED_AT_ONCE):
            opened += await _open_idle(gateway, range(first, first + OPENED_AT_ONCE))
        memory = gateway.server.memory() - memory
        for reader in opened:
            reader.close()
    return memory / (SESSIONS - OPENED_AT_ONCE)


async def _open_idle(gateway: Gateway, sessions: Sequence[int]) -> list[Reader]:
    readers = [await gateway.ask(session, "hang") for session in sessions]
    await asyncio.gather(*(reader.spoke for reader in readers))
    return readers


_T = TypeVar("_T")


def best(runs: Sequence[_T], figure: Callable[[_T], float]) -> float:
    """The best of a figure: what disturbs a run only makes it worse."""
    return min(map(figure, runs))


async def main() -> None:
    delays = {streams: [await measure_delays(streams) for _ in range(ROUNDS)] for streams in (1, STREAMS)}
    rates, memory = await measure_rates(), await measure_memory()
    print(f"CPython {platform.python_version()}, {os.cpu_count()} cores, best of {ROUNDS} rounds\n")
    print(f"{f'{1 / PACE:.0f} frames/s each, beyond a direct reader':44}{'p50, p99 ms':>18}{'CPU µs/frame':>14}")
    for streams, runs in delays.items():
        middle, high = best(runs, lambda run: run.middle) * 1e3, best(runs, lambda run: run.high) * 1e3
        print(f"{streams:>40,}    {middle:9.2f}{high:9.2f}{best(runs, lambda run: run.cpu) * 1e6:14.1f}")
    print(f"\n{'requests/s, a socket and a turn each':44}{'TTFB p99 ms':>18}")
    for rate in rates:
        print(f"{rate.requests:>40,}    {rate.first_byte * 1e3:18.1f}")
    print(f"\n{'KB per stream of which the turn hangs':44}{memory / 1024:18.1f}\n")
    many = delays[STREAMS]
    most = max((rate.requests for rate in rates if rate.first_byte <= FIRST_BYTE), default=0)
    for name, value, target in (
        ("at most 5 ms: p99 that is added to a frame, 100 streams", best(many, lambda run: run.high) * 1e3, 5.0),
        ("aim at 1 ms: p50 that is added to a frame, 100 streams", best(many, lambda run: run.middle) * 1e3, 1.0),
    ):
        print(f"{name:70}{value:8.2f}  {'met' if value <= target else 'missed'}")
    print(f"{'most requests/s with a p99 to first byte of at most 200 ms':70}{most:8,}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["agent", pace]:
            uvloop.run(serve_agent(pace))
        case ["gateway", port]:
            uvloop.run(serve_gateway(port))
        case _:
            uvloop.run(main())
