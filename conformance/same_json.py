"""Whether two messages are the same JSON, which `==` does not tell: Python takes True for 1."""

import math
from typing import Any, cast

from msgspec import UNSET

from usechat.protocol.messages import UIMessage

__all__ = ["as_json", "strict"]


def as_json(message: UIMessage) -> dict[str, Any]:
    fields: dict[str, Any] = {"id": message.id, "role": message.role, "parts": message.parts}
    return fields if message.metadata is UNSET else {**fields, "metadata": message.metadata}


def strict(value: Any) -> Any:
    """A value that is equal to another only if both are the same JSON to JavaScript, whose numbers are all floats."""
    if isinstance(value, bool):
        return ("a truth value", value)
    if isinstance(value, (int, float)):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, list):
        return [strict(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: strict(item) for key, item in cast("dict[str, Any]", value).items()}
    return value
