"""What an agent says, from any thread, as the chunks of one message."""

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Final, ParamSpec, Protocol

from usechat.protocol.chunks import Chunk
from usechat.protocol.writer import MessageWriter

__all__ = ["Output", "Sink"]

_P = ParamSpec("_P")

# Texts of up to so many characters that come within so many seconds of each other are written together, up to so many.
_SHORT: Final = 128
_TOGETHER_SECONDS: Final = 100e-6
_TOGETHER: Final = 64


class Sink(Protocol):
    """Where the chunks of a message go; it is called by one thread at a time."""

    @property
    def full(self) -> Callable[[], bool] | None:
        """Says, in any thread, whether an agent that can wait should do so; None if it never has to."""
        ...

    async def room(self) -> None:
        """Wait until it is no longer full."""
        ...

    def take(self, chunks: Iterable[Chunk]) -> None:
        """Take chunks, each before the next one is made."""
        ...

    def take_texts(self, part: str, texts: Sequence[str]) -> None:
        """Take the deltas of an open text part, none of them empty."""
        ...

    def fail(self, error: BaseException) -> None:
        """End the message because of this error."""
        ...


class Output:
    """Puts what is said into the order in which it is said, and hands it to a sink.

    `say` may be called from any thread, `text` from that of the event loop. Once the output is closed, nothing that is
    said has an effect. Whoever closes it, or looks at the writer's state, takes the lock and calls `flush` first.
    """

    __slots__ = ("_last", "_loop", "_sink", "_texts", "closed", "lock", "writer")

    def __init__(self, writer: MessageWriter, sink: Sink) -> None:
        self.writer = writer
        self.lock = threading.RLock()
        self.closed = False
        self._sink: Sink | None = sink
        self._loop = asyncio.get_running_loop()
        self._texts: list[str] = []
        self._last = 0.0

    @property
    def full(self) -> Callable[[], bool] | None:
        return None if self._sink is None else self._sink.full

    async def room(self) -> None:
        if self._sink is not None:
            await self._sink.room()

    def detach(self) -> None:
        """Let go of the sink once the output is closed."""
        self._sink = None

    def say(self, write: Callable[_P, Iterable[Chunk]], *arguments: _P.args, **options: _P.kwargs) -> None:
        """Take what a method of the writer or a mapper makes; after the end it is not called."""
        with self.lock:
            if self._texts:
                self.flush()
            if not self.closed and self._sink is not None:
                self._sink.take(write(*arguments, **options))

    def text(self, text: str, now: float) -> None:
        """Say a text, at the latest when the loop runs next, and before anything else is said.

        The short texts of an agent that does not wait are written together, at little more than the price of their
        bytes; the first of them, and each one that comes alone, is written at once.
        """
        if len(text) > _SHORT:
            self.say(self.writer.text, text)
            return
        with self.lock:
            recent, self._last = now - self._last < _TOGETHER_SECONDS, now
            if not recent and not self._texts:
                part = self.writer.flow(text) if not self.closed else None
                if part is not None and self._sink is not None:
                    self._sink.take_texts(part, (text,))
                else:
                    self._write([text])
                return
            if not self._texts:
                self._loop.call_soon(self._flush_waiting)
            self._texts.append(text)
            if len(self._texts) >= _TOGETHER:
                self.flush()

    def flush(self) -> None:
        """Write the texts that wait."""
        with self.lock:
            if self._texts:
                texts, self._texts = self._texts, []
                self._write(texts)

    def _write(self, texts: list[str]) -> None:
        if self.closed or self._sink is None:
            return
        part = self.writer.flow("".join(texts)) if all(texts) else None
        if part is None:
            self._sink.take(chain.from_iterable(map(self.writer.text, texts)))
        else:
            self._sink.take_texts(part, texts)

    def _flush_waiting(self) -> None:
        try:
            self.flush()
        # Nobody called who could be told.
        except Exception as error:  # noqa: BLE001
            if self._sink is not None:
                self._sink.fail(error)
