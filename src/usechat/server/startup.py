"""What an app checks when it is made, and what it logs when it starts.

An app refuses a wrong argument when it is made, not with the first request. The log says where chats and turns are
kept, and warns if several processes do not share them.
"""

import logging
import multiprocessing
import os
import re
import shlex
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, cast

from usechat.history import History, HistoryStore, MemoryHistory
from usechat.protocol.requests import Limits
from usechat.server.responses import StreamLimits
from usechat.stores import TurnStore
from usechat.stores.memory import MemoryTurnStore
from usechat.turns.settings import ChatSettings

__all__ = ["check_arguments", "check_path", "count_processes", "listed", "say_where_kept"]

_log = logging.getLogger("usechat")

_PATH: Final = re.compile(r"(/[A-Za-z0-9._~-]+)+")
_CHATS_APART: Final = (
    "%d processes serve this app, and each keeps its own chats in memory, so a chat has another history in each; "
    'pass history="sqlite:///chats.db" and store="redis://HOST", or run one process'
)
_TURNS_APART: Final = (
    "%d processes serve this app, and none can resume or stop the turns of another; "
    'pass store="redis://HOST", or run one process'
)
# The servers that have workers, and the environment variable for the number of workers. uvicorn is not among them:
# its processes hold its settings.
_SERVERS: Final = {
    "gunicorn": "WEB_CONCURRENCY",
    "hypercorn": "",
    "granian": "GRANIAN_WORKERS",
    "usechat": "USECHAT_WORKERS",
}
_WORKERS: Final = re.compile(r"(?:^|\0)(?:-w\0?|--workers[\0=])([0-9]{1,4})(?:\0|$)")


def _is(*kinds: type) -> Callable[[object], bool]:
    return lambda value: isinstance(value, kinds)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _are_strings(value: object) -> bool:
    return isinstance(value, str) or (
        isinstance(value, Collection)
        and not isinstance(value, Mapping | bytes)
        and all(isinstance(item, str) for item in cast("Collection[Any]", value))
    )


_FLAG: Final = (_is(bool), "True or False")
_ARGUMENTS: Final[dict[str, tuple[Callable[[object], bool], str]]] = {
    "path": (_is(str), "a str"),
    "scope": (_is(str), "a str"),
    "authenticate": (lambda value: value is None or callable(value), "a function that takes the connection"),
    "store": (_is(str, TurnStore, type(None)), 'the URL of a Redis, "memory" or a TurnStore'),
    "lease": (_is_number, "a number of seconds"),
    "history": (_is(str, HistoryStore, type(None)), 'a database URL, "client" or a HistoryStore'),
    "approval_secret": (_is(str, type(None)), "a str"),
    "settings": (_is(ChatSettings), "ChatSettings"),
    "limits": (_is(Limits), "Limits of usechat.protocol.requests"),
    "stream": (_is(StreamLimits), "StreamLimits of usechat.server.responses"),
    "origins": (_are_strings, "an origin or a list of origins"),
    "cors": (_are_strings, "an origin or a list of origins"),
    "cors_credentials": _FLAG,
    "allowed_hosts": (lambda value: value is None or _are_strings(value), "a host or a list of hosts"),
    "grace": (lambda value: value is None or _is_number(value), "a number of seconds or None"),
    "lists_all": _FLAG,
    "page": _FLAG,
    "page_images": (_are_strings, "a path or a list of paths"),
}


def check_arguments(**given: object) -> None:
    """Check the types of arguments, by their names.

    Raises:
        TypeError: One has the wrong type.
    """
    for name, value in given.items():
        fits, what = _ARGUMENTS[name]
        if not fits(value):
            raise TypeError(f"{name} must be {what}, not {type(value).__name__}.")


def check_path(path: str) -> None:
    """Check the path of an endpoint.

    Raises:
        ValueError: It is not a path.
    """
    if not _PATH.fullmatch(path):
        raise ValueError(f"{path!r} is not a path such as /api/name.")


def listed(names: Collection[str] | str) -> Collection[str]:
    """The names as a collection. A string is one name."""
    return (names,) if isinstance(names, str) else names


def say_where_kept(history: object, store: TurnStore) -> None:
    """Log where chats and turns are kept, and warn if several processes do not share them.

    If several endpoints of an app keep them in the same places, only the first one logs it.
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
    # The Redis store has a name, and its packages may not be installed. A store of the app's own may have no name.
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
    """The number of processes that the server of this command line runs; 1 if it is unknown."""
    # `uvicorn.run(workers=…)` leaves a trace only in the settings that uvicorn passes to its processes.
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
