"""What may be stored as a message, and how it is read again."""

import re
import sys
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from usechat.errors import RequestError
from usechat.history.store import Tail
from usechat.protocol.messages import UIMessage, read_message

__all__ = [
    "IDS_REPEAT",
    "SOMEBODY_ELSES",
    "check_answer",
    "check_begin",
    "decode",
    "decode_checked",
    "missing",
    "place_of",
    "read_place",
    "title_of",
]

SOMEBODY_ELSES: Final = "The chat belongs to somebody else."
IDS_REPEAT: Final = "Each message of a chat must have an id of its own."

_TITLE: Final = 80
_PLACE: Final = re.compile(r"([0-9]{1,12}\.[0-9]{1,20})-([0-9]{1,18})")

_decode = msgspec.json.Decoder(UIMessage).decode


def check_begin(after: Tail, keep: int, new: Sequence[UIMessage]) -> None:
    """Refuse what no turn can begin with.

    Raises:
        ValueError: No message is left, more are to be kept than there are, or not each new one has an id of its own.
    """
    if keep + len(new) == 0:
        raise ValueError("A turn must begin with a message.")
    if not 0 <= keep <= after.length:
        raise ValueError(f"A chat of {after.length} messages cannot keep {keep}.")
    if len({message.id for message in new if message.id}) < len(new):
        raise ValueError(IDS_REPEAT)


def check_answer(message: UIMessage) -> None:
    """Refuse an answer that could not be read again: what an agent wrote was never checked as a request is.

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
    """Decode a message that was checked when it was stored, at a sixth of the price of checking all of it again.

    Raises:
        ValueError: It is broken so that its text could not be read.
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
    """Decode a message and check it as a request's messages are.

    Raises:
        ValueError: It is broken.
    """
    try:
        return _read(msgspec.json.decode(body))
    except (RequestError, msgspec.DecodeError, UnicodeError, RecursionError) as error:
        where = f"The stored message at position {position} of chat {chat_id!a}"
        raise ValueError(f"{where} is broken: {error}") from error


def missing(chat_id: str, position: int) -> ValueError:
    return ValueError(f"There is no stored message at position {position} of chat {chat_id!a}.")


def title_of(messages: Sequence[UIMessage]) -> str:
    """The first words of the first message, in one line."""
    texts = (part["text"] for part in messages[0].parts if part["type"] == "text") if messages else iter(())
    # More than is shown, since blanks go.
    words = " ".join(next(texts, "")[: 4 * _TITLE].split())
    # What joins the parts of an emoji is not printable, and belongs to them.
    if not words.isprintable():
        words = "".join(char for char in words if char.isprintable() or char == "\u200d")
    return words[:_TITLE].rstrip()


def place_of(updated: float, number: int) -> str:
    """Where a chat stands in a list: after those that were written to later."""
    return f"{updated!r}-{number}"


def read_place(place: str) -> tuple[float, int]:
    """What `place_of` was given.

    Raises:
        ValueError: It is not a place.
    """
    match = _PLACE.fullmatch(place)
    if match is None:
        raise ValueError("This is not a place in a list of chats.")
    return float(match[1]), int(match[2])


def _read(message: Any) -> UIMessage:
    return read_message(message, "message", max_parts=sys.maxsize)
