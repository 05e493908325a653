"""The messages of each chat, and who owns it: in a database, or in this process."""

from usechat.history.memory import MemoryHistory
from usechat.history.sql import History
from usechat.history.store import ChatEntry, HistoryStore, StoredMessages, Tail

__all__ = ["ChatEntry", "History", "HistoryStore", "MemoryHistory", "StoredMessages", "Tail"]
