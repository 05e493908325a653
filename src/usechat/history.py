"""The messages of each chat, and who owns it."""

import sys
import time
from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    DateTime,
    Float,
    ForeignKey,
    Integer,
    Row,
    Select,
    Table,
    Text,
    UniqueConstraint,
    bindparam,
    delete,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from usechat.database import Database, metadata
from usechat.errors import RequestError
from usechat.protocol.messages import UIMessage, read_message

__all__ = ["History", "StoredChat"]

# The names must not meet those of an app that shares its database. Messages hang on a number, because an index of
# PostgreSQL has no room for a chat's id and a message's id together.
_CHATS = Table(
    "usechat_chats",
    metadata,
    Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("chat_id", Text, nullable=False, unique=True),
    Column("owner", Text, nullable=False),
    Column("created", DateTime(timezone=True), nullable=False, server_default=func.now()),
)
# `turn` is the last turn that wrote the message or began with it as its last one: where that turn's answer belongs.
# `written` is when, in seconds since 1970.
_MESSAGES = Table(
    "usechat_messages",
    metadata,
    Column[int]("chat", ForeignKey(_CHATS.c.number, ondelete="CASCADE"), primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("message_id", Text, nullable=False),
    Column("turn", Text, nullable=False),
    Column("written", Float(53), nullable=False),
    Column("body", Text, nullable=False),
    UniqueConstraint("chat", "message_id"),
)
_INSERT = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}

_Values = dict[str, Any]
_Row = Row[*tuple[Any, ...]]


_LOAD = (
    select(_CHATS.c.owner, _MESSAGES.c.position, _MESSAGES.c.body)
    .join_from(_CHATS, _MESSAGES)
    .where(_CHATS.c.chat_id == bindparam("chat_id"))
    .order_by(_MESSAGES.c.position)
)
_LOCK = select(_CHATS.c.number, _CHATS.c.owner).where(_CHATS.c.chat_id == bindparam("chat_id")).with_for_update()
_STORED: dict[tuple[str, ...], Select[Any]] = {
    columns: select(_MESSAGES.c.position, *(_MESSAGES.c[name] for name in columns))
    .where(_MESSAGES.c.chat == bindparam("number"))
    .order_by(_MESSAGES.c.position)
    for columns in (("body",), ("message_id", "turn"))
}
_NEW_CHAT = {name: make(_CHATS).on_conflict_do_nothing().returning(_CHATS.c.number) for name, make in _INSERT.items()}
_NEW_MESSAGE = insert(_MESSAGES)


class StoredChat(msgspec.Struct, frozen=True):
    """A chat as it was last written; `owner` is "" if it is nobody's."""

    owner: str
    messages: list[UIMessage]


