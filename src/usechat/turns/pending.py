"""A request that is about to become a turn."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec
from msgspec import Struct

from usechat.history import Tail
from usechat.ids import new_id, new_turn_id
from usechat.protocol.messages import UIMessage
from usechat.protocol.requests import ChatRequest, Trigger
from usechat.protocol.writer import MessageWriter
from usechat.stores import StopReason, TurnHead
from usechat.turns.chat import Approval, Request, ToolAnswer
from usechat.turns.settings import ChatSettings

__all__ = ["Admission", "Admits", "GivesWay", "PendingTurn", "TurnHistory"]


class Admission(Struct, frozen=True):
    """The messages that a turn begins with: the first `keep` of the chat that ended with `after`, and the `new` ones.

    `question` is the last of them, which the turn answers or continues, and `text` is what the user said last.
    `approval_ids` are the ids of the approvals as the client has them. If the client keeps the chat, `messages` are all
    of it, and `after`, `keep` and `new` mean nothing. `state` is the JSON of `chat.state`; None if nothing keeps it.
    """

    after: Tail
    keep: int
    new: list[UIMessage]
    question: UIMessage
    text: str
    continues: UIMessage | None = None
    tool_results: list[ToolAnswer] = []
    approvals: list[Approval] = []
    approval_ids: list[str] = []
    messages: list[UIMessage] | None = None
    state: bytes | None = None

    @property
    def uses(self) -> Sequence[str]:
        """The ids that may be used once. Where the server keeps the messages, those tell which approvals are open."""
        return () if self.messages is None else self.approval_ids


class PendingTurn:
    """Carries a request from its route to its turn.

    The route sets `head`, `asked`, `request`, `user` and `address`. The history's `admit` gives the `admission`, and
    the agent's the `admitted`; `message`, `approvals` and `state` can be read from then on. A turn whose `stopped` is
    set before it is open is stopped as soon as it is.
    """

    admission: Admission

    def __init__(
        self,
        asked: ChatRequest,
        request: Request,
        user: str | None,
        settings: ChatSettings,
        *,
        chat: str,
        address: str = "",
        new_message_id: Callable[[], str] = new_id,
    ) -> None:
        regenerates = asked.trigger == "regenerate-message"
        continues = asked.last.role == "assistant" and not regenerates
        self.asked = asked
        self.request = request
        self.user = user
        self.head = TurnHead(
            turn=new_turn_id(),
            chat=chat,
            owner=user or "",
            message_id=asked.last.id if continues else new_message_id(),
            client=settings.client,
            event_names=settings.event_names,
        )
        # The client's address, by which turns are counted if no user is signed in.
        self.address = address
        self.arrived = time.monotonic()
        # The id of the message to write again; "" means the last one of the chat.
        self.regenerates = (asked.message_id or "") if regenerates else None
        # The id of an answer that is not stored yet, but counts as the last message of the chat.
        self.writing: str | None = None
        self.admitted: Any = None
        self.stopped: StopReason | None = None

    @property
    def chat_id(self) -> str:
        return self.asked.id

    @property
    def trigger(self) -> Trigger:
        return self.asked.trigger

    @property
    def message(self) -> UIMessage:
        """The message to answer or to continue."""
        return self.admission.question

    @property
    def approvals(self) -> list[Approval]:
        return self.admission.approvals

    @property
    def state(self) -> Any:
        """What `chat.state` will be."""
        return None if self.admission.state is None else msgspec.json.decode(self.admission.state)

    @property
    def edits(self) -> bool:
        """Whether it replaces messages of the chat, so that the rest of their answer is of no use."""
        return self.asked.message_id is not None or self.admission.keep < self.admission.after.length


@runtime_checkable
class Admits(Protocol):
    """An agent that checks a request before its turn begins."""

    async def admit(self, pending: PendingTurn) -> Any:
        """Check whether the turn may begin, before anything is written. What it returns is `chat.admitted`.

        Raises:
            RequestError: The turn may not begin. Nothing changes: an approval can be answered again.
        """
        ...


@runtime_checkable
class GivesWay(Protocol):
    """An agent that decides whether a newer message ends the turn that runs; for other agents it always does."""

    def gives_way(self, chat_id: str, user: str | None) -> bool: ...

    def awaits_message(self, chat_id: str, user: str | None) -> bool:
        """Whether the turn that runs waits for a message, which then ends it in any case."""
        ...


class TurnHistory(Protocol):
    """What a turn asks of the history of its chat."""

    async def admit(self, pending: PendingTurn) -> Admission:
        """Find out which messages the turn would begin with, before anything is written.

        Raises:
            RequestError: The chat belongs to another user, or the request claims what is not true.
        """
        ...

    async def begin(self, pending: PendingTurn, epoch: int) -> None:
        """Store what the turn begins with.

        Raises:
            RequestError: The chat belongs to another user by now.
            TailChangedError: Another process has written to the chat since the admission.
        """
        ...

    def writer(self, head: TurnHead, continues: UIMessage | None, value_limit: int) -> MessageWriter:
        """Make the writer of the turn's message."""
        ...

    async def load(self, head: TurnHead) -> list[UIMessage]:
        """All messages of the turn's chat."""
        ...

    async def has_ended(self, head: TurnHead) -> bool:
        """Whether the answer of the turn is stored, or was and is gone; False if the history does not respond."""
        ...

    async def end(self, head: TurnHead, epoch: int, message: UIMessage, state: bytes | None) -> None:
        """Store the answer, and the JSON of `chat.state` if that has changed. It returns in bounded time."""
        ...
