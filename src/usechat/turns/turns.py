"""The turns of one process: how each begins, which gives way to which, and how all of them end.

A turn's life is one coroutine, `Turns._live`, in a task that the request which asked for it cannot cancel:

1. It waits in the *queue* of its chat for the requests of this process that came before, at most 16.
2. It takes a *slot* of the quota. A turn that replaces another one of this process shares its slot.
3. It *claims* the chat, of which no other process has a claim then. A turn that has the chat ends first, or is waited
   for, or the request is refused, as `conflict` and the agent say.
4. The history and the agent *admit* the request, and the history stores the question.
5. It *opens* the claim: from then on the turn can be read and stopped. The request gets its reader, and the next one
   in the queue goes on. What fails before that undoes all steps before it, and is raised where the turn was asked for.
6. The agent *runs* until the turn has an outcome.
7. It *seals* the claim with the last frames, which nobody reads yet: the commit point.
8. The history stores the answer, for at most 5 seconds, while an agent that was cancelled has one second to clean up.
9. It *releases* the claim: in one step the last frames can be read and the chat is free. The slot is free, too.
10. `on_end` is called, if this process was the owner to the last.

A turn whose owner is gone has another beginning, `Turns._take_over`: the store hands over its claim. Its log gives
the message and the frames that end it, and its life goes on with step 7.

Everything here belongs to the event loop.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Final, ParamSpec, Protocol, cast

from usechat.errors import RequestError, TailChangedError
from usechat.protocol.chunks import Abort, Chunk, Error, Start
from usechat.protocol.clients import CLIENTS
from usechat.protocol.frames import Frames, decode_frame
from usechat.protocol.messages import UIMessage
from usechat.protocol.reader import MessageReader
from usechat.protocol.state import StreamState, closing
from usechat.slices import Slices
from usechat.stores import (
    Claim,
    FencedError,
    IdUsedError,
    Outcome,
    Reader,
    StopReason,
    TurnHead,
    TurnLog,
    TurnRunningError,
    TurnStore,
)
from usechat.turns.chat import Chat, ChatState
from usechat.turns.output import Output
from usechat.turns.pending import Admits, GivesWay, PendingTurn, TurnHistory
from usechat.turns.quota import RETRY_AFTER, Slot, TurnQuota, busy
from usechat.turns.settings import ChatSettings
from usechat.turns.turn import Turn

__all__ = ["NOT_FOUND", "Telemetry", "Turns"]

_P = ParamSpec("_P")

_log = logging.getLogger("usechat")

NOT_FOUND: Final = "There is no such chat."
_INTERRUPTED: Final = "The answer was interrupted."
_ANSWERED: Final = "This approval was answered before."
# The most requests of one chat that wait in its queue, the one that begins among them.
_QUEUE: Final = 16
# How often a turn tries to begin in a chat that another process writes to at the same time.
_ATTEMPTS: Final = 3
# How long a request waits: for its admission and what it stores, and for a turn that is to give way.
_ADMISSION: Final = 9.0
_GIVES_WAY: Final = 8.0
# A turn that takes longer to begin is treated as if it ran, and this is of the time that it has to give way.
_BEGINS: Final = 4.0
# How long a drain waits for turns that it has stopped.
_DRAINS: Final = 6.5
# A reader that nobody has begun to use by then leaves.
_UNTAKEN: Final = 10.0


class _Queue:
    """The requests that are to begin in one chat, one after the other."""

    __slots__ = ("arrived", "length", "lock", "moved")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.length = 0
        # When the request arrived that has the lock, and when a turn of the chat last began or made way.
        self.arrived = self.moved = 0.0

    async def within(self, admission: Awaitable[None]) -> None:
        """Bound the admission of the request: the time that it has waited for other turns is not counted."""
        try:
            async with asyncio.timeout_at(max(self.arrived, self.moved) + _ADMISSION):
                await admission
        except TimeoutError:
            raise busy() from None


class Telemetry(Protocol):
    """What counts, traces and logs turns."""

    def started(self, pending: PendingTurn, log: TurnLog) -> None:
        """The turn begins, in the current task, in which its agent's is made."""
        ...

    def ended(self, head: TurnHead, outcome: Outcome) -> None:
        """The turn has ended here, wherever it began."""
        ...

    def fenced(self, head: TurnHead) -> None:
        """Another process ends the turn, which began here."""
        ...