class History:
    """The chats of a database. Each call is one transaction, so that a crash leaves all of it or nothing.

    Which turn runs is not kept here, so that no crash leaves a chat that seems to run.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load(self, chat_id: str) -> StoredChat | None:
        """Give the chat, or None if there is none.

        Raises:
            ValueError: A stored message is broken.
        """
        rows = await self._database.run(lambda connection: _load(connection, chat_id))
        if not rows:
            return None
        return StoredChat(rows[0].owner, [_read_body(chat_id, row.position, row.body) for row in rows])

    async def written(self, chat_id: str) -> float:
        """Give the time at which the last message of the chat was written, in seconds since 1970; 0 without one."""
        return await self._database.run(lambda connection: connection.scalar(_last_written(chat_id))) or 0.0

    async def begin(self, chat_id: str, owner: str, turn_id: str, messages: Sequence[UIMessage]) -> None:
        """Make these the messages of the chat, which is created if it is new, and the last one the turn's question.

        Raises:
            PermissionError: The chat is somebody else's.
            ValueError: There are no messages, or not all of them have an id of their own.
        """
        if not messages:
            raise ValueError("A turn must begin with a message.")
        if len({message.id for message in messages if message.id}) < len(messages):
            raise ValueError("Each message of a chat must have an id of its own.")
        values = [_values(turn_id, message) for message in messages]
        await self._database.run(lambda connection: _begin(connection, chat_id, owner, values))

    async def end(self, chat_id: str, turn_id: str, message: UIMessage | None) -> bool:
        """Store the turn's answer, if it has any part, and tell whether it was stored.

        It takes the place of the turn's question if it has its id (a continuation), else the place after it, also when
        a newer turn has added messages there. It is not stored if a newer turn has replaced the question, answers it
        again or brought this answer along itself. To end a turn twice does no harm.

        Raises:
            ValueError: The message has no id, or is one that `load` would refuse.
        """
        if message is None or not message.parts:
            return False
        _check_answer(message)
        values = _values(turn_id, message)
        return await self._database.run(lambda connection: _end(connection, chat_id, values))


def _values(turn_id: str, message: UIMessage) -> _Values:
    body = msgspec.json.encode(message).decode()
    return {"message_id": message.id, "turn": turn_id, "written": time.time(), "body": body}


def _check_answer(message: UIMessage) -> None:
    # What an agent wrote was never checked as a request is, and a message that cannot be read would end its chat.
    if not message.id:
        raise ValueError("The answer of a turn must have an id.")
    try:
        _read_message(msgspec.structs.asdict(message))
    except RequestError as error:
        raise ValueError(f"The answer of a turn is broken: {error}") from error


def _read_body(chat_id: str, position: int, body: str) -> UIMessage:
    try:
        return _read_message(msgspec.json.decode(body))
    except (RequestError, msgspec.DecodeError, UnicodeError, RecursionError) as error:
        where = f"The stored message at position {position} of chat {chat_id!a}"
        raise ValueError(f"{where} is broken: {error}") from error


def _read_message(message: Any) -> UIMessage:
    return read_message(message, "message", max_parts=sys.maxsize)


def _load(connection: Connection, chat_id: str) -> Sequence[_Row]:
    return connection.execute(_LOAD, {"chat_id": chat_id}).all()


def _last_written(chat_id: str) -> Select[float]:
    written: Column[float] = _MESSAGES.c.written
    chat = select(written).join_from(_CHATS, _MESSAGES).where(_CHATS.c.chat_id == chat_id)
    return chat.order_by(_MESSAGES.c.position.desc()).limit(1)


def _begin(connection: Connection, chat_id: str, owner: str, values: Sequence[_Values]) -> None:
    chat, is_new = _lock_or_create(connection, chat_id, owner)
    stored = () if is_new else _stored(connection, chat, "body")
    # The last message is written in any case, since it gets the id of this turn.
    same = _common([row.body for row in stored], [message["body"] for message in values[:-1]])
    first = stored[same - 1].position + 1 if same else 0
    if len(stored) > same:
        connection.execute(delete(_MESSAGES).where(_MESSAGES.c.chat == chat, _MESSAGES.c.position >= first))
    new = [{**message, "chat": chat, "position": n} for n, message in enumerate(values[same:], first)]
    connection.execute(_NEW_MESSAGE, new)


def _end(connection: Connection, chat_id: str, values: _Values) -> bool:
    chat = _lock(connection, chat_id)
    if chat is None:
        return False
    stored = _stored(connection, chat.number, "message_id", "turn")
    mine = [row for row in stored if row.turn == values["turn"]]
    if mine and mine[-1].message_id == values["message_id"]:
        here = (_MESSAGES.c.chat == chat.number, _MESSAGES.c.position == mine[-1].position)
        connection.execute(update(_MESSAGES).where(*here).values(written=values["written"], body=values["body"]))
        return True
    if not mine or any(row.message_id == values["message_id"] for row in stored):
        return False
    if mine[-1] is not stored[-1]:
        _make_room(connection, chat.number, mine[-1].position)
    connection.execute(_NEW_MESSAGE, {**values, "chat": chat.number, "position": mine[-1].position + 1})
    return True


def _lock(connection: Connection, chat_id: str) -> _Row | None:
    # SQLite has the lock already and leaves the FOR UPDATE out.
    return connection.execute(_LOCK, {"chat_id": chat_id}).first()


def _lock_or_create(connection: Connection, chat_id: str, owner: str) -> tuple[int, bool]:
    """The number of the chat, and whether it is new."""
    while (chat := _lock(connection, chat_id)) is None:
        new = {"chat_id": chat_id, "owner": owner}
        number = connection.execute(_NEW_CHAT[connection.dialect.name], new).scalar()
        if number is not None:
            return number, True
    if chat.owner != owner:
        raise PermissionError("The chat belongs to somebody else.")
    return chat.number, False


def _stored(connection: Connection, chat: int, *columns: str) -> Sequence[_Row]:
    return connection.execute(_STORED[columns], {"number": chat}).all()


def _common(stored: Sequence[str], wanted: Sequence[str]) -> int:
    pairs = enumerate(zip(stored, wanted, strict=False))
    return next((n for n, (old, new) in pairs if old != new), min(len(stored), len(wanted)))


def _make_room(connection: Connection, chat: int, position: int) -> None:
    # By way of negative positions, because a position must not be taken twice even in the middle of a statement.
    rows = update(_MESSAGES).where(_MESSAGES.c.chat == chat)
    connection.execute(rows.where(_MESSAGES.c.position > position).values(position=-_MESSAGES.c.position - 1))
    connection.execute(rows.where(_MESSAGES.c.position < 0).values(position=-_MESSAGES.c.position))
