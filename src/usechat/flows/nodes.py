"""The node types that every flow has."""

from collections.abc import Mapping
from typing import Any, Final

from usechat.flows.context import NodeContext, NodeFunction, without_state

__all__ = ["BUILT_IN"]


@without_state
async def _constant(_context: NodeContext, value: dict[str, Any]) -> dict[str, Any]:
    return {"value": value.get("value")}


@without_state
async def _echo(_context: NodeContext, value: dict[str, Any]) -> dict[str, Any]:
    return value


BUILT_IN: Final[Mapping[str, NodeFunction]] = {"constant": _constant, "echo": _echo}
"""`constant` gives `{value}` of its input, `echo` its input as it is."""
