"""What `usechat doctor` checks: whether a Redis can keep turns, and what its settings cost.

It reads the URL, connects, looks at the server, tries each command of the store without changing anything, and at last
plays a whole turn. No finding repeats the password of the URL.
"""

import asyncio
import secrets
import ssl
import statistics
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct
from redis import Redis
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    InvalidResponse,
    NoPermissionError,
    RedisError,
    ResponseError,
)
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from usechat.cli.options import is_loopback
from usechat.ids import new_turn_id
from usechat.stores import Claim, StopReason, StoreAwayError, TurnHead
from usechat.stores.redis import RedisTurnStore

__all__ = ["COMMANDS", "Address", "Finding", "Level", "Missing", "examine", "find_missing"]

Level: TypeAlias = Literal["ok", "warning", "problem"]

# redis-py types its methods only in part.
_POOL: Final[Any] = ConnectionPool
_SCHEMES: Final = ("redis", "rediss", "unix")

_ROUND_TRIPS: Final = 20
_SLOW_SECONDS: Final = 0.010
_CLOCK_SECONDS: Final = 1.0
_OLDEST: Final = {"redis": (7, 0), "valkey": (7, 2)}
_NEARLY_FULL: Final = 0.8
_GIB: Final = 1024**3

_PATTERN: Final = "usechat:*"
# With arguments that change nothing: there is no such key, or the command fails once it is allowed.
_HARMLESS: Final[Mapping[str, tuple[str, ...]]] = {
    "del": ("{key}",),
    "eval": ("return 1", "0"),
    "evalsha": ("0" * 40, "0"),
    "exists": ("{key}",),
    "hdel": ("{key}", "a"),
    "hget": ("{key}", "a"),
    "hgetall": ("{key}",),
    "hmget": ("{key}", "a"),
    "hset": ("{key}", "a", "1", "b"),
    "pexpire": ("{key}", "1000"),
    "ping": (),
    "publish": ("{key}", "a"),
    "sismember": ("{key}", "a"),
    "time": (),
    "xadd": ("{key}", "0-0", "a", "1"),
    "xrange": ("{key}", "-", "+", "COUNT", "1"),
    "zadd": ("{key}", "none", "a"),
    "zrange": ("{key}", "0", "-1"),
    "zrangebyscore": ("{key}", "-inf", "0"),
    "zrem": ("{key}", "a"),
}
COMMANDS: Final = tuple(sorted({*_HARMLESS, "sadd", "subscribe", "unsubscribe"}))
"""What the store runs, itself and in its scripts."""

# Each frame of a turn ends with an empty line.
_FRAMES: Final = (b"data: Is anybody there?\n\n", b"data: No.\n\n")


class Finding(Struct, frozen=True, omit_defaults=True):
    """What a check found, and what to do about it."""

    check: str
    level: Level
    text: str
    remedy: str = ""


def examine(url: str, seconds: float = 5.0) -> list[Finding]:
    """Examine the Redis of a URL.

    Each reply, and the connection itself, may take this many seconds. The first that takes longer ends the examination.

    Raises:
        ValueError: It is not the URL of a Redis.
    """
    address = Address(url, seconds)
    findings: list[Finding] = []
    with address.connect() as client:
        try:
            server = _Server(
                address=address,
                client=client,
                hello=_hello(client),
                info=_allowed(client.info),
                config=_allowed(lambda: {**client.config_get("appendfsync"), **client.config_get("save")}),
            )
            for check in _CHECKS:
                findings += check(server)
            if all(finding.level != "problem" for finding in findings):
                findings.append(_turn(client, url, seconds))
        except RedisError as error:
            findings.append(Finding("connection", "problem", *address.explain(error)))
    return findings


