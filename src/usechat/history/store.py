"""The protocol of histories, and the rules that all of them share."""

import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

import msgspec
from msgspec import Struct

from usechat.errors import RequestError
from usechat.protocol.messages import Role, UIMessage, read_message

__all__ = [
    "IDS_REPEAT",
    "NOT_THE_OWNER",
    "ChatEntry",
    "HistoryStore",
    "StateStore",
    "StoredChat",
    "StoredMessages",
    "Tail",
    "check_answer",
    "check_begin",
    "decode",
    "decode_checked",
    "missing",
    "place_of",
    "read_place",
    "title_of",
]

_T = TypeVar("_T")

NOT_THE_OWNER: Final = "The chat belongs to another user."
IDS_REPEAT: Final = "Each message of a chat must have an id of its own."

_TITLE: Final = 80
_PLACE: Final = re.compile(r"([0-9]{1,12}\.[0-9]{1,20})-([0-9]{1,18})")

_decode = msgspec.json.Decoder(UIMessage).decode


class Tail(Struct, frozen=True):
    """The end of a chat as it was read; `begin` refuses to write if the chat has another one by now.

    `length` is the number of messages, which stand at the positions from 0. `turn` is the last turn that wrote the last
    message or began with it, and `written` is when, in seconds since 1970.
    """

    length: int
    turn: str = ""
    written: float = 0.0


class ChatEntry(Struct, frozen=True):
    """A chat in a list: its first words, and when its user began it and last wrote to it, in seconds since 1970.

    `place` is where it stands in the list; `HistoryStore.chats` gives the chats after a place.
    """

    id: str
    title: str
    created: float
    updated: float
    place: str


