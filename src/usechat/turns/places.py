"""How many turns may run: for each owner, for each address of nobody in particular, and in all."""

from collections import Counter
from typing import Final

from msgspec import Struct

from usechat.errors import RequestError

__all__ = ["NOBODY", "RETRY_AFTER", "Payer", "Places", "busy"]

RETRY_AFTER: Final = 5


class Payer(Struct, frozen=True):
    """Whose place a turn takes: an owner's, or that of an address if nobody signs in."""

    owner: str = ""
    address: str = ""


NOBODY: Final = Payer()


def busy() -> RequestError:
    """The refusal of a server that cannot take more now."""
    return RequestError("The server is busy. Try again in a moment.", status=503, retry_after=RETRY_AFTER)


class Places:
    """Counts the turns that run or are about to. A place is taken at once, so that no race passes a bound.

    An owner whose id is empty is nobody in particular: such turns are counted by the address that they come from. One
    without an address, which no request has, is bound by nothing but the whole.
    """

    def __init__(self, per_owner: int, per_address: int, in_all: int) -> None:
        self._per_owner = per_owner
        self._per_address = per_address
        self._in_all = in_all
        self._all = 0
        self._taken: Counter[Payer] = Counter()

    def take(self, payer: Payer) -> None:
        """Take a place.

        Raises:
            RequestError: there is none.
        """
        if self._all >= self._in_all:
            raise busy()
        most = self._per_owner if payer.owner else self._per_address
        if payer != NOBODY and self._taken[payer] >= most:
            sentence = "Too many answers are being written for you at once."
            raise RequestError(sentence, status=429, retry_after=RETRY_AFTER)
        self._all += 1
        self._taken[payer] += 1

    def free(self, payer: Payer) -> None:
        self._all -= 1
        self._taken[payer] -= 1
        if not self._taken[payer]:
            del self._taken[payer]
