"""The connections of redis-py, and nothing else of it: only this file sees its errors."""

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias, cast

import hiredis
from redis import ConnectionPool as ThreadPool
from redis.asyncio import ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, ReadOnlyError, RedisError, ResponseError
from redis.retry import Retry as ThreadRetry

from usechat.stores.redis.scripts import Script

__all__ = ["AWAY", "Command", "Part", "Reply", "ThreadWire", "Wire", "check_url", "is_replica", "is_transient"]

Part: TypeAlias = "bytes | Script | int"
Command: TypeAlias = tuple[Part, ...]
"""A name or a script, and its arguments; those of a script begin with the number of its keys."""
Reply: TypeAlias = Any
"""What Redis replies: bytes, a number, None, a list of these, or a ResponseError."""

# uvloop raises a bare RuntimeError for a connection that was reset, asyncio an EOFError for one that was closed.
AWAY: Final = (RedisError, OSError, EOFError, RuntimeError, TimeoutError)
# The errors of a Redis that cannot do it now and may do it later.
_TRANSIENT: Final = (
    "OOM",
    "command not allowed when used memory",
    "READONLY",
    "LOADING",
    "MISCONF",
    "MASTERDOWN",
    "NOREPLICAS",
    "BUSY",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "You can't write against a read only replica",
    "read only replica",
    "Redis is configured to save RDB snapshots",
)
# Its types say that a command has one part.
_pack: Final[Callable[[Command], bytes]] = cast(Any, hiredis).pack_command
_READ_SIZE: Final = 256 * 1024
_OPTIONS: Final[dict[str, Any]] = {"protocol": 2, "decode_responses": False, "socket_read_size": _READ_SIZE}


def check_url(url: str) -> None:
    """Refuse what is no URL of a Redis.

    Raises:
        ValueError: it is none.
    """
    try:
        _pool(ThreadPool, url).make_connection()
    except (ValueError, TypeError, RedisError):
        raise ValueError(
            "The store of turns must be memory, or the URL of a Redis such as redis://localhost."
        ) from None


def is_transient(reply: Reply) -> bool:
    """Whether Redis may reply otherwise later."""
    return isinstance(reply, ResponseError) and any(word in str(reply) for word in _TRANSIENT)


def is_replica(reply: Reply) -> bool:
    """Whether Redis refused a write because it is not the one to write to."""
    return isinstance(reply, ReadOnlyError)


def _pool(kind: Any, url: str, **options: Any) -> Any:
    # Its types say nothing.
    return kind.from_url(url, **_OPTIONS, **options)


def _packed(commands: Iterable[Command]) -> list[bytes]:
    return [_pack(_named(command)) for command in commands]


def _named(command: Command, *, with_source: bool = False) -> Command:
    script = command[0]
    if not isinstance(script, Script):
        return command
    return (b"EVAL", script.source, *command[1:]) if with_source else (b"EVALSHA", script.digest, *command[1:])


def _sources(commands: Sequence[Command], replies: Sequence[Reply]) -> dict[int, bytes]:
    """The commands, by their place, whose script Redis does not have, with its source."""
    return {
        place: _pack(_named(command, with_source=True))
        for place, (command, reply) in enumerate(zip(commands, replies, strict=True))
        if isinstance(reply, NoScriptError)
    }


class Wire:
    """A connection for an event loop. Any of AWAY may be raised by anything, and closes it."""

    def __init__(self, url: str, seconds: float) -> None:
        # The whole of a trip has a bound, so that no read needs one of its own.
        pool = _pool(
            ConnectionPool, url, retry=Retry(NoBackoff(), 0), socket_timeout=None, socket_connect_timeout=seconds
        )
        self._connection: Any = pool.make_connection()
        self._seconds = seconds

    async def connect(self) -> None:
        if not self._connection.is_connected:
            async with asyncio.timeout(self._seconds):
                await self._connection.connect()

    async def trip(self, commands: Sequence[Command]) -> list[Reply]:
        """Send the commands and give their replies, within the seconds of the wire."""
        await self.connect()
        try:
            async with asyncio.timeout(self._seconds):
                replies = await self._exchange(_packed(commands))
                again = _sources(commands, replies)
                if again:
                    # A Redis that was started anew has forgotten them.
                    for place, reply in zip(again, await self._exchange(list(again.values())), strict=True):
                        replies[place] = reply
                return replies
        except BaseException:
            await self.close()
            raise

    async def send(self, *command: bytes) -> None:
        await self._connection.send_packed_command([_pack(command)], check_health=False)

    async def read(self) -> Reply:
        """The next reply or message, however long that takes."""
        try:
            return await self._connection.read_response(disable_decoding=True, timeout=math.inf)
        except ResponseError as error:
            return error

    async def close(self) -> None:
        # One that is broken cannot always be closed as it should.
        with suppress(*AWAY):
            await self._connection.disconnect(nowait=True)

    async def _exchange(self, packed: list[bytes]) -> list[Reply]:
        await self._connection.send_packed_command(packed, check_health=False)
        return [await self.read() for _ in packed]


class ThreadWire:
    """A connection for a thread. Any of AWAY may be raised by anything, and closes it."""

    def __init__(self, url: str, seconds: float) -> None:
        retry = ThreadRetry(NoBackoff(), 0)
        pool = _pool(ThreadPool, url, retry=retry, socket_timeout=seconds, socket_connect_timeout=seconds)
        self._connection: Any = pool.make_connection()

    def trip(self, commands: Sequence[Command]) -> list[Reply]:
        try:
            self._connection.connect()
            replies = self._exchange(_packed(commands))
            again = _sources(commands, replies)
            for place, reply in zip(again, self._exchange(list(again.values())), strict=True):
                replies[place] = reply
        except BaseException:
            self.close()
            raise
        return replies

    def close(self) -> None:
        with suppress(*AWAY):
            self._connection.disconnect()

    def _exchange(self, packed: list[bytes]) -> list[Reply]:
        if packed:
            self._connection.send_packed_command(packed, check_health=False)
        return [self._read() for _ in packed]

    def _read(self) -> Reply:
        try:
            return self._connection.read_response(disable_decoding=True)
        except ResponseError as error:
            return error
