"""How the gateway behaves; the figures are those of the RFC where it has one."""

import os
from typing import Final

from msgspec import Struct

from usechat.integrations.agent_ops.options import AgentOpsOptions, SocketLimits
from usechat.protocol.clients import ClientName
from usechat.turns.settings import ChatSettings, StreamLimits, TurnLimits

__all__ = ["SWITCH", "GatewaySettings"]

SWITCH: Final = "ENABLE_AI_SDK_ADAPTER"
"""The environment variable that switches the gateway on."""


class GatewaySettings(Struct, frozen=True, kw_only=True):
    """How the gateway behaves.

    `enabled` is the switch; None takes it from the environment. `upstream_token` is the gateway's own token for all
    sockets; without it each socket has the token of its user. `idle` counts seconds without a frame, `total` those of a
    turn, `keep_alive` those of a silent stream, and `linger` those after the last reader has left. A client that has
    `behind` bytes left to read and takes none for `patience` seconds is given up, and sooner if all clients together
    have `behind_in_all` left. A second message of a chat waits for `queue_seconds`. `log` is the most bytes of an
    answer. Limits count in each process.
    """

    enabled: bool | None = None
    upstream_token: str | None = None
    options: AgentOpsOptions = AgentOpsOptions()
    client: ClientName = "portable"
    event_names: bool = True
    idle: float = 120.0
    total: float | None = 3600.0
    linger: float | None = 0.0
    keep_alive: float = 15.0
    behind: int = 1024 * 1024
    behind_in_all: int = 32 * 1024 * 1024
    patience: float = 10.0
    queue_seconds: float = 30.0
    turns_per_user: int = 128
    turns_per_process: int = 2_000
    log: int = 16 * 1024 * 1024
    sockets: SocketLimits = SocketLimits()

    @property
    def is_on(self) -> bool:
        return os.environ.get(SWITCH, "").lower() in ("true", "1") if self.enabled is None else self.enabled

    @property
    def chats(self) -> ChatSettings:
        limits = TurnLimits(self.linger, self.idle, self.total, self.log, ahead=self.behind)
        return ChatSettings(
            client=self.client,
            # A prompt that was sent cannot be taken back, so that a newer one waits.
            conflict="queue",
            queue_seconds=self.queue_seconds,
            turn=limits,
            turns_per_user=self.turns_per_user,
            turns_per_process=self.turns_per_process,
            event_names=self.event_names,
        )

    @property
    def stream(self) -> StreamLimits:
        return StreamLimits(self.keep_alive, self.behind, self.patience, farewell=self.patience)
