"""Options of a source, as they are typed."""

import json
from collections.abc import Iterable
from typing import Any

__all__ = ["read_switches"]


def read_switches(given: Iterable[str]) -> dict[str, Any]:
    """The names and values of `name=true` and `name=false`.

    Raises:
        ValueError: one is of another form.
    """
    return dict(map(_read, given))


def _read(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except ValueError:
        raise ValueError(f"The option {text!r:.60} must have the form name=true or name=false.") from None
