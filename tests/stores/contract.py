"""What every store of turns keeps to, as a state machine: two processes use it, and a model says what they see.

Each step is one operation of one of the processes; a process that is paused or killed is one whose claims are not
used for a while, or never again, so that its turns can be taken over from it and it can come back too late. A reply
that is lost is an operation that is done twice.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from itertools import count
from typing import Any, Final, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from stores.model import ENDS, Ending, Freed, Lost, Model, Owner, Seen, Stop, Turn, Watching, message_of
from support.fast_loop import JumpingEventLoop
from support.soak import draws
from usechat.protocol.codec import decode_chunk
from usechat.protocol.sse import SseDecoder
from usechat.stores import (
    Claim,
    FencedError,
    IdUsedError,
    Outcome,
    StopReason,
    TurnHead,
    TurnRunningError,
    TurnStore,
)

__all__ = ["store_machine"]


_T = TypeVar("_T")
_CHATS = ("a", "b")
_REASONS: Final[tuple[StopReason, ...]] = ("stopped", "replaced", "shutdown")
_OFTEN = [
    "begin",
    "claim",
    "open",
    "append",
    "seal",
    "release",
    "end",
    "take over",
    "frame",
    "rewind",
    "leave",
    "find",
    "follow",
]
_SELDOM = ["reader", "stop", "wait", "wait long", "seek", "take", "freed", "claim again"]
_processes, _which, _numbers = st.integers(0, 1), st.integers(0, 3), st.integers(0, 23)
_steps = st.sampled_from([*_OFTEN, *_SELDOM, *_OFTEN])


def store_machine(
    make: Callable[[], tuple[TurnStore, TurnStore]],
    *,
    kept: float,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] = JumpingEventLoop,
    tick: float = 0.0,
    passed: Callable[[float], None] | None = None,
    examples: int = 50,
) -> type[RuleBasedStateMachine]:
    """The contract as a machine; its `TestCase` is a test.

    `make` gives the store as two processes have it; a store of one process is the same object twice. The log of a turn
    that has ended is found for `kept` seconds, and is gone after twice as long. `tick` is how long the machine waits
    before it looks again whether one process knows what another did: 0 lets the loop run. `passed` is told how many
    seconds have passed in the loop, for a store that has another clock as well.
    """

    class StoreMachine(_StoreMachine):
        def __init__(self) -> None:
            super().__init__(make(), kept, loop_factory(), tick, passed)

    StoreMachine.TestCase.settings = settings(
        max_examples=draws(examples, 60), stateful_step_count=50, report_multiple_bugs=False
    )
    return StoreMachine


class Producer:
    """A turn that writes down what its store tells it."""

    def __init__(self) -> None:
        self.stops: list[StopReason] = []
        self.counts: list[int | None] = []
        self.fences = 0

    def stop(self, why: StopReason) -> None:
        self.stops.append(why)

    def readers_changed(self, count: int | None) -> None:
        self.counts.append(count)

    def fenced(self, *, is_here: bool) -> None:
        self.fences += 1


class _StoreMachine(RuleBasedStateMachine):
    def __init__(
        self,
        stores: tuple[TurnStore, TurnStore],
        kept: float,
        loop: asyncio.AbstractEventLoop,
        tick: float,
        passed: Callable[[float], None] | None,
    ) -> None:
        super().__init__()
        self._stores = stores
        self._kept = kept
        self._loop = loop
        self._tick = tick
        self._passed = passed
        self._stack = AsyncExitStack()
        self._model = Model()
        self._claims: dict[Owner, Claim] = {}
        self._claimed_by: dict[Turn, TurnStore] = {}
        self._producers: dict[Owner, Producer] = {}
        self._lost: list[tuple[Claim, StopReason | None]] = []
        self._moments = count(1 / 1024, 1 / 1024)
        self._endings: dict[str, list[asyncio.Event]] = {}

    @initialize()
    def serve(self) -> None:
        async def enter() -> None:
            for store in dict.fromkeys(self._stores):
                await self._stack.enter_async_context(store.serve(self._take_lost))

        self._run(enter())

    def teardown(self) -> None:
        for ended in (event for events in self._endings.values() for event in events):
            ended.set()
        self._loop.run_until_complete(self._leave())
        self._loop.close()

    # One rule for all of them, since those that are rules of their own come together too seldom.

    @rule(
        what=_steps, process=st.integers(0, 1), which=st.integers(0, 3), number=st.integers(0, 23), twice=st.booleans()
    )
    def step(self, what: str, process: int, which: int, number: int, twice: bool) -> None:
        """Do one thing: the latest turns, owners and readers are number 0, and `twice` is a reply that was lost."""
        store, chat, why = self._stores[process], _CHATS[number % 2], _REASONS[number % 3]
        match what:
            case "begin":
                self._begin(store, chat, number)
            case "claim":
                self._claim(store, chat, 1 + twice)
            case "wait":
                self._let_time_pass((1.0, 4.0, 9.0)[number % 3])
            case "wait long":
                self._let_time_pass(self._kept * (2 / 3, 3)[number % 2])
                for turn in self._model.turns:
                    self._find(store, turn.head.chat, turn.head.turn)
            case "seek" | "take" | "frame" | "rewind" | "leave" if self._model.seen:
                self._read(what, _pick(self._model.seen, which), number)
            case "open" | "append" | "reader" | "seal" | "release" | "end" if self._owners():
                self._own(what, *_pick(self._owners(), which), number, 1 + twice)
            case "stop" | "take over" if self._model.turns:
                self._stop(store, _pick(self._model.turns, which), why, (3.0, 8.0)[number % 2], 1 + twice)
                self._let_time_pass(9.0 if what == "take over" else 0.0)
            case "follow" | "freed" | "find" | "claim again" if self._model.turns:
                self._look(what, store, _pick(self._model.turns, which), number)
            case _:
                pass

    # What holds after each of them.

    @invariant()
    def everything_is_as_it_should_be(self) -> None:
        self._check_chats()
        self._check_waiting()
        self._check_producers()
        self._check_logs()

    def _check_chats(self) -> None:
        heads = [turn.head if (turn := self._model.held(chat)) is not None else None for chat in _CHATS]
        for store in dict.fromkeys(self._stores):
            assert [self._run(store.live(chat)) for chat in _CHATS] == heads

    def _check_waiting(self) -> None:
        self._until(lambda: all(follow.task.done() == follow.is_answered for follow in self._model.watching))
        for follow in [follow for follow in self._model.watching if follow.is_answered]:
            self._model.watching.remove(follow)
            reader = follow.task.result()
            assert (reader is not None) in self._model.may_be_read(follow.turn, self._kept)
            if reader is not None:
                self._model.join(follow.turn, reader)
        self._until(lambda: all(waits.task.done() == waits.is_answered for waits in self._model.freed))
        self._until(lambda: all(stop.task.done() == stop.is_answered for stop in self._model.stops))
        for task in [waits.task for waits in (*self._model.freed, *self._model.stops) if waits.is_answered]:
            assert task.result() is None
        self._model.freed = [waits for waits in self._model.freed if not waits.is_answered]
        self._model.stops = [stop for stop in self._model.stops if not stop.is_answered]

    def _check_producers(self) -> None:
        for owner, producer in self._producers.items():
            # Several changes may be told as one.
            self._until(lambda owner=owner, producer=producer: producer.counts[-1:] == owner.counts[-1:])
            assert _is_part(producer.counts, owner.counts)
            # Who is stopped already may be told again.
            self._until(lambda owner=owner, producer=producer: producer.stops[:1] == owner.stops[:1])
            self._until(lambda owner=owner, producer=producer: producer.fences == int(owner.is_fenced))

    def _check_logs(self) -> None:
        for turn in self._model.turns:
            claim = self._claims.get(turn.owner)
            if claim is not None and turn.is_known:
                assert (claim.log.frames, claim.log.outcome) == (turn.frames, turn.outcome)
                assert claim.log.size == len(b"".join(turn.frames))
                assert (None if claim.sealed is None else Ending(*claim.sealed)) == turn.sealed

    # The operations.

    def _begin(self, store: TurnStore, chat: str, number: int) -> None:
        """Begin a turn, perhaps with a reader or with stops that came before it was open."""
        if self._model.held(chat) is not None:
            return
        owner, claim = self._claim(store, chat, 1)
        if number % 3 == 0:
            self._own_reader(owner, claim)
        if number % 4 == 0:
            self._look("follow", store, owner.turn, 0)
        for why in _REASONS[: number // 6 % 3]:
            self._stop(store, owner.turn, why, 8.0, 1)
        self._open(owner, claim, _ids(number), number % 2 == 1, 1)
        self._append(owner, 3)

    def _claim(self, store: TurnStore, chat: str, times: int) -> tuple[Owner, Claim]:
        head, running = self._model.new_head(chat), self._model.held(chat)
        claims = [self._try(store.claim(head)) for _ in range(times)]
        if running is not None:
            assert [self._running(claim) for claim in claims] == [running.head] * times
            return running.owner, self._claims[running.owner]
        assert len({(claim.head, claim.epoch, claim.sealed) for claim in claims}) == 1
        owner = self._model.claim(head, claims[-1].epoch)
        self._claims[owner] = claims[-1]
        self._claimed_by[owner.turn] = store
        return owner, claims[-1]

    def _own(self, what: str, owner: Owner, claim: Claim, number: int, times: int) -> None:
        outcome = ENDS[number % 4]
        match what:
            case "open":
                self._open(owner, claim, _ids(number), number >= 8, times)
            case "append":
                self._append(owner, number % 4)
            case "reader":
                self._own_reader(owner, claim)
            case "seal":
                self._seal(owner, claim, outcome, times)
            case "release":
                self._release(owner, claim, times)
            case _ if owner.turn.phase != "claimed":
                self._seal(owner, claim, outcome, 1)
                self._release(owner, claim, times)
            case _:
                pass

    def _open(self, owner: Owner, claim: Claim, spends: list[str], continues: bool, times: int) -> None:
        turn, producer = owner.turn, Producer()
        if turn.owner is owner and turn.phase in ("open", "sealed"):
            return
        before = self._model.continued(turn) if continues else None
        for _ in range(times):
            answer = self._try(claim.open(producer, before, spends))
            if owner.is_fenced:
                assert isinstance(answer, FencedError)
            elif turn.phase == "claimed" and self._model.spent_of(turn) & set(spends):
                assert isinstance(answer, IdUsedError)
            else:
                assert answer is None
                if turn.phase == "claimed":
                    self._producers[owner] = producer
                    self._model.open(owner, before, spends)
        if turn.phase == "claimed" and not owner.is_fenced:
            # Nothing of it was spent.
            self._open(owner, claim, [id_ for id_ in spends if id_ not in self._model.spent_of(turn)], continues, times)
        else:
            self._append(owner, 1)

    def _read(self, what: str, seen: Seen, number: int) -> None:
        if not seen.has_left:
            # The log of a process in which nobody reads it may stay behind.
            self._see(seen)
        elif what != "leave":
            return
        match what:
            case "seek":
                seen.cursor = number % (len(seen.turn.frames) + 1)
                seen.reader.seek(seen.cursor)
            case "take":
                self._take(seen, (1, 100, 10_000)[number % 3])
            case "frame":
                assert [seen.reader.take_frame()] == (seen.turn.frames[seen.cursor : seen.cursor + 1] or [b""])
                seen.cursor = min(seen.cursor + 1, len(seen.turn.frames))
            case "rewind":
                self._rewind(seen, number % 3)
            case _:
                for _ in range(1 + number % 2):
                    seen.reader.leave()
                    self._model.leave(seen)

    def _look(self, what: str, store: TurnStore, turn: Turn, number: int) -> None:
        match what:
            case "follow":
                self._model.watching.append(Watching(turn, self._spawn(store.follow(turn.head))))
                self._check_waiting()
            case "freed":
                self._model.freed.append(Freed(turn, self._spawn(store.wait_released(turn.head))))
            case "find":
                self._find(store, _CHATS[number % 2], turn.head.turn[:8] if number % 3 else turn.head.turn)
            case _:
                self._claim_again(store, turn)

    def _find(self, store: TurnStore, chat: str, mark: str) -> None:
        held = self._model.held(chat)
        named, live = self._run(store.find(chat, mark))
        assert named in self._model.may_be_found(chat, mark, self._kept)
        assert live == (None if held is None else held.head)

    def _stop(self, store: TurnStore, turn: Turn, why: StopReason, within: float, times: int) -> None:
        for _ in range(times):
            # No two deadlines are the same, so that it is known who takes over.
            moment = within + next(self._moments)
            self._model.stop(Stop(turn, self._spawn(store.stop(turn.head, why, moment)), why, moment))

    def _let_time_pass(self, seconds: float) -> None:
        self._run(asyncio.sleep(seconds))
        if self._passed is not None:
            self._passed(seconds)
        self._take_over(self._model.pass_time(seconds))

    def _claim_again(self, store: TurnStore, turn: Turn) -> None:
        if turn.is_held:
            claim = self._try(store.claim(turn.head))
            if turn.phase == "claimed" and self._claimed_by[turn] is store:
                assert (claim.head, claim.epoch) == (turn.head, turn.owner.epoch)
            else:
                assert self._running(claim) == turn.head

    def _append(self, owner: Owner, count: int) -> None:
        claim, frames = self._claims[owner], self._model.new_frames(owner.turn, count)

        async def append() -> None:
            claim.append(frames)
            claim.log.wake()

        self._run(append())
        self._model.append(owner, frames)

    def _seal(self, owner: Owner, claim: Claim, outcome: Outcome, times: int) -> None:
        for number in range(times):
            # Another end is not the first.
            last = self._model.new_frames(owner.turn, 1 + number)
            assert self._run(claim.seal(last, outcome)) == self._model.seal(owner, Ending(last, outcome))

    def _release(self, owner: Owner, claim: Claim, times: int) -> None:
        if owner.turn.phase == "open" and not owner.is_fenced:
            return
        for _ in range(times):
            assert self._run(claim.release()) == self._model.release(owner)
        for ended in self._endings.pop(owner.turn.head.turn, []) if owner.is_over else []:
            ended.set()

    def _own_reader(self, owner: Owner, claim: Claim) -> None:
        if not owner.is_fenced:
            self._model.join(owner.turn, claim.reader())

    def _take(self, seen: Seen, limit: int) -> None:
        rest = seen.turn.frames[seen.cursor :]
        assert seen.reader.unread == len(b"".join(rest))
        count = next((count for count in range(len(rest)) if len(b"".join(rest[:count])) >= limit), len(rest))
        assert seen.reader.take(limit) == b"".join(rest[:count])
        seen.cursor += count

    def _rewind(self, seen: Seen, then: int) -> None:
        """Rewind, perhaps read some, or let more be said and begin again, and read to the end."""
        turn, said = seen.turn, list[bytes]()
        if not turn.frames:
            return
        self._run(seen.reader.rewind())
        if then == 1:
            said += [seen.reader.take_frame(), seen.reader.take(1)]
        elif then == 2 and not turn.owner.is_over:
            self._append(turn.owner, 1)
            self._see(seen)
            self._run(seen.reader.rewind())
        while frame := seen.reader.take_frame():
            said.append(frame)
        seen.cursor = len(turn.frames)
        chunks = [decode_chunk(event.data).chunk for event in SseDecoder().feed(b"".join(said))]
        assert message_of(None, chunks) == message_of(turn.continues, turn.chunks)
        assert (seen.reader.ended, seen.reader.unread) == (turn.outcome is not None, 0)

    # How the machine works.

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return self._loop.run_until_complete(work)

    async def _leave(self) -> None:
        await self._stack.aclose()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _try(self, work: Coroutine[Any, Any, Any]) -> Any:
        async def attempt() -> Any:
            try:
                return await work
            except (FencedError, IdUsedError, TurnRunningError) as error:
                return error

        return self._run(attempt())

    def _spawn(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        async def begin() -> asyncio.Task[_T]:
            task = asyncio.create_task(work)
            await asyncio.sleep(0)
            return task

        return self._run(begin())

    def _until(self, holds: Callable[[], bool]) -> None:
        """Let the loop run until it holds; the last look fails."""

        async def look() -> None:
            for _ in range(20):
                if holds():
                    return
                await asyncio.sleep(self._tick)
            assert holds()

        if not holds():
            self._run(look())

    def _running(self, answer: Any) -> TurnHead:
        assert isinstance(answer, TurnRunningError)
        return answer.head

    def _owners(self) -> list[tuple[Owner, Claim]]:
        """Those who have not released their turn, also if it was taken over."""
        return [(owner, claim) for owner, claim in self._claims.items() if not owner.is_over]

    def _see(self, seen: Seen) -> None:
        """Wait until the reader's process knows what was said."""
        log, turn = seen.reader.log, seen.turn
        self._until(lambda: (log.frames[: log.end], log.outcome) == (turn.frames, turn.outcome))

    async def _take_lost(self, claim: Claim, why: StopReason | None) -> None:
        self._lost.append((claim, why))
        ended = asyncio.Event()
        self._endings.setdefault(claim.head.turn, []).append(ended)
        await ended.wait()

    def _take_over(self, expected: Sequence[Lost]) -> None:
        """Give the claims that were taken over to their new owners."""
        self._until(lambda: len(self._lost) == len(expected))
        lost, self._lost = self._lost, []
        assert [(claim.head, why) for claim, why in lost] == [(owner.turn.head, why) for owner, why in expected]
        for (claim, _), (owner, _) in zip(lost, expected, strict=True):
            assert claim.epoch > owner.epoch
            owner.epoch = claim.epoch
            self._claims[owner] = claim


def _ids(number: int) -> list[str]:
    return [id_ for bit, id_ in enumerate("vwxyz") if number >> bit & 1]


def _is_part(some: Sequence[object], of: Sequence[object]) -> bool:
    """Whether they come in this order among the others."""
    rest = iter(of)
    return all(one in rest for one in some)


def _pick(things: Sequence[_T], which: int) -> _T:
    return things[-1 - which % len(things)]
