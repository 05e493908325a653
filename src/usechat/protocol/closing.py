"""How any stream ends legally, from its state alone."""

from collections.abc import Iterator
from typing import Final

from msgspec import UNSET, UnsetType

from usechat.protocol import chunks as c
from usechat.protocol.state import Call, StreamState
from usechat.protocol.tables import CallState

__all__ = ["closing", "closing_parts", "with_input"]

_WAITING: Final[dict[c.FinishReason | UnsetType, tuple[CallState, ...]]] = {
    "tool-calls": ("available", "requested"),
    UNSET: ("requested",),
}
_REASONS: Final[dict[type[c.End], str]] = {
    c.Finish: "The call ended without a result.",
    c.Abort: "The call was stopped.",
    c.Error: "The call was cut off by an error.",
}


def closing(state: StreamState, last: c.End) -> Iterator[c.Chunk]:
    """The chunks that end a stream with `last`: every part and call is closed before it, and the page stays quiet.

    A call that waits for the browser or for an approval stays as it is if the stream finishes with `tool-calls`. One
    that waits for an approval also does so if the stream finishes without a reason, as those of other bridges do.
    """
    waiting = _WAITING.get(last.finish_reason, ()) if isinstance(last, c.Finish) else ()
    calls = [call for call in state.open_calls() if call.state not in waiting]
    # Whatever is closed makes the page see the current step.
    step = state.step if calls or state.text or state.reasoning else state.shown
    refusals_count = state.first_release
    posts_again = state.resubmits(step, [call for call in calls if refusals_count or call.state != "refused"])
    yield from closing_parts(state)
    for call in calls:
        yield from _closing_call(call, _REASONS[type(last)], state.step)
    if state.phase == "step":
        yield c.FinishStep()
    if posts_again:
        # The metadata makes the page see the empty step.
        yield from (c.StartStep(), c.MessageMetadata({}), c.FinishStep())
    yield last


def closing_parts(state: StreamState) -> Iterator[c.Chunk]:
    """The ends of all parts that are open."""
    yield from [c.TextEnd(id_) for id_ in state.text]
    yield from [c.ReasoningEnd(id_) for id_ in state.reasoning]


def with_input(call: Call, step: int) -> Iterator[c.Chunk]:
    """What a call needs before its result if no input was sent for it: without one, its part is not valid."""
    if call.state == "started" and call.step == step:
        yield c.ToolInputDelta(call.id, "{}")


def _closing_call(call: Call, reason: str, step: int) -> Iterator[c.Chunk]:
    if call.state == "refused":
        yield c.ToolOutputDenied(call.id)
        return
    yield from with_input(call, step)
    yield c.ToolOutputError(call.id, reason, dynamic=True if call.dynamic else UNSET)
