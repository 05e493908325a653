"""Raw readers of a turn, which count what they read and come back with their count when a connection breaks."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Sequence
from itertools import cycle

import httpx
from msgspec import Struct

from cluster import PATH

__all__ = ["Follower", "Frame", "follow_once"]

_DONE = b"data: [DONE]"
_INDEX = re.compile(rb"id: \w+\.(\d+)\n")


class Frame(Struct, frozen=True):
    """One event as it came: its place in the turn, its bytes and when."""

    index: int
    event: bytes
    at: float


class Follower:
    """Reads a turn to its end over as many connections as it takes, at these ports one after the other."""

    def __init__(self, http: httpx.AsyncClient, chat: str, turn: str, ports: Sequence[int]) -> None:
        self.frames: list[Frame] = []
        self.breaks = 0
        self.refused = 0
        # When it was told that there is no such turn.
        self.gone_at: float | None = None
        self.ended_at: float | None = None
        # What it does, for whoever wants to know why it hangs.
        self.doing = ""
        self._http = http
        self._url = f"{PATH}/{chat}/stream"
        self._turn = turn
        self._ports = cycle(ports)
        self._came = asyncio.Event()

    @property
    def after(self) -> str:
        return f"{self._turn}.{self.frames[-1].index if self.frames else 0}"

    async def run(self) -> None:
        port = next(self._ports)
        while self.ended_at is None and self.gone_at is None:
            try:
                await self._read(port)
            except httpx.TransportError:
                self.breaks += 1
            if self.ended_at is None:
                port = next(self._ports)
                await asyncio.sleep(0.02)
        self._came.set()

    async def seen(self, count: int) -> None:
        """Wait until so many frames have come, or the turn has ended."""
        while len(self.frames) < count and self.ended_at is None and self.gone_at is None:
            self._came.clear()
            await self._came.wait()

    async def _read(self, port: int) -> None:
        url = f"http://127.0.0.1:{port}{self._url}"
        self.doing = f"asks {port} after {self.after}"
        async with self._http.stream("GET", url, params={"after": self.after}) as response:
            self.doing = f"{response.status_code} of {port} after {self.after}"
            if response.status_code == 204:
                self.gone_at = time.monotonic()
            elif response.status_code == 200:
                async for event in _events(response):
                    self._take(event)
            else:
                self.refused += 1

    def _take(self, event: bytes) -> None:
        now = time.monotonic()
        if event == _DONE:
            self.ended_at = now
        elif not event.startswith(b":"):
            # One without an index is of a replay, which somebody gets who has read further than the log goes.
            found = _INDEX.match(event)
            self.frames.append(Frame(int(found[1]) if found else 0, event, now))
        self._came.set()


async def follow_once(http: httpx.AsyncClient, chat: str, turn: str, port: int) -> list[bytes] | None:
    """The whole log of a turn as this worker has it, with its end; None if it has none."""
    url = f"http://127.0.0.1:{port}{PATH}/{chat}/stream"
    async with http.stream("GET", url, params={"after": f"{turn}.0"}) as response:
        if response.status_code == 204:
            return None
        assert response.status_code == 200, response.status_code
        return [event async for event in _events(response) if not event.startswith(b":")]


async def _events(response: httpx.Response) -> AsyncIterator[bytes]:
    rest = b""
    async for piece in response.aiter_raw():
        *events, rest = (rest + piece).split(b"\n\n")
        for event in events:
            yield event
