"""The load client of the server benchmark: it posts a chat on each of many connections and counts what comes back."""

import asyncio
import itertools
import re
import time
from typing import Final, TypeVar, cast

_MARK: Final = b"data: "
_DONE: Final = b"data: [DONE]"
_STAMP: Final = re.compile(rb"@(\d+)@")
_numbers: Final = itertools.count()


class Stream(asyncio.Protocol):
    """One connection with one turn, which is over with its last event."""

    def __init__(self) -> None:
        self.first_byte = 0.0
        self.count: int = 0
        self.size = 0
        self.delays: list[float] = []
        self.ended = asyncio.get_running_loop().create_future()
        self._awaited: tuple[int, asyncio.Future[None]] | None = None
        self._transport: asyncio.WriteTransport | None = None
        self._request = _request(f"chat-{next(_numbers)}")
        self._began = 0.0
        self._rest: bytes = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._began = time.perf_counter()
        # uvloop's transports do not inherit from asyncio's.
        self._transport = cast("asyncio.WriteTransport", transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self.size += len(data)
        # What an earlier read cut off; it is too short to be counted twice.
        data = self._rest + data
        self.count += data.count(_MARK)
        self._rest = data[1 - len(_MARK) :]
        if self.count and not self.first_byte:
            self.first_byte = now - self._began
        if b"@" in data:
            self.delays += [now - int(stamp) / 1e9 for stamp in _STAMP.findall(data)]
        if self._awaited is not None and self.count >= self._awaited[0] and not self._awaited[1].done():
            self._awaited[1].set_result(None)
        if _DONE in data:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_exception(ConnectionError("The server closed the connection before the end of the turn."))

    async def wait_for(self, count: int) -> None:
        """Wait until that many events have come."""
        if self.count < count:
            self._awaited = (count, asyncio.get_running_loop().create_future())
            await self._awaited[1]

    def close(self) -> None:
        self.ended.set_result(None)
        assert self._transport is not None
        self._transport.close()


AnyStream = TypeVar("AnyStream", bound=Stream)


def _request(chat_id: str) -> bytes:
    message = '{"id":"m","role":"user","parts":[{"type":"text","text":"Tell me about the tides."}]}'
    body = f'{{"id":"{chat_id}","trigger":"submit-message","messages":[{message}]}}'
    head = f"host: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    return f"POST /api/chat HTTP/1.1\r\n{head}\r\n\r\n{body}".encode()


async def open_streams(port: int, count: int, make: type[AnyStream] = Stream) -> list[AnyStream]:
    """Post a turn on each of `count` new connections, all at once."""
    connect = asyncio.get_running_loop().create_connection
    opened = await asyncio.gather(*(connect(make, "127.0.0.1", port) for _ in range(count)))
    return [stream for _, stream in opened]


async def read_streams(port: int, count: int) -> list[Stream]:
    """Post that many turns at once and read them to their ends."""
    streams = await open_streams(port, count)
    await asyncio.gather(*(stream.ended for stream in streams))
    return streams
