"""What the store of turns does in a Redis, tried one by one: a user may lack the permission for any of it."""

import secrets
from collections.abc import Mapping
from typing import Any, Final, Literal

from msgspec import Struct
from redis.exceptions import NoPermissionError, ResponseError

__all__ = ["COMMANDS", "PATTERN", "Missing", "find_missing"]

PATTERN: Final = "usechat:*"

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


class Missing(Struct, frozen=True):
    """What a user may not do, but should."""

    commands: tuple[str, ...] = ()
    keys: bool = False
    channels: bool = False

    @property
    def rules(self) -> str:
        """What to add to the user's rules."""
        patterns = [f"{sign}{PATTERN}" for sign, is_missing in (("~", self.keys), ("&", self.channels)) if is_missing]
        return " ".join([*patterns, *(f"+{command}" for command in self.commands)])


def find_missing(client: Any) -> Missing:
    """Try all that the store does; the client is one of redis-py, whose connections are closed afterwards."""
    key = f"{PATTERN.removesuffix('*')}doctor:{{{secrets.token_hex(8)}}}"
    refused = {
        command: _refusal(client, command, *(argument.format(key=key) for argument in arguments))
        for command, arguments in _HARMLESS.items()
    }
    if refused["del"] is None:
        # The one that succeeds. Who cannot undo it has enough to mend.
        refused["sadd"] = _refusal(client, "sadd", key, "a")
        _refusal(client, "del", key)
    # From here on the connection is good for nothing else.
    refused["subscribe"] = _refusal(client, "subscribe", key)
    refused["unsubscribe"] = _refusal(client, "unsubscribe", key)
    client.connection_pool.disconnect()
    commands = (command for command, what in refused.items() if what == "command")
    return Missing(tuple(sorted(commands)), "keys" in refused.values(), "channels" in refused.values())


def _refusal(client: Any, *command: str) -> Literal["command", "keys", "channels"] | None:
    """What of a command the user lacks the permission for; whether it succeeds does not matter."""
    try:
        client.execute_command(*command)
    except NoPermissionError as error:
        text = str(error)
        return "keys" if "one of the keys" in text else "channels" if "one of the channels" in text else "command"
    except ResponseError:
        return None
    return None
