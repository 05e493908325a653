"""Events that come by themselves, on their way to a driver that yields them."""

import asyncio
from typing import Final, Generic, Self, TypeVar

__all__ = ["EventQueue"]

_Event = TypeVar("_Event")

# `push` refuses events while 10,000 wait. A producer that can wait does so while 1,000 wait.
_MOST: Final = 10_000
_PLENTY: Final = 1_000


class EventQueue(Generic[_Event]):
    """A bounded queue, for the thread of the event loop; to iterate it is to read it, up to its end."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[tuple[_Event] | BaseException | None] = asyncio.Queue()
        self._read = asyncio.Event()
        self._ended = False

    def push(self, event: _Event) -> bool:
        """Put an event behind the others, unless there is an end; False if too many wait already."""
        if not self._ended:
            if self._events.qsize() >= _MOST:
                return False
            self._events.put_nowait((event,))
        return True

    def end(self, error: BaseException | None = None) -> None:
        """Let nothing follow what was pushed but this error, if it is one; the first end counts."""
        if not self._ended:
            self._ended = True
            self._events.put_nowait(error)
            self._read.set()

    async def drain(self) -> None:
        """Wait until few events wait, or until there is an end."""
        if self._events.qsize() > _PLENTY and not self._ended:
            self._read.clear()
            await self._read.wait()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> _Event:
        found = await self._events.get()
        if self._events.qsize() <= _PLENTY:
            self._read.set()
        if found is None:
            raise StopAsyncIteration
        if isinstance(found, BaseException):
            raise found
        return found[0]
