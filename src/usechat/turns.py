"""A turn: one agent at work on one answer. It writes a log; responses read it, come and go."""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import chain
from typing import Any, Final, ParamSpec, TypeAlias

import msgspec
from msgspec import Struct

from usechat.protocol.chunks import Chunk, FinishReason, ToolApprovalResponse
from usechat.protocol.clients import TYPES
from usechat.protocol.codec import decode_chunk, encode_chunk, encode_frame
from usechat.protocol.messages import UIMessage
from usechat.protocol.reader import MessageReader
from usechat.protocol.replay import Fold
from usechat.protocol.sse import payload_of
from usechat.protocol.state import StreamState
from usechat.protocol.writer import MessageWriter
from usechat.stores import Outcome, TurnLog

__all__ = ["REPLACED", "OnEnd", "Turn", "TurnLimits"]

_log = logging.getLogger("usechat")

OnEnd: TypeAlias = Callable[[Outcome, UIMessage], Awaitable[None]]

# The message of the `CancelledError` that an agent gets when a newer turn of its chat takes the place of its own.
REPLACED: Final = "replaced"

_P = ParamSpec("_P")
# A text of up to so many characters waits for others, of which up to so many are written together.
_SHORT: Final = 128
_TOGETHER: Final = 64
_TAIL: Final = 64 * 1024
_DELTA: Final = b'%b%%d\ndata: {"type":"text-delta","id":%b,"delta":%%b}\n\n'
_encode: Final = msgspec.json.Encoder().encode
_OUTCOMES: Final[dict[str, Outcome]] = {"ended": "done", "failed": "error"}


class TurnLimits(Struct, frozen=True):
    """How long a turn may take and how much it may say.

    `linger` is what happens when the last reader leaves: 0 stops the turn at once, None lets it run to its end, a
    number waits that many seconds for somebody to come back. `idle` counts seconds without a chunk, except while an
    approval is open. `log` is the most bytes of a turn.
    """

    linger: float | None = 30.0
    idle: float | None = 120.0
    total: float | None = 3600.0
    log: int = 16 * 1024 * 1024


