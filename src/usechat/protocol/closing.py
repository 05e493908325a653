"""How any stream ends legally, from its state alone."""

from collections.abc import Iterator
from typing import Final, TypeAlias

from msgspec import UNSET, UnsetType

from usechat.protocol.chunks import (
    Abort,
    Chunk,
    Error,
    Finish,
    FinishReason,
    FinishStep,
    MessageMetadata,
    ReasoningEnd,
    StartStep,
    TextEnd,
    ToolInputDelta,
    ToolOutputDenied,
    ToolOutputError,
)
from usechat.protocol.state import Call, StreamState
from usechat.protocol.tables import CallState

__all__ = ["End", "closing", "closing_parts", "with_input"]

End: TypeAlias = Finish | Abort | Error

_WAITING: Final[dict[FinishReason | UnsetType, tuple[CallState, ...]]] = {
    "tool-calls": ("available", "requested"),
    UNSET: ("requested",),
}
_REASONS: Final[dict[type[End], str]] = {
    Finish: "The call ended without a result.",
    Abort: "The call was stopped.",
    Error: "The call was cut off by an error.",
}


def closing(state: StreamState, last: End) -> Iterator[Chunk]:
    """The chunks that end a stream with `last`: every part and call is closed before it, and the page stays quiet.

    A call that waits for the browser or for an approval stays as it is if the stream finishes with `tool-calls`. One
    that waits for an approval also does so if the stream finishes without a reason, as those of other bridges do.
    """
    waiting = _WAITING.get(last.finish_reason, ()) if isinstance(last, Finish) else ()
    calls = [call for call in state.open_calls() if call.state not in waiting]
    # Whatever is closed makes the page see the current step.
    step = state.step if calls or state.text or state.reasoning else state.shown
    refusals_count = state.first_release
    posts_again = state.resubmits(step, [call for call in calls if refusals_count or call.state != "refused"])
    yield from closing_parts(state)
    for call in calls:
        yield from _closing_call(call, _REASONS[type(last)], state.step)
    if state.phase == "step":
        yield FinishStep()
    if posts_again:
        # The metadata makes the page see the empty step.
        yield from (StartStep(), MessageMetadata({}), FinishStep())
    yield last


def closing_parts(state: StreamState) -> Iterator[Chunk]:
    """The ends of all parts that are open."""
    yield from [TextEnd(id_) for id_ in state.text]
    yield from [ReasoningEnd(id_) for id_ in state.reasoning]


def with_input(call: Call, step: int) -> Iterator[Chunk]:
    """What a call needs before its result if no input was sent for it: without one, its part is not valid."""
    if call.state == "started" and call.step == step:
        yield ToolInputDelta(call.id, "{}")


def _closing_call(call: Call, reason: str, step: int) -> Iterator[Chunk]:
    if call.state == "refused":
        yield ToolOutputDenied(call.id)
        return
    yield from with_input(call, step)
    yield ToolOutputError(call.id, reason, dynamic=True if call.dynamic else UNSET)
