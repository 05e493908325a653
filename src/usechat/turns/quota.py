"""How many turns may run: for each user, for each address if nobody signs in, and in all."""

from collections import Counter
from typing import Final

from usechat.errors import RequestError
from usechat.turns.settings import ChatSettings

__all__ = ["RETRY_AFTER", "Slot", "TurnQuota", "busy"]

RETRY_AFTER: Final = 5


def busy() -> RequestError:
    """The refusal of a server that cannot take more now."""
    return RequestError("The server is busy. Try again in a moment.", status=503, retry_after=RETRY_AFTER)


class TurnQuota:
    """Counts the turns that run or are about to. A slot is taken at once, so that no race passes a bound.

    A turn without a user is counted by the address that it comes from. One without an address either, which no request
    is, is bound by nothing but the whole.
    """

    def __init__(self, settings: ChatSettings) -> None:
        self._settings = settings
        self._all = 0
        self._taken: Counter[tuple[str, str]] = Counter()

    def take(self, owner: str, address: str) -> "Slot":
        """Take a slot.

        Raises:
            RequestError: there is none.
        """
        settings, payer = self._settings, (owner, "" if owner else address)
        if self._all >= settings.turns_per_process:
            raise busy()
        most = settings.turns_per_user if owner else settings.turns_per_address
        if any(payer) and self._taken[payer] >= most:
            sentence = "Too many answers are being written for you at once."
            raise RequestError(sentence, status=429, retry_after=RETRY_AFTER)
        self._all += 1
        self._taken[payer] += 1
        return Slot(self, payer)

    def free(self, payer: tuple[str, str]) -> None:
        self._all -= 1
        self._taken[payer] -= 1
        if not self._taken[payer]:
            del self._taken[payer]


class Slot:
    """One of the quota. A turn and the one that replaces it share a slot, which is free when both have left it."""

    __slots__ = ("_payer", "_quota", "_turns")

    def __init__(self, quota: TurnQuota, payer: tuple[str, str]) -> None:
        self._quota = quota
        self._payer = payer
        self._turns = 1

    def share(self) -> "Slot":
        self._turns += 1
        return self

    def leave(self) -> None:
        self._turns -= 1
        if not self._turns:
            self._quota.free(self._payer)
