"""The lease of each turn that this process writes, renewed by a thread: a loop that is held is no crash."""

import asyncio
import logging
import threading
import time
from collections.abc import Sequence
from typing import Final, Protocol

from usechat.stores.redis.driver import AWAY, Command, Reply, ThreadWire

__all__ = ["Leased", "Leases", "Renewing"]

_log = logging.getLogger("usechat")

_TOGETHER: Final = 128
# Whoever has slept for so many leases may have been taken for dead.
_OVERSLEPT: Final = 1.5


class Leased(Protocol):
    """A claim, as whoever renews its lease sees it."""

    renewed: float
    """When Redis was last asked to renew the lease and did so, by the monotonic clock."""

    def beat(self) -> Command:
        """Renew the lease."""
        ...


class Renewing(Protocol):
    """Who is told of renewals."""

    def note(self, claims: Sequence[Leased]) -> Command:
        """What says to all workers that these turns run; it is called in the thread."""
        ...

    def hear_beats(self, news: list[tuple[Leased, Reply]]) -> None:
        """Redis has answered renewals; it is called in the event loop."""
        ...


class Leases:
    """Renews all leases three times in the time of one, by a thread that runs from `start` to `stop`."""

    def __init__(self, wire: ThreadWire, lease: float, told: Renewing) -> None:
        self._wire = wire
        self._lease = lease
        self._told = told
        self._claims: set[Leased] = set()
        self._loop = asyncio.get_running_loop()
        self._over = threading.Event()
        self._ticked = time.monotonic()
        self._woke = 0.0
        self._thread = threading.Thread(target=self._run, name="usechat-leases", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()

    def add(self, claim: Leased, renewed: float) -> None:
        self.renew(claim, renewed)
        self._claims.add(claim)

    def remove(self, claim: Leased) -> None:
        self._claims.discard(claim)

    def renew(self, claim: Leased, asked: float) -> None:
        claim.renewed = asked

    def may_be_lost(self, claim: Leased) -> bool:
        """Whether this process was asleep for so long since the last renewal that somebody may have taken the turn."""
        return time.monotonic() - self._ticked > _OVERSLEPT * self._lease or claim.renewed < self._woke

    def _run(self) -> None:
        pause = self._lease / 3
        while not self._over.wait(pause):
            self._tick()
            try:
                self._beat()
                pause = self._lease / 3
            except AWAY:
                pause = self._lease / 15
            # Whatever it is, the leases of all turns depend on this thread.
            except Exception:  # noqa: BLE001
                _log.exception("leases could not be renewed")
                pause = self._lease / 15
        self._wire.close()

    def _tick(self) -> None:
        now = time.monotonic()
        if now - self._ticked > _OVERSLEPT * self._lease:
            self._woke = now
        self._ticked = now

    def _beat(self) -> None:
        claims = tuple(self._claims)
        for first in range(0, len(claims), _TOGETHER):
            some = claims[first : first + _TOGETHER]
            asked = time.monotonic()
            replies = self._wire.trip([*(claim.beat() for claim in some), self._told.note(some)])
            for claim, reply in zip(some, replies[:-1], strict=True):
                if not isinstance(reply, Exception) and reply[0] == b"OK":
                    self.renew(claim, asked)
            self._ticked = time.monotonic()
            try:
                self._loop.call_soon_threadsafe(self._told.hear_beats, list(zip(some, replies[:-1], strict=True)))
            except RuntimeError:
                # The loop is closed, and with it all turns.
                return
