"""What the log says when an app starts: where chats and turns are kept, and whether other processes see them."""

import logging
import multiprocessing
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from usechat.history import History, MemoryHistory
from usechat.stores import TurnStore
from usechat.stores.memory import MemoryTurnStore

__all__ = ["count_processes", "say_where_kept"]

_log = logging.getLogger("usechat")

_CHATS_APART: Final = (
    "%d processes serve this app, and each has chats of its own in memory, so that a chat has another history in each: "
    'give history="sqlite:///chats.db" and store="redis://HOST", or run one process'
)
_TURNS_APART: Final = (
    "%d processes serve this app, and each knows only its own turns, so that another one cannot resume or stop them: "
    'give store="redis://HOST", or run one process'
)
# The servers that have workers, and the variable with their number for a command that does not name it. uvicorn is not
# among them, because its processes hold its settings.
_SERVERS: Final = {
    "gunicorn": "WEB_CONCURRENCY",
    "hypercorn": "",
    "granian": "GRANIAN_WORKERS",
    "usechat": "USECHAT_WORKERS",
}
_WORKERS: Final = re.compile(r"(?:^|\0)(?:-w\0?|--workers[\0=])([0-9]{1,4})(?:\0|$)")


def say_where_kept(history: object, store: TurnStore) -> None:
    """Log where chats and turns are kept, and warn of several processes that do not share them.

    Of several endpoints of an app that keep them alike, only the first logs it.
    """
    _show_lines()
    _say(_place(history), _place(store))


@cache
def _say(chats: str, turns: str) -> None:
    _log.info("chats are kept %s, turns %s", chats, turns)
    processes = count_processes(sys.argv, os.environ)
    if processes > 1 and "in memory" in (chats, turns):
        _log.warning(_CHATS_APART if chats == "in memory" else _TURNS_APART, processes)


def _place(kept: object) -> str:
    if kept == "client":
        return "by the pages"
    if isinstance(kept, MemoryHistory | MemoryTurnStore):
        return "in memory"
    if isinstance(kept, History):
        return f"in {kept.name}"
    # The store on Redis, whose packages may not be installed, has a name; one of the app's own may have none.
    return f"in {getattr(kept, 'name', type(kept).__name__)}"


def _show_lines() -> None:
    """Log where uvicorn does, in an app that has not set up its log."""
    if _log.level != logging.NOTSET or _log.hasHandlers():
        return
    for name in ("uvicorn", "uvicorn.error"):
        server = logging.getLogger(name)
        if server.handlers:
            _log.setLevel(server.getEffectiveLevel())
            for handler in server.handlers:
                _log.addHandler(handler)
            return


def count_processes(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """The number of processes that the server of this command line runs; 1 if it cannot be seen."""
    # Where the number of workers is an argument of `uvicorn.run`, only the settings that uvicorn starts its processes
    # with have it.
    config: Any = getattr(multiprocessing.current_process(), "_kwargs", {}).get("config")
    if config is not None:
        return 1 if config.should_reload else config.workers
    program = Path(argv[0])
    name = program.parent.name if program.stem == "__main__" else program.stem
    if name not in _SERVERS:
        return 1
    words = [*argv[1:], *shlex.split(environ.get("GUNICORN_CMD_ARGS", ""))] if name == "gunicorn" else argv[1:]
    found = _WORKERS.search("\0".join(words))
    number = found[1] if found else environ.get(_SERVERS[name], "")
    return int(number) if number.isascii() and number.isdecimal() else 1
