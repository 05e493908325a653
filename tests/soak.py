"""How long the random and crash tests go on: shortly in `make test`, for long in `make soak`."""

import os
from typing import Final

__all__ = ["SOAK", "draws"]

SOAK: Final = bool(os.environ.get("USECHAT_SOAK"))


def draws(short: int, longer: int = 10) -> int:
    """So many examples, or so many times as many in `make soak`."""
    return short * longer if SOAK else short