class Turns:
    """Begins turns, one at a time in each chat, and ends them.

    `drive` moves the events of the agent to its output. The agent may also be one that `Admits` or `GivesWay`.
    """

    def __init__(
        self,
        agent: object,
        drive: Callable[[Chat, Output], Awaitable[None]],
        store: TurnStore,
        history: TurnHistory,
        settings: ChatSettings,
        telemetry: Telemetry | None = None,
    ) -> None:
        # The turns of this process that are open, by their chats.
        self.running: dict[str, Turn] = {}
        self._drive = drive
        # Asked once: to look whether an object has the methods of a protocol takes as long as much of a turn.
        self._admits = agent if isinstance(agent, Admits) else None
        self._gives_way = agent if isinstance(agent, GivesWay) else None
        self._store = store
        self._history = history
        self._settings = settings
        self._telemetry = telemetry
        self._quota = TurnQuota(settings)
        self._queues: dict[str, _Queue] = {}
        # All lives that go on; those that have begun, with their turns.
        self._lives: dict[asyncio.Task[None], Turn | None] = {}
        self._draining = False

    @property
    def ready(self) -> bool:
        """Whether new turns are taken."""
        return not self._draining

    def serve(self) -> AbstractAsyncContextManager[None]:
        """Let the store work."""
        return self._store.serve(self._take_over)

    async def begin(self, pending: PendingTurn) -> Reader:
        """Begin a turn, and read it from its beginning.

        Raises:
            RequestError: it cannot begin, or too much is running.
        """
        began: asyncio.Future[Reader] = asyncio.get_running_loop().create_future()
        life = asyncio.create_task(self._live(pending, began))
        self._lives[life] = None
        life.add_done_callback(self._lives.pop)
        return await began

    async def stop(self, head: TurnHead, why: StopReason = "stopped") -> None:
        """Stop the turn, and wait until its answer is stored and the chat is free."""
        await self._store.stop(head, why, _GIVES_WAY)

    async def drain(self, grace: float) -> None:
        """Take no new turns, give the running ones `grace` seconds, then stop them."""
        self._draining = True
        lives = {life: turn for life, turn in self._lives.items() if turn is not None}
        if lives:
            await asyncio.wait(lives, timeout=grace)
            for turn in lives.values():
                turn.stop("shutdown")
            # An answer that cannot be stored, and a hook of the app's that hangs, keep nobody from leaving.
            _, late = await asyncio.wait(lives, timeout=_DRAINS)
            # A second drain, as at the end of an app, does not wait for them again.
            self._lives.update(dict.fromkeys(late))

    async def _live(self, pending: PendingTurn, began: "asyncio.Future[Reader]") -> None:
        try:
            async with self._in_queue(pending.head.chat) as queue:
                turn, reader = await self._begin(pending, queue)
        # Whatever it is, it is raised where the turn was asked for.
        except BaseException as error:  # noqa: BLE001
            if not began.done():
                began.set_exception(error)
            return
        if began.done():
            # The request was cancelled.
            reader.leave()
        else:
            began.set_result(reader)
        if self._telemetry is not None:
            self._telemetry.started(pending, turn.claim.log)
        if pending.stopped is not None:
            turn.stop(pending.stopped)
        state = ChatState(turn, pending.admission.state)
        turn.start(partial(self._drive, self._chat(pending, turn, state), turn))
        # The request, with all its messages, is not needed while the agent works.
        del pending, began, reader, queue
        try:
            outcome = await turn.chosen
        except asyncio.CancelledError:
            # The event loop ends, which cancels all tasks.
            turn.stop("shutdown")
            outcome = turn.outcome or "stopped"
        is_ours = False
        try:
            is_ours = outcome != "lost" and await self._end(turn.claim, turn.last, outcome, turn.message, turn, state)
        finally:
            turn.slot.leave()
            head = turn.claim.head
            if self.running.get(head.chat) is turn:
                del self.running[head.chat]
            if self._telemetry is not None and not is_ours and not turn.is_taken_here:
                self._telemetry.fenced(head)
        if is_ours:
            await self._tell_end(head, outcome, turn.message)

    async def _take_over(self, claim: Claim, why: StopReason | None) -> None:
        """Go on with the life of a turn whose owner is gone, as the owner would have ended it.

        One that was not sealed and whose answer was stored has ended before: the store of turns has lost its end.
        """
        message, last, outcome = await _ending(claim, why)
        is_stored = claim.sealed is None and await self._history.has_ended(claim.head)
        if await self._end(claim, last, outcome, None if is_stored else message) and not is_stored:
            await self._tell_end(claim.head, outcome, message)

    async def _end(
        self,
        claim: Claim,
        last: Sequence[bytes],
        outcome: Outcome,
        message: UIMessage | None,
        turn: Turn | None = None,
        state: ChatState | None = None,
    ) -> bool:
        """Seal the turn, store its answer and free the chat; False if another owner does."""
        changed = None if state is None else state.changed()
        if not await claim.seal(last, outcome):
            return False
        if message is not None:
            # Else the chat would be taken for ever.
            problem = "the answer of turn %s was not stored"
            await _survive(problem, claim.head, self._history.end, claim.head, claim.epoch, message, changed)
        if turn is not None:
            await turn.wind_down()
        return await claim.release()

    async def _tell_end(self, head: TurnHead, outcome: Outcome, message: UIMessage) -> None:
        if self._telemetry is not None:
            self._telemetry.ended(head, outcome)
        if self._settings.on_end is not None:
            problem = "what follows the end of turn %s failed"
            await _survive(problem, head, self._settings.on_end, outcome, message)

    @asynccontextmanager
    async def _in_queue(self, chat: str) -> AsyncGenerator[_Queue, None]:
        self._check_ready()
        arrived, queue = asyncio.get_running_loop().time(), self._queues.setdefault(chat, _Queue())
        if queue.length >= _QUEUE:
            raise RequestError("Too many messages wait in this chat.", status=429, retry_after=RETRY_AFTER)
        queue.length += 1
        try:
            async with queue.lock:
                queue.arrived = arrived
                yield queue
        finally:
            queue.length -= 1
            if not queue.length:
                del self._queues[chat]

    async def _begin(self, pending: PendingTurn, queue: _Queue) -> tuple[Turn, Reader]:
        head = pending.head
        before = self.running.get(head.chat)
        slot = self._quota.take(head.owner, pending.address) if before is None else before.slot.share()
        try:
            claim = await self._claim(pending, queue)
            reader = claim.reader()
            try:
                await queue.within(self._admit(pending, claim.epoch))
                turn = await self._open(pending, claim, slot)
            except BaseException:
                reader.leave()
                await claim.release()
                raise
        except BaseException:
            slot.leave()
            raise
        queue.moved = asyncio.get_running_loop().time()
        reader.leave_unless_taken(_UNTAKEN)
        return turn, reader

    async def _claim(self, pending: PendingTurn, queue: _Queue) -> Claim:
        while True:
            try:
                return await self._store.claim(pending.head)
            except TurnRunningError as running:
                # What another process answers by the turn that it begins is no longer open when the turn is.
                if running.is_claimed and await self._store.wait_opened(running.head, _BEGINS):
                    continue
                await queue.within(self._check(pending, running.head))
                await self._make_way(pending, running, queue)
                self._check_ready()

    async def _check(self, pending: PendingTurn, running: TurnHead) -> None:
        """Find out whether the turn could begin after the one that runs, which is left alone otherwise.

        Raises:
            RequestError: it could not.
        """
        pending.writing = running.message_id
        pending.admission = await self._history.admit(pending)
        uses = pending.admission.uses
        if uses and await self._store.are_used(pending.head.chat, uses):
            raise RequestError(_ANSWERED, status=409)
        if pending.regenerates is None:
            pending.writing = None

    async def _make_way(self, pending: PendingTurn, error: TurnRunningError, queue: _Queue) -> None:
        """End the turn that runs in the chat, or wait for its end."""
        running, conflict = error.head, self._settings.conflict
        if running.owner != pending.head.owner:
            raise RequestError(NOT_FOUND, status=404)
        if running.chat != pending.head.chat:
            # The store lets no two turns of these chats run at once, and nothing is wrong with either.
            conflict = "queue"
        elif self._ends_for(pending, error):
            within = _GIVES_WAY - _BEGINS if error.is_claimed else _GIVES_WAY
            # What outlives a turn goes on for its successor only in this process.
            await self._store.stop(running, "replaced" if running.chat in self.running else "stopped", within)
            return
        if conflict == "queue":
            try:
                async with asyncio.timeout_at(queue.arrived + self._settings.queue_seconds):
                    await self._store.wait_released(running)
                queue.moved = asyncio.get_running_loop().time()
                return
            except TimeoutError:
                pass
        raise RequestError("An answer is still being written in this chat.", status=409)

    def _ends_for(self, pending: PendingTurn, error: TurnRunningError) -> bool:
        """Whether the turn that runs is to end for this one."""
        # Nobody wants the rest of an answer that is to be written again.
        if pending.regenerates in ("", error.head.message_id):
            return True
        # Only a new message is something that an agent could want or refuse.
        is_message = pending.asked.last.role == "user" and not pending.edits
        agent = self._gives_way if is_message else None
        if agent is not None and agent.awaits_message(pending.chat_id, pending.user):
            return True
        if self._settings.conflict != "replace":
            return False
        here = self.running.get(error.head.chat)
        has_ended = error.is_sealed or (here is not None and here.outcome is not None)
        return has_ended or agent is None or agent.gives_way(pending.chat_id, pending.user)

    async def _admit(self, pending: PendingTurn, epoch: int) -> None:
        for _ in range(_ATTEMPTS):
            pending.admission = await self._history.admit(pending)
            if self._admits is not None:
                pending.admitted = await self._admits.admit(pending)
            try:
                await self._history.begin(pending, epoch)
            except TailChangedError:
                # Another process has written to the chat; what it wrote counts, too.
                continue
            return
        raise RequestError("The chat was changed at the same time. Try again.", status=409)

    async def _open(self, pending: PendingTurn, claim: Claim, slot: Slot) -> Turn:
        # From here until the turn is among the lives nothing waits, so that `drain` sees each turn that begins.
        self._check_ready()
        admission, chat = pending.admission, claim.head.chat
        life = cast("asyncio.Task[None]", asyncio.current_task())
        writer = self._history.writer(claim.head, admission.continues, self._settings.value_limit)
        turn = Turn(claim, slot, writer, admission.continues, self._settings)
        self.running[chat] = self._lives[life] = turn
        try:
            await claim.open(turn, admission.continues, admission.uses)
        except BaseException as error:
            turn.discard()
            del self.running[chat]
            self._lives[life] = None
            if isinstance(error, IdUsedError):
                raise RequestError(_ANSWERED, status=409) from error
            if isinstance(error, FencedError):
                raise busy() from error
            raise
        return turn

    def _chat(self, pending: PendingTurn, turn: Turn, state: ChatState) -> Chat:
        admission = pending.admission
        return Chat(
            turn,
            id=pending.chat_id,
            text=admission.text,
            messages=[admission.question] if admission.messages is None else admission.messages,
            request=pending.request,
            client=pending.head.client,
            user=pending.user,
            trigger=pending.trigger,
            continues=admission.continues,
            tool_results=admission.tool_results,
            approvals=admission.approvals,
            admitted=pending.admitted,
            state=state,
            load=partial(self._history.load, pending.head) if admission.messages is None else None,
        )

    def _check_ready(self) -> None:
        if self._draining:
            raise busy()


