"""What runs: each file drives one kind of agent and hands on its events."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from msgspec import Struct

from usechat.agents.chat import Approval, Chat
from usechat.protocol.messages import UIMessage
from usechat.protocol.requests import Trigger
from usechat.protocol.writer import MessageWriter
from usechat.sources import Mapper
from usechat.turns.pump import Events, Unused

__all__ = ["Admits", "Agent", "Asked", "CountsUnused", "ForgetsChats", "GivesWay", "StopsChats"]

_Event = TypeVar("_Event")


class Agent(Protocol[_Event]):
    """A driver, which may wait, and a mapper, which may not; the pump joins them.

    An agent may also have `async aclose(grace)`, which ends what outlives a turn.
    """

    def events(self, chat: Chat) -> Events[_Event]:
        """Drive the agent for one turn, and clean up when the iterator is closed; a sync iterator gets a thread."""
        ...

    def mapper(self, writer: MessageWriter) -> Mapper[_Event]:
        """Make the mapper of one turn."""
        ...


class Asked(Struct, frozen=True):
    """What a turn is to be about, before it begins; `message` is the one to answer or to continue.

    `context` is that of the request.
    """

    chat_id: str
    user: str | None
    message: UIMessage
    body: Mapping[str, Any]
    approvals: Sequence[Approval] = ()
    trigger: Trigger = "submit-message"
    context: Any = None


@runtime_checkable
class Admits(Protocol):
    """An agent that looks at a request before its turn begins."""

    async def admit(self, asked: Asked) -> None:
        """Say whether the turn may begin; nothing is written yet.

        Raises:
            RequestError: it may not, and everything is left as it was: an approval can be answered again.
        """
        ...


@runtime_checkable
class CountsUnused(Protocol):
    """An agent or a runtime in which events of others are mapped; whoever runs it may set a counter of its own."""

    unused: Unused


@runtime_checkable
class GivesWay(Protocol):
    """An agent whose turns end for a newer message of their chat only when it says so; those of others always do."""

    def gives_way(self, chat_id: str, user: str | None) -> bool: ...

    def awaits_message(self, chat_id: str, user: str | None) -> bool:
        """Whether the turn that runs waits for a newer message, so that this is to come through in any case."""
        ...


@runtime_checkable
class ForgetsChats(Protocol):
    """An agent that keeps something of a chat, which goes when the chat is deleted."""

    async def forget(self, chat_id: str, user: str | None) -> None: ...


@runtime_checkable
class StopsChats(Protocol):
    """An agent that has something to stop in a chat between its turns."""

    async def stop(self, chat_id: str, user: str | None) -> None: ...
