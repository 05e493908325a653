"""The turns that this process writes or mirrors, and what reaches them from elsewhere.

Two control channels lead here: one of all workers, and one of this worker. Other workers' scripts publish on them:

    emptied                  Redis has forgotten everything: give back what is ours
    stop <turn> <epoch> <why>
    fenced <turn> <epoch>    another owner has taken the turn over
    readers <turn> <count>   how many readers other workers have

A message may be lost, so each of them is also found out in another way: the first by a trip that Redis replies to with
GONE, the others by the next renewal of the lease. Everything belongs to the event loop.
"""

import msgspec

from usechat.stores import StopReason, TurnHead
from usechat.stores.log import TurnLog
from usechat.stores.redis.claim import RedisClaim
from usechat.stores.redis.mirror import Mirror
from usechat.stores.redis.worker import Worker

__all__ = ["LocalTurns"]


class LocalTurns:
    """Claims and mirrors by the ids of their turns."""

    def __init__(self, worker: Worker) -> None:
        self.claims: dict[str, RedisClaim] = {}
        self.mirrors: dict[str, Mirror] = {}
        self._worker = worker
        worker.on_away_changed = self._away_changed
        worker.on_heard_again = self._heard_again

    def add_claim(self, head: TurnHead, epoch: int, asked: float, log: TurnLog | None = None) -> RedisClaim:
        """Keep a claim that Redis gave when it was asked at that time, and renew its lease."""
        claim = self.claims[head.turn] = RedisClaim(self._worker, head, epoch, self.claim_over, log)
        self._worker.leases.add(claim.lease, asked)
        return claim

    def claim_over(self, claim: RedisClaim) -> None:
        """The claim is released or fenced; its readers, if it has any, follow the new owner."""
        if self.claims.get(claim.head.turn) is claim:
            del self.claims[claim.head.turn]
        self._worker.leases.remove(claim.lease)
        if not claim.is_fenced:
            self._worker.pipeline.send(b"ZREM", self._worker.keys.running, claim.keys.member)
        elif claim.log.readers and not claim.is_handed and self._worker.is_open:
            self.add_mirror(claim.head, claim.log).go_on()

    def add_mirror(self, head: TurnHead, log: TurnLog | None = None) -> Mirror:
        mirror = self.mirrors[head.turn] = Mirror(self._worker, head, self.unread, log)
        return mirror

    def unread(self, mirror: Mirror) -> None:
        """Nobody reads the mirror any more."""
        mirror.stop()
        if self.mirrors.get(mirror.head.turn) is mirror:
            del self.mirrors[mirror.head.turn]

    def close(self) -> None:
        for mirror in tuple(self.mirrors.values()):
            mirror.stop()

    def hear(self, message: bytes) -> None:
        """Take a message of a control channel."""
        match message.decode().split():
            case ["emptied"]:
                self._check_claims()
            case ["stop", turn, epoch, why] if (claim := self._claim(turn, epoch)) is not None:
                claim.stop(msgspec.convert(why, StopReason))
            case ["fenced", turn, epoch] if (claim := self._claim(turn, epoch)) is not None:
                if not claim.is_handing:
                    claim.fence()
            case ["readers", turn, count] if (claim := self.claims.get(turn)) is not None:
                claim.count_remote(int(count))
            case _:
                pass

    def _away_changed(self) -> None:
        self._note_outage()
        if not self._worker.pipeline.is_away:
            self._check_claims()
            return
        for claim in tuple(self.claims.values()):
            claim.count_remote(None)

    def _heard_again(self) -> None:
        self._note_outage()
        self._check_claims()
        for mirror in tuple(self.mirrors.values()):
            mirror.check()

    def _note_outage(self) -> None:
        self._worker.outages.noted()
        for mirror in tuple(self.mirrors.values()):
            mirror.wait_again()

    def _check_claims(self) -> None:
        for claim in tuple(self.claims.values()):
            claim.check()

    def _claim(self, turn: str, epoch: str) -> RedisClaim | None:
        claim = self.claims.get(turn)
        return claim if claim is not None and claim.epoch == int(epoch) else None
