"""Where the logs of turns are kept: who may write one, who reads it, and how it is stopped from anywhere."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from msgspec import Struct

from usechat.errors import RequestError, UsechatError
from usechat.protocol.clients import ClientName
from usechat.protocol.messages import UIMessage
from usechat.stores.log import Outcome, Reader, TurnLog

__all__ = [
    "Claim",
    "FencedError",
    "Lost",
    "Meter",
    "Metered",
    "Outcome",
    "Producer",
    "Reader",
    "SpentError",
    "StopReason",
    "StoreAwayError",
    "TurnHead",
    "TurnLog",
    "TurnRunningError",
    "TurnStore",
]

StopReason: TypeAlias = Literal["stopped", "replaced", "left", "shutdown"]
"""Why a turn was stopped: somebody asked, a newer turn takes its place, nobody reads it, or the server ends."""


class TurnHead(Struct, frozen=True):
    """What is known of a turn by everybody who looks at its chat.

    `chat` is a key that no other chat of the store has. `message_id` is the id of the message that the turn writes.
    With `event_names` its frames have an `event:`.
    """

    turn: str
    chat: str
    owner: str
    message_id: str
    client: ClientName = "portable"
    event_names: bool = False


class TurnRunningError(UsechatError):
    """Another turn has the chat: `head`.

    If it `is_claimed`, it is not open yet; if it `is_sealed`, it has said all and is only being stored.
    """

    def __init__(self, head: TurnHead, *, is_claimed: bool = False, is_sealed: bool = False) -> None:
        super().__init__("Another turn runs in this chat.")
        self.head = head
        self.is_claimed = is_claimed
        self.is_sealed = is_sealed


class FencedError(UsechatError):
    """The claim is no longer this process's."""


class SpentError(UsechatError):
    """An id that counts once was used before."""


class StoreAwayError(RequestError):
    """The store does not answer, or has no room; the same call may succeed later. Any call of a store may raise it."""

    def __init__(self) -> None:
        super().__init__("The server is busy. Try again in a moment.", status=503, retry_after=5)


class Producer(Protocol):
    """A turn, as its store sees it. The store calls it in the event loop."""

    def stop(self, why: StopReason) -> None:
        """End the turn."""
        ...

    def readers_changed(self, count: int | None) -> None:
        """So many readers follow the turn, on all machines; None if nobody knows."""
        ...

    def fenced(self, *, is_here: bool) -> None:
        """Another owner, of this process or not, has taken the turn over: nothing written from now on counts."""
        ...


class Claim(Protocol):
    """The right to write the one turn of a chat.

    It is *claimed*, then *open*, then *sealed*, then *released*. It may be released from any of these states, and is
    *fenced* when another owner took the turn over. All but `append` belong to the event loop.
    """

    head: TurnHead
    epoch: int
    log: TurnLog

    @property
    def sealed(self) -> tuple[Sequence[bytes], Outcome] | None:
        """What `seal` was given, also by an owner before this one."""
        ...

    async def open(self, producer: Producer, continues: UIMessage | None, spends: Sequence[str]) -> None:
        """Let the turn begin; a stop that came before is handed on now. To open it again changes nothing.

        `continues` is the message that the turn goes on with. `spends` are ids that may be used once by all turns of
        the chat.

        Raises:
            FencedError: somebody else has taken the chat meanwhile.
            SpentError: one of the ids was used before; nothing has changed.
        """
        ...

    def append(self, frames: Sequence[bytes]) -> None:
        """Add frames to the log, from any thread but one at a time; it never waits.

        A claim that is sealed or fenced adds nothing.
        """
        ...

    async def room(self) -> None:
        """Wait until what was appended and is not stored yet is below its bound."""
        ...

    async def seal(self, last: Sequence[bytes], outcome: Outcome) -> bool:
        """Keep the end of the turn, which nobody reads yet; False if it is fenced. The first end counts.

        To seal it again changes nothing, and is True for whoever may release it.
        """
        ...

    async def release(self) -> bool:
        """In one step: let the last frames be read, close the log and free the chat; False if it is fenced.

        A turn that was not opened leaves no trace, and one that was opened must be sealed. To release it again changes
        nothing.
        """
        ...

    def reader(self) -> Reader:
        """A reader from the beginning, which counts at once."""
        ...


Lost: TypeAlias = Callable[[Claim, StopReason | None], Awaitable[None]]
"""Ends a turn whose owner is gone; the reason is None if nobody had stopped it."""


@runtime_checkable
class TurnStore(Protocol):
    """The turns of all chats, each of which has one at most."""

    async def claim(self, head: TurnHead) -> Claim:
        """Take the chat for a turn; who claims the same turn again, before it is open, has the same claim.

        Raises:
            TurnRunningError: another turn has it.
        """
        ...

    async def live(self, chat: str) -> TurnHead | None:
        """The turn that has the chat, from its claim until it is released."""
        ...

    async def find(self, chat: str, mark: str) -> TurnHead | None:
        """The turn with this id or mark, also one that has ended, as long as its log is kept."""
        ...

    async def follow(self, head: TurnHead) -> Reader | None:
        """A reader from the beginning, as soon as the turn is open; None if it is gone."""
        ...

    async def stop(self, head: TurnHead, why: StopReason, within: float) -> None:
        """Stop the turn, wherever it runs, and wait until it is released; after `within` seconds it is taken over.

        Each owner has `within` seconds, also one that took the turn over while this waited. Whoever waits may be
        cancelled; a turn that is taken over is ended all the same.
        """
        ...

    async def forget(self, chat: str) -> None:
        """Drop the logs of the turns that have ended in the chat."""
        ...

    async def opened(self, head: TurnHead, within: float) -> bool:
        """Wait until the turn is open, or has left its chat; False if it is neither in so many seconds."""
        ...

    async def are_spent(self, chat: str, ids: Sequence[str]) -> bool:
        """Whether one of the ids was used by a turn of the chat."""
        ...

    async def freed(self, head: TurnHead) -> None:
        """Wait until the turn has left its chat."""
        ...

    async def answers(self) -> bool:
        """Whether turns can be claimed now."""
        ...

    def serve(self, lost: Lost) -> AbstractAsyncContextManager[None]:
        """Let the store work; `lost` ends the turns whose owners are gone."""
        ...


class Meter(Protocol):
    """What is counted of a store that other machines share."""

    def appended(self, seconds: float) -> None:
        """What a turn said was in the store so many seconds after it was said."""
        ...

    def store_failed(self) -> None:
        """The store did not answer, or with an error."""
        ...

    def lagged(self, chunks: int) -> None:
        """The copy of a turn that another process writes was so many chunks behind."""
        ...

    def turn_orphaned(self) -> None:
        """A turn whose owner is gone is ended here."""
        ...


@runtime_checkable
class Metered(Protocol):
    """A store that is counted."""

    meter: Meter
