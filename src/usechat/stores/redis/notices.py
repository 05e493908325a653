"""What a process hears: of other workers, of its leases, and of whether Redis is there."""

from collections.abc import Sequence

import msgspec

from usechat.stores import StopReason
from usechat.stores.redis.claim import RedisClaim
from usechat.stores.redis.driver import Command, Reply
from usechat.stores.redis.lease import Leased
from usechat.stores.redis.outages import Outages
from usechat.stores.redis.steps import NOTE
from usechat.stores.redis.taking import TakeOver, Takes

__all__ = ["Notices"]


class Notices:
    """Passes on what is heard to the claims and copies that it is about."""

    def __init__(self, host: Takes, taking: TakeOver, outages: Outages) -> None:
        self._host = host
        self._taking = taking
        self._outages = outages

    def hear(self, message: bytes) -> None:
        """Another worker has something to say about a turn that is ours, or about all."""
        match message.decode().split():
            case ["emptied"]:
                self._check_claims()
            case ["stop", turn, epoch, why] if (claim := self._of(turn, epoch)) is not None:
                claim.stop(msgspec.convert(why, StopReason))
            case ["fenced", turn, epoch] if (claim := self._of(turn, epoch)) is not None:
                if claim not in self._taking.handing:
                    claim.fence()
            case ["readers", turn, count] if (claim := self._host.claims.get(turn)) is not None:
                claim.count_remote(int(count))
            case _:
                pass

    def hear_beats(self, news: list[tuple[Leased, Reply]]) -> None:
        for claim, reply in news:
            if isinstance(claim, RedisClaim):
                claim.hear_beat(reply)

    def note(self, claims: Sequence[Leased]) -> Command:
        members = [claim.keys.member for claim in claims if isinstance(claim, RedisClaim)]
        return (NOTE, 1, self._host.keys.running, self._host.settings.lease_us, *members)

    def away_changed(self) -> None:
        self._note_outage()
        if not self._host.line.is_away:
            self._check_claims()
            return
        for claim in tuple(self._host.claims.values()):
            claim.count_remote(None)

    def heard_again(self) -> None:
        self._note_outage()
        self._check_claims()
        for copy in tuple(self._host.copies.values()):
            copy.check()

    def _note_outage(self) -> None:
        self._outages.noted()
        for copy in tuple(self._host.copies.values()):
            copy.wait_again()

    def _check_claims(self) -> None:
        for claim in tuple(self._host.claims.values()):
            claim.check()

    def _of(self, turn: str, epoch: str) -> RedisClaim | None:
        claim = self._host.claims.get(turn)
        return claim if claim is not None and claim.epoch == int(epoch) else None