class Address:
    """The URL of a Redis. Each reply, and the connection itself, may take `seconds`.

    `local` says that the connection stays on this computer; `trusts_any` that it is encrypted, but accepts any
    certificate.

    Raises:
        ValueError: The URL is wrong. The text repeats nothing of it.
    """

    def __init__(self, url: str, seconds: float) -> None:
        scheme = url.partition("://")[0]
        if scheme not in _SCHEMES:
            raise ValueError("--store must be the URL of a Redis, such as redis://localhost:6379/0.")
        self._seconds = seconds
        try:
            self._pool = _POOL.from_url(url)
            self._options: dict[str, Any] = self._pool.connection_kwargs
            # The URL may set other timeouts for the store.
            self._options.update(
                socket_timeout=seconds,
                socket_connect_timeout=seconds,
                retry=Retry(NoBackoff(), 0),
                decode_responses=True,
                protocol=2,
            )
            # redis-py checks the parameters after the question mark only here.
            self._pool.connection_class(**self._options)
        except (TypeError, ValueError):
            text = "The URL of --store cannot be read. Check its port and the parameters after its question mark."
            raise ValueError(text) from None
        host = str(self._options.get("host", "localhost"))
        self._place = str(self._options.get("path") or f"{host}:{self._options.get('port', 6379)}")
        self.local = "path" in self._options or is_loopback(host)
        self.user = str(self._options.get("username") or "default")
        self.has_password = bool(self._options.get("password"))
        self.encrypted = scheme == "rediss"
        self.trusts_any = self.encrypted and str(self._options.get("ssl_cert_reqs", "required")) in ("none", "None")

    def __str__(self) -> str:
        return f"The Redis at {self._place}"

    @contextmanager
    def connect(self) -> Generator[Any]:
        with Redis(connection_pool=self._pool) as client:
            try:
                yield client
            finally:
                self._pool.disconnect()

    def explain(self, error: RedisError) -> tuple[str, str]:
        """What happened and what to do, without the error's own text, which may hold the password."""
        match error:
            case AuthenticationError():
                return f"{self} refuses the user or the password.", "Check both in the URL, and ACL LIST in Redis."
            case NoPermissionError():
                database = self._options.get("db", 0)
                return (
                    f"{self} does not let this user choose database {database}.",
                    "Add +select to the user's rules, or use database 0.",
                )
            case BusyLoadingError():
                return f"{self} is loading its data.", "Try again when it is done."
            case RedisTimeoutError():
                return f"{self} did not reply within {self._seconds:g} seconds.", "Check for a firewall in between."
            case InvalidResponse():
                return f"What replies at {self._place} is not a Redis.", "Check the port."
            case _:
                return self._explain_cause(error)

    def _explain_cause(self, error: BaseException) -> tuple[str, str]:
        while (before := error.__cause__ or error.__context__) is not None:
            error = before
        if isinstance(error, ssl.SSLEOFError) or (isinstance(error, ssl.SSLError) and "_REQUIRED" in str(error)):
            return (
                f"{self} closed the connection, as it does without a client certificate.",
                "Name it with ssl_certfile and ssl_keyfile in the URL.",
            )
        if isinstance(error, ssl.SSLError):
            what = "does not encrypt" if "WRONG_VERSION" in str(error) else "has no certificate that is trusted here"
            return f"{self} {what}.", "Check the scheme and the port, and ssl_ca_certs in the URL."
        if isinstance(error, FileNotFoundError) and self.encrypted:
            return "A file that the URL names does not exist.", "Check the parameters after its question mark."
        if isinstance(error, OSError) and error.strerror:
            return f"{self} cannot be reached: {error.strerror}.", "Check host and port, and whether Redis runs."
        return (
            f"{self} closed the connection, or replied with an error.",
            "Look into its log. A port that expects TLS needs rediss://.",
        )


class _Server(Struct, frozen=True):
    """A Redis that replies, and what it says about itself. `info` and `config` are None without the permission."""

    address: Address
    client: Any
    hello: dict[str, Any]
    info: dict[str, Any] | None
    config: dict[str, str] | None


def _hello(client: Any) -> dict[str, Any]:
    """The reply to HELLO, which every user may send, or nothing from a Redis before version 6."""
    try:
        reply: list[Any] = client.execute_command("HELLO")
    except NoPermissionError:
        # Not HELLO was refused, but the choice of a database, which comes before it.
        raise
    except ResponseError:
        return {}
    return dict(zip(reply[::2], reply[1::2], strict=True))


def _allowed(ask: Callable[[], Any]) -> Any:
    """The reply, or None if this user may not ask or this server does not know the command."""
    try:
        return ask()
    except ResponseError:
        return None


