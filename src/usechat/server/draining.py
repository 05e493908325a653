"""What comes before a server's own shutdown: no new turns, some time for those that run, and an end for all."""

import asyncio
import logging
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from usechat.server.chats import Chats

__all__ = ["drain_on_signals"]

_log = logging.getLogger(__name__)
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def drain_on_signals(chats: Chats, *, grace: float) -> Generator[None, None, None]:
    """Let SIGTERM and SIGINT drain the chats first and reach the server's own handlers afterwards.

    Enter it in your app's lifespan. To drain when the lifespan ends would be too late, since a server waits for open
    responses before that. Running turns get `grace` seconds; a second signal ends them at once.
    """
    if threading.current_thread() is not threading.main_thread():
        # Python gives signals to the main thread only.
        yield
        return
    hook = _Hook(chats, grace)
    hook.install()
    try:
        yield
    finally:
        hook.remove()


class _Hook:
    def __init__(self, chats: Chats, grace: float) -> None:
        self._chats = chats
        self._grace = grace
        self._loop = asyncio.get_running_loop()
        self._draining: asyncio.Task[None] | None = None
        self._hurrying: asyncio.Task[None] | None = None
        # A bound method is a new object each time, and `remove` must know its own.
        self._handler = self._on_signal
        self._previous = {number: signal.getsignal(number) for number in _SIGNALS}

    def install(self) -> None:
        for number in _SIGNALS:
            signal.signal(number, self._handler)

    def remove(self) -> None:
        for number, handler in self._previous.items():
            if signal.getsignal(number) is self._handler:
                signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._loop.call_soon_threadsafe(self._begin, number)

    def _begin(self, number: int) -> None:
        if self._draining is None:
            self._draining = self._loop.create_task(self._drain(number))
        else:
            self._hurrying = self._loop.create_task(self._chats.drain(0))

    async def _drain(self, number: int) -> None:
        if self._grace > 0:
            _log.info("Shutting down: answers that are being written get %g seconds.", self._grace)
        await self._chats.drain(self._grace)
        self.remove()
        signal.raise_signal(number)
