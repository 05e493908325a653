"""HTTP as bytes on a connection, for requests that no client would send."""

import asyncio
from typing import NamedTuple

from support.mutations import Request

__all__ = ["Answer", "Wire"]


class Answer(NamedTuple):
    status: int
    kind: str
    body: bytes
    headers: dict[str, str]


class Wire:
    """A connection that is kept as long as the server keeps it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, request: Request) -> Answer | None:
        """The answer, or None if the server hung up on a request that it cannot read."""
        if self._writer is None or self._reader is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writer.write(request.wire)
        try:
            answer, keeps = await self._read(self._reader, request.method)
        except (asyncio.IncompleteReadError, ConnectionError):
            answer, keeps = None, False
        if not keeps:
            await self.close()
        return answer

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None

    async def _read(self, reader: asyncio.StreamReader, method: str) -> tuple[Answer, bool]:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        status = int(lines[0].split()[1])
        if status == 100:
            return await self._read(reader, method)
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        if method == "HEAD" or status in (204, 304):
            body = b""
        elif "chunked" in headers.get("transfer-encoding", ""):
            body = await _read_pieces(reader)
        else:
            body = (
                await reader.readexactly(int(headers["content-length"]))
                if "content-length" in headers
                else await reader.read()
            )
        return Answer(status, headers.get("content-type", ""), body, headers), headers.get("connection") != "close"


async def _read_pieces(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int(await reader.readline(), 16):
        body += (await reader.readexactly(size + 2))[:-2]
    await reader.readline()
    return body
