"""Chats in a database."""

import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC
from typing import Any, Final, TypeVar

import msgspec
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    DateTime,
    Float,
    ForeignKey,
    Index,
    Integer,
    Row,
    Select,
    Table,
    Text,
    UniqueConstraint,
    and_,
    bindparam,
    case,
    delete,
    false,
    func,
    insert,
    select,
    tuple_,
    update,
)
from sqlalchemy.exc import IntegrityError

from usechat.database import Database, insert_into, metadata
from usechat.errors import TailChangedError
from usechat.history.bodies import (
    IDS_REPEAT,
    SOMEBODY_ELSES,
    check_answer,
    check_begin,
    decode,
    decode_checked,
    missing,
    place_of,
    read_place,
    title_of,
)
from usechat.history.store import ChatEntry, StoredMessages, Tail
from usechat.protocol.messages import Role, UIMessage

__all__ = ["History"]

_T = TypeVar("_T")
_Values = dict[str, Any]
_Row = Row[*tuple[Any, ...]]


def _fill_role(connection: Connection) -> None:
    # A body is `{"id":…,"role":…`, and no id can hold these quotes unescaped. A parser of the database's own would stop
    # at what it does not take for JSON, such as PostgreSQL's at \u0000.
    find = func.instr if connection.dialect.name == "sqlite" else func.strpos
    first = func.substr(_MESSAGES.c.body, find(_MESSAGES.c.body, '"role":"') + len('"role":"'), 1)
    role = case({"u": "user", "s": "system"}, value=first, else_="assistant")
    connection.execute(update(_MESSAGES).values(role=role))


def _fill_updated(connection: Connection) -> None:
    last = select(func.coalesce(func.max(_MESSAGES.c.written), 0)).where(_MESSAGES.c.chat == _CHATS.c.number)
    connection.execute(update(_CHATS).values(updated=last.scalar_subquery()))


