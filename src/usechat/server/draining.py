"""Before a server's own shutdown: take no new turns, give the running ones some time, then end them.

Theory of operation
-------------------
Python calls a signal's handler in the main thread, between two instructions, also while an agent holds the event loop.
So `_on_signal` starts the timer of `exit_hard` itself and leaves the rest to the loop, by `call_soon_threadsafe`.

The first signal starts the task `_drain`, the second `_hurry`; later ones add a timer and nothing else. At its end the
task that was started last puts the handlers of before back and raises the signal again, for the server.
"""

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
# How long the process may take after its grace, or after a second signal.
_LAST_SECONDS: Final = 8.0
_HURRIED_SECONDS: Final = 1.0
# How long the server itself may take after the last turn has ended.
_SERVER_SECONDS: Final = 4.0


@contextmanager
def drain_on_signals(chats: Chats, *, grace: float, exit_hard: bool = False) -> Generator[None, None, None]:
    """Let SIGTERM and SIGINT drain the chats first and reach the server's own handlers afterwards.

    Enter it in your app's lifespan. The end of the lifespan would be too late, because a server waits for open
    responses before it. Running turns get `grace` seconds; a second signal ends them at once. With `exit_hard` the
    process exits a few seconds later, also with an agent that cannot be cancelled or a database that hangs.
    """
    if threading.current_thread() is not threading.main_thread():
        # Only the main thread may set handlers.
        yield
        return
    hook = _Hook(chats, grace, exit_hard=exit_hard)
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
        # Kept, because a bound method is a new object each time and `remove` compares it.
        self._handler = self._on_signal
        self._previous = {number: signal.signal(number, self._handler) for number in _SIGNALS}

    def remove(self) -> None:
        for number, handler in self._previous.items():
            if signal.getsignal(number) is self._handler:
                signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
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
        self._exit_after(_SERVER_SECONDS)
        self.remove()
        signal.raise_signal(number)

    def _exit_after(self, seconds: float) -> None:
        if self._exit_hard:
            timer = threading.Timer(seconds, os._exit, [1])
            timer.daemon = True
            timer.start()
