"""How the turns of an agent behave, and the streams in which they are read."""

from collections.abc import Awaitable, Callable
from typing import Literal, TypeAlias, get_args

from msgspec import Struct

from usechat.protocol.clients import CLIENTS, ClientName
from usechat.protocol.messages import UIMessage
from usechat.protocol.values import VALUE_LIMIT
from usechat.stores import Outcome
from usechat.turns.failures import ErrorText

__all__ = ["ChatSettings", "Conflict", "OnEnd", "StreamLimits", "TurnLimits"]

Conflict: TypeAlias = Literal["replace", "queue", "reject"]
OnEnd: TypeAlias = Callable[[Outcome, UIMessage], Awaitable[None]]


class TurnLimits(Struct, frozen=True):
    """How long a turn may take and how much it may say.

    `linger` is what happens when the last reader leaves: 0 stops the turn at once, None lets it run to its end, a
    number waits that many seconds for somebody to come back. `idle` counts seconds without a chunk, except while a tool
    runs, an approval is open, or the agent holds the clock. `log` is the most bytes of a turn. With `ahead`, an agent
    that can wait does so while the furthest reader has more than that many bytes left to read.
    """

    linger: float | None = 30.0
    idle: float | None = 120.0
    total: float | None = 3600.0
    log: int = 16 * 1024 * 1024
    ahead: int | None = None


class ChatSettings(Struct, frozen=True, kw_only=True):
    """How the turns of an endpoint behave.

    `conflict` says what a second message does while a turn runs in its chat: it replaces the turn, waits for it, for
    `queue_seconds` at most, or is rejected. `approval_ttl` is for how many seconds an approval that was asked for can
    be answered. Where nobody signs in, `turns_per_address` is how many turns run at once for one address. `error_text`
    may choose what the user reads of an exception; None is the masked text. `on_end` is awaited once for each turn that
    has ended, with its outcome and its message. With `event_names`, server-sent events have an `event:` line with the
    type of their chunk.

    Raises:
        ValueError: there is no such client, or nothing that `conflict` could mean.
    """

    client: ClientName = "portable"
    conflict: Conflict = "replace"
    queue_seconds: float = 30.0
    turn: TurnLimits = TurnLimits()
    turns_per_user: int = 16
    turns_per_address: int = 64
    turns_per_process: int = 2_000
    threads: int = 64
    value_limit: int = VALUE_LIMIT
    approval_ttl: float = 24 * 3600.0
    error_text: ErrorText | None = None
    on_end: OnEnd | None = None
    event_names: bool = False

    def __post_init__(self) -> None:
        for name, given, known in (("client", self.client, CLIENTS), ("conflict", self.conflict, get_args(Conflict))):
            if given not in known:
                raise ValueError(f"The {name} must be one of {', '.join(known)}, and is {given!r}.")


class StreamLimits(Struct, frozen=True):
    """When to keep a silent stream alive, and when to give up a client that does not read.

    A stream gets a comment after `keep_alive` seconds of silence. The header `x-usechat-keep-alive` has this number:
    `UsechatTransport` takes a connection for dead after twice as long and a second more.
    A client that is more than `behind` bytes late and takes nothing for `patience` seconds is cut off. If its turn ends
    by that, and it reads again within `farewell` seconds, it gets the error.
    """

    keep_alive: float = 2.0
    behind: int = 1024 * 1024
    patience: float = 30.0
    farewell: float = 0.0
