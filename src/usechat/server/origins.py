"""Where a request may come from: the origins of pages, and the host names of the server."""

import logging
import re
from collections.abc import Collection
from typing import Final

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from usechat.errors import RequestError

__all__ = ["LOOPBACK_HOSTS", "check_origin", "check_origins", "cors", "host_check", "no_cors", "origin_allowed"]

_log = logging.getLogger("usechat")

LOOPBACK_HOSTS: Final = ("localhost", "127.0.0.1", "[::1]")

_EXPOSED_HEADERS: Final = ("x-vercel-ai-ui-message-stream", "x-usechat-turn", "x-usechat-keep-alive", "retry-after")
_PORTS: Final = {"http": 80, "https": 443}
_NAME: Final = r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]"
_ORIGIN: Final = re.compile(rf"([a-z][a-z0-9+.-]*)://({_NAME})(?::([0-9]{{1,5}}))?")
_HOST: Final = re.compile(rf"\*|(?:\*\.)?(?:{_NAME})")
_Origin = tuple[str, str, int | None]


def cors(origins: Collection[str], *, credentials: bool = False) -> Middleware:
    """The middleware that lets pages of these origins call the chat, or pages of any origin for `*`.

    Raises:
        ValueError: A string is not an origin, or `*` comes with credentials.
    """
    if credentials and "*" in origins:
        raise ValueError("CORS with credentials needs a list of origins, not *.")
    return Middleware(
        _Cors,
        allow_origins=check_origins(origins),
        allow_methods=["GET", "POST", "DELETE"],
        # Pages may send headers that only their app knows.
        allow_headers=["*"],
        allow_credentials=credentials,
        expose_headers=_EXPOSED_HEADERS,
    )


def no_cors() -> Middleware:
    """The middleware that logs when a page of another origin asks whether it may call the chat."""
    return Middleware(_NoCors)


class _Cors(CORSMiddleware):
    def preflight_response(self, request_headers: Headers) -> Response:
        if not self.is_allowed_origin(origin := request_headers["origin"]):
            _log_refusal(origin)
        return super().preflight_response(request_headers)


class _NoCors:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "OPTIONS":
            headers = Headers(scope=scope)
            if "origin" in headers and "access-control-request-method" in headers:
                _log_refusal(headers["origin"])
        await self._app(scope, receive, send)


def _log_refusal(origin: str) -> None:
    # Escaped: a stranger's text must not look like another line of the log.
    _log.warning("a page of the origin %.200s may not call the chat; to allow it, list it in cors", ascii(origin))


def check_origins(origins: Collection[str]) -> list[str]:
    """The origins, or `*`, as a browser spells them.

    Raises:
        ValueError: A string is not an origin.
    """
    return [origin if origin == "*" else _spelled(origin) for origin in origins]


def host_check(hosts: Collection[str] = LOOPBACK_HOSTS) -> Middleware:
    """The middleware that refuses other host names, such as that of a page that rebinds its own name to this server.

    Raises:
        ValueError: There is no host, or a string is not a host without a port.
    """
    if not hosts:
        raise ValueError("allowed_hosts must name at least one host.")
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise ValueError(f"{host!r} is not a host such as chat.example, *.example or [::1], without a port.")
    return Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False)


def check_origin(request: Request, origins: Collection[str]) -> None:
    """Refuse a change that a page of another site asks for.

    Raises:
        RequestError: The page is neither of this site nor of these origins (403).
    """
    if not origin_allowed(request, origins, any_site=True):
        raise RequestError(
            "Pages of another site may not do this. A proxy must pass on the Host of its own pages.", status=403
        )


def origin_allowed(connection: HTTPConnection, origins: Collection[str] = (), *, any_site: bool = False) -> bool:
    """Whether a request comes from no page, from a page of this server, or from a listed origin.

    `*` counts only with `any_site`: a browser sends its cookies with every WebSocket handshake.
    """
    if any_site and "*" in origins:
        return True
    given = connection.headers.getlist("origin")
    if not given:
        return connection.headers.get("sec-fetch-site") != "cross-site"
    origin = _parse(given[0]) if len(given) == 1 else None
    return origin is not None and (origin in map(_parse, origins) or _is_own(connection, origin))


def _is_own(connection: HTTPConnection, origin: _Origin) -> bool:
    # No page can write this header, and no proxy rewrites it, unlike the host names below.
    if (site := connection.headers.get("sec-fetch-site")) is not None:
        return site == "same-origin"
    # Behind a proxy, a secure connection may look insecure, but never the other way round.
    schemes = ("https",) if connection.scope["scheme"] in ("https", "wss") else ("http", "https")
    scheme = origin[0]
    # A page of another site cannot send x-forwarded-host either: only CORS of a listed origin allows it.
    hosts = (connection.headers.get(name, "").partition(",")[0].strip() for name in ("host", "x-forwarded-host"))
    return scheme in schemes and any(origin == _parse(f"{scheme}://{host}") for host in hosts)


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
    # In lower case, and without the default port.
    scheme, host, port = parsed
    return f"{scheme}://{host}" if port == _PORTS.get(scheme) else f"{scheme}://{host}:{port}"