class StoredMessages(Protocol):
    """The messages of one chat; each is read when it is asked for."""

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
        """Decode the message at a position, and check it like a message of a request.

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


class StoredChat(StoredMessages, Protocol):
    """The messages of one chat, and the states that its turns left."""

    def state(self, before: int) -> bytes | None:
        """The JSON of the last state that a turn left at a position less than `before`."""
        ...


@runtime_checkable
class HistoryStore(Protocol):
    """The chats of a server. Each call happens as a whole or not at all, whatever crashes.

    A history does not know which turn runs, so that no crash leaves a chat that seems to run. One that also keeps
    `chat.state` is a `StateStore`. With any other one agents read None there, and get an error when they set it.
    """

    async def ping(self, within: float) -> None:
        """Check that chats can be stored now.

        Raises:
            DatabaseBusyError: The database did not respond within this many seconds.
        """
        ...

    async def read(self, chat_id: str, owner: str, look: Callable[[StoredMessages], _T]) -> _T:
        """Call `look` with a snapshot of the chat, perhaps in another thread; a chat that does not exist is empty.

        Raises:
            PermissionError: The chat belongs to another user.
        """
        ...

    async def begin(
        self, chat_id: str, owner: str, turn_id: str, *, after: Tail, keep: int, new: Sequence[UIMessage], epoch: int
    ) -> None:
        """Keep the first `keep` messages of the chat, append the new ones, and make the last one the turn's question.

        A chat that does not exist is created.

        Raises:
            PermissionError: The chat belongs to another user.
            TailChangedError: The chat does not end with `after` any more.
            ValueError: No message would be left, `keep` is more than there are, or two messages share an id.
        """
        ...

    async def end(self, chat_id: str, turn_id: str, epoch: int, message: UIMessage | None) -> bool:
        """Store the turn's answer, if it has any part, and return whether it is stored.

        The answer replaces the turn's question if it has the same id (a continuation). Otherwise it goes after the
        question, also when a newer turn has added messages there. It is not stored if a newer turn has replaced the
        question, answers it again or brought this answer along, nor after an end with a higher epoch. The first answer
        of a turn stays: another end returns True and changes nothing.

        Raises:
            ValueError: The message has no id, or is one that no request could bring.
        """
        ...

    async def has_ended(self, chat_id: str, turn_id: str) -> bool:
        """Whether the answer of the turn is stored, or the chat has nothing of the turn any more."""
        ...

    async def load(self, chat_id: str, owner: str) -> list[UIMessage]:
        """Load all messages.

        Raises:
            PermissionError: The chat belongs to another user.
            ValueError: A message is broken.
        """
        ...

    async def load_json(
        self, chat_id: str, owner: str, *, before: str | None = None, limit: int | None = None
    ) -> list[tuple[str, bytes]]:
        """Load the ids and the JSON of the last `limit` messages before the one with the id `before`, unchecked.

        There are none if the chat lacks that message.

        Raises:
            PermissionError: The chat belongs to another user.
        """
        ...

    async def chats(self, owner: str, *, after: str | None = None, limit: int = 50) -> list[ChatEntry]:
        """List the owner's chats after this place, the last one that its user wrote to first.

        Raises:
            ValueError: `after` is not a place.
        """
        ...

    async def delete(self, chat_id: str, owner: str) -> None:
        """Delete the chat with all its messages, if it exists; an answer that ends later is not stored.

        Raises:
            PermissionError: The chat belongs to another user.
        """
        ...


@runtime_checkable
class StateStore(HistoryStore, Protocol):
    """A history that keeps `chat.state`, which it says by `keeps_state = True`.

    Each state stays with the message that its turn ended with, and goes with it, so that cutting a chat back brings
    back the state of that time. Two rules are for `begin`. An assistant's message that comes first among the new ones
    and has the id of the message that it replaces (a continuation) keeps the state of that one. A user's message that
    is answered again loses its state.
    """

    keeps_state: bool

    async def read(self, chat_id: str, owner: str, look: Callable[[StoredChat], _T]) -> _T: ...

    async def end(
        self, chat_id: str, turn_id: str, epoch: int, message: UIMessage | None, state: bytes | None = None
    ) -> bool:
        """Store the turn's answer, and with it the JSON of the state; None leaves the state as it is.

        The state is stored exactly if the answer is. A turn whose message has no parts leaves its state with its
        question, and True is returned.
        """
        ...


def check_begin(after: Tail, keep: int, new: Sequence[UIMessage]) -> None:
    """Refuse what no turn can begin with.

    Raises:
        ValueError: No message would be left, `keep` is more than there are, or new messages lack an id or share one.
    """
    if keep + len(new) == 0:
        raise ValueError("A turn must begin with a message.")
    if not 0 <= keep <= after.length:
        raise ValueError(f"A chat of {after.length} messages cannot keep {keep}.")
    if len({message.id for message in new if message.id}) < len(new):
        raise ValueError(IDS_REPEAT)


def check_answer(message: UIMessage) -> None:
    """Refuse an answer that could not be read again. Unlike a request, it was not checked before.

    Raises:
        ValueError: The message has no id, or is broken.
    """
    if not message.id:
        raise ValueError("The answer of a turn must have an id.")
    try:
        _read(msgspec.structs.asdict(message))
    except RequestError as error:
        raise ValueError(f"The answer of a turn is broken: {error}") from error


def decode(chat_id: str, position: int, body: str | bytes) -> UIMessage:
    """Decode a message that was checked when it was stored, in a sixth of the time of `decode_checked`.

    Raises:
        ValueError: It is too broken to be shown.
    """
    try:
        message = _decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return decode_checked(chat_id, position, body)
    if all(_has_text(part) for part in message.parts):
        return message
    return decode_checked(chat_id, position, body)


def _has_text(part: dict[str, Any]) -> bool:
    kind = part.get("type")
    return isinstance(part.get("text"), str) if kind == "text" else isinstance(kind, str)


def decode_checked(chat_id: str, position: int, body: str | bytes) -> UIMessage:
    """Decode a message and check it like a message of a request.

    Raises:
        ValueError: It is broken.
    """
    try:
        return _read(msgspec.json.decode(body))
    except (RequestError, msgspec.DecodeError, UnicodeError, RecursionError) as error:
        where = f"The stored message at position {position} of chat {chat_id!a}"
        raise ValueError(f"{where} is broken: {error}") from error


def _read(message: Any) -> UIMessage:
    return read_message(message, "message", max_parts=sys.maxsize)


def missing(chat_id: str, position: int) -> ValueError:
    return ValueError(f"There is no stored message at position {position} of chat {chat_id!a}.")


def title_of(messages: Sequence[UIMessage]) -> str:
    """The first words of the first message, in one line."""
    texts = (part["text"] for part in messages[0].parts if part["type"] == "text") if messages else iter(())
    # More than is shown, since blanks go.
    words = " ".join(next(texts, "")[: 4 * _TITLE].split())
    # A zero-width joiner is not printable, and holds the parts of an emoji together.
    if not words.isprintable():
        words = "".join(char for char in words if char.isprintable() or char == "\u200d")
    return words[:_TITLE].rstrip()


def place_of(updated: float, number: int) -> str:
    """The place of a chat in a list: after all chats that were updated later."""
    return f"{updated!r}-{number}"


def read_place(place: str) -> tuple[float, int]:
    """The arguments of `place_of`.

    Raises:
        ValueError: It is not a place.
    """
    match = _PLACE.fullmatch(place)
    if match is None:
        raise ValueError("This is not a place in a list of chats.")
    return float(match[1]), int(match[2])
