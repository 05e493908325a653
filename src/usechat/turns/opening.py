"""What `Turns` asks of whoever wants a turn, and of where answers are kept."""

from collections.abc import Awaitable, Sequence
from typing import Protocol

from msgspec import Struct

from usechat.protocol.messages import UIMessage
from usechat.protocol.writer import MessageWriter
from usechat.stores import Claim, StopReason, TurnHead, TurnLog
from usechat.turns.turn import Turn

__all__ = ["Answers", "Opening", "Prepared"]


class Prepared(Struct, frozen=True):
    """What a turn begins with; `spends` are the ids of approvals that count once."""

    writer: MessageWriter
    continues: UIMessage | None = None
    spends: Sequence[str] = ()


class Opening(Protocol):
    """Whoever asks for a turn."""

    head: TurnHead
    regenerates: str | None
    """The id of the message that the turn is to write again; "" is the last one of the chat."""
    address: str
    """Where the request comes from, by which turns of nobody in particular are counted."""
    stopped: StopReason | None
    """Why the turn is to be stopped as soon as it has begun."""

    async def check(self, running: TurnHead) -> None:
        """Say whether the turn could begin after the one that runs; nothing is written yet.

        Raises:
            RequestError: it could not, so that the running turn is left alone.
        """
        ...

    def may_replace(self) -> bool:
        """Whether the turn that runs may be ended for this one, where turns replace each other; asked after `check`."""
        ...

    def is_awaited(self) -> bool:
        """Whether the turn that runs waits for this one, and is to end for it however turns make way."""
        ...

    async def prepare(self, claim: Claim) -> Prepared:
        """Store what the turn begins with.

        Raises:
            RequestError: it cannot begin.
        """
        ...

    def opened(self, log: TurnLog) -> None:
        """The turn begins now, and writes this log."""
        ...

    def drive(self, turn: Turn) -> Awaitable[None]:
        """Move the events of the agent to the turn's output."""
        ...


class Answers(Protocol):
    """Where the answers of turns are kept."""

    async def has_ended(self, head: TurnHead) -> bool:
        """Whether the answer of the turn is kept, or was and had to go since, as far as can be told now."""
        ...

    async def end(self, head: TurnHead, epoch: int, message: UIMessage) -> None:
        """Keep the answer; it gives up after a bounded time, and raises nothing."""
        ...
