"""What comes before a server's own shutdown: no new turns, some time for those that run, and an end for all."""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final

from usechat.server.chats import Chats

__all__ = ["drain_on_signals"]

_log = logging.getLogger(__name__)
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
# What a process may still take after its grace, or after a second signal.
_LAST_SECONDS: Final = 8.0
_HURRIED_SECONDS: Final = 1.0
# What the server itself may take after the last turn has ended.
_SERVER_SECONDS: Final = 4.0


@contextmanager
def drain_on_signals(chats: Chats, *, grace: float, exit_hard: bool = False) -> Generator[None, None, None]:
    """Let SIGTERM and SIGINT drain the chats first and reach the server's own handlers afterwards.

    Enter it in your app's lifespan. To drain when the lifespan ends would be too late, since a server waits for open
    responses before that. Running turns get `grace` seconds; a second signal ends them at once. With `exit_hard` the
    process ends a few seconds later whatever still runs: an agent that cannot be cancelled, a database that hangs.
    """
    if threading.current_thread() is not threading.main_thread():
        # Python gives signals to the main thread only.
        yield
        return
    hook = _Hook(chats, grace, exit_hard=exit_hard)
    hook.install()
    try:
        yield
    finally:
        hook.remove()


class _Hook:
    def __init__(self, chats: Chats, grace: float, *, exit_hard: bool) -> None:
        self._chats = chats
        self._grace = grace
        self._exit_hard = exit_hard
        self._signals = 0
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
        # Here and not in the loop, which an agent may hold.
        self._exit_after(self._grace + _LAST_SECONDS if self._signals == 0 else 2 * _HURRIED_SECONDS)
        self._signals += 1
        self._loop.call_soon_threadsafe(self._begin, number)

    def _begin(self, number: int) -> None:
        if self._draining is None:
            self._draining = self._loop.create_task(self._drain(number))
        elif self._hurrying is None:
            self._hurrying = self._loop.create_task(self._hurry(number))

    async def _drain(self, number: int) -> None:
        if self._grace > 0:
            _log.info("Shutting down: answers that are being written get %g seconds.", self._grace)
        await self._chats.drain(self._grace)
        if self._hurrying is None:
            self._leave(number)

    async def _hurry(self, number: int) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._chats.drain(0), _HURRIED_SECONDS)
        self._leave(number)

    def _leave(self, number: int) -> None:
        # What is left to do is the server's, and is not much.
        self._exit_after(_SERVER_SECONDS)
        self.remove()
        signal.raise_signal(number)

    def _exit_after(self, seconds: float) -> None:
        if self._exit_hard:
            timer = threading.Timer(seconds, os._exit, [1])
            timer.daemon = True
            timer.start()