def _connection(server: _Server) -> Iterator[Finding]:
    address = server.address
    yield Finding("connection", "ok", f"{address} replies.")
    if address.trusts_any:
        yield Finding(
            "tls",
            "warning",
            "The connection is encrypted, but any certificate is accepted.",
            "Remove ssl_cert_reqs=none from the URL, and name the certificate with ssl_ca_certs if need be.",
        )
    elif address.local or address.encrypted:
        how = "is encrypted" if address.encrypted else "stays on this computer"
        yield Finding("tls", "ok", f"The connection {how}.")
    else:
        yield Finding(
            "tls",
            "warning",
            "The connection is not encrypted: others on the network can read the password and the chats.",
            "Use rediss://, unless nobody else is on this network.",
        )
    if not address.local and not address.has_password:
        yield Finding(
            "password",
            "problem",
            "This Redis asks for no password: everybody who reaches it can read and change every chat.",
            "Make a user with a password and the store's permissions, as docs/guides/deploy.md says.",
        )


def _version(server: _Server) -> Iterator[Finding]:
    name, version = str(server.hello.get("server", "redis")), str(server.hello.get("version", "before 6"))
    if (info := server.info) and "valkey_version" in info:
        name, version = "valkey", str(info["valkey_version"])
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    oldest = _OLDEST.get(name, (0,))
    if numbers >= oldest:
        yield Finding("version", "ok", f"{name} {version}.")
        return
    wanted = ".".join(map(str, oldest))
    yield Finding("version", "problem", f"{name} {version} is too old for the store.", f"Use {name} {wanted} or newer.")


def _role(server: _Server) -> Iterator[Finding]:
    role = str(server.hello.get("role", (server.info or {}).get("role", "master")))
    mode = str(server.hello.get("mode", "standalone"))
    if mode == "sentinel":
        yield Finding("role", "problem", "This is a Sentinel, which keeps no keys.", "Give the URL of the primary.")
    elif mode == "cluster":
        yield Finding(
            "role",
            "problem",
            "This is a node of a cluster, and the store uses a single Redis.",
            "Use a Redis that is not a cluster. docs/guides/deploy.md says what comes after that.",
        )
    elif role in ("replica", "slave"):
        yield Finding(
            "role",
            "problem",
            "This is a replica, which takes no writes.",
            "Give the URL of the primary, or of an address that always leads to it.",
        )
    else:
        yield Finding("role", "ok", f"This is a primary ({mode}).")


def _latency(server: _Server) -> Iterator[Finding]:
    times: list[float] = []
    for _ in range(_ROUND_TRIPS):
        began = time.perf_counter()
        _hello(server.client)
        times.append(time.perf_counter() - began)
    median = statistics.median(times)
    text = f"A round trip takes {median * 1000:.2f} ms, at worst {max(times) * 1000:.2f} ms of {_ROUND_TRIPS}."
    if median < _SLOW_SECONDS:
        yield Finding("latency", "ok", text)
    else:
        yield Finding(
            "latency",
            "warning",
            f"{text} Other workers' readers and a stop from another worker wait for it.",
            "Run Redis in the same data centre as the workers.",
        )


def _clock(server: _Server) -> Iterator[Finding]:
    before = time.time()
    reply = _allowed(server.client.time)
    after = time.time()
    if reply is None:
        yield Finding("clock", "warning", "This user may not run TIME, so the clocks were not compared.")
        return
    seconds, micros = reply
    ahead = seconds + micros / 1e6 - (before + after) / 2
    if abs(ahead) - (after - before) / 2 < _CLOCK_SECONDS:
        yield Finding("clock", "ok", f"Its clock and this computer's differ by {abs(ahead):.3f} s.")
        return
    direction = "ahead of" if ahead > 0 else "behind"
    yield Finding(
        "clock",
        "warning",
        f"Its clock is {abs(ahead):.1f} s {direction} this computer's.",
        "Let NTP set both: turns are ordered by Redis's clock, also when another Redis takes its place.",
    )


