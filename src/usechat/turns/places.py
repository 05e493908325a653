"""How many turns may run: for each owner, and in all."""

from collections import Counter
from typing import Final

from usechat.errors import RequestError

__all__ = ["RETRY_AFTER", "Places", "busy"]

RETRY_AFTER: Final = 5


def busy() -> RequestError:
    """The refusal of a server that cannot take more now."""
    return RequestError("The server is busy. Try again in a moment.", status=503, retry_after=RETRY_AFTER)


class Places:
    """Counts the turns that run or are about to. A place is taken at once, so that no race passes a bound.

    Nobody in particular, whose id is empty, has no bound of their own.
    """

    def __init__(self, per_owner: int, in_all: int) -> None:
        self._per_owner = per_owner
        self._in_all = in_all
        self._all = 0
        self._taken: Counter[str] = Counter()

    def take(self, owner: str) -> None:
        """Take a place.

        Raises:
            RequestError: there is none.
        """
        if self._all >= self._in_all:
            raise busy()
        if owner and self._taken[owner] >= self._per_owner:
            sentence = "Too many answers are being written for you at once."
            raise RequestError(sentence, status=429, retry_after=RETRY_AFTER)
        self._all += 1
        self._taken[owner] += 1

    def free(self, owner: str) -> None:
        self._all -= 1
        self._taken[owner] -= 1
        if not self._taken[owner]:
            del self._taken[owner]
