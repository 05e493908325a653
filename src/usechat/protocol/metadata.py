"""The metadata of a message: what may be sent, and how the client merges it."""

from typing import Any, cast

from msgspec import UNSET

from usechat.protocol.rules import local_error, remote_error
from usechat.protocol.values import plain

__all__ = ["merged", "sendable"]


def sendable(value: Any, limit: int, name: str) -> Any:
    """The metadata as plain JSON; UNSET stays what it is. `name` is the type of the chunk that brings it.

    Raises:
        LocalProtocolError: it is no object.
    """
    metadata = UNSET if value is UNSET else plain(value, limit)
    if metadata is UNSET or metadata is None or isinstance(metadata, dict):
        return cast("Any", metadata)
    # The client merges metadata as objects, and throws over anything else.
    raise local_error("shape", name, "The metadata of a message must be an object.")


def merged(base: Any, overrides: Any) -> Any:
    """JavaScript's view of two values as objects, the second laid over the first; arrays are replaced."""
    result = _members(base)
    for name, value in _members(overrides).items():
        if name in ("__proto__", "constructor", "prototype"):
            continue
        if not isinstance(base, (dict, list)):
            raise remote_error("shape", "message-metadata", "Metadata is merged into something that is no object.")
        both = isinstance(result.get(name), dict) and isinstance(value, dict)
        result[name] = merged(result[name], value) if both else value
    return result


def _members(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return dict(cast("dict[str, Any]", value))
    if isinstance(value, str):
        # JavaScript takes a text apart by its UTF-16 units.
        units = value.encode("utf-16-le", "surrogatepass")
        value = [units[at : at + 2].decode("utf-16-le", "surrogatepass") for at in range(0, len(units), 2)]
    if isinstance(value, list):
        return {str(index): item for index, item in enumerate(cast("list[Any]", value))}
    return {}
