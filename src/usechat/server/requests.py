"""What a request brings: its body, the id in its path, how far its client has read, and the headers for an agent."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from contextlib import aclosing
from typing import Final

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection, Request

from usechat.errors import RequestError
from usechat.protocol.messages import IDENTIFIER
from usechat.protocol.requests import Limits, check_cost

__all__ = ["VisibleHeaders", "address_of", "check_body", "check_id", "json_body", "last_seen"]

_LARGE: Final = 1024 * 1024
_SECRET: Final = frozenset((b"authorization", b"cookie", b"proxy-authorization", b"sec-websocket-protocol"))


async def json_body(request: Request, *, limit: int, deadline: float = 30.0) -> bytes:
    """Read a JSON body of at most `limit` bytes that arrives within `deadline` seconds.

    Raises:
        RequestError: It is not JSON or is compressed (415), is too large (413) or comes too slowly (408).
        ClientDisconnect: The client left before its end.
    """
    _check_headers(request.headers, limit)
    try:
        async with asyncio.timeout(deadline):
            return await _read(request, limit)
    except TimeoutError:
        raise RequestError(f"The body did not arrive within {deadline:g} seconds.", status=408) from None


def _check_headers(headers: Headers, limit: int) -> None:
    kind = headers.get("content-type", "").partition(";")[0]
    if kind.strip().lower() != "application/json":
        raise RequestError("The content type must be application/json.", status=415)
    if headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise RequestError("The body must not be compressed.", status=415)
    length = headers.get("content-length", "")
    if length.isdecimal() and (len(length) > 18 or int(length) > limit):
        raise _too_large(limit)


async def _read(request: Request, limit: int) -> bytes:
    body = bytearray()
    async with aclosing(request.stream()) as pieces:
        async for piece in pieces:
            body += piece
            if len(body) > limit:
                raise _too_large(limit)
    return bytes(body)


def _too_large(limit: int) -> RequestError:
    return RequestError(f"The body is larger than {limit:,} bytes.", status=413)


async def check_body(body: bytes, limits: Limits) -> None:
    """Check what it would cost to decode the body; a large one lets other requests work before it is decoded.

    Raises:
        RequestError: It would cost too much.
    """
    check_cost(body, limits)
    if len(body) > _LARGE:
        await asyncio.sleep(0)


def address_of(connection: HTTPConnection) -> str:
    """The client's address as the server knows it, which may be from the header of a proxy that it trusts."""
    return "" if connection.client is None else connection.client.host


def check_id(value: str) -> str:
    """Give back the id of a chat that came with a path.

    Raises:
        RequestError: It is empty, too long or has control characters.
    """
    if problem := IDENTIFIER(value):
        raise RequestError(f"The chat's id{problem}.")
    return value


def last_seen(request: Request) -> tuple[str, int]:
    """The mark of the turn that the client has read a part of, and the index of the last chunk; "" and 0 for none."""
    seen = request.query_params.get("after") or request.headers.get("last-event-id") or ""
    mark, _, index = seen.rpartition(".")
    return (mark, int(index)) if index.isascii() and index.isdecimal() and len(index) <= 9 else ("", 0)


class VisibleHeaders(Mapping[str, str]):
    """The headers that an agent may see, by lower-case name; each is decoded when the agent asks for it."""

    __slots__ = ("_pairs",)

    def __init__(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        # The last of two with the same name counts.
        self._pairs = tuple(pair for pair in pairs if pair[0] not in _SECRET)

    def __getitem__(self, name: str) -> str:
        for own, value in reversed(self._pairs):
            if own.decode("latin-1") == name:
                return value.decode("latin-1")
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name.decode("latin-1") for name, _ in self._pairs))

    def __len__(self) -> int:
        return len({name for name, _ in self._pairs})

    def __repr__(self) -> str:
        return repr(dict(self))
