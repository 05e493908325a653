"""The leases of the turns that this process writes. A thread renews them, since a loop that is held is no crash.

The thread runs from `start` to `stop`. Three times in the time of a lease it sends, for up to 128 leases on a trip,
the command that renews each, and one that registers their turns as running. What Redis replies it hands to the event
loop, where each lease gets its own reply.

The event loop calls everything but what `_run` calls. `_lock` guards `_leases`, which the loop changes while the thread
copies it, `_ticked` and `_woke`, which the thread writes and the loop reads, and `renewed` of each lease, which both
write. No lock is held on a trip.

A process that sleeps (a laptop that is closed, a paused container) renews nothing, and another worker may take its
turns over. It notices when the thread ticks again: a gap of one and a half leases sets `_woke`, and a lease that was
not renewed since then may be lost.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from usechat.stores.redis.driver import AWAY, Command, Reply, ThreadWire
from usechat.stores.redis.scripts import REGISTER

__all__ = ["Lease", "Leases"]

_log = logging.getLogger("usechat")

_TOGETHER: Final = 128
_OVERSLEPT: Final = 1.5


class Lease:
    """What renews one turn: `heard` gets each reply, in the event loop.

    `renewed` is when Redis was last asked to renew it and did so, by the monotonic clock.
    """

    __slots__ = ("command", "heard", "member", "renewed")

    def __init__(self, command: Command, member: bytes, heard: Callable[[Reply], None]) -> None:
        self.command = command
        self.member = member
        self.heard = heard
        self.renewed = 0.0


class Leases:
    """Renews leases of `lease` seconds, from `start` to `stop`."""

    def __init__(self, wire: ThreadWire, running: bytes, lease: float) -> None:
        self._wire = wire
        self._running = running
        self._lease = lease
        self._loop = asyncio.get_running_loop()
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._leases: set[Lease] = set()
        self._ticked = time.monotonic()
        self._woke = 0.0

    def start(self) -> None:
        threading.Thread(target=self._run, name="usechat-leases", daemon=True).start()

    def stop(self) -> None:
        self._over.set()

    def add(self, lease: Lease, asked: float) -> None:
        """Renew it from now on; Redis gave it when it was asked at that time."""
        with self._lock:
            lease.renewed = asked
            self._leases.add(lease)

    def remove(self, lease: Lease) -> None:
        with self._lock:
            self._leases.discard(lease)

    def renewed(self, lease: Lease, asked: float) -> None:
        """Redis has renewed it when it was asked at that time."""
        with self._lock:
            # The thread and the loop may have asked in the other order.
            lease.renewed = max(lease.renewed, asked)

    def may_be_lost(self, lease: Lease) -> bool:
        """Whether this process slept for so long since the last renewal that another one may have taken the turn."""
        with self._lock:
            return time.monotonic() - self._ticked > _OVERSLEPT * self._lease or lease.renewed < self._woke

    def _run(self) -> None:
        pause = self._lease / 3
        while not self._over.wait(pause):
            self._tick()
            try:
                self._renew()
                pause = self._lease / 3
            except AWAY:
                pause = self._lease / 15
            # Whatever it is, the leases of all turns depend on this thread.
            except Exception:  # noqa: BLE001
                _log.exception("leases could not be renewed")
                pause = self._lease / 15
        self._wire.close()

    def _tick(self) -> None:
        with self._lock:
            now = time.monotonic()
            if now - self._ticked > _OVERSLEPT * self._lease:
                self._woke = now
            self._ticked = now

    def _renew(self) -> None:
        with self._lock:
            leases = tuple(self._leases)
        for first in range(0, len(leases), _TOGETHER):
            some = leases[first : first + _TOGETHER]
            asked = time.monotonic()
            register = (REGISTER, 1, self._running, int(self._lease * 1_000_000), *(lease.member for lease in some))
            *replies, _ = self._wire.trip([*(lease.command for lease in some), register])
            news = list(zip(some, replies, strict=True))
            for lease, reply in news:
                if not isinstance(reply, Exception) and reply[0] == b"OK":
                    self.renewed(lease, asked)
            self._tick()
            try:
                self._loop.call_soon_threadsafe(_hear, news)
            except RuntimeError:
                # The loop is closed, and with it all turns.
                return


def _hear(news: list[tuple[Lease, Reply]]) -> None:
    for lease, reply in news:
        lease.heard(reply)
