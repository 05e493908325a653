"""The turns of many processes, on one Redis."""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import urlsplit

import msgspec

from usechat.stores import Found, Lost, Meter, Reader, StopReason, StoreAwayError, TurnHead, TurnRunningError
from usechat.stores.redis.claim import RedisClaim
from usechat.stores.redis.driver import Part, Reply, check_url
from usechat.stores.redis.keys import Keys, Settings
from usechat.stores.redis.local_turns import LocalTurns
from usechat.stores.redis.reaper import Reaper
from usechat.stores.redis.scripts import CLAIM, FIND, PROBE, REGISTER, STOP, milliseconds
from usechat.stores.redis.worker import GIVEN_BACK, TurnStatus, Worker

__all__ = ["RedisTurnStore"]

_DAY: Final = 24 * 3600.0
_PING: Final = 2.0
_AGAIN: Final = 0.1


class RedisTurnStore:
    """The turns of all processes that share this Redis, the secret and the scope.

    A turn is its owner's as long as its lease is renewed, for `lease` seconds each time. The log of a turn that has
    ended can be read for `keep` seconds: of each chat the last `keep_turns` of them, which have `keep_bytes` together,
    and always the last one. `most_mirrored` are the bytes of other processes' turns that this one holds for its
    readers. An id that was used is known for `keep_used` seconds. A call waits for a Redis that is away until it has
    been so for `patience` seconds; then calls fail at once, until Redis replies again.

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
        keep_used: float = 7 * _DAY,
        most_mirrored: int = 256 * 1024 * 1024,
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
        self.settings = Settings(
            lease=lease,
            keep=keep,
            keep_turns=keep_turns,
            keep_bytes=keep_bytes,
            # If all workers are gone, what they wrote waits for one to come back.
            keep_running=max(keep, _DAY, 10 * lease),
            keep_used=keep_used,
            most_mirrored=most_mirrored,
            patience=patience,
        )
        self.meter: Meter = _NoMeter()
        self._served: _Served | None = None

    @asynccontextmanager
    async def serve(self, lost: Lost) -> AsyncGenerator[None, None]:
        served = self._served = _Served(Worker(self._url, self.keys, self.settings, self.meter), lost)
        worker, turns = served.worker, served.turns
        try:
            async with worker.open():
                for channel in (self.keys.workers, self.keys.workers + worker.id):
                    worker.start(worker.channels.join(channel, turns.hear))
                worker.start(served.reaper.sweep())
                yield
        finally:
            turns.close()
            self._served = None

    @property
    def served(self) -> "_Served":
        """What the store has while it is served."""
        if self._served is None:
            raise RuntimeError("The store of turns is not served: enter endpoint.serve() in the lifespan of your app.")
        return self._served

    async def claim(self, head: TurnHead) -> RedisClaim:
        worker, turns = self.served.worker, self.served.turns
        mine = turns.claims.get(head.turn)
        if mine is not None and mine.phase == "claimed":
            return mine
        within = worker.pipeline.patience(self.settings.patience + GIVEN_BACK)
        try:
            async with asyncio.timeout(within):
                return await self._claim(head)
        except TimeoutError:
            # Redis may have given the claim all the same.
            worker.spawn(RedisClaim(worker, head, 0, turns.claim_over).release())
            raise StoreAwayError from None

    async def _claim(self, head: TurnHead) -> RedisClaim:
        worker, keys, settings = self.served.worker, self.keys.of(head), self.settings
        parts = (head.turn.encode(), worker.id, settings.lease_us, msgspec.json.encode(head))
        while True:
            # Not as the first command to a Redis that may have forgotten who has the chat.
            await self._back()
            asked = time.monotonic()
            # Before it is claimed, so that a worker that dies in between leaves no turn that nobody looks for.
            worker.pipeline.send(REGISTER, 1, self.keys.running, settings.lease_us, keys.member)
            command = (CLAIM, 2, keys.chat, keys.turn, *parts, milliseconds(settings.keep_running))
            try:
                reply = await worker.pipeline.call(*command, within=None, once=True)
                break
            except StoreAwayError:
                await asyncio.sleep(_AGAIN)
        if reply[0] == b"RUNNING":
            _, running, phase = reply
            raise TurnRunningError(_head(running), is_claimed=phase == b"claimed", is_sealed=phase == b"sealed")
        return self.served.turns.add_claim(head, int(reply[1]), asked)

    async def _back(self) -> None:
        """Wait until Redis is back, and owners have given back what it forgot."""
        pipeline, outages = self.served.worker.pipeline, self.served.worker.outages
        while pipeline.is_away or outages.left > 0:
            if pipeline.is_away:
                await pipeline.call(PROBE, 0, within=None)
            await asyncio.sleep(outages.left)

    def local(self, chat: str) -> TurnHead | None:
        claims = self.served.turns.claims.values()
        return next((claim.head for claim in claims if claim.head.chat == chat), None)

    async def live(self, chat: str) -> TurnHead | None:
        return (await self.find(chat, "")).live

    async def find(self, chat: str, mark: str) -> Found:
        worker, key = self.served.worker, self.keys.chat(chat)
        if worker.pipeline.is_away:
            mine = self.local(chat)
            if mine is not None and mark in ("", mine.turn, mine.turn[:8]):
                return Found(mine if mark else None, mine)

        async def look() -> Found:
            named, live = await worker.outages.call(FIND, 2, key, key + b":t", mark.encode())
            return Found(None if named is None else _head(named), None if live is None else _head(live))

        return await worker.outages.ask(look, lambda found: found.live is not None)

    async def follow(self, head: TurnHead) -> Reader | None:
        worker, turns = self.served.worker, self.served.turns
        while (claim := turns.claims.get(head.turn)) is not None and claim.phase == "claimed":
            await claim.moved.wait()
        if claim is not None:
            return claim.reader()

        async def opened() -> TurnStatus:
            status = await worker.wait_until(head, _is_not_claimed)
            if status.phase is None:
                await worker.outages.check_identity()
            return status

        status = await worker.outages.ask(opened, lambda status: status.phase is not None)
        return None if status.phase is None else await self._mirrored(head, status)

    async def _mirrored(self, head: TurnHead, status: TurnStatus) -> Reader | None:
        turns = self.served.turns
        mirror = turns.mirrors.get(head.turn)
        if mirror is None:
            if sum(other.log.size for other in turns.mirrors.values()) > self.settings.most_mirrored:
                raise StoreAwayError
            mirror = turns.add_mirror(head)
        # It counts while the mirror is loading, so that nobody drops it.
        reader = mirror.reader()
        try:
            await mirror.loaded()
            # A mirror that others follow may be behind what this client has read elsewhere.
            await mirror.reach(status)
        except BaseException:
            reader.leave()
            raise
        if mirror.is_lost:
            reader.leave()
            return None
        return reader

    async def stop(self, head: TurnHead, why: StopReason, within: float) -> None:
        worker, reaper, claims = self.served.worker, self.served.reaper, self.served.turns.claims
        while True:
            mine = claims.get(head.turn)
            if mine is not None:
                # No trip of its own: what the turn now writes, its seal and its release are enough.
                mine.stop(why)
                epoch = mine.epoch
                waiting = _over(mine)
            else:
                reply = await self._call(
                    STOP, 1, self.keys.of(head).turn, head.turn.encode(), why.encode(), self.keys.workers
                )
                if reply[0] == b"GONE":
                    return
                epoch = int(reply[1])
                waiting = worker.wait_until(head, lambda status, epoch=epoch: not status.is_of(epoch))
            try:
                async with asyncio.timeout(within):
                    await waiting
                if mine is not None and not mine.is_fenced:
                    return
            except TimeoutError:
                # In a task that the caller cannot cancel: nobody else would end the turn.
                if await asyncio.shield(worker.start(reaper.take(head, epoch, why))):
                    return

    async def forget(self, chat: str) -> None:
        key = self.keys.chat(chat)
        turns: list[bytes] = await self._call(b"ZRANGE", key + b":t", b"0", b"-1")
        names = [name for turn in turns for name in (key + b":" + turn, key + b":" + turn + b":l")]
        await self._call(b"DEL", key + b":t", *names)

    async def wait_opened(self, head: TurnHead, within: float) -> bool:
        try:
            async with asyncio.timeout(within):
                await self.served.worker.wait_until(head, _is_not_claimed)
        except TimeoutError:
            return False
        return True

    async def wait_released(self, head: TurnHead) -> None:
        await self.served.worker.wait_until(head, lambda status: not status.is_held)

    async def are_used(self, chat: str, ids: Sequence[str]) -> bool:
        pipeline, key = self.served.worker.pipeline, self.keys.chat(chat) + b":s"
        within = pipeline.patience(self.settings.patience)
        return any(await pipeline.call_all([(b"SISMEMBER", key, self.keys.used_id(id_)) for id_ in ids], within=within))

    async def ping(self) -> bool:
        try:
            async with asyncio.timeout(_PING):
                await self._call(PROBE, 0)
        except (StoreAwayError, TimeoutError):
            return False
        return True

    async def _call(self, *command: Part) -> Reply:
        pipeline = self.served.worker.pipeline
        return await pipeline.call(*command, within=pipeline.patience(self.settings.patience))


class _Served:
    def __init__(self, worker: Worker, lost: Lost) -> None:
        self.worker = worker
        self.turns = LocalTurns(worker)
        self.reaper = Reaper(worker, self.turns, lost)


class _NoMeter:
    def appended(self, seconds: float) -> None: ...

    def store_failed(self) -> None: ...

    def lagged(self, chunks: int) -> None: ...

    def turn_orphaned(self) -> None: ...


async def _over(claim: RedisClaim) -> None:
    """Wait until the claim is released or fenced."""
    while not claim.is_over:
        await claim.moved.wait()


def _is_not_claimed(status: TurnStatus) -> bool:
    return status.phase != "claimed"


def _head(value: bytes) -> TurnHead:
    return msgspec.json.decode(value, type=TurnHead)
