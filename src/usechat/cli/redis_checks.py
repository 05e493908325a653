"""What `usechat doctor` looks at: whether a Redis can keep turns, and what its settings would cost."""

import asyncio
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct
from redis.exceptions import NoPermissionError, RedisError, ResponseError

from usechat.cli.redis_address import Address
from usechat.cli.redis_permissions import COMMANDS, PATTERN, Missing, find_missing
from usechat.cli.redis_trial import play_turn
from usechat.stores import StoreAwayError

__all__ = ["Finding", "Level", "examine"]

Level: TypeAlias = Literal["ok", "warning", "problem"]

_TRIPS: Final = 20
_SLOW: Final = 0.010
_CLOCK: Final = 1.0
_OLDEST: Final = {"redis": (7, 0), "valkey": (7, 2)}
_NEARLY_FULL: Final = 0.8
_GIB: Final = 1024**3


class Finding(Struct, frozen=True, omit_defaults=True):
    """What a check found, and what to do about it."""

    check: str
    level: Level
    text: str
    remedy: str = ""


class Server(Struct, frozen=True):
    """A Redis that answers, and what it says of itself; for `info` and `config` its user needs a permission each.

    The client is one of redis-py, whose methods are typed only in part.
    """

    address: Address
    client: Any
    hello: dict[str, Any]
    info: dict[str, Any] | None
    config: dict[str, str] | None


def examine(url: str, seconds: float = 5.0) -> list[Finding]:
    """Look at the Redis of a URL; what is found has no password in it.

    To connect and each answer may take so many seconds, and the first that takes longer is the last.

    Raises:
        ValueError: It is no URL of a Redis.
    """
    address = Address(url, seconds)
    findings: list[Finding] = []
    with address.connect() as client:
        try:
            server = _meet(address, client)
            for check in _CHECKS:
                findings += check(server)
            if all(finding.level != "problem" for finding in findings):
                findings.append(_turn(server, url, seconds))
        except RedisError as error:
            findings.append(Finding("connection", "problem", *address.explain(error)))
    return findings


def _meet(address: Address, client: Any) -> Server:
    return Server(
        address=address,
        client=client,
        hello=_hello(client),
        info=_allowed(client.info),
        config=_allowed(lambda: {**client.config_get("appendfsync"), **client.config_get("save")}),
    )


def _hello(client: Any) -> dict[str, Any]:
    """The answer to what every user may ask; Redis knows it since version 6."""
    try:
        told: list[Any] = client.execute_command("HELLO")
    except NoPermissionError:
        # Every user may ask it, so that the choice of a database was refused, which comes before.
        raise
    except ResponseError:
        return {}
    return dict(zip(told[::2], told[1::2], strict=True))


def _allowed(ask: Callable[[], Any]) -> Any:
    """The answer, or None if this user may not ask or this server does not know the question."""
    try:
        return ask()
    except ResponseError:
        return None


def _connection(server: Server) -> Iterator[Finding]:
    address = server.address
    yield Finding("connection", "ok", f"{address} answers.")
    if address.trusts_any:
        yield Finding(
            "tls",
            "warning",
            "The connection is encrypted, but whoever answers is believed.",
            "Take ssl_cert_reqs=none out of the URL, and name the certificate with ssl_ca_certs if need be.",
        )
    elif address.local or address.encrypted:
        how = "is encrypted" if address.encrypted else "stays on this computer"
        yield Finding("tls", "ok", f"The connection {how}.")
    else:
        yield Finding(
            "tls",
            "warning",
            "The connection is not encrypted: on the way the password and the chats can be read.",
            "Use rediss://, unless nobody else is on this network.",
        )
    if not address.local and not address.has_password:
        yield Finding(
            "password",
            "problem",
            "Whoever reaches this Redis may read and change every chat: it asks for no password.",
            "Make a user with a password and the store's permissions, as docs/guides/deploy.md says.",
        )


def _version(server: Server) -> Iterator[Finding]:
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


