"""Events of any source as one stream of chunks, without a server.

`map_events` runs the pump in a task of its own, which writes into `_Stream`. The stream is *full* while it holds chunks
that the caller has not taken, and the pump asks for no event until then; `_changed` wakes the side that waits. It ends
when the events have run out, when the mapper has ended the message, or with an error. A caller that closes the
generator cancels the task, and the pump closes the events.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable
from typing import TypeVar

from usechat.events import Mapper
from usechat.protocol.chunks import Chunk
from usechat.protocol.writer import MessageWriter
from usechat.turns.failures import ErrorText, explain
from usechat.turns.output import Output
from usechat.turns.pump import Unused, pump
from usechat.turns.threads import THREADS

__all__ = ["Unused", "map_events"]

_Event = TypeVar("_Event")


async def map_events(
    events: AsyncIterable[_Event],
    mapper: Mapper[_Event],
    writer: MessageWriter,
    *,
    error_text: ErrorText | None = None,
    unused: Unused | None = None,
) -> AsyncGenerator[Chunk, None]:
    """The stream of one run, from its start to its `finish`, `abort` or `error`; `mapper` writes with `writer`.

    It ends when the mapper says so, or well when the events have run out. If their source or the mapper fails, all
    parts are closed and an error follows, whose text `error_text` may choose for an exception; None is a masked text.
    An event that cannot be used is given to `unused`, by default a new `Unused`.
    """
    stream = _Stream(writer, error_text)
    moving = asyncio.create_task(stream.move(events, mapper, Unused() if unused is None else unused))
    try:
        while chunks := await stream.next():
            for chunk in chunks:
                yield chunk
    finally:
        moving.cancel()
        await asyncio.wait([moving])


class _Stream(Output):
    """Its chunks are handed over event by event: the next event is asked for when they were taken."""

    def __init__(self, writer: MessageWriter, error_text: ErrorText | None) -> None:
        super().__init__(writer)
        self._error_text = error_text
        self._chunks: list[Chunk] = []
        self._ended = False
        self._changed = asyncio.Event()

    async def move(self, events: AsyncIterable[_Event], mapper: Mapper[_Event], unused: Unused) -> None:
        try:
            self.write(self.writer.start)
            # An iterator that does not let the loop run must not keep the start from the reader.
            await self.drain()
            await pump(aiter(events), mapper, self, unused=unused, threads=THREADS)
            self.write(self.writer.finish)
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            self.fail(error)
        # The border: whatever the events' source or the mapper raises ends the stream with a masked error.
        except BaseException as error:  # noqa: BLE001
            self.fail(error)
        finally:
            self._ended = True
            self._changed.set()

    async def next(self) -> list[Chunk]:
        """The chunks of the next event; none after the last one."""
        while not self._chunks and not self._ended:
            self._changed.clear()
            await self._changed.wait()
        chunks, self._chunks = self._chunks, []
        self._changed.set()
        return chunks

    @property
    def full(self) -> Callable[[], bool]:
        return lambda: bool(self._chunks)

    async def drain(self) -> None:
        while self._chunks:
            self._changed.clear()
            await self._changed.wait()

    def take(self, chunks: Iterable[Chunk]) -> None:
        for chunk in chunks:
            self._chunks.append(chunk)
        self.closed = self.writer.state.phase in ("ended", "failed")
        self._changed.set()

    def fail(self, error: BaseException) -> None:
        self.write(self.writer.fail, explain(error, self._error_text))
        # The events may go on for ever, and nobody wants them any more.
        self._ended = True


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
