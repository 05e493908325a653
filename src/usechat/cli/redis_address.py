"""Where a Redis is, without the password of its URL, and why it cannot be reached."""

import ipaddress
import ssl
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

from redis import Redis
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool
from redis.exceptions import AuthenticationError, BusyLoadingError, InvalidResponse, NoPermissionError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

__all__ = ["Address"]

# Its methods are typed only in part.
_POOL: Final[Any] = ConnectionPool
_SCHEMES: Final = ("redis", "rediss", "unix")


class Address:
    """What the URL of a Redis says, in words that can be printed; to connect and each answer may take `seconds`.

    Raises:
        ValueError: It is none; the text repeats nothing of it.
    """

    def __init__(self, url: str, seconds: float) -> None:
        scheme = url.partition("://")[0]
        if scheme not in _SCHEMES:
            raise ValueError("--store must be the URL of a Redis, such as redis://localhost:6379/0.")
        self._seconds = seconds
        try:
            self._pool = _POOL.from_url(url)
            self._options: dict[str, Any] = self._pool.connection_kwargs
            # The URL may have bounds of its own, which are the store's.
            self._options.update(_bounds(seconds))
            # What stands after the question mark is looked at only here.
            self._pool.connection_class(**self._options)
        except (TypeError, ValueError):
            text = "The URL of --store cannot be read: look at its port, and at what stands after its question mark."
            raise ValueError(text) from None
        self.encrypted = scheme == "rediss"

    def __str__(self) -> str:
        if "path" in self._options:
            return f"The Redis at {self._options['path']}"
        return f"The Redis at {self._host}:{self._options.get('port', 6379)}"

    @property
    def _host(self) -> str:
        return str(self._options.get("host", "localhost"))

    @property
    def local(self) -> bool:
        """Whether nothing on the way leaves this computer."""
        if "path" in self._options or self._host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self._host).is_loopback
        except ValueError:
            return False

    @property
    def user(self) -> str:
        return str(self._options.get("username") or "default")

    @property
    def has_password(self) -> bool:
        return bool(self._options.get("password"))

    @property
    def trusts_any(self) -> bool:
        """Whether the connection is encrypted for whoever answers."""
        return self.encrypted and str(self._options.get("ssl_cert_reqs", "required")) in ("none", "None")

    @contextmanager
    def connect(self) -> Generator[Any]:
        with Redis(connection_pool=self._pool) as client:
            try:
                yield client
            finally:
                self._pool.disconnect()

    def explain(self, error: RedisError) -> tuple[str, str]:
        """Why this error came, and what to do; of the error's own text nothing is used."""
        match error:
            case AuthenticationError():
                return f"{self} refuses the user or the password.", "Look at both in the URL, and at ACL LIST in Redis."
            case NoPermissionError():
                database = self._options.get("db", 0)
                return (
                    f"{self} does not let this user choose database {database}.",
                    "Add +select to the user's rules, or use database 0.",
                )
            case BusyLoadingError():
                return f"{self} is loading its data.", "Try again when it is done."
            case RedisTimeoutError():
                return (
                    f"{self} did not answer within {self._seconds:g} seconds.",
                    "Look whether a firewall is in between.",
                )
            case InvalidResponse():
                return f"What answers is no Redis: {str(self).removeprefix('The Redis at ')}.", "Look at the port."
            case _:
                return self._explain_cause(_first_cause(error))

    def _explain_cause(self, cause: BaseException) -> tuple[str, str]:
        if isinstance(cause, ssl.SSLEOFError) or (isinstance(cause, ssl.SSLError) and "_REQUIRED" in str(cause)):
            return (
                f"{self} broke off, as one does that wants a certificate of its clients.",
                "Name it with ssl_certfile and ssl_keyfile in the URL.",
            )
        if isinstance(cause, ssl.SSLError):
            told = "does not encrypt" if "WRONG_VERSION" in str(cause) else "has no certificate that is trusted here"
            return f"{self} {told}.", "Look at the scheme and the port, and at ssl_ca_certs in the URL."
        if isinstance(cause, FileNotFoundError) and self.encrypted:
            return "A file that the URL names is not there.", "Look at what stands after its question mark."
        if isinstance(cause, OSError) and cause.strerror:
            return f"{self} cannot be reached: {cause.strerror}.", "Look at host and port, and whether Redis runs."
        return (
            f"{self} broke off, or answered with an error.",
            "Look into its log; a port that expects TLS needs rediss://.",
        )


def _bounds(seconds: float) -> dict[str, Any]:
    return {
        "socket_timeout": seconds,
        "socket_connect_timeout": seconds,
        "retry": Retry(NoBackoff(), 0),
        "decode_responses": True,
        "protocol": 2,
    }


def _first_cause(error: BaseException) -> BaseException:
    before = error.__cause__ or error.__context__
    return error if before is None else _first_cause(before)
