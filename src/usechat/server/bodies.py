"""What a request brings: its body, the ids in its path, and the headers that an agent may see."""

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from typing import Final

from starlette.datastructures import Headers
from starlette.requests import Request

from usechat.errors import RequestError
from usechat.protocol.messages import IDENTIFIER

__all__ = ["check_id", "json_body", "without_secrets"]

_SECRET: Final = frozenset(("authorization", "cookie", "proxy-authorization", "sec-websocket-protocol"))


async def json_body(request: Request, *, limit: int, deadline: float) -> bytes:
    """Read a JSON body of at most `limit` bytes that is there within `deadline` seconds.

    Raises:
        RequestError: It is not JSON or is compressed (415), is too large (413) or comes too slowly (408).
        ClientDisconnect: The client went away before its end.
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


def check_id(value: str) -> str:
    """Give back the id of a chat that came with a path.

    Raises:
        RequestError: It is empty, too long or has control characters.
    """
    if problem := IDENTIFIER(value):
        raise RequestError(f"The chat's id{problem}.")
    return value


def without_secrets(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that an agent may see."""
    return {name: value for name, value in headers.items() if name not in _SECRET}
