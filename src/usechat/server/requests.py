"""Requests over HTTP: what the server reads of them, and the responses that refuse them.

An error response says what a stranger may know: one sentence, as text or as JSON.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from typing import Final, TypeAlias

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from usechat.errors import DatabaseBusyError, RequestError
from usechat.protocol.messages import IDENTIFIER
from usechat.protocol.requests import Limits, check_cost
from usechat.turns.failures import explain

__all__ = [
    "Endpoint",
    "VisibleHeaders",
    "address_of",
    "check_body",
    "check_id",
    "error_headers",
    "guarded",
    "json_body",
    "json_error",
    "last_seen",
    "plain_error",
    "refusal",
]

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]

_LARGE: Final = 1024 * 1024
_SECRET: Final = frozenset((b"authorization", b"cookie", b"proxy-authorization", b"sec-websocket-protocol"))
_STATUS_HEADERS: Final[dict[int, dict[str, str]]] = {
    401: {"www-authenticate": "Bearer"},
    # Otherwise the server would keep the connection of a client that sends one byte at a time.
    408: {"connection": "close"},
}
_CODES: Final = {
    400: "VALIDATION_ERROR",
    401: "UNAUTHORIZED",
    403: "FORBIDDEN",
    404: "NOT_FOUND",
    405: "METHOD_NOT_ALLOWED",
    408: "REQUEST_TIMEOUT",
    409: "CONFLICT",
    413: "PAYLOAD_TOO_LARGE",
    415: "UNSUPPORTED_MEDIA_TYPE",
    429: "TOO_MANY_REQUESTS",
    500: "INTERNAL_ERROR",
    502: "BAD_GATEWAY",
    503: "SERVICE_UNAVAILABLE",
}


async def json_body(request: Request, *, limit: int, deadline: float = 30.0) -> bytes:
    """Read a JSON body of at most `limit` bytes that arrives within `deadline` seconds.

    Raises:
        RequestError: It is not JSON or is compressed (415), is too large (413) or too slow (408).
        ClientDisconnect: The client left before the end of the body.
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
    """Check what it would cost to decode the body, and yield to the loop after a body of more than 1 MB.

    Raises:
        RequestError: It would cost too much.
    """
    check_cost(body, limits)
    if len(body) > _LARGE:
        await asyncio.sleep(0)


def address_of(connection: HTTPConnection) -> str:
    """The client's address as the ASGI server knows it, perhaps from the header of a proxy that it trusts."""
    return "" if connection.client is None else connection.client.host


def check_id(value: str) -> str:
    """Return the id of a chat from the path.

    Raises:
        RequestError: It is empty, too long or has control characters.
    """
    if problem := IDENTIFIER(value):
        raise RequestError(f"The chat's id{problem}.")
    return value


def last_seen(request: Request) -> tuple[str, int]:
    """The mark of the turn that the client has read, and the index of its last chunk; "" and 0 without either."""
    seen = request.query_params.get("after") or request.headers.get("last-event-id") or ""
    mark, _, index = seen.rpartition(".")
    return (mark, int(index)) if index.isascii() and index.isdecimal() and len(index) <= 9 else ("", 0)


class VisibleHeaders(Mapping[str, str]):
    """The headers that an agent may see, by lower-case name. They are decoded when the agent reads them."""

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


async def guarded(endpoint: Endpoint, request: Request, refuse: Callable[[RequestError], Response]) -> Response:
    """Call the endpoint, and turn what it raises into the response that `refuse` makes."""
    try:
        return await endpoint(request)
    except ClientDisconnect:
        # Nobody is there to read a response.
        return Response(status_code=400)
    # The app's hooks and the database may raise anything.
    except Exception as error:  # noqa: BLE001
        return refuse(refusal(error))


def refusal(error: Exception) -> RequestError:
    """What a stranger may know about an error; the log has the rest."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, DatabaseBusyError):
        return RequestError("The server is busy. Try again in a moment.", status=503, retry_after=5)
    return RequestError(explain(error), status=500)


def plain_error(error: RequestError) -> Response:
    """The response whose text the client shows to its user."""
    return PlainTextResponse(str(error), status_code=error.status, headers=error_headers(error))


def json_error(error: RequestError) -> Response:
    """The same as JSON, with a code for programs."""
    content = {"error": str(error), "code": _CODES.get(error.status, "ERROR")}
    return JSONResponse(content, status_code=error.status, headers=error_headers(error))


def error_headers(error: RequestError) -> dict[str, str]:
    """The headers of a response with this error."""
    headers = {"cache-control": "no-store", **_STATUS_HEADERS.get(error.status, {})}
    if error.retry_after is not None:
        headers["retry-after"] = str(error.retry_after)
    return headers
