"""The one bound of all tests: what takes this long hangs, also on a machine that is busy or cold.

The Node helpers get it from the environment of their process (`USECHAT_HANG_SECONDS`).
"""

from typing import Final

__all__ = ["HANG_SECONDS"]

HANG_SECONDS: Final = 120.0
