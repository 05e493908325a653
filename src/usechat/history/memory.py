"""Chats in the memory of this process."""

import time
from collections.abc import Callable, Sequence
from heapq import nlargest
from itertools import count
from typing import TypeVar

import msgspec

from usechat.errors import TailChangedError
from usechat.history import store
from usechat.history.store import ChatEntry, StoredChat, Tail
from usechat.protocol.messages import Role, UIMessage

__all__ = ["MemoryHistory"]

_T = TypeVar("_T")


class _Row(msgspec.Struct):
    """A message, the turn that wrote it, and the state it left; both are JSON, so no caller can change them."""

    message_id: str
    role: Role
    body: bytes
    turn: str
    epoch: int
    written: float
    is_answer: bool = False
    state: bytes | None = None


class MemoryHistory:
    """A `StateStore` in a dict."""

    keeps_state = True

    def __init__(self) -> None:
        self._chats: dict[str, _Chat] = {}
        self._numbers = count(1)

    async def ping(self, within: float) -> None:
        pass

    async def read(self, chat_id: str, owner: str, look: Callable[[StoredChat], _T]) -> _T:
        return look(self._own(chat_id, owner))

    async def begin(
        self, chat_id: str, owner: str, turn_id: str, *, after: Tail, keep: int, new: Sequence[UIMessage], epoch: int
    ) -> None:
        store.check_begin(after, keep, new)
        chat = self._own(chat_id, owner)
        if chat.tail != after:
            raise TailChangedError
        if any(chat.positions.get(message.id, keep) < keep for message in new):
            raise ValueError(store.IDS_REPEAT)
        written = time.time()
        rows = [_row(message, turn_id, epoch, written) for message in new]
        if not rows:
            keep -= 1
            question = msgspec.structs.replace(
                chat.rows[keep], turn=turn_id, epoch=epoch, written=written, is_answer=False
            )
            if question.role == "user":
                question.state = None
            rows = [question]
        elif rows[0].role == "assistant" and chat.positions.get(rows[0].message_id) == keep:
            rows[0].state = chat.rows[keep].state
        chat.replace(keep, rows)
        chat.updated = written
        if keep == 0 and new:
            chat.title = store.title_of(new)
        if chat_id not in self._chats:
            chat.number, chat.created = next(self._numbers), chat.updated
            self._chats[chat_id] = chat

    async def end(
        self, chat_id: str, turn_id: str, epoch: int, message: UIMessage | None, state: bytes | None = None
    ) -> bool:
        if message is not None and message.parts:
            store.check_answer(message)
        chat = self._chats.get(chat_id)
        mine = chat.turns.get(turn_id) if chat is not None else None
        if chat is None or mine is None or chat.rows[mine].epoch > epoch:
            return False
        question = chat.rows[mine]
        if message is None or not message.parts:
            # An earlier worker of the turn may still bring an answer, which the higher epoch refuses.
            question.epoch = epoch
            if state is None or question.is_answer:
                return False
            question.state = state
        elif not question.is_answer:
            row = _row(message, turn_id, epoch, time.time(), is_answer=True)
            row.state = state
            if question.message_id == message.id:
                row.state = question.state if state is None else state
                chat.rows[mine] = row
            elif message.id in chat.positions:
                return False
            else:
                chat.replace(mine + 1, [row, *chat.rows[mine + 1 :]])
        chat.has_state |= state is not None
        return True

    async def has_ended(self, chat_id: str, turn_id: str) -> bool:
        chat = self._chats.get(chat_id)
        mine = chat.turns.get(turn_id) if chat is not None else None
        return chat is None or mine is None or chat.rows[mine].is_answer

    async def load(self, chat_id: str, owner: str) -> list[UIMessage]:
        rows = self._own(chat_id, owner).rows
        return [store.decode(chat_id, position, row.body) for position, row in enumerate(rows)]

    async def load_json(
        self, chat_id: str, owner: str, *, before: str | None = None, limit: int | None = None
    ) -> list[tuple[str, bytes]]:
        chat = self._own(chat_id, owner)
        end = len(chat.rows) if before is None else chat.positions.get(before, 0)
        first = 0 if limit is None else max(0, end - limit)
        return [(row.message_id, row.body) for row in chat.rows[first:end]]

    async def chats(self, owner: str, *, after: str | None = None, limit: int = 50) -> list[ChatEntry]:
        own = (chat for chat in self._chats.values() if chat.owner == owner)
        if after is not None:
            place = store.read_place(after)
            own = (chat for chat in own if (chat.updated, chat.number) < place)
        return [chat.entry() for chat in nlargest(limit, own, key=lambda chat: (chat.updated, chat.number))]

    async def delete(self, chat_id: str, owner: str) -> None:
        self._own(chat_id, owner)
        self._chats.pop(chat_id, None)

    def _own(self, chat_id: str, owner: str) -> "_Chat":
        chat = self._chats.get(chat_id)
        if chat is None:
            return _Chat(chat_id, owner)
        if chat.owner != owner:
            raise PermissionError(store.NOT_THE_OWNER)
        return chat


class _Chat:
    """The rows of a chat, where each message is, and where the last row of each turn is."""

    def __init__(self, chat_id: str, owner: str) -> None:
        self.owner = owner
        self.rows: list[_Row] = []
        self.positions: dict[str, int] = {}
        self.turns: dict[str, int] = {}
        self.number = 0
        self.title = ""
        # Whether any turn has left a state: to look for one takes time where there is none.
        self.has_state = False
        self.created = self.updated = 0.0
        self._chat_id = chat_id

    @property
    def tail(self) -> Tail:
        return Tail(len(self.rows), self.rows[-1].turn, self.rows[-1].written) if self.rows else Tail(0)

    def entry(self) -> ChatEntry:
        return ChatEntry(
            self._chat_id, self.title, self.created, self.updated, store.place_of(self.updated, self.number)
        )

    def find(self, message_id: str) -> int | None:
        return self.positions.get(message_id)

    def role(self, position: int) -> Role:
        return self._at(position).role

    def message(self, position: int) -> UIMessage:
        return store.decode_checked(self._chat_id, position, self._at(position).body)

    def last_user(self, before: int) -> UIMessage | None:
        users = (n for n in range(min(before, len(self.rows)) - 1, -1, -1) if self.rows[n].role == "user")
        return next((self.message(n) for n in users), None)

    def state(self, before: int) -> bytes | None:
        rows = reversed(self.rows[:before]) if self.has_state else ()
        return next((row.state for row in rows if row.state is not None), None)

    def replace(self, first: int, rows: Sequence[_Row]) -> None:
        """Replace all rows from `first` on."""
        for row in self.rows[first:]:
            del self.positions[row.message_id]
            self.turns.pop(row.turn, None)
        self.rows[first:] = rows
        # The rows of a turn stand together, so only the row before can have lost its turn's place.
        for position in range(max(0, first - 1), len(self.rows)):
            self.positions[self.rows[position].message_id] = position
            self.turns[self.rows[position].turn] = position

    def _at(self, position: int) -> _Row:
        if not 0 <= position < len(self.rows):
            raise store.missing(self._chat_id, position)
        return self.rows[position]


def _row(message: UIMessage, turn_id: str, epoch: int, written: float, *, is_answer: bool = False) -> _Row:
    return _Row(message.id, message.role, msgspec.json.encode(message), turn_id, epoch, written, is_answer)
