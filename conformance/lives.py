"""The life of one tool call: a chunk for each move of the table, and the ways that lead into each of its states."""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from promises import knowing, release_of
from usechat.protocol.chunks import (
    Chunk,
    Start,
    StartStep,
    ToolApprovalRequest,
    ToolApprovalResponse,
    ToolInputAvailable,
    ToolInputDelta,
    ToolInputError,
    ToolInputStart,
    ToolOutputAvailable,
    ToolOutputDenied,
    ToolOutputError,
)
from usechat.protocol.state import StreamState
from usechat.protocol.tables import CallState

__all__ = ["MOVES", "WAYS", "Way"]

MOVES: Final[dict[str, Chunk]] = {
    "tool-input-start": ToolInputStart("call", "weather"),
    "tool-input-delta": ToolInputDelta("call", '{"city":"Berlin"}'),
    "tool-input-available": ToolInputAvailable("call", "weather", {"city": "Berlin"}),
    "tool-input-error": ToolInputError("call", "weather", {"city": 1}, "not a city"),
    "tool-approval-request": ToolApprovalRequest("approval", "call"),
    "tool-approval-response, approved": ToolApprovalResponse("approval", approved=True),
    "tool-approval-response, refused": ToolApprovalResponse("approval", approved=False),
    "tool-output-available, preliminary": ToolOutputAvailable("call", "warm", preliminary=True),
    "tool-output-available": ToolOutputAvailable("call", "warm and dry"),
    "tool-output-error": ToolOutputError("call", "no connection"),
    "tool-output-denied": ToolOutputDenied("call"),
}

_STREAMED: Final = ("tool-input-start", "tool-input-delta")
_ASKED: Final = ("tool-input-available", "tool-approval-request")
_APPROVED: Final = (*_ASKED, "tool-approval-response, approved")
_REFUSED: Final = (*_ASKED, "tool-approval-response, refused")

_PATHS: Final[dict[CallState, list[tuple[str, ...]]]] = {
    "new": [()],
    "started": [("tool-input-start",)],
    "streaming": [_STREAMED],
    "available": [("tool-input-available",), (*_STREAMED, "tool-input-available")],
    "requested": [_ASKED],
    "approved": [_APPROVED],
    "refused": [_REFUSED],
    "preliminary": [
        (*before, "tool-output-available, preliminary") for before in (("tool-input-available",), _STREAMED, _APPROVED)
    ],
    "done": [(*before, "tool-output-available") for before in (("tool-input-available",), _STREAMED, _APPROVED)],
    "failed": [(*before, "tool-output-error") for before in (("tool-input-available",), _STREAMED, _APPROVED)],
    "rejected": [("tool-input-error",), ("tool-input-error", "tool-output-error")],
    "denied": [(*_REFUSED, "tool-output-denied")],
}

_PART: Final = {"type": "tool-weather", "toolCallId": "call", "input": {"city": "Berlin"}}
_PARTS: Final[dict[CallState, dict[str, Any]]] = {
    "cut": {"state": "input-streaming"},
    "available": {"state": "input-available"},
    "requested": {"state": "approval-requested", "approval": {"id": "approval"}},
    "approved": {"state": "approval-responded", "approval": {"id": "approval", "approved": True}},
    "refused": {"state": "approval-responded", "approval": {"id": "approval", "approved": False}},
    "preliminary": {"state": "output-available", "output": "warm", "preliminary": True},
    "done": {"state": "output-available", "output": "warm"},
    "failed": {"state": "output-error", "errorText": "no connection"},
    "denied": {"state": "output-denied", "approval": {"id": "approval", "approved": False}},
}


class Way(NamedTuple):
    """A way into a state: in the stream itself, or in an earlier one whose message the stream continues."""

    into: CallState
    moves: tuple[str, ...]
    continues: bool = False

    @property
    def name(self) -> str:
        words = " > ".join(self.moves) or "a new call"
        return f"{words}, continued" if self.continues else words

    @property
    def message(self) -> dict[str, Any] | None:
        """The message that the stream continues."""
        if not self.continues:
            return None
        return {"id": "m", "role": "assistant", "parts": [{"type": "step-start"}, {**_PART, **_PARTS[self.into]}]}

    def chunks(self) -> list[Chunk]:
        return [Start("m")] if self.continues else [Start("m"), StartStep(), *(MOVES[move] for move in self.moves)]

    def state(self) -> StreamState:
        state = StreamState() if self.message is None else StreamState("m", self.message["parts"])
        for chunk in self.chunks():
            state.apply(chunk)
        return state

    def clients(self, following: Iterable[Chunk]) -> list[str]:
        """The clients that know the whole life of the call."""
        asks = self.continues and "approval" in _PARTS[self.into]
        known = knowing([*self.chunks(), *following])
        return [client for client in known if not asks or release_of(client).major >= 6]


WAYS: Final = [
    *(Way(into, moves) for into, paths in _PATHS.items() for moves in paths),
    *(Way(into, _PATHS.get(into, [_STREAMED])[0], continues=True) for into in _PARTS),
]
