"""The turns of many processes, on one Redis."""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from usechat.stores import Lost, Meter, Reader, StopReason, StoreAwayError, TurnHead, TurnRunningError
from usechat.stores.redis.channels import Channels
from usechat.stores.redis.claim import RedisClaim
from usechat.stores.redis.connections import Connections
from usechat.stores.redis.copies import Copy
from usechat.stores.redis.driver import Reply, check_url
from usechat.stores.redis.keys import Keys
from usechat.stores.redis.lease import Leases
from usechat.stores.redis.line import Line, NoMeter
from usechat.stores.redis.looks import Look, head_of
from usechat.stores.redis.lua import Step
from usechat.stores.redis.notices import Notices
from usechat.stores.redis.outages import GIVEN_BACK, Outages
from usechat.stores.redis.settings import Settings, milliseconds
from usechat.stores.redis.steps import CLAIM, NOTE, PROBE, STOP
from usechat.stores.redis.taking import TakeOver
from usechat.stores.redis.waiting import when

__all__ = ["RedisTurnStore"]

_log = logging.getLogger("usechat")

_DAY: Final = 24 * 3600.0
_PING: Final = 2.0
_AGAIN: Final = 0.1


class RedisTurnStore:
    """The turns of all processes that share this Redis, the secret and the scope.

    A turn is its owner's as long as its lease is renewed, for `lease` seconds each time. The log of a turn that has
    ended can be read for `keep` seconds: of each chat the last `keep_turns` of them, which have `keep_bytes` together,
    and always the last one. `most_copied` are the bytes of other processes' turns that this one holds for its readers.
    An id that was spent is known for `keep_spent` seconds. A call waits for a Redis that is away until it has been so
    for `patience` seconds; then calls fail at once, until Redis answers again.

    Raises:
        ValueError: it is not the URL of a Redis, the secret is missing or too short, or the lease is none.
    """

    def __init__(
        self,
        url: str,
        *,
        secret: str | None,
        lease: float = 15.0,
        keep: float = 600.0,
        keep_turns: int = 64,
        keep_bytes: int = 16 * 1024 * 1024,
        keep_spent: float = 7 * _DAY,
        most_copied: int = 256 * 1024 * 1024,
        patience: float = 4.0,
        prefix: str = "usechat",
        scope: str = "",
    ) -> None:
        check_url(url)
        if not 0 < lease <= _DAY:
            raise ValueError(f"The lease of turns must be a number of seconds up to a day, and is {lease}.")
        self._url = url
        parts = urlsplit(url)
        self.name = f"Redis at {parts.path}" if parts.scheme == "unix" else f"Redis on {parts.hostname or 'localhost'}"
        self.keys = Keys(secret, prefix, scope)
        self.worker = secrets.token_hex(8).encode()
        self.settings = Settings(
            lease=lease,
            keep=keep,
            keep_turns=keep_turns,
            keep_bytes=keep_bytes,
            # If all workers are gone, what they were saying waits for one to come back.
            keep_running=max(keep, _DAY, 10 * lease),
            keep_spent=keep_spent,
            most_copied=most_copied,
            patience=patience,
        )
        self.meter: Meter = NoMeter()
        self.claims: dict[str, RedisClaim] = {}
        self.copies: dict[str, Copy] = {}
        self._life: _Served | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    # The contract.

    async def claim(self, head: TurnHead) -> RedisClaim:
        mine = self.claims.get(head.turn)
        if mine is not None and mine.phase == "claimed":
            return mine
        within = self.line.patience(self.settings.patience + GIVEN_BACK)
        try:
            async with asyncio.timeout(within):
                return await self._claim(head)
        except TimeoutError:
            # It may be claimed without our knowing it.
            self.spawn(RedisClaim(self, head, 0).release())
            raise StoreAwayError from None

    async def _claim(self, head: TurnHead) -> RedisClaim:
        keys, settings = self.keys.of(head), self.settings
        parts = (head.turn.encode(), self.worker, settings.lease_us, msgspec.json.encode(head))
        while True:
            # Not as the first thing that a Redis hears which may have forgotten who has the chat.
            await self._back()
            asked = time.monotonic()
            # Before it is claimed, so that nobody can die in between.
            self.line.say(NOTE, 1, self.keys.running, settings.lease_us, keys.member)
            command = (CLAIM, 2, keys.chat, keys.turn, *parts, milliseconds(settings.keep_running))
            try:
                reply = await self.line.call(*command, within=None, once=True)
                break
            except StoreAwayError:
                await asyncio.sleep(_AGAIN)
        if reply[0] == b"RUNNING":
            raise TurnRunningError(
                head_of(reply[1]), is_claimed=reply[2] == b"claimed", is_sealed=reply[2] == b"sealed"
            )
        claim = self.claims[head.turn] = RedisClaim(self, head, int(reply[1]))
        self.leases.add(claim, asked)
        return claim

    async def live(self, chat: str) -> TurnHead | None:
        if self.line.is_away:
            mine = next((claim for claim in self.claims.values() if claim.head.chat == chat), None)
            if mine is not None:
                return mine.head
        reply = await self._served.outages.ask(partial(self._call, b"HGET", self.keys.chat(chat), b"h"))
        return None if reply is None else head_of(reply)

    async def find(self, chat: str, mark: str) -> TurnHead | None:
        head = await self.live(chat)
        if head is not None and mark in (head.turn, head.turn[:8]):
            return head
        key = self.keys.chat(chat)
        for turn in await self._call(b"ZRANGE", key + b":t", b"0", b"-1", b"REV"):
            if mark.encode() in (turn, turn[:8]) and (found := await self._call(b"HGET", key + b":" + turn, b"h")):
                return head_of(found)
        return None

    async def follow(self, head: TurnHead) -> Reader | None:
        while (claim := self.claims.get(head.turn)) is not None and claim.phase == "claimed":
            await claim.moved()
        if claim is not None:
            return claim.reader()
        state = await self._served.outages.ask(partial(self._opened, head))
        return None if state is None else await self._copied(head, state)

    async def stop(self, head: TurnHead, why: StopReason, within: float) -> None:
        mine = self.claims.get(head.turn)
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
                    await when(self, head, lambda state, epoch=epoch: not state.is_of(epoch))
            except TimeoutError:
                # In a task that whoever stops cannot cancel: nobody else would end the turn.
                if await asyncio.shield(self._remember(self._served.taking.take(head, epoch, why))):
                    return

    async def forget(self, chat: str) -> None:
        key = self.keys.chat(chat)
        turns: list[bytes] = await self._call(b"ZRANGE", key + b":t", b"0", b"-1")
        names = [name for turn in turns for name in (key + b":" + turn, key + b":" + turn + b":l")]
        await self._call(b"DEL", key + b":t", *names)

    async def opened(self, head: TurnHead, within: float) -> bool:
        try:
            async with asyncio.timeout(within):
                await self._opened(head)
        except TimeoutError:
            return False
        return True

    async def are_spent(self, chat: str, ids: Sequence[str]) -> bool:
        key = self.keys.chat(chat) + b":s"
        return any([await self._call(b"SISMEMBER", key, self.keys.spent_id(id_)) for id_ in ids])

    async def freed(self, head: TurnHead) -> None:
        await when(self, head, lambda state: not state.is_held)

    async def answers(self) -> bool:
        try:
            async with asyncio.timeout(_PING):
                await self._call(PROBE, 0)
        except (StoreAwayError, TimeoutError):
            return False
        return True

    @asynccontextmanager
    async def serve(self, lost: Lost) -> AsyncGenerator[None, None]:
        served = self._life = _Served(self, self._url, lost)
        channels = self.keys.workers, self.keys.workers + self.worker
        hearing = [self.channels.join(channel, served.notices.hear) for channel in channels]
        tasks = [asyncio.create_task(run) for run in (served.taking.sweep(), served.outages.learn(), *hearing)]
        try:
            async with served.connections.open():
                yield
        finally:
            for task in (*tasks, *self._tasks):
                task.cancel()
            await asyncio.gather(*tasks, *self._tasks, return_exceptions=True)
            for copy in tuple(self.copies.values()):
                copy.close()
            self._life = None

    # What claims, copies and whoever takes turns over see of it.

    @property
    def line(self) -> Line:
        return self._served.connections.line

    @property
    def reading(self) -> Line:
        return self._served.connections.reading

    @property
    def channels(self) -> Channels:
        return self._served.connections.channels

    @property
    def leases(self) -> Leases:
        return self._served.connections.leases

    @property
    def unsettled(self) -> float:
        return self._served.outages.left

    @property
    def notices(self) -> Notices:
        return self._served.notices

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do it beside, for as long as the store is served; that Redis is away is no reason to complain."""
        self._remember(_quietly(work))

    def left(self, claim: RedisClaim) -> None:
        self._drop(claim)
        if self._life is not None:
            self._life.connections.line.say(b"ZREM", self.keys.running, claim.keys.member)

    def lost(self, claim: RedisClaim, *, is_handed: bool) -> None:
        self._drop(claim)
        if claim.log.readers and not is_handed and self._life is not None:
            copy = self.copies[claim.head.turn] = Copy(self, claim.head, claim.log)
            copy.go_on()

    def unread(self, copy: Copy) -> None:
        copy.close()
        if self.copies.get(copy.head.turn) is copy:
            del self.copies[copy.head.turn]

    def reap(self, head: TurnHead) -> None:
        self.spawn(self._served.taking.reap(head))

    # How it works.

    @property
    def _served(self) -> "_Served":
        if self._life is None:
            raise RuntimeError("The store of turns is not served: enter endpoint.serve() in the lifespan of your app.")
        return self._life

    async def _call(self, *command: bytes | Step | int) -> Reply:
        return await self.line.call(*command, within=self.line.patience(self.settings.patience))

    async def _back(self) -> None:
        """Wait until Redis is back, and owners have given back what it forgot."""
        outages = self._served.outages
        while self.line.is_away or outages.left > 0:
            if self.line.is_away:
                await self.line.call(PROBE, 0, within=None)
            await asyncio.sleep(outages.left)

    def _remember(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _drop(self, claim: RedisClaim) -> None:
        if self.claims.get(claim.head.turn) is claim:
            del self.claims[claim.head.turn]
        if self._life is not None:
            self._life.connections.leases.remove(claim)

    async def _opened(self, head: TurnHead) -> Look | None:
        state = await when(self, head, lambda state: state.phase != "claimed")
        return state if state.phase else None

    async def _copied(self, head: TurnHead, state: Look) -> Reader | None:
        copy = self.copies.get(head.turn)
        if copy is None:
            if sum(other.log.size for other in self.copies.values()) > self.settings.most_copied:
                raise StoreAwayError
            copy = self.copies[head.turn] = Copy(self, head)
        # It counts while the copy is loaded, so that nobody drops it.
        reader = copy.reader()
        try:
            await copy.loaded()
            # One that others follow may be behind what whoever comes has read elsewhere.
            await copy.reach(state)
        except BaseException:
            reader.leave()
            raise
        if copy.is_lost:
            reader.leave()
            return None
        return reader


class _Served:
    """What a store has while it is served."""

    def __init__(self, store: RedisTurnStore, url: str, lost: Lost) -> None:
        self.outages = Outages(store)
        self.taking = TakeOver(store, lost, self.outages)
        self.notices = Notices(store, self.taking, self.outages)
        self.connections = Connections(url, store.settings.lease, lambda: store.meter, self.notices)


async def _quietly(work: Coroutine[Any, Any, Any]) -> None:
    try:
        await work
    except StoreAwayError:
        pass
    # Nobody waits for it who could be told.
    except Exception:  # noqa: BLE001
        _log.exception("what a turn left to do has failed")
