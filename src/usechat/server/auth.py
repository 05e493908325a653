"""Who the user of a connection is: by a function of the app, by opaque tokens, or by JWTs.

Functions that read JWTs import PyJWT themselves: it takes 9 MB and a tenth of the start, and most apps have no JWTs.
"""

import asyncio
import hashlib
import logging
import re
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from http.client import HTTPException
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias
from urllib.parse import urlsplit
from urllib.request import HTTPHandler, HTTPSHandler, OpenerDirector, ProxyHandler

import anyio
import msgspec
from anyio import to_thread
from starlette.requests import HTTPConnection

from usechat.errors import RequestError
from usechat.turns.threads import Threads

if TYPE_CHECKING:
    from jwt import PyJWK

__all__ = [
    "USER",
    "Authenticate",
    "BearerTokens",
    "JwksUrl",
    "JwtAlgorithm",
    "JwtAuth",
    "JwtKeys",
    "authenticated",
    "bearer_token",
    "is_token",
]

_log = logging.getLogger(__name__)

Authenticate: TypeAlias = Callable[[HTTPConnection], Awaitable[str | None] | str | None]
JwtAlgorithm: TypeAlias = Literal["HS256", "RS256", "ES256", "EdDSA"]

USER: Final = "usechat.user"
"""The key of the user in the scope of a connection, if the app has found the user itself."""

# RFC 6750, section 2.1; a longer one is refused before it costs time.
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]{1,16384}={0,2}")
_HEADER: Final = re.compile(rf"(?i:bearer) +({_TOKEN.pattern})")
_SUBPROTOCOL: Final = re.compile(rf"bearer\.({_TOKEN.pattern})")
_SHA256: Final = re.compile(r"[0-9A-Fa-f]{64}")

_HOOK_SECONDS: Final = 8.0
_THREADS: Final = Threads(32)

# A published key set has no keys for HS256: what anybody can fetch is not a secret.
_PUBLIC_KEY_ALGORITHMS: Final = frozenset({"RS256", "ES256", "EdDSA"})
_ALGORITHMS: Final = _PUBLIC_KEY_ALGORITHMS | {"HS256"}

_RETRY_SECONDS: Final = 15
_UNKNOWN_KEY_SECONDS: Final = 60.0
# How long the keys count while their provider does not respond. A withdrawn key must not count for ever.
_STALE_SECONDS: Final = 3600.0
_MAX_KEY_SET: Final = 1024 * 1024
# Seconds since 1970; no provider issues a later time.
_LATEST: Final = 2**53


async def authenticated(authenticate: Authenticate, connection: HTTPConnection) -> str | None:
    """The id of the connection's user, or None if it has none.

    A function that is not async may block, so it runs in a thread.

    Raises:
        RequestError: The function took more than 8 seconds (503).
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
        # The time of the lookup shows at most how a digest begins, and nobody can make a token from a digest.
        return self._users.get(_digest(token)) if token else None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _checked(users: dict[bytes, str]) -> dict[bytes, str]:
    if not all(users.values()):
        raise ValueError("A token must belong to a user whose id is not empty.")
    return users


class _KeySet(msgspec.Struct):
    keys: list[dict[str, Any]]


def _read_keys(content: bytes) -> list[dict[str, Any]]:
    try:
        return msgspec.json.decode(content, type=_KeySet).keys
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ValueError("This is not a JSON Web Key Set.") from None


class JwtKeys:
    """The keys of a JWKS that may sign a token, each for one algorithm.

    Raises:
        ValueError: No key may sign a token.
    """

    def __init__(self, keys: Iterable[dict[str, Any]], *, algorithms: Collection[str] = _ALGORITHMS) -> None:
        self._by_kid: dict[str | None, PyJWK] = {}
        for fields in keys:
            if key := _usable(fields, algorithms):
                self._by_kid.setdefault(key.key_id, key)
        if not self._by_kid:
            names = ", ".join(sorted(algorithms))
            raise ValueError(f"There is no public key or secret that is long enough for {names}.")

    @classmethod
    def static(cls, algorithm: JwtAlgorithm, key: str | bytes, *, kid: str | None = None) -> Self:
        """Take one key: a secret of at least 32 bytes for HS256, a public key in PEM for the others.

        Raises:
            ValueError: The key is not one for this algorithm, or too short.
        """
        if algorithm not in _ALGORITHMS:
            raise ValueError(f"The algorithm must be one of {', '.join(sorted(_ALGORITHMS))}.")
        import jwt

        signer = jwt.get_algorithm_by_name(algorithm)
        try:
            fields = {**signer.to_jwk(signer.prepare_key(key), as_dict=True), "alg": algorithm}
        except (jwt.PyJWTError, TypeError, ValueError):
            raise ValueError(f"The key is not one for {algorithm}.") from None
        return cls([fields if kid is None else {**fields, "kid": kid}], algorithms=[algorithm])

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Read a JWKS file of public keys.

        Raises:
            OSError: The file cannot be read.
            ValueError: It is not a key set, holds a secret, or has no key that can be used.
        """
        keys = _read_keys(Path(path).read_bytes())
        if any(key.get("kty") == "oct" for key in keys):
            raise ValueError("The key set holds a secret (oct), and must hold public keys only.")
        return cls(keys, algorithms=_PUBLIC_KEY_ALGORITHMS)

    def find(self, kid: str | None) -> "PyJWK | None":
        """The key of this id. A key without an id fits every token, and an only key fits a token that names none."""
        only = next(iter(self._by_kid.values())) if kid is None and len(self._by_kid) == 1 else None
        return self._by_kid.get(kid) or self._by_kid.get(None) or only


