"""Threads for agents that block: a bounded number, in which each thread counts until it has ended."""

import asyncio
import contextvars
import inspect
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, ParamSpec, TypeVar

__all__ = ["THREADS", "Threads", "is_any"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


def is_any(kind: Callable[[Any], bool], function: object) -> bool:
    """Whether a function is of this kind, or the method by which an object is called."""
    return kind(function) or kind(getattr(function, "__call__", None))  # noqa: B004


class Threads:
    """At most `most` threads. A thread that goes on after its caller was cancelled keeps its place."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._running = 0
        self._waiting: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = deque()

    async def run(self, work: Callable[_P, _T], *arguments: _P.args, **options: _P.kwargs) -> _T:
        """Run the work in a thread of its own, as soon as there is a place, and give what it returns or raises.

        A caller that is cancelled leaves at once; the thread goes on to its end.
        """
        await self._enter()
        loop, context = asyncio.get_running_loop(), contextvars.copy_context()
        # What the work raises may be something that a future cannot hold.
        done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

        def settle(result: Any, error: BaseException | None) -> None:
            if not done.done():
                done.set_result((result, error))

        def call() -> None:
            result, error = None, None
            try:
                result = context.run(work, *arguments, **options)
            # It is raised again where somebody waits for it.
            except BaseException as raised:  # noqa: BLE001
                error = raised
            self._leave()
            # A loop that is closed has nobody who waits.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, result, error)

        try:
            threading.Thread(target=call, name="usechat agent", daemon=True).start()
        except RuntimeError:
            # The machine has no more threads to give.
            self._leave()
            raise
        result, error = await done
        if error is not None:
            raise error
        return result

    async def call(self, function: Callable[_P, Any], *arguments: _P.args, **options: _P.kwargs) -> Any:
        """Call a function of the app, in a thread unless it is async, and give what it returns in the end."""
        if is_any(inspect.iscoroutinefunction, function):
            return await function(*arguments, **options)
        returned = await self.run(function, *arguments, **options)
        return await returned if inspect.isawaitable(returned) else returned

    async def _enter(self) -> None:
        with self._lock:
            if self._running < self._most:
                self._running += 1
                return
            loop = asyncio.get_running_loop()
            place = loop.create_future()
            self._waiting.append((loop, place))
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._leave()
            raise

    def _leave(self) -> None:
        """Give the place to the next caller that waits, or free it."""
        with self._lock:
            while self._waiting:
                loop, place = self._waiting.popleft()
                try:
                    loop.call_soon_threadsafe(self._give, place)
                except RuntimeError:
                    # That loop is closed, and its caller is gone.
                    continue
                return
            self._running -= 1

    def _give(self, place: asyncio.Future[None]) -> None:
        if place.done():
            self._leave()
        else:
            place.set_result(None)


THREADS: Final = Threads(64)
"""For agents that get no others."""
