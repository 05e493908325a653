"""The turns of many processes, on one Redis."""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from usechat.protocol.messages import UIMessage
from usechat.stores import Lost, Meter, Reader, StopReason, StoreAwayError, TurnHead, TurnRunningError
from usechat.stores.log import Outcome
from usechat.stores.redis.channels import Channels, Listener
from usechat.stores.redis.claim import RedisClaim, Settings
from usechat.stores.redis.copies import Copy, Look, frames_of, look
from usechat.stores.redis.driver import Command, Reply, ThreadWire, Wire, check_url
from usechat.stores.redis.keys import Keys, TurnKeys
from usechat.stores.redis.lease import Leased, Leases
from usechat.stores.redis.line import Line, NoMeter
from usechat.stores.redis.steps import CLAIM, DUE, NOTE, STOP, TAKE

__all__ = ["RedisTurnStore"]

_T = TypeVar("_T")
_log = logging.getLogger("usechat")

# How many turns whose owners may be gone are looked at together.
_SWEPT: Final = 64
_NOT_SERVED: Final = "The store of turns is not served: enter chats.serve() in the lifespan of your app."


class RedisTurnStore:
    """The turns of all processes that share this Redis, the secret and the scope.

    A turn is its owner's as long as its lease is renewed, for `lease` seconds each time. The log of a turn that has
    ended can be read for `keep` seconds, and of each chat for the last `keep_turns` of them. `most_copied` are the
    bytes of other processes' turns that this one holds for its readers. An id that was spent is known for `keep_spent`
    seconds. A call waits for `patience` seconds for a Redis that is away.

    Raises:
        ValueError: it is not the URL of a Redis, or the secret is missing or too short.
    """

    def __init__(
        self,
        url: str,
        *,
        secret: str | None,
        lease: float = 15.0,
        keep: float = 600.0,
        keep_turns: int = 64,
        keep_spent: float = 7 * 24 * 3600.0,
        most_copied: int = 256 * 1024 * 1024,
        patience: float = 4.0,
        prefix: str = "usechat",
        scope: str = "",
    ) -> None:
        check_url(url)
        self._url = url
        self.keys = Keys(secret, prefix, scope)
        self.worker = secrets.token_hex(8).encode()
        self.settings = Settings(
            lease=lease,
            keep=keep,
            keep_turns=keep_turns,
            keep_running=max(keep, 24 * 3600.0, 10 * lease),
            keep_spent=keep_spent,
            most_copied=most_copied,
            patience=patience,
        )
        self.meter: Meter = NoMeter()
        self._life: _Life | None = None
        self._claims: dict[str, RedisClaim] = {}
        self._copies: dict[str, Copy] = {}
        self._lost: Lost | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        # Those that are being handed to another claim of this process.
        self._handing: set[RedisClaim] = set()
        self._up_since = 0.0

    # The contract.

    async def claim(self, head: TurnHead) -> RedisClaim:
        mine = self._claims.get(head.turn)
        if mine is not None and mine.phase == "claimed":
            return mine
        keys, settings = self.keys.of(head), self.settings
        asked = time.monotonic()
        parts = (head.turn.encode(), self.worker, b"%d" % settings.lease_us, msgspec.json.encode(head))
        ttl = b"%d" % (settings.keep_running * 1000)
        # Before it is claimed, so that nobody can die in between.
        self.line.say(NOTE, 1, self.keys.running, b"%d" % settings.lease_us, keys.member)
        try:
            reply = await self._call(CLAIM, 2, keys.chat, keys.turn, *parts, ttl)
        except StoreAwayError:
            # It may be claimed without our knowing it.
            self._spawn(self._quietly(RedisClaim(self, head, 0).release()))
            raise
        if reply[0] == b"RUNNING":
            raise TurnRunningError(_head(reply[1]), is_sealed=reply[2] == b"sealed")
        claim = self._claims[head.turn] = RedisClaim(self, head, int(reply[1]))
        self.leases.add(claim, asked)
        return claim

    async def live(self, chat: str) -> TurnHead | None:
        if self.line.is_away:
            mine = next((claim for claim in self._claims.values() if claim.head.chat == chat), None)
            if mine is not None:
                return mine.head
        reply = await self._call(b"HGET", self.keys.chat(chat), b"h")
        return None if reply is None else _head(reply)

    async def find(self, chat: str, mark: str) -> TurnHead | None:
        head = await self.live(chat)
        if head is not None and mark in (head.turn, head.turn[:8]):
            return head
        key = self.keys.chat(chat)
        for turn in await self._call(b"ZRANGE", key + b":t", b"0", b"-1", b"REV"):
            if mark.encode() in (turn, turn[:8]) and (found := await self._call(b"HGET", key + b":" + turn, b"h")):
                return _head(found)
        return None

    async def follow(self, head: TurnHead) -> Reader | None:
        while (claim := self._claims.get(head.turn)) is not None and claim.phase == "claimed" and not claim.is_fenced:
            await claim.moved()
        if claim is not None and claim.phase != "released" and not claim.is_fenced:
            return claim.reader()
        state = await self._when(head, lambda state: state.phase != "claimed")
        if state.phase is None:
            return None
        return await self._copied(head)

    async def stop(self, head: TurnHead, why: StopReason, within: float) -> None:
        mine = self._claims.get(head.turn)
        if mine is not None:
            mine.stop(why)
        keys = self.keys.of(head)
        while True:
            reply = await self._call(STOP, 1, keys.turn, head.turn.encode(), why.encode(), self.keys.workers)
            if reply[0] == b"GONE":
                return
            epoch = reply[1]
            try:
                async with asyncio.timeout(within):
                    await self._when(head, partial(_has_moved, epoch))
            except TimeoutError:
                # In a task that whoever stops cannot cancel: nobody else would end the turn.
                if await asyncio.shield(self._spawn(self._take(head, epoch, why))):
                    return

    async def forget(self, chat: str) -> None:
        key = self.keys.chat(chat)
        turns: list[bytes] = await self._call(b"ZRANGE", key + b":t", b"0", b"-1")
        if turns:
            names = [name for turn in turns for name in (key + b":" + turn, key + b":" + turn + b":l")]
            await self._call(b"DEL", key + b":t", *names)

    async def freed(self, head: TurnHead) -> None:
        await self._when(head, lambda state: not state.is_held)

    async def answers(self) -> bool:
        try:
            # A Redis that answers and takes nothing is away, too.
            await self._call(NOTE, 1, self.keys.running, b"0", within=2.0)
        except StoreAwayError:
            return False
        return True

    def serve(self, lost: Lost) -> AbstractAsyncContextManager[None]:
        return self._serve(lost)

    @asynccontextmanager
    async def _serve(self, lost: Lost) -> AsyncGenerator[None, None]:
        self._lost = lost
        life = self._life = _Life(self, self._url)
        self._up_since = time.monotonic()
        runs = [life.line.run(), life.reading.run(), life.channels.run(), self._sweep()]
        tasks = [asyncio.create_task(run) for run in runs]
        life.leases.start()
        hearing = asyncio.create_task(life.channels.join(self.keys.workers + self.worker, self._hear))
        try:
            yield
        finally:
            life.leases.stop()
            for task in (*tasks, hearing, *self._tasks):
                task.cancel()
            await asyncio.gather(*tasks, hearing, *self._tasks, return_exceptions=True)
            for copy in tuple(self._copies.values()):
                copy.close()
            self._life = self._lost = None

    # What claims and copies see of it.

    @property
    def line(self) -> Line:
        return self._served.line

    @property
    def reading(self) -> Line:
        return self._served.reading

    @property
    def channels(self) -> Channels:
        return self._served.channels

    @property
    def leases(self) -> Leases:
        return self._served.leases

    def left(self, claim: RedisClaim) -> None:
        self._drop(claim)
        if self._life is not None:
            self._life.line.say(b"ZREM", self.keys.running, claim.keys.member)

    def lost(self, claim: RedisClaim, *, is_handed: bool) -> None:
        self._drop(claim)
        if claim.log.readers and not is_handed and self._life is not None:
            copy = self._copies[claim.head.turn] = Copy(self, claim.head, claim.log)
            copy.mend(claim.log.cut(claim.acked))

    def unread(self, copy: Copy) -> None:
        copy.close()
        if self._copies.get(copy.head.turn) is copy:
            del self._copies[copy.head.turn]

    def reap(self, head: TurnHead) -> None:
        self._spawn(self._quietly(self._take(head, b"", None)))

    # How it works.

    @property
    def _served(self) -> "_Life":
        if self._life is None:
            raise RuntimeError(_NOT_SERVED)
        return self._life

    async def _call(self, *command: Any, within: float | None = None) -> Reply:
        return await self.line.call(*command, within=self.settings.patience if within is None else within)

    def _spawn(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _quietly(self, work: Coroutine[Any, Any, Any]) -> None:
        with suppress(StoreAwayError):
            await work

    def _drop(self, claim: RedisClaim) -> None:
        if self._claims.get(claim.head.turn) is claim:
            del self._claims[claim.head.turn]
        if self._life is not None:
            self._life.leases.remove(claim)

    async def _copied(self, head: TurnHead) -> Reader:
        copy = self._copies.get(head.turn)
        if copy is None:
            if sum(other.log.size for other in self._copies.values()) > self.settings.most_copied:
                raise StoreAwayError
            copy = self._copies[head.turn] = Copy(self, head)
        # It counts while it is loaded, so that nobody drops the copy.
        reader = copy.reader()
        try:
            await copy.loaded()
        except BaseException:
            reader.leave()
            raise
        return reader

    async def _when(self, head: TurnHead, holds: Callable[[Look], bool]) -> Look:
        """Wait until it holds for the turn, and give what the turn is like then."""
        keys, heard = self.keys.of(head), asyncio.Event()

        def hear(_: bytes) -> None:
            heard.set()

        state = await look(self.line, keys, self.settings.patience)
        if holds(state):
            return state
        async with self._hearing(keys, hear):
            while True:
                heard.clear()
                state = await look(self.line, keys, self.settings.patience)
                if holds(state):
                    return state
                if state.late:
                    self.reap(head)
                with suppress(TimeoutError):
                    async with asyncio.timeout(self.settings.lease / 2):
                        await heard.wait()

    @asynccontextmanager
    async def _hearing(self, keys: TurnKeys, hear: Listener) -> AsyncGenerator[None, None]:
        try:
            async with asyncio.timeout(self.settings.patience):
                await self.channels.join(keys.turn, hear)
        except TimeoutError:
            raise StoreAwayError from None
        try:
            yield
        finally:
            if self._life is not None:
                self._life.channels.leave(keys.turn, hear)

    def _hear(self, message: bytes) -> None:
        """Another worker has something to say about a turn that is ours."""
        match message.decode().split():
            case ["stop", turn, epoch, why] if (claim := self._of(turn, epoch)) is not None:
                claim.stop(msgspec.convert(why, StopReason))
            case ["fenced", turn, epoch] if (claim := self._of(turn, epoch)) not in (None, *self._handing):
                claim.fence()
            case ["readers", turn, count] if (claim := self._claims.get(turn)) is not None:
                claim.count_remote(int(count))
            case _:
                pass

    def _of(self, turn: str, epoch: str) -> RedisClaim | None:
        claim = self._claims.get(turn)
        return claim if claim is not None and claim.epoch == int(epoch) else None

    def hear_beats(self, news: list[tuple[Leased, Reply]]) -> None:
        for claim, reply in news:
            if isinstance(claim, RedisClaim):
                claim.hear_beat(reply)

    def note(self, claims: Sequence[Leased]) -> Command:
        members = [claim.keys.member for claim in claims if isinstance(claim, RedisClaim)]
        return (NOTE, 1, self.keys.running, b"%d" % self.settings.lease_us, *members)

    def away_changed(self) -> None:
        # Owners that live have renewed their leases before anybody takes them for dead.
        self._up_since = time.monotonic()
        for claim in tuple(self._claims.values()):
            if self.line.is_away:
                claim.count_remote(None)
            else:
                claim.check()

    def channels_up(self) -> None:
        self._up_since = time.monotonic()
        for claim in tuple(self._claims.values()):
            claim.check()
        for copy in tuple(self._copies.values()):
            copy.check()

    async def _sweep(self) -> None:
        """End the turns whose owners are gone, also those that nobody reads."""
        lease = self.settings.lease
        while True:
            await asyncio.sleep(lease / 3)
            with suppress(StoreAwayError):
                due = await self._call(DUE, 1, self.keys.running, b"%d" % self.settings.lease_us, b"%d" % _SWEPT)
                for member in due:
                    self._spawn(self._quietly(self._reap_member(self.keys.of_member(member))))

    async def _reap_member(self, keys: TurnKeys) -> None:
        head = await self._call(b"HGET", keys.turn, b"h")
        if head is None:
            await self._call(b"ZREM", self.keys.running, keys.member)
        else:
            await self._take(_head(head), b"", None)

    async def _take(self, head: TurnHead, epoch: bytes, why: StopReason | None) -> bool:
        """Take the turn over and end it; without an epoch only from an owner whose lease has ended.

        False if somebody else has done it before.
        """
        if not epoch and time.monotonic() - self._up_since < self.settings.lease:
            return False
        keys, mine = self.keys.of(head), self._claims.get(head.turn)
        if mine is not None:
            if not epoch:
                return False
            with suppress(TimeoutError):
                async with asyncio.timeout(self.settings.patience):
                    await mine.flush()
            self._handing.add(mine)
        try:
            return await self._take_now(head, keys, epoch, why, mine)
        finally:
            if mine is not None:
                self._handing.discard(mine)

    async def _take_now(
        self, head: TurnHead, keys: TurnKeys, epoch: bytes, why: StopReason | None, mine: RedisClaim | None
    ) -> bool:
        asked = time.monotonic()
        lease = b"%d" % self.settings.lease_us
        parts = (head.turn.encode(), epoch, self.worker, lease, self.keys.workers)
        reply = await self._call(TAKE, 4, keys.chat, keys.turn, keys.log, keys.readers, *parts)
        match reply:
            case [b"OK", taken, phase, stopped, last, *rest]:
                why = why or (None if stopped is None else msgspec.convert(stopped.decode(), StopReason))
                await self._end(await self._taken(head, int(taken), phase, last, rest, asked), why)
                return True
            case [b"GONE" | b"DROPPED"]:
                if mine is not None:
                    mine.fence()
                await self._call(b"ZREM", self.keys.running, keys.member)
                return True
            case _:
                if mine is not None and reply[0] == b"CHANGED":
                    mine.fence()
                return False

    async def _taken(
        self, head: TurnHead, epoch: int, phase: bytes, last: int, rest: list[Reply], asked: float
    ) -> RedisClaim:
        z, _, outcome, _, continued = rest
        continues = None if continued is None else msgspec.json.decode(continued, type=UIMessage)
        before = self._claims.get(head.turn)
        if before is not None:
            copy = Copy(self, head, before.log)
            before.fence(is_handed=True)
        else:
            copy = self._copies.pop(head.turn, None)
            if copy is None or copy.log.outcome is not None:
                copy = Copy(self, head)
        log = await copy.take_over(last, continues)
        claim = RedisClaim(self, head, epoch, log)
        sealed: tuple[Sequence[bytes], Outcome] | None = None
        if outcome is not None:
            sealed = frames_of(z), msgspec.convert(outcome.decode(), Outcome)
        self._claims[head.turn] = claim
        self.leases.add(claim, asked)
        claim.take("open" if phase == b"open" else "sealed", sealed)
        return claim

    async def _end(self, claim: RedisClaim, why: StopReason | None) -> None:
        self.meter.turn_orphaned()
        try:
            if self._lost is not None:
                await self._lost(claim, why)
                return
        # The app's own hooks may raise anything; the chat is free all the same.
        except Exception:  # noqa: BLE001
            _log.exception("turn %s, whose owner is gone, could not be ended as it should", claim.head.turn)
        if await claim.seal((), "lost"):
            await claim.release()


class _Life:
    """The connections of a store that is served: four, whatever it does."""

    def __init__(self, store: RedisTurnStore, url: str) -> None:
        lease = store.settings.lease
        seconds = min(3.0, max(lease / 3, 0.5))
        self.line = Line(Wire(url, seconds), lambda: store.meter, store.away_changed)
        self.reading = Line(Wire(url, 2 * seconds), lambda: store.meter, lambda: None)
        self.channels = Channels(lambda: Wire(url, seconds), lease / 3, store.channels_up)
        wire = ThreadWire(url, min(2.0, max(lease / 5, 0.2)))
        self.leases = Leases(wire, lease, store.note, store.hear_beats)


def _has_moved(epoch: bytes, state: Look) -> bool:
    return not state.is_held or state.epoch != epoch


def _head(value: bytes) -> TurnHead:
    return msgspec.json.decode(value, type=TurnHead)
