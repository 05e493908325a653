"""Options of a source, as they are typed."""

import json
from collections.abc import Iterable
from typing import Any

__all__ = ["read_switches"]


def read_switches(given: Iterable[str]) -> dict[str, Any]:
    """The names and values of `name=true`, `name=["a"]` and so on; a value that is no JSON is a text.

    Raises:
        ValueError: one has no value.
    """
    return dict(map(_read, given))


def _read(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    if not value:
        raise ValueError(f"The option {text!r:.60} must have the form name=true or name=false.")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
