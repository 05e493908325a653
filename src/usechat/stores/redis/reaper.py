"""Turns whose owner is gone, or does not stop: one worker takes each of them over, and ends it.

A turn is taken over in two cases:

- Its lease has *expired*. Three times in the time of a lease `sweep` asks Redis for the turns of which that may be so;
  mirrors and lookups that see one report it as well (`reap`). It is not believed while leases do not count (outages).
- It was stopped and has not ended in time (`take`). Then only the owner with the epoch that was stopped loses it.

TAKE_OVER decides in Redis which worker gets it: it gives the turn a higher epoch, and so fences the owner before. Then
the new owner reads the log to its end, from what this process has of it already, and hands the claim to `lost`, which
ends it. A turn that was only claimed is dropped at once, since nobody has seen anything of it.

A worker may take a turn over from itself: its own turn does not stop. Then the old claim flushes what it has, and hears
nothing of being fenced (`is_handing`) until the new claim has its log.

Everything belongs to the event loop. A take-over runs in a task that no caller cancels.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import msgspec

from usechat.protocol.messages import UIMessage
from usechat.stores import Lost, StopReason, StoreAwayError, TurnHead
from usechat.stores.log import Outcome
from usechat.stores.redis.claim import RedisClaim, reason_of
from usechat.stores.redis.driver import Reply
from usechat.stores.redis.keys import TurnKeys
from usechat.stores.redis.local_turns import LocalTurns
from usechat.stores.redis.mirror import Mirror
from usechat.stores.redis.scripts import EXPIRED, TAKE_OVER
from usechat.stores.redis.worker import Worker, frames_of

__all__ = ["Reaper"]

_log = logging.getLogger("usechat")

# How many turns that may have expired are looked at together.
_SWEPT: Final = 64


class Reaper:
    """Takes turns over, each once, and lets `lost` end them."""

    def __init__(self, worker: Worker, turns: LocalTurns, lost: Lost) -> None:
        self._worker = worker
        self._turns = turns
        self._lost = lost
        worker.on_expired = self.reap

    async def sweep(self) -> None:
        """Reap the turns that have expired, also those that nobody reads, for as long as it runs."""
        worker, settings = self._worker, self._worker.settings
        while True:
            await asyncio.sleep(settings.lease / 3)
            asked = time.monotonic()
            command = (EXPIRED, 1, worker.keys.running, settings.lease_us, _SWEPT)
            try:
                now, members = await worker.pipeline.call(*command, within=settings.patience)
            except StoreAwayError:
                # A Redis that refuses this has perhaps refused to renew leases as well.
                worker.outages.noted()
                continue
            worker.outages.learn_time(int(now), asked)
            for member in members:
                worker.spawn(self._reap_member(worker.keys.of_member(member)))

    def reap(self, head: TurnHead) -> None:
        """End the turn beside, if the lease of its owner has expired."""
        self._worker.spawn(self._reap(head))

    async def _reap(self, head: TurnHead) -> None:
        worker = self._worker
        if worker.outages.leases_count and not worker.pipeline.is_away and head.turn not in self._turns.claims:
            await self._take(head, None, None)

    async def _reap_member(self, keys: TurnKeys) -> None:
        pipeline, within = self._worker.pipeline, self._worker.settings.patience
        head = await pipeline.call(b"HGET", keys.turn, b"h", within=within)
        if head is None:
            pipeline.send(b"ZREM", self._worker.keys.running, keys.member)
        else:
            await self._reap(msgspec.json.decode(head, type=TurnHead))

    async def take(self, head: TurnHead, epoch: int, why: StopReason) -> bool:
        """Take the turn from the owner with this epoch and end it; False if another worker has done it before."""
        mine = self._turns.claims.get(head.turn)
        if mine is None:
            return await self._take(head, epoch, why)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._worker.settings.patience):
                await mine.flush()
        mine.is_handing = True
        try:
            is_taken = await self._take(head, epoch, why)
        finally:
            mine.is_handing = False
        if mine.epoch == epoch:
            # Another owner has it now, in any case.
            mine.fence()
        return is_taken

    async def _take(self, head: TurnHead, epoch: int | None, why: StopReason | None) -> bool:
        worker, keys = self._worker, self._worker.keys.of(head)
        asked = time.monotonic()
        parts = (head.turn.encode(), epoch or b"", worker.id, worker.settings.lease_us, worker.keys.workers)
        command = (TAKE_OVER, 4, keys.chat, keys.turn, keys.log, keys.readers, *parts, *worker.outages.possible)
        # A lease that ended while Redis was away says nothing when it is back.
        reply = await worker.pipeline.call(*command, within=worker.settings.patience, once=epoch is None)
        if reply[0] == b"OK":
            claim = await self._taken(head, reply, asked)
            await self._end(claim, why or reason_of(reply[3]))
            return True
        if reply[0] in (b"GONE", b"DROPPED"):
            worker.pipeline.send(b"ZREM", worker.keys.running, keys.member)
            return True
        if reply[0] == b"JUMPED":
            worker.outages.learn_time(int(reply[1]), asked)
        return False

    async def _taken(self, head: TurnHead, reply: Reply, asked: float) -> RedisClaim:
        _, epoch, _, _, last, ending, _, outcome, _, continues = reply
        message = None if continues is None else msgspec.json.decode(continues, type=UIMessage)
        log = await self._mirror(head).take_over(last, message)
        sealed: tuple[Sequence[bytes], Outcome] | None = None
        if outcome is not None:
            sealed = frames_of(ending), msgspec.convert(outcome.decode(), Outcome)
        claim = self._turns.add_claim(head, int(epoch), asked, log)
        claim.take(sealed)
        return claim

    def _mirror(self, head: TurnHead) -> Mirror:
        """What this process has of the turn already."""
        turns, before = self._turns, self._turns.claims.get(head.turn)
        if before is not None:
            before.fence(is_handed=True)
            return Mirror(self._worker, head, turns.unread, before.log)
        mirror = turns.mirrors.pop(head.turn, None)
        return Mirror(self._worker, head, turns.unread) if mirror is None or mirror.log.outcome is not None else mirror

    async def _end(self, claim: RedisClaim, why: StopReason | None) -> None:
        self._worker.meter.turn_orphaned()
        try:
            await self._lost(claim, why)
        # The app's own hooks may raise anything; the chat is free all the same.
        except Exception:  # noqa: BLE001
            _log.exception("turn %s, whose owner is gone, could not be ended as it should", claim.head.turn)
            if await claim.seal((), "lost"):
                await claim.release()
