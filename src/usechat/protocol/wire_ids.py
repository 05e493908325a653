"""The ids that tool calls and approvals have on the wire, where the agent's own will not do."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeAlias

from msgspec import structs

from usechat.protocol.chunks import Chunk, ToolApprovalRequest, ToolApprovalResponse, ToolInputAvailable
from usechat.protocol.messages import IDENTIFIER, TOOL_CALL_ID, is_tool_call
from usechat.protocol.rules import local_error
from usechat.protocol.state import Call
from usechat.protocol.values import mend

__all__ = ["ApprovalId", "ApprovalIds", "CallIds"]

ApprovalId: TypeAlias = Callable[[str, Call, Any], str]
"""Makes the wire id of an approval from the agent's id for it, the call, and the call's input as it was shown."""


class CallIds:
    """The wire id of each call: the agent's id, or a new one if that is taken or could not come back in a request."""

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self._wire_ids: dict[str, str] = {}

    def add(self, call_id: str, taken: Collection[str]) -> str:
        """Give a call that begins its wire id; an earlier call of the same id can no longer be named by it."""
        wire_id = mend(call_id)
        while wire_id in taken or TOOL_CALL_ID(wire_id) is not None:
            wire_id = self._new_id()
        self._wire_ids[call_id] = wire_id
        return wire_id

    def wire_id(self, call_id: str) -> str:
        return self._wire_ids.get(call_id, call_id)


class ApprovalIds:
    """The wire ids of approvals, made by the app's own function; the agent goes on using the ids that it gave.

    `parts` are those of the message that is continued.
    """

    def __init__(self, approval_id: ApprovalId, parts: Iterable[Mapping[str, Any]]) -> None:
        self._make = approval_id
        self._inputs: dict[str, Any] = {part["toolCallId"]: part.get("input") for part in parts if is_tool_call(part)}
        self._wire_ids: dict[str, str] = {}

    def on_wire(self, chunk: Chunk, calls: Mapping[str, Call]) -> Chunk:
        """The chunk with the wire id of its approval, if it has one.

        Raises:
            LocalProtocolError: no client could send the id back.
        """
        match chunk:
            case ToolInputAvailable():
                self._inputs[chunk.tool_call_id] = chunk.input
            case ToolApprovalRequest() if chunk.tool_call_id in calls:
                return structs.replace(chunk, approval_id=self._add(chunk.approval_id, calls[chunk.tool_call_id]))
            case ToolApprovalResponse():
                wire_id = self._wire_ids.get(chunk.approval_id, chunk.approval_id)
                return structs.replace(chunk, approval_id=wire_id)
            case _:
                pass
        return chunk

    def _add(self, approval_id: str, call: Call) -> str:
        wire_id = self._make(approval_id, call, self._inputs.get(call.id))
        if problem := IDENTIFIER(wire_id):
            raise local_error("shape", "tool-approval-request", f"The id of an approval on the wire{problem}.")
        self._wire_ids[approval_id] = wire_id
        return wire_id
