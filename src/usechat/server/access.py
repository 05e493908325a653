"""What comes before a request reaches the chat: origins, hosts, bodies, ids, and the plain errors that refuse them."""

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import aclosing
from typing import Final

import anyio
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse

from usechat.errors import RequestError
from usechat.protocol.messages import IDENTIFIER

__all__ = [
    "LOOPBACK_HOSTS",
    "check_id",
    "cors",
    "host_check",
    "json_body",
    "origin_allowed",
    "plain_error",
    "without_secrets",
]

_SECRET: Final = frozenset(("authorization", "cookie", "proxy-authorization", "sec-websocket-protocol"))

LOOPBACK_HOSTS: Final = ("localhost", "127.0.0.1", "[::1]")

_EXPOSED_HEADERS: Final = ("x-vercel-ai-ui-message-stream", "x-usechat-turn", "retry-after")
_PORTS: Final = {"http": 80, "https": 443}
_NAME: Final = r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]"
_ORIGIN: Final = re.compile(rf"([a-z][a-z0-9+.-]*)://({_NAME})(?::([0-9]{{1,5}}))?")
_HOST: Final = re.compile(rf"\*|(?:\*\.)?(?:{_NAME})")
_STATUS_HEADERS: Final[dict[int, dict[str, str]]] = {
    401: {"www-authenticate": "Bearer"},
    # Else the server would keep the connection for whoever goes on dripping.
    408: {"connection": "close"},
}

_Origin = tuple[str, str, int | None]


def cors(origins: Collection[str], *, credentials: bool = False) -> Middleware:
    """Make the middleware that lets pages of these origins, or of any for `*`, call the chat.

    Raises:
        ValueError: An origin is not one, or `*` comes with credentials.
    """
    if credentials and "*" in origins:
        raise ValueError("CORS with credentials needs a list of origins, not *.")
    return Middleware(
        CORSMiddleware,
        allow_origins=[origin if origin == "*" else _spelled(origin) for origin in origins],
        allow_methods=["GET", "POST"],
        # An app's pages may send headers of their own, which only the app knows.
        allow_headers=["*"],
        allow_credentials=credentials,
        expose_headers=_EXPOSED_HEADERS,
    )


def host_check(hosts: Sequence[str] = LOOPBACK_HOSTS) -> Middleware:
    """Make the middleware that refuses other names of this server, as a page uses that rebinds its own name to it.

    Raises:
        ValueError: A host is not one, or has a port.
    """
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise ValueError(f"{host!r} is not a host such as chat.example, *.example or [::1], without a port.")
    return Middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)


def origin_allowed(connection: HTTPConnection, origins: Collection[str] = ()) -> bool:
    """Whether a WebSocket may come from where its handshake says: no page, a page of this host, or a listed origin.

    `*` lists nothing here, since a browser sends its cookies with every handshake.
    """
    given = connection.headers.getlist("origin")
    if not given:
        return True
    origin = _parse(given[0]) if len(given) == 1 else None
    return origin is not None and (origin in map(_parse, origins) or _is_own(connection, origin))


def _is_own(connection: HTTPConnection, origin: _Origin) -> bool:
    # Behind a proxy the connection may look less secure than it is, never more.
    schemes = ("https",) if connection.scope["scheme"] in ("https", "wss") else ("http", "https")
    scheme = origin[0]
    return scheme in schemes and origin == _parse(f"{scheme}://{connection.headers.get('host', '')}")


def _parse(origin: str) -> _Origin | None:
    match = _ORIGIN.fullmatch(origin)
    if match is None:
        return None
    scheme, host, port = match[1], match[2], match[3]
    return scheme, host.lower(), int(port) if port else _PORTS.get(scheme)


def _spelled(origin: str) -> str:
    parsed = _parse(origin)
    if parsed is None:
        raise ValueError(f"{origin!r} is not an origin such as https://chat.example or http://localhost:3000.")
    # As a browser spells it: in small letters and without the port that goes without saying.
    scheme, host, port = parsed
    return f"{scheme}://{host}" if port == _PORTS.get(scheme) else f"{scheme}://{host}:{port}"


async def json_body(request: Request, *, limit: int, deadline: float) -> bytes:
    """Read a JSON body of at most `limit` bytes that is there within `deadline` seconds.

    Raises:
        RequestError: It is not JSON or is compressed (415), is too large (413) or comes too slowly (408).
        ClientDisconnect: The client went away before its end.
    """
    _check_headers(request.headers, limit)
    try:
        with anyio.fail_after(deadline):
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


def plain_error(error: RequestError) -> PlainTextResponse:
    """Make the response that says what was wrong, in the sentence that the client shows to its user."""
    headers = {"cache-control": "no-store", **_STATUS_HEADERS.get(error.status, {})}
    if error.retry_after is not None:
        headers["retry-after"] = str(error.retry_after)
    return PlainTextResponse(str(error), status_code=error.status, headers=headers)
