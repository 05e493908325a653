"""What is not to be believed of a Redis that was away a moment ago."""

import asyncio
import time
from typing import Final

__all__ = ["Outages"]

# In so many seconds after Redis is back, owners that live have given back what it forgot.
_GIVEN_BACK: Final = 2.0


class Outages:
    """When Redis was away for the last time, as this process saw it.

    A turn that Redis does not know may have an owner who gives it back at once. And a lease that has ended says nothing
    until owners had the time of one lease to renew theirs, also at the beginning.
    """

    def __init__(self, lease: float) -> None:
        self._lease = lease
        self._since = time.monotonic()
        self._given_back = 0.0

    def noted(self) -> None:
        """Redis is away, or back."""
        self._since = time.monotonic()
        self._given_back = self._since + _GIVEN_BACK

    @property
    def leases_count(self) -> bool:
        """Whether an owner whose lease has ended is gone."""
        return time.monotonic() - self._since >= self._lease

    async def settle(self) -> bool:
        """Wait until owners have given back what Redis forgot; False if there was nothing to wait for."""
        left = self._given_back - time.monotonic()
        if left <= 0:
            return False
        await asyncio.sleep(left)
        return True