def _permissions(server: _Server) -> Iterator[Finding]:
    missing = find_missing(server.client)
    if missing == Missing():
        text = f"This user may do all that the store does: {len(COMMANDS)} commands on {_PATTERN}."
        yield Finding("permissions", "ok", text)
        return
    patterns = [word for word, lacks in (("keys", missing.keys), ("channels", missing.channels)) if lacks]
    parts = [f"run {', '.join(command.upper() for command in missing.commands)}"] if missing.commands else []
    parts += [f"use the {' and '.join(patterns)} {_PATTERN}"] if patterns else []
    yield Finding(
        "permissions",
        "problem",
        f"This user may not {', and not '.join(parts)}.",
        f"As an administrator: ACL SETUSER {server.address.user} {missing.rules}",
    )


class Missing(Struct, frozen=True):
    """What the store does and a user may not do."""

    commands: tuple[str, ...] = ()
    keys: bool = False
    channels: bool = False

    @property
    def rules(self) -> str:
        """What to add to the user's rules."""
        patterns = [f"{sign}{_PATTERN}" for sign, is_missing in (("~", self.keys), ("&", self.channels)) if is_missing]
        return " ".join([*patterns, *(f"+{command}" for command in self.commands)])


def find_missing(client: Any) -> Missing:
    """Try everything that the store does, and close the connections of the client."""
    key = f"{_PATTERN.removesuffix('*')}doctor:{{{secrets.token_hex(8)}}}"
    refused = {
        command: _refused(client, command, *(argument.format(key=key) for argument in arguments))
        for command, arguments in _HARMLESS.items()
    }
    if refused["del"] is None:
        # It adds a key, which only a user with DEL can remove.
        refused["sadd"] = _refused(client, "sadd", key, "a")
        _refused(client, "del", key)
    # From here on the connection takes no other commands.
    refused["subscribe"] = _refused(client, "subscribe", key)
    refused["unsubscribe"] = _refused(client, "unsubscribe", key)
    client.connection_pool.disconnect()
    commands = (command for command, what in refused.items() if what == "command")
    return Missing(tuple(sorted(commands)), "keys" in refused.values(), "channels" in refused.values())


def _refused(client: Any, *command: str) -> Literal["command", "keys", "channels"] | None:
    """What of a command the user may not use. Whether it succeeds does not matter."""
    try:
        client.execute_command(*command)
    except NoPermissionError as error:
        text = str(error)
        return "keys" if "one of the keys" in text else "channels" if "one of the channels" in text else "command"
    except ResponseError:
        return None
    return None


def _settings(server: _Server) -> Iterator[Finding]:
    if server.info is None:
        yield Finding(
            "settings",
            "warning",
            "This user may not run INFO, so persistence, eviction and memory were not checked.",
            "Run the doctor once as a user who may (+info +config|get), such as the administrator.",
        )
        return
    yield from _persistence(server.info, server.config)
    yield from _eviction(server.info)
    yield from _memory(server.info)


def _persistence(info: dict[str, Any], config: dict[str, str] | None) -> Iterator[Finding]:
    if info.get("aof_enabled"):
        fsync = (config or {}).get("appendfsync", "everysec")
        cost = {
            "always": "a crash of Redis loses nothing, and every append waits for the disk",
            "everysec": "a crash of Redis loses a second, which living workers send again",
            "no": "a crash of its computer loses what the system had not written, which living workers send again",
        }[fsync]
        yield Finding("persistence", "ok", f"AOF, fsync {fsync}: {cost}.")
    elif config is not None and config.get("save") == "":
        yield _volatile("There is no persistence", "all")
    else:
        yield _volatile("There is no AOF, and snapshots at most", "what came after the last one")
    for key, what in (("aof_last_write_status", "write to the AOF"), ("rdb_last_bgsave_status", "snapshot")):
        if info.get(key, "ok") != "ok":
            yield Finding(
                "persistence", "problem", f"The last {what} failed.", "Look into Redis's log. Often its disk is full."
            )


def _volatile(kind: str, lost: str) -> Finding:
    return Finding(
        "persistence",
        "warning",
        f"{kind}: a crash of Redis loses {lost}. Living workers send their running turns again. Ended turns cannot be "
        "resumed, and a turn whose worker dies at the same time is lost.",
        "Turn the AOF on (appendonly yes), or live with it: chats are in the database.",
    )


