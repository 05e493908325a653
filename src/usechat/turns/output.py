"""What an agent writes, from any thread, as the chunks of one message.

An output is *open* until its `closed` is set; then nothing that is written has an effect. `lock` guards the writer and
its state, the texts that wait, and `closed`. It is reentrant, and held whenever `take` and `take_texts` are called, so
that both see one chunk after the other.

`write` may be called in any thread, `text` in that of the event loop. To close the output, or to look at the writer's
state, take the lock and call `flush` first.

Texts take a fast path. Short ones that follow each other within 100 µs wait for the next round of the event loop, and
up to 64 of them are written together; everything else that is written goes after them. A text that continues the open
text part of the main lane changes nothing in the writer's state, so that no chunk is made of it: `take_texts` gets its
part and the texts themselves.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import Final, ParamSpec

from usechat.protocol.chunks import Chunk, TextDelta
from usechat.protocol.messages import UIMessage
from usechat.protocol.writer import MessageWriter
from usechat.stores import StopReason

__all__ = ["Output"]

_P = ParamSpec("_P")

# Coalesce texts of up to 128 characters that arrive within 100 µs of each other, at most 64 at a time.
_SHORT: Final = 128
_TOGETHER_SECONDS: Final = 100e-6
_TOGETHER: Final = 64


class Output:
    """A turn as its agent sees it: it puts what is written into one order, and a subclass says where the chunks go."""

    __slots__ = ("_is_stopping", "_loop", "_stopping", "_texts", "_wrote", "closed", "lock", "stopped", "writer")

    def __init__(self, writer: MessageWriter) -> None:
        self.writer = writer
        self.lock = threading.RLock()
        self.closed = False
        self._loop = asyncio.get_running_loop()
        # Why the turn was stopped, if somebody else than its agent did so.
        self.stopped: StopReason | None = None
        # Made when somebody looks at it, since it is large and few do.
        self._stopping: asyncio.Event | None = None
        self._is_stopping = False
        self._texts: list[str] = []
        # When the last text came.
        self._wrote = 0.0

    @property
    def stopping(self) -> asyncio.Event:
        """Set as soon as the turn is ended by somebody else than its agent."""
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

    def said(self) -> UIMessage | None:
        """A copy of the message as it is now, with the one that it continues; None if nobody builds it."""
        return None

    def take(self, chunks: Iterable[Chunk]) -> None:
        """Take chunks, each before the next one is made."""
        raise NotImplementedError

    def take_texts(self, part: str, texts: Sequence[str]) -> None:
        """Take the deltas of an open text part, none of them empty."""
        self.take(TextDelta(part, text) for text in texts)

    def fail(self, error: BaseException) -> None:
        """End the message because of this error."""
        raise NotImplementedError

    def write(self, method: Callable[_P, Iterable[Chunk]], *arguments: _P.args, **options: _P.kwargs) -> None:
        """Write what a method of the writer or a mapper makes; after the end the method is not called."""
        with self.lock:
            if self._texts:
                self.flush()
            if not self.closed:
                self.take(method(*arguments, **options))

    def text(self, text: str, now: float) -> None:
        """Write a text: the first of a burst, and one that comes alone, at once; others when the loop runs next."""
        if len(text) > _SHORT:
            self.write(self.writer.text, text)
            return
        with self.lock:
            recent, self._wrote = now - self._wrote < _TOGETHER_SECONDS, now
            if not recent and not self._texts:
                part = self.writer.flow(text) if not self.closed else None
                if part is not None:
                    self.take_texts(part, (text,))
                else:
                    self._write_texts([text])
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
                self._write_texts(texts)

    def _write_texts(self, texts: list[str]) -> None:
        if self.closed:
            return
        part = self.writer.flow("".join(texts)) if all(texts) else None
        if part is None:
            self.take(chain.from_iterable(map(self.writer.text, texts)))
        else:
            self.take_texts(part, texts)

    def _flush_waiting(self) -> None:
        try:
            self.flush()
        # The loop calls, which could do nothing with the error.
        except Exception as error:  # noqa: BLE001
            self.fail(error)
