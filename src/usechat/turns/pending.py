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
    """What of a request is believed: of the chat that ended with `after`, the first `keep` messages, then the new.

    `question` is the last message after that, the one to answer or to continue, and `text` what the user said last.
    `approval_ids` are those of the approvals as the client has them. `messages` are all, if it is the client that keeps
    them; what was kept and is new is then of no use. `state` is the JSON of `chat.state`, and None if nothing keeps it.
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
        """The ids that may be used once: where the server keeps the messages, they say which approvals are open."""
        return () if self.messages is None else self.approval_ids


class PendingTurn:
    """Carries a request from its route to its turn, with what is found out about it on the way.

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
        # Where the request comes from, by which turns are counted if nobody signs in.
        self.address = address
        self.arrived = time.monotonic()
        # The id of the message that is to be written again; "" is the last one of the chat.
        self.regenerates = (asked.message_id or "") if regenerates else None
        # The id of the answer that counts as the last message of the chat although it is not stored.
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
        """Whether it changes a message that the chat has, so that nobody wants the rest of that one's answer."""
        return self.asked.message_id is not None or self.admission.keep < self.admission.after.length


@runtime_checkable
class Admits(Protocol):
    """An agent that looks at a request before its turn begins."""

    async def admit(self, pending: PendingTurn) -> Any:
        """Say whether the turn may begin; nothing is written yet. What it returns is `chat.admitted` in the turn.

        Raises:
            RequestError: it may not, and everything is left as it was: an approval can be answered again.
        """
        ...


@runtime_checkable
class GivesWay(Protocol):
    """An agent whose turns end for a newer message of their chat only when it says so; those of others always do."""

    def gives_way(self, chat_id: str, user: str | None) -> bool: ...

    def awaits_message(self, chat_id: str, user: str | None) -> bool:
        """Whether the turn that runs waits for a newer message, so that this is to come through in any case."""
        ...


class TurnHistory(Protocol):
    """What a turn asks of the history of its chat."""

    async def admit(self, pending: PendingTurn) -> Admission:
        """Say with which messages the turn would begin; nothing is written yet.

        Raises:
            RequestError: The chat is somebody else's, or the request claims what is not true.
        """
        ...

    async def begin(self, pending: PendingTurn, epoch: int) -> None:
        """Store what the turn begins with.

        Raises:
            RequestError: The chat has become somebody else's.
            TailChangedError: Somebody has written to the chat since the admission.
        """
        ...

    def writer(self, head: TurnHead, continues: UIMessage | None, value_limit: int) -> MessageWriter:
        """Make the writer of the turn's message."""
        ...

    async def load(self, head: TurnHead) -> list[UIMessage]:
        """All messages of the turn's chat."""
        ...

    async def has_ended(self, head: TurnHead) -> bool:
        """Whether the answer of the turn is kept, or was and had to go since, as far as can be told now."""
        ...

    async def end(self, head: TurnHead, epoch: int, message: UIMessage, state: bytes | None) -> None:
        """Keep the answer, and `state`, the JSON of `chat.state`, unless it is None: it has not changed then.

        It gives up after a bounded time, and raises nothing.
        """
        ...
