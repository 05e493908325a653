"""What a worker must not believe of a Redis that was away a moment ago, or has forgotten everything.

- A turn that Redis does not have may have an owner who gives it back. Owners do so within 2 seconds after Redis is
  back, and lookups that find nothing wait that long (`ask`).
- A lease that has ended says nothing until owners had the time of one lease to renew theirs: since this worker began,
  since Redis was away, and since somebody set the clock of Redis (`leases_count`).
- The clock of Redis was set if it is earlier or later there than it can be by the monotonic clock of this process
  (`possible`). Half a lease is the tolerance.
- A Redis that was emptied has another identity. The first worker that notices it gives it a new one, and all workers
  hear of it on their control channel.

`noted` begins all of this anew. Everything belongs to the event loop.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from usechat.stores.redis.driver import Part, Reply
from usechat.stores.redis.keys import Keys, Settings
from usechat.stores.redis.pipeline import Pipeline
from usechat.stores.redis.scripts import IDENTIFY

__all__ = ["GIVEN_BACK", "Outages"]

_log = logging.getLogger("usechat")

GIVEN_BACK: Final = 2.0
"""In how many seconds after Redis is back living owners have given back what it forgot."""
_AGAIN: Final = 0.1
# Of a lease.
_SLACK: Final = 0.5
_T = TypeVar("_T")


class Outages:
    """When Redis was away for the last time, as this worker saw it, and what time it is there."""

    def __init__(self, pipeline: Pipeline, keys: Keys, settings: Settings) -> None:
        self._pipeline = pipeline
        self._keys = keys
        self._settings = settings
        self._identity = b""
        self._since = time.monotonic()
        self._given_back = 0.0
        # How much the clock of Redis is ahead of ours, in microseconds.
        self._ahead: float | None = None

    def noted(self) -> None:
        """Redis is away, or back, or was emptied."""
        self._since = time.monotonic()
        self._given_back = self._since + GIVEN_BACK

    @property
    def leases_count(self) -> bool:
        """Whether an owner whose lease has ended is gone."""
        return time.monotonic() - self._since >= self._settings.lease

    @property
    def left(self) -> float:
        """In how many seconds owners have given back what Redis forgot."""
        return max(0.0, self._given_back - time.monotonic())

    @property
    def possible(self) -> tuple[int, int]:
        """The earliest and the latest time, in microseconds, that it can be in Redis if nobody has set its clock."""
        if self._ahead is None:
            return 0, 0
        now = self._ahead + _ours()
        return int(now - self._slack), int(now + self._slack)

    def learn_time(self, now: int, asked: float) -> None:
        """It was `now` in Redis at some moment since `asked`."""
        if time.monotonic() - asked > self._slack / 2e6:
            # The moment is not known well enough.
            return
        ahead = now - _ours()
        if self._ahead is not None and abs(ahead - self._ahead) > self._slack:
            _log.warning("the clock of Redis was set, or this machine has slept: leases count again later")
            self._since = time.monotonic()
        self._ahead = ahead

    @property
    def _slack(self) -> float:
        return _SLACK * self._settings.lease * 1e6

    async def learn(self) -> None:
        """Learn the identity of Redis."""
        self._identity = await self._identify(None)

    async def ask(self, question: Callable[[], Awaitable[_T]], is_there: Callable[[_T], bool]) -> _T:
        """Ask for something, and again as long as an owner may still give back what is not there."""
        answer = await question()
        while not is_there(answer) and self.left > 0:
            await asyncio.sleep(_AGAIN)
            answer = await question()
        return answer

    async def call(self, *command: Part) -> Reply:
        """Send a command; the check whether Redis was emptied goes on the same trip.

        Raises:
            StoreAwayError: Redis is away.
        """
        within = self._pipeline.patience(self._settings.patience)
        look_up = (b"HGET", self._keys.identity, b"m")
        reply, identity = await self._pipeline.call_all([command, look_up], within=within)
        if identity != self._identity:
            await self.check_identity()
        return reply

    async def check_identity(self) -> None:
        """Note an outage if Redis was emptied.

        Raises:
            StoreAwayError: Redis is away.
        """
        before, self._identity = self._identity, await self._identify(self._settings.patience)
        if before not in (b"", self._identity):
            self.noted()

    async def _identify(self, within: float | None) -> bytes:
        identity = secrets.token_hex(8).encode()
        return await self._pipeline.call(IDENTIFY, 1, self._keys.identity, identity, self._keys.workers, within=within)


def _ours() -> float:
    return time.monotonic() * 1e6
