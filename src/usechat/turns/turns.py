"""The turns of one process: who may begin one, which gives way to which, and how all of them end."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from typing import Final, Literal, TypeAlias, TypeVar
from weakref import WeakValueDictionary

from msgspec import Struct

from usechat.errors import RequestError
from usechat.protocol.messages import UIMessage
from usechat.stores import (
    Claim,
    FencedError,
    Outcome,
    Reader,
    SpentError,
    StopReason,
    TurnHead,
    TurnRunningError,
    TurnStore,
)
from usechat.turns.clocks import TurnLimits
from usechat.turns.lost import end_lost
from usechat.turns.opening import Answers, Opening
from usechat.turns.places import RETRY_AFTER, Payer, Places, busy
from usechat.turns.turn import Turn

__all__ = ["NOT_FOUND", "Conflict", "TurnSettings", "Turns"]

_T = TypeVar("_T")

Conflict: TypeAlias = Literal["replace", "queue", "reject"]

NOT_FOUND: Final = "There is no such chat."
# The most requests of one chat that wait for their turn, the one that begins among them.
_QUEUE: Final = 16
# How long a request waits: for its admission and what it stores, and for a turn that is to give way.
_ADMISSION: Final = 9.0
_GIVES_WAY: Final = 8.0
# A turn that takes longer to begin is treated as if it ran, and this is of the time that it has to give way.
_BEGINS: Final = 4.0
# How long a drain waits for turns that it has stopped.
_DRAINS: Final = 6.5
# A reader that nobody has begun to use by then leaves.
_UNTAKEN: Final = 10.0


class TurnSettings(Struct, frozen=True, kw_only=True):
    """How the turns of an endpoint behave."""

    limits: TurnLimits = TurnLimits()
    conflict: Conflict = "replace"
    per_owner: int = 16
    per_address: int = 64
    per_process: int = 2_000
    queue_seconds: float = 30.0


class _Queue:
    """Those who are to begin in a chat, one after the other; `moved` is when the last turn began or made way."""

    __slots__ = ("__weakref__", "lock", "moved")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.moved = 0.0


class _Running:
    """A turn of this process; with an heir its place is not free when it ends."""

    __slots__ = ("_claim", "_turns", "has_heir", "is_over", "payer", "turn")

    turn: Turn

    def __init__(self, turns: "Turns", claim: Claim, payer: Payer) -> None:
        self.payer = payer
        self.has_heir = False
        self.is_over = False
        self._turns = turns
        self._claim = claim

    async def store_answer(self, _outcome: Outcome, message: UIMessage) -> None:
        await self._turns.answers.end(self._claim.head, self._claim.epoch, message)

    def released(self) -> None:
        self.is_over = True
        self._turns.leave(self._claim.head, self)

    async def ended(self, outcome: Outcome, message: UIMessage) -> None:
        await self._turns.end(self._claim.head, self, outcome, message)


class Turns:
    """Begins turns, one at a time in each chat, and ends them.

    `ended` is called once for each, with its outcome, by the process that ends it, `fenced` by the one that lost it.
    """

    def __init__(
        self,
        store: TurnStore,
        answers: Answers,
        settings: TurnSettings,
        *,
        explain: Callable[[BaseException], str],
        ended: Callable[[TurnHead, Outcome, UIMessage], Awaitable[None]],
        fenced: Callable[[TurnHead], None] | None = None,
    ) -> None:
        self._store = store
        self.answers = answers
        self._settings = settings
        self._explain = explain
        self._ended = ended
        self._fenced = fenced
        self._running: dict[str, _Running] = {}
        self._places = Places(settings.per_owner, settings.per_address, settings.per_process)
        self._queued: Counter[str] = Counter()
        self._queues: WeakValueDictionary[str, _Queue] = WeakValueDictionary()
        self._beginning: set[asyncio.Task[None]] = set()
        self._turns: set[Turn] = set()
        self._draining = False

    @property
    def ready(self) -> bool:
        """Whether new turns are taken."""
        return not self._draining

    def serve(self) -> AbstractAsyncContextManager[None]:
        """Let the store work."""
        return self._store.serve(self._end_lost)

    async def begin(self, opening: Opening) -> Reader:
        """Begin a turn, and read it from its beginning.

        Raises:
            RequestError: it cannot begin, or too much is running.
        """
        began: asyncio.Future[Reader] = asyncio.get_running_loop().create_future()
        # In a task that whoever asks cannot cancel: a turn that has begun only half would not end.
        task = asyncio.create_task(self._begin_for(began, opening))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)
        return await began

    async def stop(self, head: TurnHead, why: StopReason = "stopped") -> None:
        """Stop the turn, and wait until its answer is stored and the chat is free."""
        await self._store.stop(head, why, _GIVES_WAY)

    async def drain(self, grace: float) -> None:
        """Take no new turns, give the running ones `grace` seconds, then stop them."""
        self._draining = True
        turns = list(self._turns)
        ends = [asyncio.create_task(turn.ended()) for turn in turns]
        if ends:
            await asyncio.wait(ends, timeout=grace)
            for turn in turns:
                turn.stop("shutdown")
            # An answer that cannot be stored, and a hook of the app's that hangs, keep nobody from leaving.
            await asyncio.wait(ends, timeout=_DRAINS)
            for end in ends:
                end.cancel()
            # Whoever drains once more, as an app does at its very end, does not wait for them again.
            self._turns.difference_update(turns)

    async def _begin_for(self, began: "asyncio.Future[Reader]", opening: Opening) -> None:
        try:
            reader = await self._begin(opening)
        # Whatever it is, it is raised where the turn was asked for.
        except BaseException as error:  # noqa: BLE001
            if not began.done():
                began.set_exception(error)
            return
        if began.done():
            # Whoever asked has gone.
            reader.leave()
        else:
            began.set_result(reader)

    async def _begin(self, opening: Opening) -> Reader:
        head = opening.head
        self._check_ready()
        arrived = asyncio.get_running_loop().time()
        async with self._in_queue(head.chat) as queue:
            with self._place(opening) as payer:
                claim = await self._claim(opening, queue, arrived)
                reader = claim.reader()
                try:
                    await self._open(opening, claim, payer, _deadline(queue, arrived))
                    queue.moved = asyncio.get_running_loop().time()
                except BaseException:
                    reader.leave()
                    await claim.release()
                    raise
        reader.leave_unless_taken(_UNTAKEN)
        return reader

    @asynccontextmanager
    async def _in_queue(self, chat: str) -> AsyncGenerator[_Queue, None]:
        """Wait for those of this process who began in the chat before."""
        if self._queued[chat] >= _QUEUE:
            raise RequestError("Too many messages wait in this chat.", status=429, retry_after=RETRY_AFTER)
        self._queued[chat] += 1
        try:
            queue = self._queues.setdefault(chat, _Queue())
            async with queue.lock:
                yield queue
        finally:
            self._queued[chat] -= 1
            if not self._queued[chat]:
                del self._queued[chat]

    @contextmanager
    def _place(self, opening: Opening) -> Generator[Payer, None, None]:
        """Take a place among the turns that may run, at once: that of the turn that runs in the chat, or a new one."""
        head = opening.head
        before = self._running.get(head.chat)
        if before is None:
            payer = Payer(head.owner) if head.owner else Payer(address=opening.address)
            self._places.take(payer)
        else:
            payer = before.payer
            before.has_heir = True
        try:
            yield payer
        except BaseException:
            if before is None or before.is_over:
                self._places.free(payer)
            else:
                before.has_heir = False
            raise

    async def _claim(self, opening: Opening, queue: _Queue, arrived: float) -> Claim:
        while True:
            try:
                return await self._store.claim(opening.head)
            except TurnRunningError as running:
                # What another process answers by the turn that it begins is no longer open when the turn is.
                if running.is_claimed and await self._store.opened(running.head, _BEGINS):
                    continue
                await _within(_deadline(queue, arrived), opening.check(running.head))
                await self._make_way(running, opening, queue, arrived)
                self._check_ready()

    async def _make_way(self, error: TurnRunningError, opening: Opening, queue: _Queue, arrived: float) -> None:
        """End the turn that runs in the chat, or wait for its end, as the app chose."""
        running = error.head
        if running.owner != opening.head.owner:
            raise RequestError(NOT_FOUND, status=404)
        # Whoever wants an answer again does not want the rest of it.
        is_stale = opening.regenerates in ("", running.message_id)
        is_due = is_stale or opening.is_awaited()
        has_ended = error.is_sealed or self._has_ended(running)
        if is_due or (self._settings.conflict == "replace" and (has_ended or opening.may_replace())):
            within = _GIVES_WAY - _BEGINS if error.is_claimed else _GIVES_WAY
            # What outlives a turn goes on for its successor only in this process.
            await self._store.stop(running, "replaced" if running.chat in self._running else "stopped", within)
            return
        if self._settings.conflict == "queue":
            try:
                async with asyncio.timeout_at(arrived + self._settings.queue_seconds):
                    await self._store.freed(running)
                queue.moved = asyncio.get_running_loop().time()
                return
            except TimeoutError:
                pass
        raise RequestError("An answer is still being written in this chat.", status=409)

    def _has_ended(self, head: TurnHead) -> bool:
        """Whether the turn has said all and is only being stored."""
        running = self._running.get(head.chat)
        return running is not None and running.turn.outcome is not None

    async def _open(self, opening: Opening, claim: Claim, payer: Payer, deadline: float) -> None:
        prepared = await _within(deadline, opening.prepare(claim))
        # From here to the turn's place in `_running` nothing waits, so that `drain` sees each turn that begins.
        self._check_ready()
        running = _Running(self, claim, payer)
        running.turn = turn = Turn(
            claim,
            prepared.writer,
            prepared.continues,
            limits=self._settings.limits,
            explain=self._explain,
            store_answer=running.store_answer,
            on_end=running.ended,
            on_release=running.released,
        )
        self._running[claim.head.chat] = running
        self._turns.add(turn)
        try:
            await claim.open(turn, prepared.continues, prepared.spends)
        except BaseException as error:
            turn.discard()
            self._turns.discard(turn)
            del self._running[claim.head.chat]
            if isinstance(error, SpentError):
                raise RequestError("This approval was answered before.", status=409) from error
            if isinstance(error, FencedError):
                raise busy() from error
            raise
        opening.opened(claim.log)
        if opening.stopped is not None:
            turn.stop(opening.stopped)
        turn.start(partial(opening.drive, turn))

    def leave(self, head: TurnHead, running: _Running) -> None:
        """The turn has left its chat."""
        if self._running.get(head.chat) is running:
            del self._running[head.chat]
        if not running.has_heir:
            self._places.free(running.payer)
        if running.turn.outcome == "lost":
            # Somebody else has ended it.
            self._turns.discard(running.turn)
            if running.turn.is_elsewhere and self._fenced is not None:
                self._fenced(head)

    async def end(self, head: TurnHead, running: _Running, outcome: Outcome, message: UIMessage) -> None:
        """The turn has ended; what follows is the app's."""
        try:
            await self._ended(head, outcome, message)
        finally:
            self._turns.discard(running.turn)

    async def _end_lost(self, claim: Claim, why: StopReason | None) -> None:
        """End a turn whose owner is gone, as the owner would have done it."""
        ended = await end_lost(claim, why, self.answers)
        if ended is not None:
            await self._ended(claim.head, *ended)

    def _check_ready(self) -> None:
        if self._draining:
            raise busy()


def _deadline(queue: _Queue, arrived: float) -> float:
    """Until when a request waits for its admission: the time that it has waited for other turns is not counted."""
    return max(arrived, queue.moved) + _ADMISSION


async def _within(deadline: float, admission: Awaitable[_T]) -> _T:
    try:
        async with asyncio.timeout_at(deadline):
            return await admission
    except TimeoutError:
        raise busy() from None