# The names must not meet those of an app that shares its database. Messages hang on a number, because an index of
# PostgreSQL has no room for a chat's id and a message's id together.
_CHATS = Table(
    "usechat_chats",
    metadata,
    Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("chat_id", Text, nullable=False, unique=True),
    Column("owner", Text, nullable=False),
    Column("created", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("title", Text, nullable=False, server_default=""),
    # When its user last wrote, in seconds since 1970.
    Column("updated", Float(53), nullable=False, server_default="0", info={"fill": _fill_updated}),
    Index("usechat_chats_of_owner", "owner", "updated", "number"),
)
# `turn` is the last turn that wrote the message or began with it as its last one: where that turn's answer belongs.
# `written` is when, in seconds since 1970, and `epoch` is the turn's, which rises when another worker takes it over.
# `is_answer` says that the turn has ended with the message.
_MESSAGES = Table(
    "usechat_messages",
    metadata,
    Column[int]("chat", ForeignKey(_CHATS.c.number, ondelete="CASCADE"), primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("message_id", Text, nullable=False),
    Column("role", Text, nullable=False, server_default="", info={"fill": _fill_role}),
    Column("turn", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False, server_default="0"),
    Column("is_answer", Boolean, nullable=False, server_default=false()),
    Column("written", Float(53), nullable=False, server_default="0"),
    Column("body", Text, nullable=False),
    UniqueConstraint("chat", "message_id"),
    Index("usechat_messages_of_turn", "chat", "turn", "position"),
)
_ALL: Final = sys.maxsize
_LATEST: Final = 1e12

_EVERY = _MESSAGES.alias()
_LAST = select(func.max(_EVERY.c.position)).where(_EVERY.c.chat == _CHATS.c.number).scalar_subquery()
_THE_CHAT = _CHATS.c.chat_id == bindparam("chat_id")
_OF_CHAT = _MESSAGES.c.chat == bindparam("number")
_HERE = and_(_OF_CHAT, _MESSAGES.c.position == bindparam("at"))
_BEFORE = and_(_OF_CHAT, _MESSAGES.c.position < bindparam("before"))

_LOCK = select(_CHATS.c.number).where(_THE_CHAT).with_for_update()
_HEAD = (
    select(_CHATS.c.number, _CHATS.c.owner, _MESSAGES.c.position, _MESSAGES.c.turn, _MESSAGES.c.written)
    .outerjoin_from(_CHATS, _MESSAGES, and_(_MESSAGES.c.chat == _CHATS.c.number, _MESSAGES.c.position == _LAST))
    .where(_THE_CHAT)
)
_OF_TURN = (
    select(_CHATS.c.number, _LAST.label("last"))
    .add_columns(_MESSAGES.c.position, _MESSAGES.c.message_id, _MESSAGES.c.epoch, _MESSAGES.c.is_answer)
    .join_from(_CHATS, _MESSAGES)
    .where(_THE_CHAT, _MESSAGES.c.turn == bindparam("turn"))
    .order_by(_MESSAGES.c.position.desc())
    .limit(1)
)
_HAS_ENDED = _OF_TURN.with_only_columns(_MESSAGES.c.is_answer)
_FIND = select(_MESSAGES.c.position).where(_OF_CHAT, _MESSAGES.c.message_id == bindparam("message_id"))
_ROLE = select(_MESSAGES.c.role).where(_HERE)
_BODY = select(_MESSAGES.c.body).where(_HERE)
_BACKWARDS = (
    select(_MESSAGES.c.position, _MESSAGES.c.message_id, _MESSAGES.c.body)
    .where(_BEFORE)
    .order_by(_MESSAGES.c.position.desc())
    .limit(bindparam("limit"))
)
_LAST_USER = _BACKWARDS.where(_MESSAGES.c.role == "user")
_NEW_MESSAGE = insert(_MESSAGES)
_CHANGE = update(_MESSAGES).where(_HERE)
_TOUCH = update(_CHATS).where(_CHATS.c.number == bindparam("chat"))
_FORGET = delete(_CHATS).where(_THE_CHAT)
_LIST = (
    select(_CHATS)
    .where(
        _CHATS.c.owner == bindparam("owner"),
        tuple_(_CHATS.c.updated, _CHATS.c.number) < tuple_(bindparam("updated"), bindparam("number")),
    )
    .order_by(_CHATS.c.updated.desc(), _CHATS.c.number.desc())
    .limit(bindparam("limit"))
)
_DELETE = delete(_MESSAGES).where(_OF_CHAT, _MESSAGES.c.position >= bindparam("at"))


class History:
    """The chats of a database; see `HistoryStore` for what the calls do. Each is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.name = database.name

    async def ping(self, within: float) -> None:
        await self._database.run(lambda _: None, within=within)

    async def read(self, chat_id: str, owner: str, look: Callable[[StoredMessages], _T]) -> _T:
        return await self._database.read(lambda connection: look(_Stored(connection, chat_id, owner)))

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
        check_begin(after, keep, new)
        turn: _Values = {"turn": turn_id, "epoch": epoch, "written": time.time(), "is_answer": False}
        chat: _Values = {"updated": turn["written"]}
        if keep == 0:
            chat["title"] = title_of(new)
        rows = [{**turn, **_values(message), "position": n} for n, message in enumerate(new, keep)]

        def begin(connection: Connection) -> None:
            number, tail = _lock_or_create(connection, chat_id, owner)
            if tail != after:
                raise TailChangedError
            connection.execute(_TOUCH, {**chat, "chat": number})
            if keep < tail.length:
                connection.execute(_DELETE, {"number": number, "at": keep})
            if rows:
                connection.execute(_NEW_MESSAGE, [{**row, "chat": number} for row in rows])
            else:
                connection.execute(_CHANGE, {**turn, "number": number, "at": keep - 1})

        try:
            await self._database.run(begin)
        except IntegrityError as error:
            raise ValueError(IDS_REPEAT) from error

    async def end(self, chat_id: str, turn_id: str, epoch: int, message: UIMessage | None) -> bool:
        turn: _Values = {"turn": turn_id, "epoch": epoch, "written": time.time(), "is_answer": True}
        answer: _Values = {}
        if message is not None and message.parts:
            check_answer(message)
            answer = {**turn, **_values(message)}
        try:
            return await self._database.run(lambda connection: _end(connection, chat_id, turn, answer))
        except IntegrityError:
            # A newer turn has brought the answer along itself.
            return False

    async def has_ended(self, chat_id: str, turn_id: str) -> bool:
        turn = {"chat_id": chat_id, "turn": turn_id}
        return await self._database.read(lambda connection: connection.scalar(_HAS_ENDED, turn)) is not False

    async def load(
        self, chat_id: str, owner: str, *, before: str | None = None, limit: int | None = None
    ) -> list[UIMessage]:
        def load(connection: Connection) -> list[UIMessage]:
            rows = _Stored(connection, chat_id, owner).rows(before, limit)
            return [decode(chat_id, row.position, row.body) for row in rows]

        return await self._database.read(load)

    async def load_json(
        self, chat_id: str, owner: str, *, before: str | None = None, limit: int | None = None
    ) -> list[tuple[str, bytes]]:
        def load(connection: Connection) -> list[tuple[str, bytes]]:
            rows = _Stored(connection, chat_id, owner).rows(before, limit)
            return [(row.message_id, row.body.encode()) for row in rows]

        return await self._database.read(load)

    async def chats(self, owner: str, *, after: str | None = None, limit: int = 50) -> list[ChatEntry]:
        updated, number = (_LATEST, _ALL) if after is None else read_place(after)
        bounds = {"owner": owner, "updated": updated, "number": number, "limit": limit}
        return await self._database.read(lambda connection: [_entry(row) for row in connection.execute(_LIST, bounds)])

    async def delete(self, chat_id: str, owner: str) -> None:
        def delete(connection: Connection) -> None:
            _lock(connection, chat_id)
            if _open(connection, chat_id, owner) is not None:
                connection.execute(_FORGET, {"chat_id": chat_id})

        await self._database.run(delete)


class _Stored:
    """The messages of a chat, as long as the transaction lasts."""

    def __init__(self, connection: Connection, chat_id: str, owner: str) -> None:
        self._connection = connection
        self._chat_id = chat_id
        self._number, self.tail = _open(connection, chat_id, owner) or (0, Tail(0))

    def find(self, message_id: str) -> int | None:
        if not self.tail.length:
            return None
        return self._connection.scalar(_FIND, {"number": self._number, "message_id": message_id})

    def role(self, position: int) -> Role:
        return self._at(_ROLE, position)

    def message(self, position: int) -> UIMessage:
        return decode_checked(self._chat_id, position, self._at(_BODY, position))

    def last_user(self, before: int) -> UIMessage | None:
        row = self._connection.execute(_LAST_USER, {"number": self._number, "before": before, "limit": 1}).first()
        return None if row is None else decode_checked(self._chat_id, row.position, row.body)

    def rows(self, before: str | None, limit: int | None) -> list[_Row]:
        end = self.tail.length if before is None else self.find(before)
        if not end:
            return []
        bounds = {"number": self._number, "before": end, "limit": _ALL if limit is None else limit}
        return list(reversed(self._connection.execute(_BACKWARDS, bounds).all()))

    def _at(self, query: Select[Any], position: int) -> Any:
        value = self._connection.scalar(query, {"number": self._number, "at": position})
        if value is None:
            raise missing(self._chat_id, position)
        return value


def _entry(row: _Row) -> ChatEntry:
    # SQLite gives the time without its zone.
    created = row.created if row.created.tzinfo is not None else row.created.replace(tzinfo=UTC)
    return ChatEntry(row.chat_id, row.title, created.timestamp(), row.updated, place_of(row.updated, row.number))


def _values(message: UIMessage) -> _Values:
    return {"message_id": message.id, "role": message.role, "body": msgspec.json.encode(message).decode()}


def _open(connection: Connection, chat_id: str, owner: str) -> tuple[int, Tail] | None:
    chat = connection.execute(_HEAD, {"chat_id": chat_id}).first()
    if chat is None:
        return None
    if chat.owner != owner:
        raise PermissionError(SOMEBODY_ELSES)
    return chat.number, Tail(0) if chat.position is None else Tail(chat.position + 1, chat.turn, chat.written)


def _lock(connection: Connection, chat_id: str) -> None:
    # A transaction of SQLite that writes is alone. In PostgreSQL a statement sees what was there when it began, so that
    # the one that waits for the lock must not be the one that reads what the lock is for.
    if connection.dialect.name == "postgresql":
        connection.execute(_LOCK, {"chat_id": chat_id})


def _lock_or_create(connection: Connection, chat_id: str, owner: str) -> tuple[int, Tail]:
    _lock(connection, chat_id)
    while (chat := _open(connection, chat_id, owner)) is None:
        insert_new = insert_into(_CHATS, connection.dialect.name).on_conflict_do_nothing().returning(_CHATS.c.number)
        number = connection.execute(insert_new, {"chat_id": chat_id, "owner": owner}).scalar()
        if number is not None:
            return number, Tail(0)
        _lock(connection, chat_id)
    return chat


def _end(connection: Connection, chat_id: str, turn: _Values, answer: _Values) -> bool:
    _lock(connection, chat_id)
    mine = connection.execute(_OF_TURN, {"chat_id": chat_id, "turn": turn["turn"]}).first()
    if mine is None or mine.epoch > turn["epoch"]:
        return False
    here = {"number": mine.number, "at": mine.position}
    if not answer:
        # An earlier worker of the turn may still come with an answer.
        if mine.epoch < turn["epoch"]:
            connection.execute(_CHANGE, {**here, "epoch": turn["epoch"]})
        return False
    if mine.is_answer:
        return True
    if mine.message_id == answer["message_id"]:
        connection.execute(_CHANGE, {**here, **answer})
        return True
    if mine.position < mine.last:
        _make_room(connection, mine.number, mine.position)
    connection.execute(_NEW_MESSAGE, {**answer, "chat": mine.number, "position": mine.position + 1})
    return True


def _make_room(connection: Connection, number: int, position: int) -> None:
    # By way of negative positions, because a position must not be taken twice even in the middle of a statement.
    rows = update(_MESSAGES).where(_MESSAGES.c.chat == number)
    connection.execute(rows.where(_MESSAGES.c.position > position).values(position=-_MESSAGES.c.position - 1))
    connection.execute(rows.where(_MESSAGES.c.position < 0).values(position=-_MESSAGES.c.position))
