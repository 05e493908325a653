"""A turn in a Redis that one worker writes, and another one reads and stops: what `usechat doctor` tries last."""

import asyncio
import secrets
from typing import Any, Final

from usechat.ids import new_turn_id
from usechat.stores import Claim, StopReason, TurnHead
from usechat.stores.redis import RedisTurnStore

__all__ = ["play_turn"]

# Frames of a turn end with an empty line.
_FRAMES: Final = (b"data: Is anybody there?\n\n", b"data: No.\n\n")


class _Producer:
    """An agent that waits to be stopped."""

    def __init__(self) -> None:
        self.stopped = asyncio.Event()

    def stop(self, why: StopReason) -> None:
        self.stopped.set()

    def readers_changed(self, count: int | None) -> None: ...

    def fenced(self, *, is_here: bool) -> None: ...


async def play_turn(url: str, client: Any, seconds: float) -> None:
    """Play it, with keys that nobody else has and that are deleted by the client, which is one of redis-py.

    Raises:
        TimeoutError: It was not over in so many seconds.
        StoreAwayError: Redis refused something.
    """
    secret, scope = secrets.token_hex(32), f"doctor {secrets.token_hex(8)}"
    writer, other = (RedisTurnStore(url, secret=secret, scope=scope, keep=seconds) for _ in range(2))
    head = TurnHead(turn=new_turn_id(), chat="doctor", owner="", message_id="doctor")
    try:
        async with asyncio.timeout(seconds), writer.serve(_end_nothing), other.serve(_end_nothing):
            await _play(head, writer, other, seconds)
    finally:
        keys = writer.keys.of(head)
        client.execute_command("DEL", *keys[:-1], keys.chat + b":t", writer.keys.running, writer.keys.mark)


async def _play(head: TurnHead, writer: RedisTurnStore, other: RedisTurnStore, seconds: float) -> None:
    producer = _Producer()
    claim = await writer.claim(head)
    await claim.open(producer, None, ())
    claim.append(_FRAMES[:1])
    reader = await other.follow(head)
    while reader is not None and not reader.take_frame():
        await reader.log.changed()
    stopping = asyncio.create_task(other.stop(head, "stopped", seconds))
    await producer.stopped.wait()
    await claim.seal(_FRAMES[1:], "stopped")
    await claim.release()
    await stopping


async def _end_nothing(_claim: Claim, _why: StopReason | None) -> None: ...
