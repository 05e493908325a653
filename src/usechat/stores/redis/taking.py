"""Turns whose owner is gone, or does not answer: who takes them over, and how they end."""

import asyncio
import logging
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

import msgspec

from usechat.protocol.messages import UIMessage
from usechat.stores import Lost, StopReason, StoreAwayError, TurnHead
from usechat.stores.log import Outcome
from usechat.stores.redis.claim import Host, RedisClaim, reason_of
from usechat.stores.redis.copies import Copy, CopyHost
from usechat.stores.redis.driver import Reply
from usechat.stores.redis.keys import TurnKeys
from usechat.stores.redis.looks import frames_of, head_of
from usechat.stores.redis.lua import Step
from usechat.stores.redis.outages import Outages
from usechat.stores.redis.settings import number
from usechat.stores.redis.steps import DUE, TAKE

__all__ = ["TakeOver", "Takes"]

_log = logging.getLogger("usechat")

# How many turns whose owners may be gone are looked at together.
_SWEPT: Final = 64


class Takes(Host, CopyHost, Protocol):
    """The store of this process, as whoever takes turns over sees it."""

    claims: dict[str, RedisClaim]
    copies: dict[str, Copy]

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do it beside."""
        ...


class TakeOver:
    """Takes turns over, each once, and lets `lost` end them."""

    def __init__(self, host: Takes, lost: Lost, outages: Outages) -> None:
        self._host = host
        self._lost = lost
        self._outages = outages
        # Those that are being handed to another claim of this process.
        self.handing: set[RedisClaim] = set()

    async def sweep(self) -> None:
        """End the turns whose owners are gone, also those that nobody reads, for as long as it runs."""
        host, lease = self._host, self._host.settings.lease
        while True:
            await asyncio.sleep(lease / 3)
            asked = time.monotonic()
            try:
                now, due = await self._call(DUE, 1, host.keys.running, host.settings.lease_us, number(_SWEPT))
            except StoreAwayError:
                # Also a Redis that refuses it has perhaps refused to renew leases.
                self._outages.noted()
                continue
            self._outages.learn_time(int(now), asked)
            for member in due:
                host.spawn(self._reap_member(host.keys.of_member(member)))

    async def reap(self, head: TurnHead) -> None:
        """End the turn if the lease of its owner has ended."""
        if self._outages.leases_count and not self._host.line.is_away and head.turn not in self._host.claims:
            await self._take(head, b"", None)

    async def take(self, head: TurnHead, epoch: bytes, why: StopReason) -> bool:
        """Take the turn from the owner with this epoch and end it; False if somebody else has done it before."""
        mine = self._host.claims.get(head.turn)
        if mine is None:
            return await self._take(head, epoch, why)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._host.settings.patience):
                await mine.flush()
        self.handing.add(mine)
        try:
            is_taken = await self._take(head, epoch, why)
        finally:
            self.handing.discard(mine)
        if mine.epoch == int(epoch):
            # Whoever has it now, it is not this one.
            mine.fence()
        return is_taken

    async def _reap_member(self, keys: TurnKeys) -> None:
        head = await self._call(b"HGET", keys.turn, b"h")
        if head is None:
            self._host.line.say(b"ZREM", self._host.keys.running, keys.member)
        else:
            await self.reap(head_of(head))

    async def _take(self, head: TurnHead, epoch: bytes, why: StopReason | None) -> bool:
        host, keys = self._host, self._host.keys.of(head)
        asked = time.monotonic()
        parts = (head.turn.encode(), epoch, host.worker, host.settings.lease_us, host.keys.workers)
        command = (TAKE, 4, keys.chat, keys.turn, keys.log, keys.readers, *parts, *map(number, self._outages.possible))
        # A lease that ended while Redis was away says nothing when it is back.
        reply = await host.line.call(*command, within=host.settings.patience, once=not epoch)
        if reply[0] == b"OK":
            claim = await self._taken(head, reply, asked)
            await self._end(claim, why or reason_of(reply[3]))
            return True
        if reply[0] in (b"GONE", b"DROPPED"):
            host.line.say(b"ZREM", host.keys.running, keys.member)
            return True
        if reply[0] == b"JUMPED":
            self._outages.learn_time(int(reply[1]), asked)
        return False

    async def _taken(self, head: TurnHead, reply: Reply, asked: float) -> RedisClaim:
        _, epoch, _, _, last, ending, _, outcome, _, continues = reply
        host = self._host
        log = await self._copy(head).take_over(
            last, None if continues is None else msgspec.json.decode(continues, type=UIMessage)
        )
        sealed: tuple[Sequence[bytes], Outcome] | None = None
        if outcome is not None:
            sealed = frames_of(ending), msgspec.convert(outcome.decode(), Outcome)
        claim = host.claims[head.turn] = RedisClaim(host, head, int(epoch), log)
        host.leases.add(claim, asked)
        claim.take(sealed)
        return claim

    def _copy(self, head: TurnHead) -> Copy:
        """What this process has of the turn already."""
        before = self._host.claims.get(head.turn)
        if before is not None:
            before.fence(is_handed=True)
            return Copy(self._host, head, before.log)
        copy = self._host.copies.pop(head.turn, None)
        return Copy(self._host, head) if copy is None or copy.log.outcome is not None else copy

    async def _end(self, claim: RedisClaim, why: StopReason | None) -> None:
        self._host.meter.turn_orphaned()
        try:
            await self._lost(claim, why)
        # The app's own hooks may raise anything; the chat is free all the same.
        except Exception:  # noqa: BLE001
            _log.exception("turn %s, whose owner is gone, could not be ended as it should", claim.head.turn)
            if await claim.seal((), "lost"):
                await claim.release()

    async def _call(self, *command: bytes | Step | int) -> Reply:
        return await self._host.line.call(*command, within=self._host.settings.patience)
