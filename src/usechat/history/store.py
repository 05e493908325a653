"""What a history is: nine calls, and the view of a chat that one of them gives."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar, runtime_checkable

from msgspec import Struct

from usechat.protocol.messages import Role, UIMessage

__all__ = ["ChatEntry", "HistoryStore", "StoredMessages", "Tail"]

_T = TypeVar("_T")


class Tail(Struct, frozen=True):
    """The end of a chat as somebody saw it: `begin` refuses to write after another one.

    `length` is how many messages there are, at the positions from 0; `turn` is the last turn that wrote the last
    message or began with it, and `written` is when, in seconds since 1970.
    """

    length: int
    turn: str = ""
    written: float = 0.0


class ChatEntry(Struct, frozen=True):
    """A chat in a list: its first words, and when it was begun and last written to by its user, in seconds since 1970.

    `place` is where it stands in the list, for whoever wants those after it.
    """

    id: str
    title: str
    created: float
    updated: float
    place: str


class StoredMessages(Protocol):
    """The messages of one chat, read as far as they are looked at."""

    @property
    def tail(self) -> Tail: ...

    def find(self, message_id: str) -> int | None:
        """The position of the message with this id."""
        ...

    def role(self, position: int) -> Role:
        """Who wrote the message at a position.

        Raises:
            ValueError: There is none.
        """
        ...

    def message(self, position: int) -> UIMessage:
        """Decode the message at a position, and check it as a request's messages are.

        Raises:
            ValueError: There is none, or it is broken.
        """
        ...

    def last_user(self, before: int) -> UIMessage | None:
        """The last message of the user at a position less than `before`.

        Raises:
            ValueError: It is broken.
        """
        ...


@runtime_checkable
class HistoryStore(Protocol):
    """The chats of a server. Each call happens as a whole or not at all, whatever crashes.

    Which turn runs is not kept here, so that no crash leaves a chat that seems to run.
    """

    async def ping(self, within: float) -> None:
        """Find out whether chats can be kept now.

        Raises:
            DatabaseBusyError: There was no answer in so many seconds.
        """
        ...

    async def read(self, chat_id: str, owner: str, look: Callable[[StoredMessages], _T]) -> _T:
        """Look at one state of the chat, perhaps in another thread; a chat that does not exist is empty.

        Raises:
            PermissionError: The chat is somebody else's.
        """
        ...

    async def begin(
        self,
        chat_id: str,
        owner: str,
        turn_id: str,
        *,
        after: Tail,
        keep: int,
        new: Sequence[UIMessage],
        epoch: int,
    ) -> None:
        """Keep the first `keep` messages of the chat, append the new ones, and make the last one the turn's question.

        A chat that is new is created.

        Raises:
            PermissionError: The chat is somebody else's.
            TailChangedError: The chat does not end with `after` any more.
            ValueError: No message is left, more are to be kept than there are, or not each has an id of its own.
        """
        ...

    async def end(self, chat_id: str, turn_id: str, epoch: int, message: UIMessage | None) -> bool:
        """Store the turn's answer, if it has any part, and tell whether it was stored.

        It takes the place of the turn's question if it has its id (a continuation), else the place after it, also when
        a newer turn has added messages there. It is not stored if a newer turn has replaced the question, answers it
        again or brought this answer along itself, nor after an end with a higher epoch. The first answer of a turn is
        the one that stays: to end it again is True and changes nothing.

        Raises:
            ValueError: The message has no id, or is one that a request could not bring.
        """
        ...

    async def has_ended(self, chat_id: str, turn_id: str) -> bool:
        """Whether the answer of the turn is stored, or nothing of the turn is there any more."""
        ...

    async def load(
        self, chat_id: str, owner: str, *, before: str | None = None, limit: int | None = None
    ) -> list[UIMessage]:
        """Give the last `limit` messages that stand before the one with the id `before`; none if that is not there.

        Raises:
            PermissionError: The chat is somebody else's.
            ValueError: A message is broken.
        """
        ...

    async def load_json(
        self, chat_id: str, owner: str, *, before: str | None = None, limit: int | None = None
    ) -> list[tuple[str, bytes]]:
        """Give the same messages as their ids and their JSON, which nobody looked into.

        Raises:
            PermissionError: The chat is somebody else's.
        """
        ...

    async def chats(self, owner: str, *, after: str | None = None, limit: int = 50) -> list[ChatEntry]:
        """Give the owner's chats after this place of the list, in which the one that was written to last is first.

        Raises:
            ValueError: It is not a place of a list.
        """
        ...

    async def delete(self, chat_id: str, owner: str) -> None:
        """Delete the chat with all its messages; one that does not exist is deleted already.

        An answer that ends later is not stored.

        Raises:
            PermissionError: The chat is somebody else's.
        """
        ...