class Turn:
    """Runs one agent, in a task of its own, and owns the message that it writes.

    `work` is the agent; it calls `say` to write, from any thread. `explain` gives the text that the user sees for
    an exception. `on_end` is awaited exactly once, however the turn ends, with the message as far as it came.
    """

    def __init__(
        self,
        log: TurnLog,
        writer: MessageWriter,
        continues: UIMessage | None,
        *,
        limits: TurnLimits,
        explain: Callable[[BaseException], str],
        on_end: OnEnd,
    ) -> None:
        self.log = log
        self.writer = writer
        self.lock = threading.RLock()
        self.stopping = asyncio.Event()
        self._reader = MessageReader(continues)
        # A client that counts must not take the index of one turn for that of another.
        self._id_line = f"id: {self.mark}.".encode()
        self._frame = self._id_line + b"%d\ndata: %b\n\n"
        # The text part that the last delta went to: how its frames look, and where its deltas are kept.
        self._texts: list[str] = []
        self._flow = ""
        self._flow_frame = b""
        self._flow_deltas: list[str] = []
        self._fold = Fold(continues)
        self._folded = self._folded_size = 0
        self._replay = b""
        self._limits = limits
        self._explain = explain
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._readers = 0
        self._last = self._loop.time()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._task: asyncio.Task[None] | None = None
        self._why: str | None = None
        self._closing: asyncio.Task[None] | None = None
        self._settled = self._loop.create_future()
        log.on_stop = self.stop

    def start(self, work: Callable[[], Awaitable[None]]) -> None:
        """Let the agent work, unless somebody stopped the turn before it began."""
        if self.ended:
            return
        self.say(self.writer.start)
        self._task = asyncio.create_task(self._run(work))
        if self._limits.total is not None:
            self._after("total", self._limits.total, self._too_long)
        if self._limits.idle is not None:
            self._after("idle", self._limits.idle, self._check_idle, self._limits.idle)

    @property
    def mark(self) -> str:
        """What stands before the index in the `id:` of the turn's frames."""
        return self.log.turn[:8]

    @property
    def ended(self) -> bool:
        return self.log.outcome is not None

    def say(self, write: Callable[_P, Iterable[Chunk]], *arguments: _P.args, **options: _P.kwargs) -> None:
        """Append what a method of the writer or a mapper makes to the log; after the end it is not called."""
        with self.lock:
            if self._texts:
                self._flush()
            if self.log.outcome is None:
                self._take(write(*arguments, **options))

    def say_text(self, text: str) -> None:
        """Say a text, at the latest when the loop gets its turn, and before anything else is said.

        It is for the loop's thread. The short texts of an agent that does not wait are written together, at little more
        than the price of their bytes.
        """
        if len(text) > _SHORT:
            self.say(self.writer.text, text)
            return
        with self.lock:
            if not self._texts:
                self._loop.call_soon(self._say_waiting)
            self._texts.append(text)
            if len(self._texts) >= _TOGETHER:
                self._flush()

    def _say_waiting(self) -> None:
        try:
            self._flush()
        # Nobody called who could be told.
        except Exception as error:  # noqa: BLE001
            self._fail_over(error)

    def _flush(self) -> None:
        with self.lock:
            texts, self._texts = self._texts, []
            if not texts or self.ended:
                return
            part = self.writer.flow("".join(texts)) if all(texts) else None
            if part is None:
                self._take(chain.from_iterable(map(self.writer.text, texts)))
            else:
                self._add(part, texts)

    def _add(self, part: str, texts: list[str]) -> None:
        if part != self._flow:
            self._flow = part
            self._flow_frame = _DELTA % (self._id_line, _encode(part).replace(b"%", b"%%"))
            self._flow_deltas = self._reader.deltas_of(part)
        frame, first = self._flow_frame, len(self.log.frames) + 1
        self._flow_deltas += texts
        self.log.extend([frame % (index, _encode(text)) for index, text in enumerate(texts, first)])
        self._after_writing()

    def stop(self, why: str | None = None) -> None:
        """End the turn at once: cancel the agent, keep what it said. `why` is the message of its cancellation."""
        with self.lock:
            self._flush()
            if self.ended:
                return
            self._why = why
            self._in_loop(self.stopping.set)
            self._end(self.writer.abort(), "stopped")

    def fail(self, text: str) -> None:
        """End the turn with an error, whose text the user sees."""
        with self.lock:
            self._flush()
            if not self.ended:
                self._end(self.writer.fail(text), "error")

    async def settled(self) -> None:
        """Wait until the turn has ended and `on_end` is through."""
        await asyncio.shield(self._settled)

    def replayed(self) -> tuple[bytes, int]:
        """The message so far as frames, folded, and the index of the last chunk that they hold.

        What came since the last fold is left to be read from the log, as long as that is little.
        """
        with self.lock:
            if not self._replay or self.log.size - self._folded_size > max(_TAIL, len(self._replay) // 4):
                for frame in self.log.frames[self._folded :]:
                    self._fold.add(decode_chunk(payload_of(frame)).chunk)
                self._folded, self._folded_size = len(self.log.frames), self.log.size
                self._replay = b"".join(encode_frame(chunk) for chunk in self._told())
            return self._replay, self._folded

    def _told(self) -> Iterator[Chunk]:
        client = self.writer.client
        for chunk in self._fold.chunks():
            # The parts of a continued message may hold what only newer clients can be told.
            if not isinstance(chunk, ToolApprovalResponse) or client.takes(TYPES["tool-approval-response"]):
                yield from client.fit(chunk, StreamState())

    def attach(self) -> None:
        """Count a reader; it calls `detach` when it leaves."""
        self._readers += 1
        self._cancel("linger")

    def detach(self) -> None:
        self._readers -= 1
        if self._readers == 0 and not self.ended and self._limits.linger is not None:
            self._after("linger", self._limits.linger, self.stop)

    async def _run(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
            self._finish()
        except asyncio.CancelledError:
            self.stop()
            raise
        # The border: whatever an agent raises, also to leave the process, ends its turn with an error and nothing else.
        except (Exception, SystemExit) as error:  # noqa: BLE001
            self._fail_over(error)
        finally:
            self._cancel("total")
            # A task that was cancelled holds its frames, and with them this turn.
            self._task = None

    def _fail_over(self, error: BaseException) -> None:
        try:
            self.fail(self._explain(error))
        # The app may choose the text, and fail.
        except Exception:  # noqa: BLE001
            _log.exception("the text of an error failed")
            self.fail("Something went wrong.")

    def _finish(self) -> None:
        with self.lock:
            self._flush()
            if not self.ended:
                self._end(self.writer.finish(self._reason()), "done")

    def _reason(self) -> FinishReason:
        waits = any(call.state in ("available", "requested") for call in self.writer.state.open_calls())
        return "tool-calls" if waits else "stop"

    def _take(self, chunks: Iterable[Chunk]) -> None:
        self._flow = ""
        for chunk in chunks:
            self._append(chunk)
        self._after_writing()

    def _after_writing(self) -> None:
        if self.writer.state.phase in _OUTCOMES:
            self._end((), _OUTCOMES[self.writer.state.phase])
        elif self.log.size > self._limits.log:
            self._end(self.writer.fail("The answer became too large."), "error")
        else:
            self._in_loop(self._wake)

    def _wake(self) -> None:
        # Here and not where the chunk is made: the clock of a loop is right in its own thread only.
        self._last = self._loop.time()
        self.log.wake()

    def _append(self, chunk: Chunk) -> None:
        self._reader.apply(chunk)
        self.log.append(self._frame % (len(self.log.frames) + 1, encode_chunk(chunk)))

    def _end(self, chunks: Iterable[Chunk], outcome: Outcome) -> None:
        for chunk in chunks:
            self._append(chunk)
        self.log.close(outcome)
        self._in_loop(self._close, outcome)

    def _in_loop(self, callback: Callable[..., None], *arguments: Any) -> None:
        if threading.get_ident() == self._thread:
            callback(*arguments)
        else:
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _close(self, outcome: Outcome) -> None:
        own_end = self._task is not None and self._task is asyncio.current_task(self._loop)
        for name in list(self._timers):
            # An agent that ended its message itself may go on, but not for ever.
            if not own_end or name != "total":
                self._cancel(name)
        self.log.wake()
        if not own_end:
            self.stopping.set()
            if self._task is not None:
                self._task.cancel(self._why)
        self._closing = self._loop.create_task(self._settle(outcome))

    async def _settle(self, outcome: Outcome) -> None:
        try:
            await self._on_end(outcome, self._reader.message)
        finally:
            self._settled.set_result(None)

    def _after(self, name: str, seconds: float, callback: Callable[..., None], *arguments: Any) -> None:
        self._timers[name] = self._loop.call_later(seconds, callback, *arguments)

    def _cancel(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()

    def _too_long(self) -> None:
        if self.ended and self._task is not None:
            self._task.cancel()
        self.fail("The answer took too long.")

    def _check_idle(self, idle: float) -> None:
        left = self._last + idle - self._loop.time()
        if left <= 0 and not self._asks():
            self.fail("The agent did not answer in time.")
        else:
            self._after("idle", left if left > 0 else idle, self._check_idle, idle)

    def _asks(self) -> bool:
        # A thread may be writing.
        with self.lock:
            return any(call.state == "requested" for call in self.writer.state.open_calls())
