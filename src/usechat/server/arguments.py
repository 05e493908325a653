"""The arguments of apps and endpoints: a wrong one is refused when the app is made, not by its first request."""

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, cast

from usechat.history import HistoryStore
from usechat.protocol.requests import Limits
from usechat.server.responses import StreamLimits
from usechat.stores import TurnStore
from usechat.turns.settings import ChatSettings

__all__ = ["check_arguments", "check_path", "listed"]

_PATH: Final = re.compile(r"(/[A-Za-z0-9._~-]+)+")


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
            kind = type(value).__name__
            article = "an" if kind[0] in "aeiouAEIOU" else "a"
            raise TypeError(f"{name} must be {what}, and is {article} {kind}.")


def check_path(path: str) -> None:
    """Check the path of an endpoint.

    Raises:
        ValueError: It is not one.
    """
    if not _PATH.fullmatch(path):
        raise ValueError(f"{path!r} is not a path such as /api/name.")


def listed(names: Collection[str] | str) -> Collection[str]:
    """The names as a collection; a string is one name."""
    return (names,) if isinstance(names, str) else names
