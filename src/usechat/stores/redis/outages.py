"""What is not to be believed of a Redis that was away a moment ago, or has forgotten everything."""

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeVar

from usechat.stores.redis.keys import Keys
from usechat.stores.redis.line import Line
from usechat.stores.redis.settings import Settings
from usechat.stores.redis.steps import MARK

__all__ = ["GIVEN_BACK", "Outages"]

_log = logging.getLogger("usechat")

# In so many seconds after Redis is back, owners that live have given back what it forgot.
GIVEN_BACK: Final = 2.0
_AGAIN: Final = 0.1
# A clock that was set by so many leases may have ended those of owners that live.
_SLACK: Final = 0.5
_T = TypeVar("_T")


class OutageHost(Protocol):
    """The store of this process, as its outages see it."""

    keys: Keys
    settings: Settings

    @property
    def line(self) -> Line: ...


class Outages:
    """When Redis was away for the last time, as this process saw it, and what time it is there.

    A turn that Redis does not know may have an owner who gives it back at once. And a lease that has ended says nothing
    until owners had the time of one lease to renew theirs, also at the beginning, and when the clock of Redis was set:
    seen from the monotonic clock of this process, it is earlier or later there than it can be.

    Redis is marked by whoever came first since it was empty: another mark says that it was emptied, of which all
    workers hear when somebody notices it.
    """

    def __init__(self, host: OutageHost) -> None:
        self._host = host
        self._marked = b""
        self._since = time.monotonic()
        self._given_back = 0.0
        # What the clock of Redis is ahead of ours, in microseconds.
        self._ahead: float | None = None

    def noted(self) -> None:
        """Redis is away, or back."""
        self._since = time.monotonic()
        self._given_back = self._since + GIVEN_BACK

    @property
    def leases_count(self) -> bool:
        """Whether an owner whose lease has ended is gone."""
        return time.monotonic() - self._since >= self._host.settings.lease

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
        """It was so late in Redis at some moment since it was asked."""
        if time.monotonic() - asked > self._slack / 2e6:
            # Nobody knows at which.
            return
        ahead = now - _ours()
        if self._ahead is not None and abs(ahead - self._ahead) > self._slack:
            _log.warning("the clock of Redis was set, or this machine has slept: leases count again later")
            self._since = time.monotonic()
        self._ahead = ahead

    @property
    def _slack(self) -> float:
        return _SLACK * self._host.settings.lease * 1e6

    async def learn(self) -> None:
        """Learn how Redis is marked."""
        self._marked = await self._mark(None)

    async def ask(self, question: Callable[[], Awaitable[_T | None]]) -> _T | None:
        """Ask for something, again as long as an owner may still give it back."""
        answer = await question()
        if answer is None:
            await self._check_mark()
        while answer is None and self.left > 0:
            await asyncio.sleep(_AGAIN)
            answer = await question()
        return answer

    async def _check_mark(self) -> None:
        known, self._marked = self._marked, await self._mark(self._host.settings.patience)
        if known not in (b"", self._marked):
            self.noted()

    async def _mark(self, within: float | None) -> bytes:
        keys, mark = self._host.keys, secrets.token_hex(8).encode()
        return await self._host.line.call(MARK, 1, keys.mark, mark, keys.workers, within=within)


def _ours() -> float:
    return time.monotonic() * 1e6
