"""JSON values as JavaScript has them, so that what went through a browser can be compared with what was sent."""

from typing import Any, Final, cast

import msgspec

__all__ = ["canonical"]

_ENCODER: Final = msgspec.json.Encoder(order="deterministic")


def canonical(value: Any) -> bytes:
    """Encode a JSON value; two give the same bytes exactly if they are the same to JavaScript.

    There all numbers are floats, one that is too large becomes null, and the order of keys says nothing.
    """
    return _ENCODER.encode(_as_javascript(value))


def _as_javascript(value: Any) -> Any:
    match value:
        case dict():
            return {name: _as_javascript(item) for name, item in cast("dict[str, Any]", value).items()}
        case list():
            return [_as_javascript(item) for item in cast("list[Any]", value)]
        case bool():
            return value
        case int() | float():
            return _number(cast("float", value))
        case _:
            return value


def _number(number: float) -> float | None:
    try:
        # Zero has one sign only in JSON of JavaScript.
        return float(number) or 0.0
    except OverflowError:
        return None
