"""Which store of turns a setting names."""

from typing import Final

from usechat.extras import missing
from usechat.stores import TurnStore
from usechat.stores.memory import MemoryTurnStore

__all__ = ["LEASE", "open_store"]

LEASE: Final = 15.0
"""For how many seconds a worker that gives no sign of life keeps its turns."""
WEEK: Final = 7 * 24 * 3600.0


def open_store(
    store: TurnStore | str | None,
    *,
    secret: str | None = None,
    lease: float = LEASE,
    keep_used: float = WEEK,
    scope: str = "",
) -> TurnStore:
    """The store itself, or the one that is named: `memory`, or the URL of a Redis or a Valkey.

    Raises:
        ValueError: nothing is named by that, the secret is missing or too short, or the lease is none.
        ImportError: the package that it needs is not installed.
    """
    if store is None or store == "memory":
        return MemoryTurnStore()
    if not isinstance(store, str):
        return store
    try:
        from usechat.stores.redis import RedisTurnStore
    except ModuleNotFoundError as error:
        raise ImportError(missing("A store on Redis", error, "redis")) from error
    return RedisTurnStore(store, secret=secret, lease=lease, keep_used=keep_used, scope=scope)