async def _survive(
    problem: str, head: TurnHead, hook: Callable[_P, Awaitable[None]], *arguments: _P.args, **options: _P.kwargs
) -> None:
    try:
        await hook(*arguments, **options)
    # It may be the app's own, and raise anything; the turn is over all the same.
    except Exception:  # noqa: BLE001
        _log.exception(problem, head.turn)


async def _ending(claim: Claim, why: StopReason | None) -> tuple[UIMessage, Sequence[bytes], Outcome]:
    """The message of a turn from its log, the frames that end it, and its outcome: as its owner sealed them, or new."""
    log, sealed, head = claim.log, claim.sealed, claim.head
    parts = () if log.continues is None else log.continues.parts
    state, reader, slices = StreamState(head.message_id, parts), MessageReader(log.continues), Slices()
    for frame in [*log.frames, *(() if sealed is None else sealed[0])]:
        chunk = decode_frame(frame)
        state.apply(chunk)
        reader.apply(chunk)
        await slices.pause()
    if sealed is not None:
        return reader.message, *sealed
    first: list[Chunk] = [Start(head.message_id)] if state.phase == "new" else []
    last = list[bytes]()
    client, wire = CLIENTS[head.client], Frames(log.mark, names=head.event_names)
    for chunk in [*first, *closing(state, Error(_INTERRUPTED) if why is None else Abort())]:
        for fitted in client.fit(chunk, state):
            reader.apply(fitted)
            last.append(wire.frame(len(log.frames) + len(last) + 1, fitted))
        state.apply(chunk)
    return reader.message, last, "lost" if why is None else "stopped"
