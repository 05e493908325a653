"""DeepAgent: the fields of an event, and what is wrong with one that cannot be used."""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias, cast

from usechat.errors import MappingError

__all__ = ["Event", "error_text", "identifier", "is_abort", "kind_of", "text", "unknown", "unusable"]

Event: TypeAlias = Mapping[str, Any]

_TOOL_FAILED: Final = "The tool failed."
# So much of what the error of a tool says is shown.
_ERROR_LENGTH: Final = 4_000
_ABORTS: Final = frozenset({"AbortError", "CancelledError"})


def kind_of(event: object) -> str | None:
    """The type of whatever came as an event."""
    kind = cast("Event", event).get("type") if isinstance(event, Mapping) else None
    return kind if isinstance(kind, str) else None


def text(event: Event, name: str) -> str:
    """The text of a field; a framework's may be of a class of its own.

    Raises:
        MappingError: it is none.
    """
    value = event.get(name)
    if not isinstance(value, str):
        raise unusable(event, name)
    return value if type(value) is str else str.__str__(value)


def identifier(event: Event, name: str) -> str:
    """A text that is not empty.

    Raises:
        MappingError: it is none.
    """
    if not (value := text(event, name)):
        raise unusable(event, name)
    return value


def error_text(error: object) -> str:
    """What the user reads of a tool's error: what the event says itself, but not what an exception says."""
    if isinstance(error, Mapping):
        error = cast("Mapping[str, object]", error).get("message")
    return str.__str__(error)[:_ERROR_LENGTH] if isinstance(error, str) and error else _TOOL_FAILED


def is_abort(error: object) -> bool:
    """Whether a run ended with this error because somebody stopped it."""
    name = cast("Mapping[str, object]", error).get("name") if isinstance(error, Mapping) else type(error).__name__
    return isinstance(name, str) and name in _ABORTS


def unusable(event: Event, name: str) -> MappingError:
    return MappingError(f"A DeepAgent event `{event['type']}` has no usable `{name}`.")


def unknown(event: object) -> MappingError:
    if (kind := kind_of(event)) is not None:
        return MappingError(f"DeepAgent has no event of the type {kind!r:.60}.")
    return MappingError("A DeepAgent event has no type.")
