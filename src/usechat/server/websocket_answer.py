"""One request on a WebSocket."""

import asyncio
import time

from usechat.protocol.websocket import chunk_frame, chunk_opening
from usechat.server.metrics import Metrics
from usechat.turns import Turn

__all__ = ["Answer"]


class Answer:
    """One request: a cursor in a replay, if it resumes, and then in its turn's log."""

    def __init__(self, request_id: str, chat_id: str, metrics: Metrics, *, resumes: bool) -> None:
        self.request_id = request_id
        self.chat_id = chat_id
        self.resumes = resumes
        self.turn: Turn | None = None
        self.timer: asyncio.TimerHandle | None = None
        self._metrics = metrics
        self._made = time.monotonic()
        self._is_aborted = False
        self._is_closed = False
        self._opening = chunk_opening(request_id)
        self._sequence = 0
        self._sent = 0
        self._size = 0
        self._replay = b""
        self._offset = 0
        self._cursor = 0

    def follow(self, turn: Turn) -> None:
        self.turn = turn
        turn.attach()
        self._metrics.stream_opened()
        if self._is_aborted:
            turn.stop()
        if self._is_closed:
            self._leave(turn)

    def can_resume(self, turn: Turn, last_sequence: int | None) -> bool:
        # A client that has more than this turn said has it from an earlier one.
        return last_sequence is None or last_sequence < len(turn.log.frames)

    def resume(self, turn: Turn, last_sequence: int | None) -> None:
        """Follow the turn after this chunk, or after a replay.

        A sequence is the chunk's index in the log, counted from 0; after a replay it counts only what was sent.
        """
        if last_sequence is None:
            self._replay, self._cursor = turn.replayed()
        else:
            self._cursor = self._sequence = last_sequence + 1
        self.follow(turn)

    def has_more(self, turn: Turn) -> bool:
        return self._offset < len(self._replay) or self._cursor < len(turn.log.frames)

    def behind(self) -> int:
        frames = self.turn.log.frames[self._cursor :] if self.turn else []
        return len(self._replay) - self._offset + sum(map(len, frames))

    def next_frame(self, turn: Turn) -> str | None:
        """The frame to send next, or None if the turn has said no more yet."""
        if self._offset < len(self._replay):
            end = self._replay.index(b"\n\n", self._offset) + 2
            event, self._offset = self._replay[self._offset : end], end
        elif self._cursor < len(turn.log.frames):
            event = turn.log.frames[self._cursor]
            self._cursor += 1
        else:
            return None
        if self._sent == 0:
            self._metrics.first_byte_sent(time.monotonic() - self._made)
        self._sent += 1
        self._size += len(event)
        self._sequence += 1
        return chunk_frame(self._opening, self._sequence - 1, event)

    def close(self) -> None:
        """Leave the turn to its other readers, or to linger."""
        if self.timer is not None:
            self.timer.cancel()
        if self.turn is not None and not self._is_closed:
            self._leave(self.turn)
        self._is_closed = True

    def stop(self) -> None:
        """Stop the turn, also one that is yet to begin."""
        self._is_aborted = True
        if self.turn is not None:
            self.turn.stop()
        self.close()

    def _leave(self, turn: Turn) -> None:
        turn.detach()
        self._metrics.stream_closed()
        self._metrics.sent(chunks=self._sent, size=self._size)
