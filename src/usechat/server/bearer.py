"""Who is asking: the user behind a connection, as the app finds out or by opaque tokens."""

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Self, TypeAlias

from starlette.requests import HTTPConnection

from usechat.errors import RequestError
from usechat.turns.threads import Threads

__all__ = ["USER", "Authenticate", "BearerTokens", "authenticated", "bearer_token", "is_token"]

Authenticate: TypeAlias = Callable[[HTTPConnection], Awaitable[str | None] | str | None]

USER: Final = "usechat.user"
"""The key under which the scope of a connection has its user, if the app has found one by its own means."""

# RFC 6750, section 2.1; a longer one is refused before it costs time.
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]{1,16384}={0,2}")
_HEADER: Final = re.compile(rf"(?i:bearer) +({_TOKEN.pattern})")
_SUBPROTOCOL: Final = re.compile(rf"bearer\.({_TOKEN.pattern})")
_SHA256: Final = re.compile(r"[0-9A-Fa-f]{64}")

_HOOK_SECONDS: Final = 8.0
_THREADS: Final = Threads(32)


async def authenticated(authenticate: Authenticate, connection: HTTPConnection) -> str | None:
    """The id of the connection's user, or None if it has none.

    A function that is not async runs in a thread, since it may block.

    Raises:
        RequestError: It took more than 8 seconds, with status 503.
    """
    try:
        async with asyncio.timeout(_HOOK_SECONDS):
            if isinstance(authenticate, BearerTokens):
                return authenticate(connection)
            return await _THREADS.call(authenticate, connection) or None
    except TimeoutError:
        sentence = "Checking your sign-in took too long. Try again in a moment."
        raise RequestError(sentence, status=503, retry_after=5) from None


def bearer_token(connection: HTTPConnection) -> str | None:
    """The token of `Authorization: Bearer <token>`, or of a WebSocket's subprotocol `bearer.<token>`."""
    values, form = connection.headers.getlist("authorization"), _HEADER
    if not values and connection.scope["type"] == "websocket":
        offered = ",".join(connection.headers.getlist("sec-websocket-protocol")).split(",")
        values, form = [name.strip() for name in offered if name.strip().startswith("bearer.")], _SUBPROTOCOL
    match = form.fullmatch(values[0]) if len(values) == 1 else None
    return match[1] if match else None


def is_token(text: str) -> bool:
    """Whether a header can carry this as a bearer token."""
    return _TOKEN.fullmatch(text) is not None


class BearerTokens:
    """The users of opaque tokens, of which it keeps only the SHA-256 digests.

    Raises:
        ValueError: A token has a character that no header can carry, or a user has no id.
    """

    def __init__(self, tokens: Mapping[str, str]) -> None:
        if not all(map(is_token, tokens)):
            raise ValueError("A token may hold only letters, digits and -._~+/, and up to two = at its end.")
        self._users = _checked({_digest(token): user for token, user in tokens.items()})

    @classmethod
    def from_hashes(cls, users: Mapping[str, str]) -> Self:
        """Take users by the SHA-256 of their tokens, in hexadecimal.

        Raises:
            ValueError: A hash is not a SHA-256, or a user has no id.
        """
        if not all(map(_SHA256.fullmatch, users)):
            raise ValueError("A token's hash must be its SHA-256 in 64 hexadecimal digits.")
        made = cls({})
        made._users = _checked({bytes.fromhex(digest): user for digest, user in users.items()})
        return made

    def __call__(self, connection: HTTPConnection) -> str | None:
        token = bearer_token(connection)
        # The time of the lookup shows at most how a digest begins, and nobody can choose a token by its digest.
        return self._users.get(_digest(token)) if token else None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _checked(users: dict[bytes, str]) -> dict[bytes, str]:
    if not all(users.values()):
        raise ValueError("A token must belong to a user whose id is not empty.")
    return users