def _role(server: Server) -> Iterator[Finding]:
    role = str(server.hello.get("role", (server.info or {}).get("role", "master")))
    mode = str(server.hello.get("mode", "standalone"))
    if mode == "sentinel":
        yield Finding("role", "problem", "This is a Sentinel, which keeps no keys.", "Give the URL of the primary.")
    elif mode == "cluster":
        yield Finding(
            "role",
            "problem",
            "This is a node of a cluster, and the store speaks to one Redis.",
            "Use one that is no cluster; docs/guides/deploy.md says what comes after that.",
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


def _latency(server: Server) -> Iterator[Finding]:
    times: list[float] = []
    for _ in range(_TRIPS):
        began = time.perf_counter()
        _hello(server.client)
        times.append(time.perf_counter() - began)
    median, worst = statistics.median(times) * 1000, max(times) * 1000
    text = f"A round trip takes {median:.2f} ms, at worst {worst:.2f} ms of {_TRIPS}."
    if median / 1000 < _SLOW:
        yield Finding("latency", "ok", text)
    else:
        yield Finding(
            "latency",
            "warning",
            f"{text} Other workers' readers and a stop from another worker wait for it.",
            "Run Redis in the same data centre as the workers.",
        )


def _clock(server: Server) -> Iterator[Finding]:
    before = time.time()
    told = _allowed(server.client.time)
    after = time.time()
    if told is None:
        yield Finding(
            "clock", "warning", "This user may not ask for Redis's time (TIME), so the clocks were not compared."
        )
        return
    seconds, micros = told
    ahead = seconds + micros / 1e6 - (before + after) / 2
    if abs(ahead) - (after - before) / 2 < _CLOCK:
        yield Finding("clock", "ok", f"Its clock and this computer's differ by {abs(ahead):.3f} s.")
        return
    direction = "ahead of" if ahead > 0 else "behind"
    yield Finding(
        "clock",
        "warning",
        f"Its clock is {abs(ahead):.1f} s {direction} this computer's.",
        "Let NTP set both: turns are ordered by Redis's clock, also when another Redis takes its place.",
    )


def _permissions(server: Server) -> Iterator[Finding]:
    missing = find_missing(server.client)
    if missing == Missing():
        text = f"This user may do all that the store does: {len(COMMANDS)} commands on {PATTERN}."
        yield Finding("permissions", "ok", text)
        return
    patterns = [word for word, lacks in (("keys", missing.keys), ("channels", missing.channels)) if lacks]
    parts = [f"run {', '.join(command.upper() for command in missing.commands)}"] if missing.commands else []
    parts += [f"use the {' and '.join(patterns)} {PATTERN}"] if patterns else []
    yield Finding(
        "permissions",
        "problem",
        f"This user may not {', and not '.join(parts)}.",
        f"As an administrator: ACL SETUSER {server.address.user} {missing.rules}",
    )


def _settings(server: Server) -> Iterator[Finding]:
    if server.info is None:
        yield Finding(
            "settings",
            "warning",
            "This user may not run INFO, so persistence, eviction and memory were not looked at.",
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
                "persistence", "problem", f"The last {what} failed.", "Look into Redis's log; often its disk is full."
            )


def _volatile(kind: str, lost: str) -> Finding:
    return Finding(
        "persistence",
        "warning",
        f"{kind}: a crash of Redis loses {lost}. Living workers send their running turns again; ended ones cannot be "
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
        f"{policy}: a full Redis deletes turns that run, and the claims that keep a chat to one turn."
        + ("" if limit else " It has no limit (maxmemory 0), so it is never full."),
        "Set maxmemory-policy noeviction; a Redis that is a cache as well is none for turns.",
    )


def _memory(info: dict[str, Any]) -> Iterator[Finding]:
    used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    if not limit:
        total = int(info.get("total_system_memory", 0))
        yield Finding(
            "memory",
            "warning",
            f"{_gib(used)} are used of {_gib(total)}, and there is no limit: the system kills a Redis that takes all.",
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


def _turn(server: Server, url: str, seconds: float) -> Finding:
    began = time.perf_counter()
    try:
        asyncio.run(play_turn(url, server.client, seconds))
    except (StoreAwayError, TimeoutError):
        return Finding(
            "turn",
            "problem",
            "A turn could not be written, read and stopped, though each command is allowed.",
            "Look whether a proxy is in between that knows no scripts or no publish and subscribe.",
        )
    took = (time.perf_counter() - began) * 1000
    return Finding("turn", "ok", f"One worker wrote a turn, another one read and stopped it, in {took:.0f} ms.")


def _gib(size: int) -> str:
    return f"{size / _GIB:.2f} GiB"


_CHECKS: Final[Iterable[Callable[[Server], Iterator[Finding]]]] = (
    _connection,
    _version,
    _role,
    _latency,
    _clock,
    _permissions,
    _settings,
)