def _eviction(info: dict[str, Any]) -> Iterator[Finding]:
    policy, limit = str(info.get("maxmemory_policy", "noeviction")), int(info.get("maxmemory", 0))
    if policy == "noeviction":
        yield Finding("eviction", "ok", "noeviction: a full Redis refuses new turns and loses none.")
        return
    yield Finding(
        "eviction",
        "problem" if limit else "warning",
        f"{policy}: a full Redis deletes running turns, and the claims that keep a chat to one turn."
        + ("" if limit else " It has no limit (maxmemory 0), so it is never full."),
        "Set maxmemory-policy noeviction. Do not keep turns in a Redis that is also a cache.",
    )


def _memory(info: dict[str, Any]) -> Iterator[Finding]:
    used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    if not limit:
        total = _gib(int(info.get("total_system_memory", 0)))
        yield Finding(
            "memory",
            "warning",
            f"{_gib(used)} of {total} are used, and there is no limit: the system kills a Redis that takes all of it.",
            "Set maxmemory to about three quarters of the memory that Redis may have.",
        )
        return
    text = f"{_gib(used)} of {_gib(limit)} are used."
    if used < limit * _NEARLY_FULL:
        yield Finding("memory", "ok", text)
    else:
        yield Finding(
            "memory",
            "problem" if used >= limit else "warning",
            f"{text} When it is full, new turns get 503.",
            "Raise maxmemory, or keep ended turns for a shorter time.",
        )


def _gib(size: int) -> str:
    return f"{size / _GIB:.2f} GiB"


_CHECKS: Final[Iterable[Callable[[_Server], Iterator[Finding]]]] = (
    _connection,
    _version,
    _role,
    _latency,
    _clock,
    _permissions,
    _settings,
)


def _turn(client: Any, url: str, seconds: float) -> Finding:
    began = time.perf_counter()
    try:
        asyncio.run(_play_turn(url, client, seconds))
    except (StoreAwayError, TimeoutError):
        return Finding(
            "turn",
            "problem",
            "A turn could not be written, read and stopped, though each command is allowed.",
            "Check for a proxy in between that does not support scripts, or publish and subscribe.",
        )
    took = (time.perf_counter() - began) * 1000
    return Finding("turn", "ok", f"One worker wrote a turn, another one read and stopped it, in {took:.0f} ms.")


class _Producer:
    """An agent that waits to be stopped."""

    def __init__(self) -> None:
        self.stopped = asyncio.Event()

    def stop(self, why: StopReason) -> None:
        self.stopped.set()

    def readers_changed(self, count: int | None) -> None: ...

    def fenced(self, *, is_here: bool) -> None: ...


async def _play_turn(url: str, client: Any, seconds: float) -> None:
    """Write a turn as one worker, and read and stop it as another, with keys of our own that the client deletes.

    Raises:
        TimeoutError: It took more than `seconds`.
        StoreAwayError: Redis refused something.
    """
    secret, scope = secrets.token_hex(32), f"doctor {secrets.token_hex(8)}"
    writer, other = (RedisTurnStore(url, secret=secret, scope=scope, keep=seconds) for _ in range(2))
    head = TurnHead(turn=new_turn_id(), chat="doctor", owner="", message_id="doctor")
    producer = _Producer()
    try:
        async with asyncio.timeout(seconds), writer.serve(_end_nothing), other.serve(_end_nothing):
            claim = await writer.claim(head)
            await claim.open(producer, None, ())
            claim.append(_FRAMES[:1])
            reader = await other.follow(head)
            while reader is not None and not reader.take_frame():
                await reader.log.changed()
            stopping = asyncio.create_task(other.stop(head, "stopped", seconds))
            await producer.stopped.wait()
            await claim.seal(_FRAMES[1:], "stopped")
            await claim.release()
            await stopping
    finally:
        keys = writer.keys.of(head)
        client.execute_command("DEL", *keys[:-1], keys.chat + b":t", writer.keys.running, writer.keys.identity)


async def _end_nothing(_claim: Claim, _why: StopReason | None) -> None: ...