def _usable(fields: dict[str, Any], algorithms: Collection[str]) -> "PyJWK | None":
    import jwt

    is_private = "d" in fields
    if is_private or not isinstance(fields.get("kid", ""), str) or fields.get("use", "sig") != "sig":
        return None
    try:
        key = jwt.PyJWK(fields)
    except (jwt.PyJWTError, LookupError, TypeError):
        return None
    is_short = key.Algorithm.check_key_length(key.key) is not None
    return key if key.algorithm_name in algorithms and not is_short else None


class JwksUrl:
    """The key set that an identity provider publishes, fetched when it is needed and kept for `lifetime` seconds.

    A token with an unknown key makes it fetch the set again, at most once a minute. It does not follow redirects.

    Raises:
        ValueError: The URL does not begin with http or https.
    """

    def __init__(
        self, url: str, *, lifetime: float = 300.0, timeout: float = 5.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if urlsplit(url).scheme not in ("http", "https"):
            raise ValueError("Keys are fetched by http or https only.")
        self._url = url
        self._timeout = timeout
        self._lifetime = lifetime
        self._clock = clock
        self._keys: JwtKeys | None = None
        self._fetched = self._tried = -inf
        self._fetching = anyio.Lock()
        self._downloading = threading.Lock()

    async def find(self, kid: str | None) -> "PyJWK | None":
        """The key of this id.

        Raises:
            RequestError: The key set cannot be fetched (503).
        """
        if self._is_due(kid) or (self._fetching.locked() and self._known(kid) is None):
            async with self._fetching:
                if self._is_due(kid):
                    await self._fetch()
        if self._clock() - self._fetched > _STALE_SECONDS:
            sentence = "Your sign-in cannot be checked now. Try again in a moment."
            raise RequestError(sentence, status=503, retry_after=_RETRY_SECONDS)
        return self._known(kid)

    def _known(self, kid: str | None) -> "PyJWK | None":
        return self._keys.find(kid) if self._keys else None

    def _is_due(self, kid: str | None) -> bool:
        now = self._clock()
        if now - self._fetched > self._lifetime:
            return now - self._tried >= _RETRY_SECONDS
        return now - self._tried >= _UNKNOWN_KEY_SECONDS and self._known(kid) is None

    async def _fetch(self) -> None:
        self._tried = self._clock()
        try:
            # The timeout of a socket is for each read, and a server may send one byte at a time.
            with anyio.fail_after(self._timeout):
                content = await to_thread.run_sync(self._download, abandon_on_cancel=True)
            self._keys = JwtKeys(_read_keys(content), algorithms=_PUBLIC_KEY_ALGORITHMS)
            self._fetched = self._clock()
        except (OSError, HTTPException, ValueError) as problem:
            _log.warning("The keys at %s could not be fetched: %r", self._url, problem)

    def _download(self) -> bytes:
        # A download that timed out goes on in its thread. Only one may, or threads would pile up.
        if not self._downloading.acquire(blocking=False):
            raise TimeoutError("The download before this one has not ended.")
        try:
            return _get(self._url, self._timeout)
        finally:
            self._downloading.release()


def _get(url: str, timeout: float) -> bytes:
    # The default opener of the standard library follows redirects and opens files.
    opener = OpenerDirector()
    for scheme in (ProxyHandler(), HTTPHandler(), HTTPSHandler()):
        opener.add_handler(scheme)
    with opener.open(url, timeout=timeout) as response:
        if response.status != 200:
            raise ValueError(f"The response has the status {response.status}.")
        content: bytes = response.read(_MAX_KEY_SET + 1)
    if len(content) > _MAX_KEY_SET:
        raise ValueError(f"The key set is larger than {_MAX_KEY_SET:,} bytes.")
    return content


class JwtAuth:
    """The user is the `sub` of a JWT that one of the keys has signed, for this audience and by this issuer."""

    def __init__(
        self,
        keys: JwtKeys | JwksUrl,
        *,
        audience: str | Sequence[str],
        issuer: str | Sequence[str],
        leeway: float = 30.0,
    ) -> None:
        if not audience or not issuer:
            raise ValueError("JwtAuth needs an audience and an issuer.")
        self._keys = keys
        self._audience = audience
        self._issuer = issuer
        self._leeway = leeway

    async def __call__(self, connection: HTTPConnection) -> str | None:
        """The user of the connection's token.

        Raises:
            RequestError: The published keys cannot be fetched (503).
        """
        token = bearer_token(connection)
        if token is None:
            return None
        import jwt

        try:
            kid: str | None = jwt.get_unverified_header(token).get("kid")
            key = await self._keys.find(kid) if isinstance(self._keys, JwksUrl) else self._keys.find(kid)
            return self._subject(token, key) if key else None
        except jwt.PyJWTError as problem:
            _log.debug("A token was refused: %s", type(problem).__name__)
            return None

    def _subject(self, token: str, key: "PyJWK") -> str:
        import jwt

        claims = jwt.decode(
            token,
            key,
            algorithms=[key.algorithm_name],
            audience=self._audience,
            issuer=self._issuer,
            leeway=self._leeway,
            options={"require": ["exp", "aud", "iss", "sub"], "enforce_minimum_key_length": True},
        )
        for name in ("exp", "nbf", "iat"):
            value = claims.get(name, 0)
            # PyJWT accepts whatever `int()` does: also a string, and a number of 400 digits.
            if type(value) not in (int, float) or abs(value) > _LATEST:
                raise jwt.InvalidTokenError(f"{name} is not a time.")
        return claims["sub"]
