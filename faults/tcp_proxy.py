"""A TCP proxy that can drop, delay, halve, swallow and reset what passes."""

import asyncio
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Literal, TypeAlias

__all__ = ["TOXICS", "TcpProxy", "Toxic"]

Toxic: TypeAlias = Literal["drop", "reset", "delay", "halve", "swallow"]
TOXICS: tuple[Toxic, ...] = ("drop", "reset", "delay", "halve", "swallow")

# How a socket is told to send a reset when it is closed.
_RESET = struct.pack("ii", 1, 0)
_SLICE = 7


class TcpProxy:
    """Passes connections on to a port of this machine.

    `drop` refuses connections and ends the open ones, `reset` does that with a reset, `delay` makes every piece late,
    `halve` passes slices of a few bytes, `swallow` lets nothing through and tells nobody; both end by cutting the
    connections wherever they are.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._toxic: Toxic | None = None
        self._delay = 0.0
        self._clean = asyncio.Event()
        self._clean.set()
        # How often a client has sent something, each time up to the reply to it.
        self.trips = 0
        self._asking: set[asyncio.StreamWriter] = set()
        self._pairs: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]

    def start(self) -> None:
        # Not asyncio's server, which leaves sockets open that it has accepted in the moment when it is closed.
        asyncio.get_running_loop().add_reader(self._socket, self._accept)

    async def poison(self, toxic: Toxic, seconds: float, delay: float = 0.05) -> None:
        """Do this to all that passes, for so long, or until it is cancelled."""
        self._toxic, self._delay = toxic, delay
        self._clean.clear()
        if toxic in ("drop", "reset"):
            self._cut(reset=toxic == "reset")
        try:
            await asyncio.sleep(seconds)
        finally:
            self._toxic = None
            self._clean.set()
            if toxic in ("halve", "swallow"):
                # What was held back is lost, as where a route has changed.
                self._cut(reset=False)

    async def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        self._cut(reset=False)
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _cut(self, *, reset: bool) -> None:
        for pair in self._pairs:
            for writer in pair:
                if reset:
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                writer.transport.abort()

    def _accept(self) -> None:
        with suppress(BlockingIOError, ConnectionError):
            near, _ = self._socket.accept()
            task = asyncio.create_task(self._take(near))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            # Also of a task that was cancelled before it began.
            task.add_done_callback(lambda _: near.close())

    async def _take(self, near: socket.socket) -> None:
        near.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=near)
        try:
            await self._join(reader, writer)
        except OSError:
            pass
        finally:
            writer.transport.abort()

    async def _join(self, near: asyncio.StreamReader, to_near: asyncio.StreamWriter) -> None:
        if self._toxic in ("drop", "reset"):
            return
        far, to_far = await asyncio.open_connection("127.0.0.1", self._target)
        pair = (to_near, to_far)
        self._pairs.add(pair)
        try:
            ways = [
                asyncio.ensure_future(self._pass(near, to_far, lambda: self._asks(to_near))),
                asyncio.ensure_future(self._pass(far, to_near, lambda: self._asking.discard(to_near))),
            ]
            # A connection ends with its first half.
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
        finally:
            self._pairs.discard(pair)
            self._asking.discard(to_near)
            to_far.transport.abort()

    def _asks(self, client: asyncio.StreamWriter) -> None:
        self.trips += client not in self._asking
        self._asking.add(client)

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passed: Callable[[], None]
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                passed()
                await self._pass_piece(data, writer)

    async def _pass_piece(self, data: bytes, writer: asyncio.StreamWriter) -> None:
        match self._toxic:
            case "swallow":
                await self._clean.wait()
                return
            case "delay":
                await asyncio.sleep(self._delay)
            case "halve":
                for begin in range(0, len(data), _SLICE):
                    writer.write(data[begin : begin + _SLICE])
                    await writer.drain()
                    await asyncio.sleep(0)
                return
            case _:
                pass
        writer.write(data)
        await writer.drain()
