"""The turns of a transport that has no server around it."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import Final, TypeAlias

from usechat.agents.chat import live_writer
from usechat.protocol.chunks import Chunk
from usechat.protocol.clients import ClientName
from usechat.protocol.codec import decode_chunk
from usechat.protocol.messages import UIMessage
from usechat.protocol.sse import SseDecoder, payload_of
from usechat.protocol.writer import MessageWriter
from usechat.stores import Outcome, TurnLog
from usechat.stream import explain
from usechat.turns import REPLACED, Turn, TurnLimits

__all__ = ["LocalTurns", "Work", "new_id"]

Work: TypeAlias = Callable[[MessageWriter], Awaitable[None]]

_LIMITS: Final = TurnLimits()


class LocalTurns:
    """One running turn a chat, read by any number of readers; a newer turn takes the place of the one that runs."""

    def __init__(self, client: ClientName = "portable", limits: TurnLimits = _LIMITS) -> None:
        self._client: ClientName = client
        self._limits = limits
        self._turns: dict[str, Turn] = {}

    async def begin(
        self, chat_id: str, message_id: str, work: Work, continues: UIMessage | None = None
    ) -> AsyncGenerator[Chunk, None]:
        running = self._turns.get(chat_id)
        if running is not None:
            running.stop(REPLACED)
            await running.settled()
        log = TurnLog(secrets.token_hex(16), chat_id, "")
        writer = MessageWriter(message_id, new_id=new_id, client=self._client, continues=continues)
        turn = Turn(
            log, writer, continues, limits=self._limits, explain=explain, on_end=partial(self._ended, chat_id, log)
        )
        self._turns[chat_id] = turn
        turn.start(partial(work, live_writer(turn)))
        return _read(turn, b"", 0)

    def follow(self, chat_id: str) -> AsyncGenerator[Chunk, None] | None:
        """The chat's turn, told from its beginning."""
        turn = self._turns.get(chat_id)
        return None if turn is None or turn.ended else _read(turn, *turn.replayed())

    async def stop(self, chat_id: str) -> None:
        turn = self._turns.get(chat_id)
        if turn is not None:
            turn.stop()
            await turn.settled()

    async def _ended(self, chat_id: str, log: TurnLog, _outcome: Outcome, _message: UIMessage) -> None:
        if self._turns[chat_id].log is log:
            del self._turns[chat_id]


async def _read(turn: Turn, first: bytes, index: int) -> AsyncGenerator[Chunk, None]:
    log = turn.log
    turn.attach()
    try:
        for event in SseDecoder().feed(first):
            yield decode_chunk(event.data.encode()).chunk
        while True:
            for frame in log.frames[index:]:
                index += 1
                yield decode_chunk(payload_of(frame)).chunk
            if index == len(log.frames):
                if log.outcome is not None:
                    return
                await _changed(log)
    finally:
        turn.detach()


async def _changed(log: TurnLog) -> None:
    changed = asyncio.Event()
    log.call_when_changed(changed.set)
    await changed.wait()


def new_id() -> str:
    return secrets.token_urlsafe(12)
