"""The contract of turn stores: who may write the log of a turn, who reads it, and how anybody stops it.

A turn is *claimed*, then *open*, then *sealed*, then *released*. From its claim to its release it has its chat: no
other turn may be claimed there. Its owner is the process that holds the claim. Another process may take the turn over;
then the claim of the old owner is *fenced*, and nothing that it does counts any more. Each owner of a chat has a higher
`epoch` than the owners before it.

`Claim.append` may be called from any thread, by one thread at a time. Everything else belongs to the event loop.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

from msgspec import Struct

from usechat.errors import RequestError, UsechatError
from usechat.protocol.clients import ClientName
from usechat.protocol.messages import UIMessage
from usechat.stores.log import Outcome, Reader, TurnLog

__all__ = [
    "Claim",
    "FencedError",
    "Found",
    "IdUsedError",
    "Lost",
    "Meter",
    "Metered",
    "Outcome",
    "Producer",
    "Reader",
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
    """What every process can see of a turn.

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


class Found(NamedTuple):
    """Two turns of a chat, as one look saw them; they may be the same."""

    named: TurnHead | None
    """The turn with the id or mark, also one that has ended, as long as its log is kept."""
    live: TurnHead | None
    """The turn that has the chat, from its claim until it is released."""


class FencedError(UsechatError):
    """The claim is no longer this process's."""


class IdUsedError(UsechatError):
    """An id that counts once was used before."""


class StoreAwayError(RequestError):
    """The store does not answer, or has no room; the same call may succeed later. Any call of a store may raise it."""

    def __init__(self) -> None:
        super().__init__("The server is busy. Try again in a moment.", status=503, retry_after=5)


class Producer(Protocol):
    """A turn, as its store sees it; the store calls all of it in the event loop."""

    def stop(self, why: StopReason) -> None:
        """End the turn."""
        ...

    def readers_changed(self, count: int | None) -> None:
        """`count` readers follow the turn, on all machines; None if the store does not know."""
        ...

    def fenced(self, *, is_here: bool) -> None:
        """Another owner has taken the turn over: in this process if `is_here`. Nothing written from now on counts."""
        ...


class Claim(Protocol):
    """The right to write the one turn of a chat; it may be released from any state."""

    head: TurnHead
    epoch: int
    log: TurnLog

    @property
    def sealed(self) -> tuple[Sequence[bytes], Outcome] | None:
        """What `seal` has kept, also if an owner before this one called it."""
        ...

    async def open(self, producer: Producer, continues: UIMessage | None, uses: Sequence[str]) -> None:
        """Let the turn begin, and pass on a stop that came before. To open it again changes nothing.

        `continues` is the message that the turn goes on with. `uses` are ids that all turns of the chat may use once.

        Raises:
            FencedError: another owner has taken the chat meanwhile.
            IdUsedError: one of the ids was used before; nothing has changed.
        """
        ...

    def append(self, frames: Sequence[bytes]) -> None:
        """Add frames to the log, from any thread but one at a time; it never waits.

        A claim that is sealed or fenced adds nothing.
        """
        ...

    async def drain(self) -> None:
        """Wait until less is appended and not stored yet than the store allows."""
        ...

    async def seal(self, last: Sequence[bytes], outcome: Outcome) -> bool:
        """Keep the end of the turn, which nobody reads yet; False if it is fenced. The first end counts.

        To seal it again changes nothing, and is True if this owner may release it.
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
        """Take the chat for a turn. To claim the same turn again, before it is open, gives the same claim.

        Raises:
            TurnRunningError: another turn has it.
        """
        ...

    def local(self, chat: str) -> TurnHead | None:
        """The turn that this process writes in the chat; another owner may have taken it over a moment ago."""
        ...

    async def live(self, chat: str) -> TurnHead | None:
        """The turn that has the chat, from its claim until it is released."""
        ...

    async def find(self, chat: str, mark: str) -> Found:
        """The turn with this id or mark, and the live one, in one look; no turn has the mark ""."""
        ...

    async def follow(self, head: TurnHead) -> Reader | None:
        """A reader from the beginning, as soon as the turn is open; None if it is gone."""
        ...

    async def stop(self, head: TurnHead, why: StopReason, within: float) -> None:
        """Stop the turn, wherever it runs, and wait until it is released; after `within` seconds take it over.

        Each owner has `within` seconds, also one that took the turn over while this waited. The caller may be
        cancelled; a turn that is taken over ends all the same.
        """
        ...

    async def forget(self, chat: str) -> None:
        """Drop the logs of the turns that have ended in the chat."""
        ...

    async def wait_opened(self, head: TurnHead, within: float) -> bool:
        """Wait until the turn is open or released; False if it is neither after `within` seconds."""
        ...

    async def are_used(self, chat: str, ids: Sequence[str]) -> bool:
        """Whether one of the ids was used by a turn of the chat."""
        ...

    async def wait_released(self, head: TurnHead) -> None:
        """Wait until the turn has left its chat."""
        ...

    async def ping(self) -> bool:
        """Whether turns can be claimed now."""
        ...

    def serve(self, lost: Lost) -> AbstractAsyncContextManager[None]:
        """Let the store work; `lost` ends the turns whose owners are gone."""
        ...


class Meter(Protocol):
    """What is counted of a store that other machines share."""

    def appended(self, seconds: float) -> None:
        """The store had what a turn wrote `seconds` after it was written."""
        ...

    def store_failed(self) -> None:
        """The store did not answer, or with an error."""
        ...

    def lagged(self, chunks: int) -> None:
        """The mirror of a turn that another process writes was `chunks` chunks behind."""
        ...

    def turn_orphaned(self) -> None:
        """This process ends a turn whose owner is gone."""
        ...


@runtime_checkable
class Metered(Protocol):
    """A store that is counted."""

    meter: Meter
