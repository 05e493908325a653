"""One request on a WebSocket."""

import asyncio
import time
from collections.abc import Iterable

from msgspec import Struct

from usechat.protocol.websocket import chunk_frame, chunk_opening
from usechat.server.chats import ChatOpening
from usechat.server.metrics import Metrics
from usechat.stores import Reader

__all__ = ["Answer", "Seen", "SeenChats"]


class Seen(Struct, frozen=True):
    """What a socket remembers of the last request of a chat: which chunks of which turn its sequences stand for.

    The chunk with the sequence `s` is number `s + shift` of the turn's log, from the sequence `first` to `last`.
    """

    turn: str
    shift: int
    first: int
    last: int


class Answer:
    """One request: a reader of its turn's log, and the sequence of the next chunk.

    It has no reader until its turn was found or has begun. It is *open* until it is closed, which leaves the turn to
    its other readers, or aborted, which stops the turn as well.
    """

    def __init__(self, request_id: str, chat_id: str, user: str | None, metrics: Metrics, *, resumes: bool) -> None:
        self.request_id = request_id
        self.chat_id = chat_id
        self.user = user
        self.resumes = resumes
        self.opening: ChatOpening | None = None
        self.reader: Reader | None = None
        self.timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._metrics = metrics
        self._made = time.monotonic()
        self._opening = chunk_opening(request_id)
        self._first = self._sequence = 0
        self._size = 0
        # How many frames of a replay come before those of the log.
        self._told = 0

    def follow(self, reader: Reader) -> None:
        self.reader = reader
        self._metrics.stream_opened()
        if self._is_closed:
            self._leave(reader)

    def follow_after(self, reader: Reader, seen: Seen, last_sequence: int) -> None:
        """Go on after a chunk that the socket has sent before."""
        reader.seek(last_sequence + seen.shift)
        self._first = self._sequence = last_sequence + 1
        self.follow(reader)

    @property
    def seen(self) -> Seen | None:
        """What the sequences of this request stand for; None if none of them stands for a chunk of the log."""
        if self.reader is None:
            return None
        last = self._sequence - 1
        return Seen(self.reader.log.turn, self.reader.cursor - last, self._first + self._told, last)

    @property
    def unread(self) -> int:
        return 0 if self.reader is None else self.reader.unread

    def next_frame(self, reader: Reader) -> str | None:
        """The frame to send next, or None if the turn has said no more yet."""
        cursor = reader.cursor
        event = reader.take_frame()
        if not event:
            return None
        if self._size == 0:
            self._metrics.first_byte_sent(time.monotonic() - self._made)
        self._told += reader.cursor == cursor
        self._size += len(event)
        self._sequence += 1
        return chunk_frame(self._opening, self._sequence - 1, event)

    def close(self) -> None:
        """Leave the turn to its other readers, or to linger."""
        if self.timer is not None:
            self.timer.cancel()
        if self.reader is not None and not self._is_closed:
            self._leave(self.reader)
        self._is_closed = True

    def _leave(self, reader: Reader) -> None:
        reader.leave()
        self._metrics.stream_closed()
        self._metrics.sent(chunks=self._sequence - self._first, size=self._size)


class SeenChats:
    """What a socket remembers of the last request of each of its last chats."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._seen: dict[str, Seen] = {}

    def remember(self, answer: Answer) -> None:
        """The request is over."""
        seen = answer.seen
        if seen is not None:
            self._seen.pop(answer.chat_id, None)
            self._seen[answer.chat_id] = seen
            if len(self._seen) > self._most:
                del self._seen[next(iter(self._seen))]

    def find(self, turn: str, chat_id: str, sequence: int, still_open: Iterable[Answer]) -> Seen | None:
        """What a sequence stands for in the chat's turn, if a request of this socket has sent it."""
        open_ones = (answer.seen for answer in still_open if answer.chat_id == chat_id)
        for seen in (*open_ones, self._seen.get(chat_id)):
            if seen is not None and seen.turn == turn and seen.first - 1 <= sequence <= seen.last:
                return seen
        return None
