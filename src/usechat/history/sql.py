"""Chats in a database."""

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec
import sqlalchemy as sa
from sqlalchemy import Column, Connection
from sqlalchemy.exc import IntegrityError

from usechat.database import Database, insert_into, metadata
from usechat.errors import TailChangedError
from usechat.history import store
from usechat.history.store import ChatEntry, StoredChat, Tail
from usechat.protocol.messages import Role, UIMessage

__all__ = ["History"]

_T = TypeVar("_T")
_Values = dict[str, Any]
_Row = sa.Row[*tuple[Any, ...]]

# The prefix keeps the names apart from those of an app that uses the same database. Messages refer to their chat by a
# number, because an index of PostgreSQL has no room for the id of a chat and the id of a message together.
_CHATS = sa.Table(
    "usechat_chats",
    metadata,
    Column("number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
    Column("chat_id", sa.Text, nullable=False, unique=True),
    Column("owner", sa.Text, nullable=False),
    Column("title", sa.Text, nullable=False, server_default=""),
    # When its user first and last wrote, in seconds since 1970.
    Column("created", sa.Float(53), nullable=False),
    Column("updated", sa.Float(53), nullable=False, server_default="0"),
    sa.Index("usechat_chats_of_owner", "owner", "updated", "number"),
)
# `turn` is the last turn that wrote the message or began with it, and whose answer goes there. `written` is when that
# was, in seconds since 1970. `epoch` is the turn's, which rises when another worker takes the turn over. `is_answer`
# says that the turn has ended with the message. `state` is what the turn left in `chat.state`, if that is new; it comes
# last, because SQLite reads a row up to the last column that is asked for.
_MESSAGES = sa.Table(
    "usechat_messages",
    metadata,
    Column[int]("chat", sa.ForeignKey(_CHATS.c.number, ondelete="CASCADE"), primary_key=True),
    Column("position", sa.Integer, primary_key=True),
    Column("message_id", sa.Text, nullable=False),
    Column("role", sa.Text, nullable=False),
    Column("turn", sa.Text, nullable=False),
    Column("epoch", sa.BigInteger, nullable=False),
    Column("is_answer", sa.Boolean, nullable=False),
    Column("written", sa.Float(53), nullable=False),
    Column("body", sa.Text, nullable=False),
    Column("state", sa.Text),
    sa.UniqueConstraint("chat", "message_id"),
    sa.Index("usechat_messages_of_turn", "chat", "turn", "position"),
)
# Most chats have no state; this index says so without reading their messages.
_STATEFUL = _MESSAGES.c.state.is_not(None)
sa.Index(
    "usechat_messages_with_state",
    _MESSAGES.c.chat,
    _MESSAGES.c.position,
    sqlite_where=_STATEFUL,
    postgresql_where=_STATEFUL,
)
_ALL: Final = sys.maxsize
_LATEST: Final = 1e12

_chats, _messages, _every = _CHATS.c, _MESSAGES.c, _MESSAGES.alias().c
_LAST = sa.select(sa.func.max(_every.position)).where(_every.chat == _chats.number).scalar_subquery()
_LAST_STATE = (
    sa.select(sa.func.max(_every.position))
    .where(_every.chat == _chats.number, _every.state.is_not(None))
    .scalar_subquery()
    .label("last_state")
)
_THE_CHAT = _chats.chat_id == sa.bindparam("chat_id")
_OF_CHAT = _messages.chat == sa.bindparam("number")
_HERE = sa.and_(_OF_CHAT, _messages.position == sa.bindparam("at"))

_LOCK = sa.select(_chats.number).where(_THE_CHAT).with_for_update()
_HEAD = (
    sa.select(_chats.number, _chats.owner, _messages.position, _messages.turn, _messages.written, _LAST_STATE)
    .outerjoin_from(_CHATS, _MESSAGES, sa.and_(_messages.chat == _chats.number, _messages.position == _LAST))
    .where(_THE_CHAT)
)
_OF_TURN = (
    sa.select(_chats.number, _LAST.label("last"))
    .add_columns(_messages.position, _messages.message_id, _messages.epoch, _messages.is_answer)
    .join_from(_CHATS, _MESSAGES)
    .where(_THE_CHAT, _messages.turn == sa.bindparam("turn"))
    .order_by(_messages.position.desc())
    .limit(1)
)
_HAS_ENDED = _OF_TURN.with_only_columns(_messages.is_answer)
_FIND = sa.select(_messages.position).where(_OF_CHAT, _messages.message_id == sa.bindparam("message_id"))
_ROLE = sa.select(_messages.role).where(_HERE)
_BODY = sa.select(_messages.body).where(_HERE)
_BACKWARDS = (
    sa.select(_messages.position, _messages.message_id, _messages.body)
    .where(_OF_CHAT, _messages.position < sa.bindparam("before"))
    .order_by(_messages.position.desc())
    .limit(sa.bindparam("limit"))
)
_STATE = (
    sa.select(_messages.state)
    .where(_OF_CHAT, _STATEFUL, _messages.position < sa.bindparam("before"))
    .order_by(_messages.position.desc())
    .limit(1)
)
_LAST_USER = _BACKWARDS.where(_messages.role == "user")
_NEW_MESSAGE = sa.insert(_MESSAGES)
_CHANGE = sa.update(_MESSAGES).where(_HERE)
_ANSWER_AGAIN = _CHANGE.values(state=sa.case((_messages.role != "user", _messages.state)))
_CONTINUE = _CHANGE.where(_messages.message_id == sa.bindparam("same_id"))
_TOUCH = sa.update(_CHATS).where(_chats.number == sa.bindparam("chat"))
_FORGET = sa.delete(_CHATS).where(_THE_CHAT)
_LIST = (
    sa.select(_CHATS)
    .where(
        _chats.owner == sa.bindparam("owner"),
        sa.tuple_(_chats.updated, _chats.number) < sa.tuple_(sa.bindparam("updated"), sa.bindparam("number")),
    )
    .order_by(_chats.updated.desc(), _chats.number.desc())
    .limit(sa.bindparam("limit"))
)
_DELETE = sa.delete(_MESSAGES).where(_OF_CHAT, _messages.position >= sa.bindparam("at"))


class History:
    """A `StateStore` in a database. Each call is one transaction."""

    keeps_state = True

    def __init__(self, database: Database) -> None:
        self._database = database
        self.name = database.name

    async def ping(self, within: float) -> None:
        await self._database.run(lambda _: None, within=within)

    async def read(self, chat_id: str, owner: str, look: Callable[[StoredChat], _T]) -> _T:
        return await self._database.read(lambda connection: look(_Stored(connection, chat_id, owner)))

    async def begin(
        self, chat_id: str, owner: str, turn_id: str, *, after: Tail, keep: int, new: Sequence[UIMessage], epoch: int
    ) -> None:
        store.check_begin(after, keep, new)
        turn: _Values = {"turn": turn_id, "epoch": epoch, "written": time.time(), "is_answer": False}
        chat: _Values = {"updated": turn["written"]}
        if keep == 0:
            chat["title"] = store.title_of(new)
        rows = [{**turn, **_values(message), "position": n} for n, message in enumerate(new, keep)]

        def begin(connection: Connection) -> None:
            number, tail = _lock_or_create(connection, chat_id, owner, turn["written"])
            if tail != after:
                raise TailChangedError
            connection.execute(_TOUCH, {**chat, "chat": number})
            continued = 0
            if keep < tail.length:
                if new and new[0].role == "assistant":
                    # In place, so that it keeps its state.
                    here = {"number": number, "at": keep, "same_id": new[0].id}
                    continued = connection.execute(_CONTINUE, {**turn, "body": rows[0]["body"], **here}).rowcount
                connection.execute(_DELETE, {"number": number, "at": keep + continued})
            if not rows:
                connection.execute(_ANSWER_AGAIN, {**turn, "number": number, "at": keep - 1})
            elif rows[continued:]:
                connection.execute(_NEW_MESSAGE, [{**row, "chat": number} for row in rows[continued:]])

        try:
            await self._database.run(begin)
        except IntegrityError as error:
            raise ValueError(store.IDS_REPEAT) from error

    async def end(
        self, chat_id: str, turn_id: str, epoch: int, message: UIMessage | None, state: bytes | None = None
    ) -> bool:
        left: _Values = {} if state is None else {"state": state.decode()}
        answer: _Values = {}
        if message is not None and message.parts:
            store.check_answer(message)
            turn: _Values = {"turn": turn_id, "epoch": epoch, "written": time.time(), "is_answer": True}
            answer = {**turn, **_values(message), **left}
        try:
            return await self._database.run(lambda connection: _end(connection, chat_id, turn_id, epoch, answer, left))
        except IntegrityError:
            # A newer turn brought the answer along itself.
            return False

    async def has_ended(self, chat_id: str, turn_id: str) -> bool:
        turn = {"chat_id": chat_id, "turn": turn_id}
        return await self._database.read(lambda connection: connection.scalar(_HAS_ENDED, turn)) is not False

    async def load(self, chat_id: str, owner: str) -> list[UIMessage]:
        return await self._load(chat_id, owner, None, None, lambda row: store.decode(chat_id, row.position, row.body))

    async def load_json(
        self, chat_id: str, owner: str, *, before: str | None = None, limit: int | None = None
    ) -> list[tuple[str, bytes]]:
        return await self._load(chat_id, owner, before, limit, lambda row: (row.message_id, row.body.encode()))

    async def _load(
        self, chat_id: str, owner: str, before: str | None, limit: int | None, read: Callable[[_Row], _T]
    ) -> list[_T]:
        # Rows are read in the thread of the database.
        return await self._database.read(
            lambda connection: [read(row) for row in _Stored(connection, chat_id, owner).rows(before, limit)]
        )

    async def chats(self, owner: str, *, after: str | None = None, limit: int = 50) -> list[ChatEntry]:
        updated, number = (_LATEST, _ALL) if after is None else store.read_place(after)
        bounds = {"owner": owner, "updated": updated, "number": number, "limit": limit}
        rows = await self._database.read(lambda connection: connection.execute(_LIST, bounds).all())
        return [
            ChatEntry(row.chat_id, row.title, row.created, row.updated, store.place_of(row.updated, row.number))
            for row in rows
        ]

    async def delete(self, chat_id: str, owner: str) -> None:
        def delete(connection: Connection) -> None:
            _lock(connection, chat_id)
            if _open(connection, chat_id, owner) is not None:
                connection.execute(_FORGET, {"chat_id": chat_id})

        await self._database.run(delete)


class _Stored:
    """The messages of a chat, for the time of a transaction."""

    def __init__(self, connection: Connection, chat_id: str, owner: str) -> None:
        self._connection = connection
        self._chat_id = chat_id
        self._number, self.tail, self._last_state = _open(connection, chat_id, owner) or (0, Tail(0), None)

    def find(self, message_id: str) -> int | None:
        if not self.tail.length:
            return None
        return self._connection.scalar(_FIND, {"number": self._number, "message_id": message_id})

    def role(self, position: int) -> Role:
        return self._at(_ROLE, position)

    def message(self, position: int) -> UIMessage:
        return store.decode_checked(self._chat_id, position, self._at(_BODY, position))

    def last_user(self, before: int) -> UIMessage | None:
        row = self._connection.execute(_LAST_USER, {"number": self._number, "before": before, "limit": 1}).first()
        return None if row is None else store.decode_checked(self._chat_id, row.position, row.body)

    def state(self, before: int) -> bytes | None:
        if self._last_state is None:
            return None
        found: str | None = self._connection.scalar(_STATE, {"number": self._number, "before": before})
        return None if found is None else found.encode()

    def rows(self, before: str | None, limit: int | None) -> list[_Row]:
        end = self.tail.length if before is None else self.find(before)
        if not end:
            return []
        bounds = {"number": self._number, "before": end, "limit": _ALL if limit is None else limit}
        return list(reversed(self._connection.execute(_BACKWARDS, bounds).all()))

    def _at(self, query: sa.Select[Any], position: int) -> Any:
        value = self._connection.scalar(query, {"number": self._number, "at": position})
        if value is None:
            raise store.missing(self._chat_id, position)
        return value


def _values(message: UIMessage) -> _Values:
    return {"message_id": message.id, "role": message.role, "body": msgspec.json.encode(message).decode()}


def _open(connection: Connection, chat_id: str, owner: str) -> tuple[int, Tail, int | None] | None:
    """The number of the chat, its tail, and the position of the last state."""
    chat = connection.execute(_HEAD, {"chat_id": chat_id}).first()
    if chat is None:
        return None
    if chat.owner != owner:
        raise PermissionError(store.NOT_THE_OWNER)
    tail = Tail(0) if chat.position is None else Tail(chat.position + 1, chat.turn, chat.written)
    return chat.number, tail, chat.last_state


def _lock(connection: Connection, chat_id: str) -> None:
    # In SQLite only one transaction writes at a time. In PostgreSQL a statement sees the rows as they were when it
    # began, so the statement that waits for the lock must not be the one that reads.
    if connection.dialect.name == "postgresql":
        connection.execute(_LOCK, {"chat_id": chat_id})


def _lock_or_create(connection: Connection, chat_id: str, owner: str, now: float) -> tuple[int, Tail]:
    _lock(connection, chat_id)
    while (chat := _open(connection, chat_id, owner)) is None:
        insert_new = insert_into(_CHATS, connection.dialect.name).on_conflict_do_nothing().returning(_chats.number)
        number = connection.execute(insert_new, {"chat_id": chat_id, "owner": owner, "created": now}).scalar()
        if number is not None:
            return number, Tail(0)
        _lock(connection, chat_id)
    return chat[:2]


def _end(connection: Connection, chat_id: str, turn_id: str, epoch: int, answer: _Values, state: _Values) -> bool:
    _lock(connection, chat_id)
    mine = connection.execute(_OF_TURN, {"chat_id": chat_id, "turn": turn_id}).first()
    if mine is None or mine.epoch > epoch:
        return False
    here = {"number": mine.number, "at": mine.position}
    if not answer:
        # An earlier worker of the turn may still bring an answer, which the higher epoch refuses.
        left = {} if mine.is_answer else state
        if mine.epoch < epoch or left:
            connection.execute(_CHANGE, {**here, "epoch": epoch, **left})
        return bool(left)
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
    # By way of negative positions, because no two rows may share a position even in the middle of a statement.
    rows = sa.update(_MESSAGES).where(_messages.chat == number)
    connection.execute(rows.where(_messages.position > position).values(position=-_messages.position - 1))
    connection.execute(rows.where(_messages.position < 0).values(position=-_messages.position))
