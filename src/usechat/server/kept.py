"""What the log says when an app starts: where chats and turns are kept, and whether other processes see them."""

import logging
import os
import sys
from functools import cache
from typing import Final, Literal

from usechat.history import History, HistoryStore, MemoryHistory
from usechat.server.processes import count_processes
from usechat.stores import TurnStore
from usechat.stores.memory import MemoryTurnStore

__all__ = ["say_where_kept"]

_log = logging.getLogger("usechat")

_CHATS_APART: Final = (
    "%d processes serve this app, and each has chats of its own in memory, so that a chat has another history in each: "
    'give history="sqlite:///chats.db" and store="redis://HOST", or run one process'
)
_TURNS_APART: Final = (
    "%d processes serve this app, and each knows only its own turns, so that another one cannot resume or stop them: "
    'give store="redis://HOST", or run one process'
)


def say_where_kept(history: HistoryStore | Literal["client"], store: TurnStore) -> None:
    """Log where chats and turns are kept, and warn of several processes that do not share them.

    Several endpoints of one app that keep them alike say it once.
    """
    _show_lines()
    _say(_place(history), _place(store))


@cache
def _say(chats: str, turns: str) -> None:
    _log.info("chats are kept %s, turns %s", chats, turns)
    processes = count_processes(sys.argv, os.environ)
    if processes > 1 and "in memory" in (chats, turns):
        _log.warning(_CHATS_APART if chats == "in memory" else _TURNS_APART, processes)


def _place(kept: HistoryStore | TurnStore | Literal["client"]) -> str:
    if kept == "client":
        return "by the pages"
    if isinstance(kept, MemoryHistory | MemoryTurnStore):
        return "in memory"
    if isinstance(kept, History):
        return f"in {kept.name}"
    # The store on Redis, whose packages may not be installed, has a name, and one of the app's own may have none.
    return f"in {getattr(kept, 'name', type(kept).__name__)}"


def _show_lines() -> None:
    """Let the lines of usechat appear where uvicorn's own do, in an app that has not set up its log."""
    if _log.level != logging.NOTSET or _log.hasHandlers():
        return
    for name in ("uvicorn", "uvicorn.error"):
        server = logging.getLogger(name)
        if server.handlers:
            _log.setLevel(server.getEffectiveLevel())
            for handler in server.handlers:
                _log.addHandler(handler)
            return
