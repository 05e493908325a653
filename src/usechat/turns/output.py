"""What an agent writes, from any thread, as the chunks of one message.

An output is *open* until its `closed` is set; then nothing that is written has an effect. `lock` guards the writer and
its state, and `closed`. It is reentrant, and held whenever `take` is called, so that `take` sees one chunk after the
other. To close the output, or to look at the writer's state, take the lock.

`write` may be called in any thread, `write_event` in that of the event loop.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import ParamSpec, TypeVar

from usechat.events import Mapper
from usechat.protocol.chunks import Chunk
from usechat.protocol.messages import UIMessage
from usechat.protocol.writer import MessageWriter
from usechat.stores import StopReason

__all__ = ["Output"]

_P = ParamSpec("_P")
_Event = TypeVar("_Event")


class Output:
    """A turn as its agent sees it: it puts what is written into one order, and a subclass says where the chunks go."""

    __slots__ = ("_is_stopping", "_loop", "_stopping", "closed", "lock", "stopped", "writer")

    def __init__(self, writer: MessageWriter) -> None:
        self.writer = writer
        self.lock = threading.RLock()
        self.closed = False
        self._loop = asyncio.get_running_loop()
        # Why the turn was stopped, unless its agent ended it.
        self.stopped: StopReason | None = None
        # Made at the first access, since it is large and few agents look at it.
        self._stopping: asyncio.Event | None = None
        self._is_stopping = False

    @property
    def stopping(self) -> asyncio.Event:
        """Set as soon as anybody but the agent ends the turn."""
        if self._stopping is None:
            self._stopping = asyncio.Event()
            if self._is_stopping:
                self._stopping.set()
        return self._stopping

    def set_stopping(self) -> None:
        self._is_stopping = True
        if self._stopping is not None:
            self._stopping.set()

    def hold(self) -> AbstractContextManager[None]:
        """Suspend the idle clock, if there is one."""
        return nullcontext()

    def touch(self) -> None:
        """Let the idle clock, if there is one, begin anew."""

    @property
    def full(self) -> Callable[[], bool] | None:
        """Says, in any thread, whether an agent that can wait should do so; None if it never has to."""
        return None

    async def drain(self) -> None:
        """Wait until the output is no longer full."""

    def snapshot(self) -> UIMessage | None:
        """A copy of the message as it is now, with the one that it continues; None if nobody builds it."""
        return None

    def take(self, chunks: Iterable[Chunk]) -> None:
        """Take chunks, each before the next one is made."""
        raise NotImplementedError

    def fail(self, error: BaseException) -> None:
        """End the message because of this error."""
        raise NotImplementedError

    def write(self, method: Callable[_P, Iterable[Chunk]], *arguments: _P.args, **options: _P.kwargs) -> None:
        """Write what a method of the writer or a mapper makes; after the end the method is not called."""
        with self.lock:
            if not self.closed:
                self.take(method(*arguments, **options))

    def write_event(self, mapper: Mapper[_Event], event: _Event, _now: float) -> None:
        """Write what the mapper makes of an event that came `now`, by the clock `perf_counter`.

        Raises:
            MappingError: the event is of no use.
        """
        self.write(mapper.map, event)
