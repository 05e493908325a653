"""How long the random and crash tests go on, and what they draw.

`make test` is short and draws the same in every run, so that it fails for nobody by chance. `make soak` is long and
draws anew; a failure tells its seed, with which `USECHAT_SEED=<seed> pytest <file>` draws the same again.
"""

import os
import random
from typing import Final

__all__ = ["SEED", "SOAK", "draws"]

SOAK: Final = bool(os.environ.get("USECHAT_SOAK"))
# In the environment, so that all processes of a run draw by the same.
SEED: Final = int(os.environ.setdefault("USECHAT_SEED", str(random.SystemRandom().getrandbits(32) if SOAK else 0)))


def draws(short: int, longer: int = 10) -> int:
    """So many examples, or so many times as many in `make soak`."""
    return short * longer if SOAK else short
