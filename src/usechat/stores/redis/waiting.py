"""How a process waits for what happens to a turn, wherever it happens."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress

from usechat.stores import StoreAwayError, TurnHead
from usechat.stores.redis.copies import CopyHost
from usechat.stores.redis.looks import Look, look

__all__ = ["when"]


async def when(host: CopyHost, head: TurnHead, holds: Callable[[Look], bool]) -> Look:
    """Wait until it holds for the turn, and give what the turn is like then; a turn whose owner is gone is ended.

    Raises:
        StoreAwayError: Redis is away.
    """
    keys, patience = host.keys.of(head), host.settings.patience
    state = await look(host.line, keys, patience)
    if holds(state):
        return state
    async with _hearing(host, keys.turn) as heard:
        while True:
            heard.clear()
            state = await look(host.line, keys, patience)
            if holds(state):
                return state
            if state.late:
                host.reap(head)
            with suppress(TimeoutError):
                async with asyncio.timeout(host.settings.lease / 2):
                    await heard.wait()


@asynccontextmanager
async def _hearing(host: CopyHost, channel: bytes) -> AsyncGenerator[asyncio.Event, None]:
    heard, channels = asyncio.Event(), host.channels

    def hear(_: bytes) -> None:
        heard.set()

    try:
        async with asyncio.timeout(host.settings.patience):
            await channels.join(channel, hear)
    except TimeoutError:
        raise StoreAwayError from None
    try:
        yield heard
    finally:
        channels.leave(channel, hear)
