"""A turn: one agent at work on one answer. It writes a log; whoever reads it comes and goes."""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, TypeAlias

from usechat.protocol.chunks import Abort, Chunk, Error, Finish, FinishReason, ReasoningDelta, TextDelta
from usechat.protocol.frames import Frames
from usechat.protocol.messages import UIMessage
from usechat.protocol.writer import MessageWriter
from usechat.stores import Claim, Outcome, StopReason
from usechat.turns.clocks import Clock, Clocks, TurnLimits
from usechat.turns.failures import MASKED
from usechat.turns.message import GrowingMessage
from usechat.turns.output import Output

__all__ = ["OnEnd", "Turn"]

_log = logging.getLogger("usechat")

OnEnd: TypeAlias = Callable[[Outcome, UIMessage], Awaitable[None]]

_OUTCOMES: Final[dict[str, Outcome]] = {"ended": "done", "failed": "error"}
# How long an agent may clean up after it was cancelled before its turn ends without it.
_WIND_DOWN: Final = 1.0
_TOO_LARGE: Final = "The answer became too large."
# So many frames at once are not shown to the readers at once.
_MANY: Final = 8


class Turn:
    """Runs one agent, in a task of its own, and owns the message that it writes.

    It is *running* until its outcome is chosen: by the agent's end or failure, a stop, a clock, or a bound. That
    happens once, under the output's lock and in any thread, and nothing can be said afterwards. Then, in the event
    loop, the turn is *ending*: its last frames are sealed, the agent is cancelled, `store_answer` keeps the message,
    and the claim is released, which shows the last frames to the readers and frees the chat. `on_end` is awaited
    last, once, by whoever released the turn.
    """

    __slots__ = (
        "__weakref__",
        "_clocks",
        "_ending",
        "_explain",
        "_is_started",
        "_is_stopping",
        "_is_waking",
        "_last",
        "_limits",
        "_loop",
        "_message",
        "_on_end",
        "_on_release",
        "_released",
        "_stopping",
        "_store_answer",
        "_task",
        "_thread",
        "claim",
        "is_elsewhere",
        "outcome",
        "output",
        "stopped",
    )

    def __init__(
        self,
        claim: Claim,
        writer: MessageWriter,
        continues: UIMessage | None,
        *,
        limits: TurnLimits,
        explain: Callable[[BaseException], str],
        store_answer: OnEnd,
        on_end: OnEnd,
        on_release: Callable[[], None] | None = None,
    ) -> None:
        self.claim = claim
        self.output = Output(writer, self)
        # Made when somebody looks at it, since it is large and few do.
        self._stopping: asyncio.Event | None = None
        self.stopped: StopReason | None = None
        self.outcome: Outcome | None = None
        # Whether another process has taken it over.
        self.is_elsewhere = False
        self._limits = limits
        self._explain = explain
        self._store_answer = store_answer
        self._on_end = on_end
        self._on_release = on_release
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._message = GrowingMessage(Frames(claim.log.mark, names=claim.head.event_names), continues)
        self._clocks = Clocks(limits, self._expired, self._asks)
        self._task: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._released = self._loop.create_future()
        self._is_started = False
        self._is_stopping = False
        self._is_waking = False
        self._last: Sequence[bytes] = ()

    @property
    def stopping(self) -> asyncio.Event:
        """Set as soon as the turn is ended by somebody else than its agent."""
        if self._stopping is None:
            self._stopping = asyncio.Event()
            if self._is_stopping:
                self._stopping.set()
        return self._stopping

    def start(self, drive: Callable[[], Awaitable[None]]) -> None:
        """Let the agent work; a turn that was stopped before it began ends now."""
        self._is_started = True
        if self.outcome is None:
            self.output.say(self.output.writer.start)
            self._task = asyncio.create_task(self._run(drive))
        else:
            self._begin_end(self._last, self.outcome)

    def discard(self) -> None:
        """Let go of a turn that could not be opened."""
        with self.output.lock:
            self.outcome = "lost"
            self.output.closed = True
        self._clocks.stop()
        self._released.set_result(None)
        self.output.detach()

    async def released(self) -> None:
        """Wait until the answer is stored and the chat is free."""
        await asyncio.shield(self._released)

    async def ended(self) -> None:
        """Wait until `on_end` is through, too."""
        await self.released()
        if self._ending is not None:
            await asyncio.wait([self._ending])

    def hold(self) -> AbstractContextManager[None]:
        """Suspend the idle clock."""
        return self._clocks.hold()

    def touch(self) -> None:
        """Let the idle clock begin anew."""
        self._clocks.moved()

    # What the store calls.

    def stop(self, why: StopReason) -> None:
        """End the turn at once: cancel the agent, keep what it said."""
        with self.output.lock:
            self.output.flush()
            if self.outcome is None:
                self.stopped = why
                self._choose(self._message.add_all(self.output.writer.abort()), "stopped")

    def readers_changed(self, count: int | None) -> None:
        if self.outcome is None:
            self._clocks.readers(count)

    def fenced(self, *, is_here: bool) -> None:
        """Another owner ends the turn, so that nothing more of it is said or stored by this one."""
        self.is_elsewhere = not is_here
        with self.output.lock:
            if self.outcome is None:
                self._choose((), "lost")

    # What the output calls.

    @property
    def full(self) -> Callable[[], bool] | None:
        return None if self._limits.ahead is None else self._is_full

    async def room(self) -> None:
        await self.claim.room()
        while self._is_full() and self.outcome is None:
            await self.claim.log.read()

    def take(self, chunks: Iterable[Chunk]) -> None:
        frames, chunk, leaves_out = list[bytes](), None, False
        room = self._limits.log - self.claim.log.size
        try:
            for chunk in chunks:
                if leaves_out and isinstance(chunk, Finish):
                    chunk = Error(_TOO_LARGE)
                # Values have a bound of their own, and a text may have any length; no part begins or ends with one.
                is_text = isinstance(chunk, TextDelta | ReasoningDelta)
                frame = self._message.add(chunk, max(room, 0) if is_text else None)
                if frame is None:
                    leaves_out = True
                else:
                    frames.append(frame)
                    room -= len(frame)
        finally:
            # Also what was written before an error is in the writer's state.
            self._append(frames, chunk, is_too_large=leaves_out)

    def take_texts(self, part: str, texts: Sequence[str]) -> None:
        frames, log = self._message.add_texts(part, texts), self.claim.log
        self.claim.append(frames)
        # A delta ends nothing, and nearly always it is the only one and comes in the loop.
        if len(frames) == 1 and log.size <= self._limits.log and threading.get_ident() == self._thread:
            self._clocks.last = self._loop.time()
            log.wake()
        else:
            self._after_append(len(frames))

    def fail(self, error: BaseException) -> None:
        try:
            text: object = self._explain(error)
        # The app chooses the text, and may fail.
        except BaseException:  # noqa: BLE001
            _log.exception("the text of an error in turn %s failed", self.claim.head.turn)
            text = None
        self._fail(text if isinstance(text, str) else MASKED)

    def _fail(self, text: str) -> None:
        with self.output.lock:
            self.output.flush()
            if self.outcome is None:
                self._choose(self._message.add_all(self.output.writer.fail(text)), "error")

    async def _run(self, drive: Callable[[], Awaitable[None]]) -> None:
        try:
            moving = drive()
            # What it was made from is not needed while the agent works.
            del drive
            await moving
            self._finish()
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
            self._clocks.stop()
            # A task that was cancelled holds its frames, and with them this turn.
            self._task = None

    def _finish(self) -> None:
        with self.output.lock:
            self.output.flush()
            if self.outcome is None:
                self._choose(self._message.add_all(self.output.writer.finish(self._reason())), "done")

    def _reason(self) -> FinishReason:
        waits = any(call.state in ("available", "requested") for call in self.output.writer.state.open_calls())
        return "tool-calls" if waits else "stop"

    def _append(self, frames: Sequence[bytes], last: Chunk | None, *, is_too_large: bool) -> None:
        phase = self.output.writer.state.phase
        if phase in _OUTCOMES:
            outcome = "error" if isinstance(last, Error) else _OUTCOMES[phase]
            self._choose(frames, "stopped" if isinstance(last, Abort) else outcome)
            return
        self.claim.append(frames)
        self._after_append(len(frames), is_too_large=is_too_large)

    def _after_append(self, count: int, *, is_too_large: bool = False) -> None:
        if is_too_large or self.claim.log.size > self._limits.log:
            self._choose(self._message.add_all(self.output.writer.fail(_TOO_LARGE)), "error", cut_off=True)
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
        """Choose how the turn ends; the caller has the lock and has seen that nobody did before."""
        self._last = last
        self.outcome = outcome
        self.output.closed = True
        # Whoever waits for room has nothing to wait for.
        self._in_loop(self.claim.log.made_room)
        self._in_loop(self._begin_end, last, outcome, cut_off)

    def _in_loop(self, callback: Callable[..., None], *arguments: Any) -> None:
        if threading.get_ident() == self._thread:
            callback(*arguments)
        else:
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _begin_end(self, last: Sequence[bytes], outcome: Outcome, cut_off: bool = False) -> None:  # noqa: FBT001, FBT002
        if not self._is_started:
            # The claim may not be open yet, so that it could not be sealed.
            return
        task = self._task
        by_itself = task is not None and task is asyncio.current_task(self._loop)
        # An agent that ended its message itself may go on, but not for ever.
        goes_on = by_itself and not cut_off
        self._clocks.stop(but_total=goes_on)
        if not goes_on:
            self._is_stopping = True
            if self._stopping is not None:
                self._stopping.set()
        if task is not None and not by_itself:
            task.cancel()
        elif task is not None and cut_off:
            # It may clean up first.
            self._loop.call_later(_WIND_DOWN, task.cancel)
        self._ending = self._loop.create_task(self._end(last, outcome, None if by_itself else task))

    async def _end(self, last: Sequence[bytes], outcome: Outcome, task: asyncio.Task[None] | None) -> None:
        message = self._message.message
        is_ours = outcome != "lost" and await self.claim.seal(last, outcome)
        if is_ours:
            winding_down = None if task is None else self._loop.create_task(_wait(task))
            # Else the chat would be taken for ever.
            await self._survive(self._store_answer(outcome, message), "the answer of turn %s was not stored")
            if winding_down is not None:
                await winding_down
            is_ours = await self.claim.release()
        if self._on_release is not None:
            self._on_release()
        self._released.set_result(None)
        if is_ours:
            await self._survive(self._on_end(outcome, message), "what follows the end of turn %s failed")
        # It holds this turn, and whoever holds a chat holds it. So do the hooks: no answer is to wait for the garbage
        # collector, which comes seldom.
        self.output.detach()
        self._store_answer = self._on_end = _nothing
        self._on_release = None

    async def _survive(self, hook: Awaitable[None], problem: str) -> None:
        try:
            await hook
        # The app's own hook may raise anything; the turn is over all the same.
        except Exception:  # noqa: BLE001
            _log.exception(problem, self.claim.head.turn)

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

    def _asks(self) -> bool:
        # A thread may be writing.
        with self.output.lock:
            return any(call.state == "requested" for call in self.output.writer.state.open_calls())

    def _is_full(self) -> bool:
        # A copy, since a thread may ask while a reader comes or leaves.
        readers, ahead = tuple(self.claim.log.readers), self._limits.ahead
        return ahead is not None and bool(readers) and min(one.unread + one.in_flight for one in readers) > ahead


async def _nothing(_outcome: Outcome, _message: UIMessage) -> None:
    pass


async def _wait(task: asyncio.Task[None]) -> None:
    await asyncio.wait([task], timeout=_WIND_DOWN)
