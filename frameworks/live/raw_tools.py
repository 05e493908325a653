"""The tools of the raw SDKs, as JSON schemas, and what happens to a call of each."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import Any

from effects import boom, get_weather, pay, wait
from usechat import AgentEvent, ApprovalRequest, Chat, ToolCall, ToolDenied, ToolError, ToolResult

__all__ = ["SCHEMAS", "answered", "run_all"]

FUNCTIONS: dict[str, Callable[..., Awaitable[Any]]] = {
    "get_weather": get_weather,
    "boom": boom,
    "pay": pay,
    "wait": wait,
}
INPUTS: dict[str, dict[str, str]] = {
    "get_weather": {"city": "string"},
    "boom": {"reason": "string"},
    "pay": {"amount": "integer"},
    "wait": {},
    "get_location": {},
}
SCHEMAS = [
    {
        "name": name,
        "description": name,
        "parameters": {
            "type": "object",
            "properties": {field: {"type": kind} for field, kind in fields.items()},
            "required": list(fields),
        },
    }
    for name, fields in INPUTS.items()
]


async def answered(chat: Chat) -> AsyncGenerator[AgentEvent, None]:
    """Run the calls that the user has approved, with the arguments that the user may have changed."""
    for approval in chat.approvals:
        if approval.approved:
            edited = (approval.extra or {}).get("input")
            yield await _run(ToolCall(approval.call_id, approval.tool, edited or approval.input))
        else:
            yield ToolDenied(approval.call_id)


async def run_all(calls: Iterable[ToolCall]) -> AsyncGenerator[AgentEvent, None]:
    """Run the calls, and ask the user about a payment; the location is the page's to tell."""
    for call in calls:
        if call.name == "pay":
            yield ApprovalRequest("", call.id)
        elif call.name != "get_location":
            yield await _run(call)


async def _run(call: ToolCall) -> ToolResult | ToolError:
    try:
        return ToolResult(call.id, await FUNCTIONS[call.name](**call.input))
    except RuntimeError:
        return ToolError(call.id, "The tool failed.")
