"""How the turns of an endpoint behave."""

from typing import get_args

from msgspec import Struct

from usechat.protocol.clients import CLIENTS, ClientName
from usechat.protocol.values import VALUE_LIMIT
from usechat.turns.clocks import TurnLimits
from usechat.turns.failures import ErrorText
from usechat.turns.turn import OnEnd
from usechat.turns.turns import Conflict, TurnSettings

__all__ = ["ChatSettings", "Conflict", "ErrorText", "OnEnd"]


class ChatSettings(Struct, frozen=True, kw_only=True):
    """How the turns of an endpoint behave.

    `conflict` says what a second message does while a turn runs in its chat: it replaces the turn, waits for it, for
    `queue_seconds` at most, or is rejected. `approval_ttl` is for how many seconds an approval that was asked for can
    be answered. Where nobody signs in, `turns_per_address` is how many turns run at once for one address. `error_text`
    may choose what the user reads of an exception; None is the masked text. With `event_names`, server-sent events have
    an `event:` line with the type of their chunk.

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

    @property
    def turns(self) -> TurnSettings:
        return TurnSettings(
            limits=self.turn,
            conflict=self.conflict,
            per_owner=self.turns_per_user,
            per_address=self.turns_per_address,
            per_process=self.turns_per_process,
            queue_seconds=self.queue_seconds,
        )
