"""A turn: one agent at work on one answer. It writes a log, whose readers come and go.

`Turns` gives a turn its life, in one coroutine. This file is the part of it in which the agent works.

States. A turn is *running* until its `outcome` is chosen, once, by the first of these:

- the agent: it returns or ends its message ("done"), raises or writes an error ("error"), or aborts ("stopped");
- a stop, through the store, `linger` or the end of the process: "stopped", and `stopped` says why;
- the clocks `idle` and `total`, a reader that was cut off, or an answer that became too large: "error";
- another owner that has taken the turn over: "lost".

Then it is *ended*: its output is closed, `last` has the frames that end the message, and `chosen` wakes the life.
Nothing of `last` is in the log yet; the life seals it there.

Threads and locks. `outcome`, `last` and `stopped` are set together with the output's `closed`, under the output's
lock and in any thread. The message (`_reader`, `_count`) and the texts that wait (`_texts`) are guarded by that lock,
too: the message grows only in `take`, `_flush` and where the outcome is chosen. Everything else belongs to the event
loop: the clocks, the agent's task, `stopping`, waking readers. What another thread causes there goes through
`_in_loop`, so that `_end_agent` runs in the loop, once, but may run a moment after the outcome is chosen.

Texts take a fast path. Short ones that a plain agent yields within 100 µs of each other wait for the next round of the
event loop, and `_flush` writes up to 64 of them together. Everything else that writes or ends the message flushes them
first. A text that only continues the open text part changes nothing in the writer's state (`MessageWriter.flow`): its
frame is made from the part's template and its delta joins the message, without a chunk.

The agent's task. When anybody but the agent ends the turn, its task is cancelled at once; `wind_down` gives it one
second to clean up. An agent that ended its message itself may go on, until the clock of the whole turn cancels it; one
whose answer became too large has a second.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from typing import Any, Final, ParamSpec, TypeVar

from msgspec import structs

from usechat.events import Mapper
from usechat.events.mapper import EventMapper
from usechat.protocol.chunks import Abort, Chunk, Error, Finish, ReasoningDelta, TextDelta
from usechat.protocol.frames import Frames
from usechat.protocol.messages import UIMessage
from usechat.protocol.reader import MessageReader
from usechat.protocol.tables import CallState
from usechat.protocol.writer import MessageWriter
from usechat.stores import Claim, Outcome, StopReason
from usechat.turns.clocks import Clock, Clocks
from usechat.turns.failures import MASKED, explain
from usechat.turns.output import Output
from usechat.turns.quota import Slot
from usechat.turns.settings import ChatSettings

__all__ = ["Turn"]

_P = ParamSpec("_P")
_Event = TypeVar("_Event")

_OUTCOMES: Final[dict[str, Outcome]] = {"ended": "done", "failed": "error"}
# How long an agent may clean up after it was cancelled before its turn ends without it.
_WIND_DOWN: Final = 1.0
# The states of a call whose input is whole, and whose result or approval may be long in coming.
_SILENT: Final = frozenset[CallState](("available", "requested", "approved", "preliminary"))
_TOO_LARGE: Final = "The answer became too large."
# Coalesce texts of up to 128 characters that arrive within 100 µs of each other, at most 64 at a time.
_SHORT: Final = 128
_TOGETHER_SECONDS: Final = 100e-6
_TOGETHER: Final = 64
# From this many frames on that an agent writes at once, the readers are woken when the loop runs next.
_MANY: Final = 8


class Turn(Output):
    """Runs one agent, in a task of its own, and owns the message that it writes."""

    __slots__ = (
        "__weakref__",
        "_cancelled_at",
        "_clocks",
        "_count",
        "_frames",
        "_is_waking",
        "_reader",
        "_settings",
        "_task",
        "_texts",
        "_thread",
        "_unanswered",
        "_wrote",
        "chosen",
        "claim",
        "is_taken_here",
        "last",
        "outcome",
        "slot",
    )

    def __init__(
        self, claim: Claim, slot: Slot, writer: MessageWriter, continues: UIMessage | None, settings: ChatSettings
    ) -> None:
        super().__init__(writer)
        self.claim = claim
        self.slot = slot
        self.outcome: Outcome | None = None
        self.last: Sequence[bytes] = ()
        # Whether it was taken over, and ends, in this process.
        self.is_taken_here = False
        self._settings = settings
        self._thread = threading.get_ident()
        self._frames = Frames(claim.log.mark, names=claim.head.event_names)
        self._reader = MessageReader(continues)
        self._count = 0
        # The texts that wait, and when the last one came.
        self._texts: list[str] = []
        self._wrote = 0.0
        # Calls that the browser was to answer and did not.
        self._unanswered = tuple(call.id for call in writer.state.open_calls() if call.state == "available")
        self._clocks = Clocks(settings.turn, self._expired, self._may_be_silent)
        # Gets the outcome in the event loop.
        self.chosen: asyncio.Future[Outcome] = self._loop.create_future()
        self._task: asyncio.Task[None] | None = None
        self._cancelled_at: float | None = None
        self._is_waking = False

    # What the life of the turn calls.

    def start(self, drive: Callable[[], Awaitable[None]]) -> None:
        """Let the agent work, unless the turn was stopped before."""
        if self.outcome is None:
            self.write(self.writer.start)
            self._task = asyncio.create_task(self._run(drive))

    @property
    def message(self) -> UIMessage:
        """The message so far; later chunks change it."""
        return self._reader.message

    async def wind_down(self) -> None:
        """Wait for an agent that was cancelled to clean up, for what is left of its second."""
        task = self._task
        if task is not None and self._cancelled_at is not None:
            await asyncio.wait([task], timeout=max(0.0, self._cancelled_at + _WIND_DOWN - self._loop.time()))
            if task.done():
                # It was cancelled before it ran.
                self._task = None

    def discard(self) -> None:
        """Let go of a turn that could not be opened."""
        with self.lock:
            self.outcome, self.closed = "lost", True
        self._clocks.stop()

    # What the chat calls.

    def hold(self) -> AbstractContextManager[None]:
        return self._clocks.hold()

    def touch(self) -> None:
        self._clocks.moved()

    # What the store calls.

    def stop(self, why: StopReason) -> None:
        """End the turn at once: cancel the agent, keep what it said."""
        self._end("stopped", self.writer.abort, why)

    def readers_changed(self, count: int | None) -> None:
        if self.outcome is None:
            self._clocks.readers(count)

    def fenced(self, *, is_here: bool) -> None:
        """Another owner ends the turn, so that nothing more of it is said or stored by this one."""
        self.is_taken_here = is_here
        with self.lock:
            if self.outcome is None:
                self._choose((), "lost")

    # What the output calls.

    @property
    def full(self) -> Callable[[], bool] | None:
        return None if self._settings.turn.ahead is None else self._is_full

    async def drain(self) -> None:
        await self.claim.drain()
        while self._is_full() and self.outcome is None:
            await self.claim.log.drain()

    def snapshot(self) -> UIMessage:
        with self.lock:
            self._flush()
            message = self._reader.message
            return structs.replace(message, parts=[dict(part) for part in message.parts])

    def write(self, method: Callable[_P, Iterable[Chunk]], *arguments: _P.args, **options: _P.kwargs) -> None:
        with self.lock:
            self._flush()
            if not self.closed:
                self.take(method(*arguments, **options))

    def write_event(self, mapper: Mapper[_Event], event: _Event, now: float) -> None:
        if type(event) is not str or type(mapper) is not EventMapper or len(event) > _SHORT:
            self.write(mapper.map, event)
            return
        with self.lock:
            is_alone, self._wrote = now - self._wrote >= _TOGETHER_SECONDS, now
            self._texts.append(event)
            count = len(self._texts)
            if count >= _TOGETHER or (count == 1 and is_alone):
                self._flush()
            elif count == 1:
                self._loop.call_soon(self._flush_waiting)

    def _flush_waiting(self) -> None:
        try:
            with self.lock:
                self._flush()
        # The loop calls, which could do nothing with the error.
        except Exception as error:  # noqa: BLE001
            self.fail(error)

    def _flush(self) -> None:
        """Write the texts that wait; the caller has the lock."""
        if not self._texts:
            return
        texts, self._texts = self._texts, []
        if self.closed:
            return
        part = self.writer.flow("".join(texts)) if all(texts) else None
        if part is None:
            self.take(chain.from_iterable(map(self.writer.text, texts)))
            return
        self._reader.deltas_of(part).extend(texts)
        frames = self._frames.texts(part, self._count + 1, texts)
        self._count += len(frames)
        self.claim.append(frames)
        self._after_append(len(frames))

    def take(self, chunks: Iterable[Chunk]) -> None:
        frames, chunk, is_too_large = list[bytes](), None, False
        room = self._settings.turn.log - self.claim.log.size
        try:
            for chunk in chunks:
                if is_too_large and isinstance(chunk, Finish):
                    chunk = Error(_TOO_LARGE)
                # A chunk that has no frame is none.
                frame = self._frames.frame(self._count + 1, chunk)
                # Values have a bound of their own, and a text may have any length; no part begins or ends with one.
                if len(frame) > room and isinstance(chunk, TextDelta | ReasoningDelta):
                    is_too_large = True
                else:
                    self._grow(chunk)
                    frames.append(frame)
                    room -= len(frame)
        finally:
            # Also what was written before an error is in the writer's state.
            self._append(frames, chunk, is_too_large=is_too_large)

    def fail(self, error: BaseException) -> None:
        self._fail(explain(error, self._settings.error_text))

    def _fail(self, text: str) -> None:
        self._end("error", lambda: self.writer.fail(text))

    async def _run(self, drive: Callable[[], Awaitable[None]]) -> None:
        try:
            moving = drive()
            # What it was made from is not needed while the agent works.
            del drive
            await moving
            self._end("done", self._finish)
        except asyncio.CancelledError as error:
            if self._task is not None and self._task.cancelling():
                self.stop("shutdown")
                raise
            # The agent raised it itself, or something that it waited for did.
            self.fail(error)
        # The border: whatever an agent raises, also to leave the process, ends its turn with an error and nothing else.
        except BaseException as error:  # noqa: BLE001
            self.fail(error)
        finally:
            if self.outcome is None:
                # The error could not even be explained.
                self._fail(MASKED)
            self._clocks.stop()
            # A task that was cancelled holds its frames, and with them this turn.
            self._task = None

    def _finish(self) -> list[Chunk]:
        waits = any(call.state in ("available", "requested") for call in self.writer.state.open_calls())
        return self.writer.finish("tool-calls" if waits else "stop")

    def _end(self, outcome: Outcome, write: Callable[[], list[Chunk]], why: StopReason | None = None) -> None:
        """End the turn with what `write` writes, unless it has ended before."""
        with self.lock:
            self._flush()
            if self.outcome is None:
                self.stopped = why
                self._choose(self._end_with(write()), outcome)

    def _grow(self, chunk: Chunk) -> None:
        self._reader.apply(chunk)
        self._count += 1

    def _end_with(self, chunks: Iterable[Chunk]) -> list[bytes]:
        """The frames of the chunks that end the message; there is always room for them."""
        frames = list[bytes]()
        for chunk in chunks:
            frames.append(self._frames.frame(self._count + 1, chunk))
            self._grow(chunk)
        return frames

    def _append(self, frames: Sequence[bytes], last: Chunk | None, *, is_too_large: bool) -> None:
        phase = self.writer.state.phase
        if phase in _OUTCOMES:
            outcome = "error" if isinstance(last, Error) else _OUTCOMES[phase]
            self._choose(frames, "stopped" if isinstance(last, Abort) else outcome)
            return
        self.claim.append(frames)
        self._after_append(len(frames), is_too_large=is_too_large)

    def _after_append(self, count: int, *, is_too_large: bool = False) -> None:
        if is_too_large or self.claim.log.size > self._settings.turn.log:
            self._choose(self._end_with(self.writer.fail(_TOO_LARGE)), "error", cut_off=True)
        elif count < _MANY or threading.get_ident() != self._thread:
            self._in_loop(self._wake)
        elif not self._is_waking:
            # An agent that does not wait has more, which can be read together.
            self._is_waking = True
            self._loop.call_soon(self._wake)

    def _wake(self) -> None:
        self._is_waking = False
        # Here and not where the chunk is made: the clock of a loop is right in its own thread only.
        self._clocks.moved()
        self.claim.log.wake()

    def _choose(self, last: Sequence[bytes], outcome: Outcome, *, cut_off: bool = False) -> None:
        """Choose how the turn ends; the caller has the lock and has seen that the outcome is open."""
        self.last, self.outcome, self.closed = last, outcome, True
        self._in_loop(self._end_agent, outcome, cut_off)

    def _in_loop(self, callback: Callable[..., None], *arguments: Any) -> None:
        if threading.get_ident() == self._thread:
            callback(*arguments)
        else:
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _end_agent(self, outcome: Outcome, cut_off: bool) -> None:  # noqa: FBT001
        # An agent that waits for its readers has nothing to wait for any more.
        self.claim.log.wake_drain()
        task = self._task
        by_itself = task is not None and task is asyncio.current_task(self._loop)
        # An agent that ended its message itself may go on, but not for ever.
        goes_on = by_itself and not cut_off
        self._clocks.stop(but_total=goes_on)
        if not goes_on:
            self.set_stopping()
        if task is not None and not by_itself:
            self._cancelled_at = self._loop.time()
            # The end of the loop has cancelled it already.
            if not task.cancelling():
                task.cancel()
        elif task is not None and cut_off:
            # It may clean up first.
            self._loop.call_later(_WIND_DOWN, task.cancel)
        if not self.chosen.done():
            self.chosen.set_result(outcome)

    def _expired(self, clock: Clock) -> None:
        if clock == "linger" and self.claim.log.last_cut:
            self._fail("The answer was not read in time.")
        elif clock == "linger":
            self.stop("left")
        elif clock == "idle":
            self._fail("The agent did not answer in time.")
        elif self.outcome is None:
            self._fail("The answer took too long.")
        elif self._task is not None:
            self._task.cancel()

    def _may_be_silent(self) -> bool:
        """Whether a tool runs, or the user is asked for an approval."""
        # A thread may be writing.
        with self.lock:
            calls = (call for call in self.writer.state.open_calls() if call.id not in self._unanswered)
            return bool(self.writer.working) or any(call.state in _SILENT for call in calls)

    def _is_full(self) -> bool:
        # A copy, since a thread may ask while a reader comes or leaves.
        readers, ahead = tuple(self.claim.log.readers), self._settings.turn.ahead
        return ahead is not None and bool(readers) and min(one.unread + one.in_flight for one in readers) > ahead
