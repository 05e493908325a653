"""The messages of each chat, and who owns it: in a database, or in this process."""

from typing import TYPE_CHECKING, Any

from usechat.history.memory import MemoryHistory
from usechat.history.store import ChatEntry, HistoryStore, StateStore, StoredChat, StoredMessages, Tail

if TYPE_CHECKING:
    from usechat.history.sql import History

__all__ = [
    "ChatEntry",
    "History",
    "HistoryStore",
    "MemoryHistory",
    "StateStore",
    "StoredChat",
    "StoredMessages",
    "Tail",
]


def __getattr__(name: str) -> Any:
    # Everything else works without SQLAlchemy.
    if name == "History":
        from usechat.history.sql import History

        return History
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
