"""What the tables of parts and messages say, and what `StreamState` says beside them: streams on both sides of it."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from samples import sample
from usechat.protocol.chunks import (
    Abort,
    Chunk,
    End,
    Error,
    Finish,
    FinishStep,
    MessageMetadata,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    ResetStep,
    Start,
    StartStep,
    TextDelta,
    TextEnd,
    TextStart,
    ToolApprovalRequest,
    ToolApprovalResponse,
    ToolInputAvailable,
    ToolInputDelta,
    ToolInputError,
    ToolInputStart,
    ToolOutputAvailable,
    ToolOutputError,
)
from usechat.protocol.state import StreamState, closing
from usechat.protocol.tables import ANYTIME, MESSAGE, PARTS, PartState, Phase

__all__ = ["BREACHES", "LEGAL", "Breach", "state_after"]


def state_after(chunks: list[Chunk]) -> StreamState:
    state = StreamState()
    for chunk in chunks:
        state.apply(chunk)
    return state


class Breach(NamedTuple):
    """One illegal chunk: what comes before and after it, and how the stream would have gone on legally."""

    rule: str
    before: list[Chunk]
    chunk: Chunk
    after: list[Chunk]
    instead: list[Chunk]


def _extra(rule: str, before: list[Chunk], chunk: Chunk, after: list[Chunk]) -> Breach:
    """A chunk without which the stream is legal."""
    return Breach(rule, before, chunk, after, after)


def _hasty(rule: str, before: list[Chunk], last: End) -> Breach:
    """An end that comes too early."""
    return Breach(rule, before, last, [], list(closing(state_after(before), last)))


def _in_step(*chunks: Chunk) -> list[Chunk]:
    return [Start("m"), StartStep(), *chunks]


_CALL: Final = ("call", "weather")
_END: Final[list[Chunk]] = [FinishStep(), Finish()]
_QUIET_END: Final[list[Chunk]] = [FinishStep(), StartStep(), MessageMetadata({}), *_END]
_LASTS: Final[tuple[End, ...]] = (Finish(), Finish(message_metadata=None), Abort(), Error("no"))

_MESSAGE_MOVES: Final[dict[str, list[Chunk]]] = {
    "start": [Start(), Start("m")],
    "start-step": [StartStep()],
    "finish-step": [FinishStep()],
    "reset-step": [ResetStep()],
    "finish": [Finish(), Finish(message_metadata={"tokens": 1})],
    "abort": [Abort()],
    "error": [Error("no")],
    "any other": [TextStart("t"), ToolInputAvailable(*_CALL, {}), *(sample(kind) for kind in sorted(ANYTIME))],
}
_WAYS_TO_PHASES: Final[dict[Phase, list[Chunk]]] = {
    "new": [],
    "open": [Start("m")],
    "step": _in_step(),
    "failed": _in_step(TextStart("t"), TextEnd("t"), Error("no")),
}

_PART_MOVES: Final[dict[str, Chunk]] = {
    "text-start": TextStart("p"),
    "text-delta": TextDelta("p", "x"),
    "text-end": TextEnd("p"),
    "reasoning-start": ReasoningStart("p"),
    "reasoning-delta": ReasoningDelta("p", "x"),
    "reasoning-end": ReasoningEnd("p"),
}


def _ways_to_parts(kind: str) -> list[tuple[PartState, list[Chunk]]]:
    start, end = _PART_MOVES[f"{kind}-start"], _PART_MOVES[f"{kind}-end"]
    return [("closed", _in_step()), ("closed", _in_step(start, end)), ("open", _in_step(start))]


def _legal() -> Iterator[tuple[list[Chunk], Chunk]]:
    for move, phases in MESSAGE.items():
        for phase in phases:
            yield from ((_WAYS_TO_PHASES[phase], chunk) for chunk in _MESSAGE_MOVES[move])
    for move, states in PARTS.items():
        for state, before in _ways_to_parts(move.split("-")[0]):
            if state in states:
                yield before, _PART_MOVES[move]


def _messages() -> Iterator[Breach]:
    # What comes after `finish` or `abort` is not here: `after-end` is advice.
    for move, phases in MESSAGE.items():
        for phase, before in _WAYS_TO_PHASES.items():
            if phase not in phases:
                after: list[Chunk] = [] if phase == "failed" else [Finish()]
                yield from (_extra("after-error", before, chunk, after) for chunk in _MESSAGE_MOVES[move])


def _parts() -> Iterator[Breach]:
    for move, states in PARTS.items():
        kind = move.split("-")[0]
        end = _PART_MOVES[f"{kind}-end"]
        for state, before in _ways_to_parts(kind):
            if state not in states and state == "open":
                yield _extra("part-open-twice", before, _PART_MOVES[move], [end, *_END])
            elif state not in states:
                yield _extra("part-not-open", before, _PART_MOVES[move], _END)
    for kind in ("text", "reasoning"):
        end = _PART_MOVES[f"{kind}-end"]
        yield _extra("part-left-open", _in_step(_PART_MOVES[f"{kind}-start"]), FinishStep(), [end, *_END])


def _hasty_ends() -> Iterator[Breach]:
    for last in _LASTS:
        yield _hasty("part-left-open", _in_step(TextStart("t")), last)
        yield _hasty("part-left-open", _in_step(ReasoningStart("r")), last)
        yield _hasty("call-left-open", _in_step(ToolInputStart(*_CALL)), last)
        yield _hasty("call-left-open", _in_step(ToolInputStart(*_CALL), ToolInputDelta("call", "{}")), last)
    for last in (last for last in _LASTS if not isinstance(last, Error)):
        for result in (ToolOutputAvailable("call", 1), ToolOutputError("call", "no")):
            before = _in_step(ToolInputAvailable(*_CALL, {}), result)
            yield _hasty("resubmits", before, last)
            yield _hasty("resubmits", [*before, FinishStep(), StartStep()], last)


def _changed_calls() -> Iterator[Breach]:
    for first in (True, False):
        started = _in_step(ToolInputStart(*_CALL, dynamic=first))
        available = _in_step(ToolInputAvailable(*_CALL, {}, dynamic=first))
        completed: list[Chunk] = [ToolInputAvailable(*_CALL, {}, dynamic=first), *_END]
        yield _extra("call-changed", started, ToolInputAvailable(*_CALL, {}, dynamic=not first), completed)
        yield _extra("call-changed", started, ToolInputError(*_CALL, {}, "no", dynamic=not first), completed)
        yield _extra("call-changed", available, ToolOutputAvailable("call", 1, dynamic=not first), _END)
        yield _extra("call-changed", available, ToolOutputError("call", "no", dynamic=not first), _END)
    for chunk in (ToolInputAvailable("call", "other", {}), ToolInputError("call", "other", {}, "no")):
        yield _extra("call-changed", _in_step(ToolInputStart(*_CALL)), chunk, [ToolInputAvailable(*_CALL, {}), *_END])


def _calls_across_steps() -> Iterator[Breach]:
    before = [*_in_step(ToolInputStart(*_CALL), ToolInputDelta("call", "{}")), FinishStep(), StartStep()]
    for chunk in (ToolInputDelta("call", " "), ToolInputAvailable(*_CALL, {}), ToolInputError(*_CALL, {}, "no")):
        yield _extra("call-across-steps", before, chunk, [ToolOutputError("call", "no"), *_END])


def _late_starts() -> Iterator[Breach]:
    text: list[Chunk] = [TextStart("t"), TextEnd("t")]
    yield _extra("late-start", _in_step(*text), Start("other"), _END)
    yield _extra("late-start", [StartStep(), *text], Start("m"), [*text, *_END])
    yield _extra("late-start", [Start("m"), Start("other")], Start("third"), [StartStep(), *text, *_END])


def _shared_approvals() -> Iterator[Breach]:
    yield _extra(
        "approval-twice",
        _in_step(
            ToolInputAvailable(*_CALL, {}), ToolInputAvailable("other", "weather", {}), ToolApprovalRequest("a", "call")
        ),
        ToolApprovalRequest("a", "other"),
        [
            ToolApprovalResponse("a", approved=True),
            ToolOutputAvailable("call", 1),
            ToolOutputAvailable("other", 1),
            *_QUIET_END,
        ],
    )


def _after_resets() -> Iterator[Breach]:
    asked: list[Chunk] = [ToolInputAvailable(*_CALL, {}), ToolApprovalRequest("a", "call")]
    for rule, dropped, chunk in (
        ("part-not-open", [TextStart("t")], TextEnd("t")),
        ("part-not-open", [ReasoningStart("r")], ReasoningEnd("r")),
        ("call-unknown", [ToolInputStart(*_CALL)], ToolInputDelta("call", "{}")),
        ("call-unknown", asked, ToolOutputError("call", "no")),
        ("approval-unknown", asked, ToolApprovalResponse("a", approved=True)),
    ):
        yield _extra(rule, _in_step(*dropped, ResetStep()), chunk, _END)


LEGAL: Final = list(_legal())
"""Each legal pair of the two tables: the chunks that lead to the state, and the one that follows."""

BREACHES: Final = [
    *_messages(),
    *_parts(),
    *_hasty_ends(),
    *_changed_calls(),
    *_calls_across_steps(),
    *_late_starts(),
    *_shared_approvals(),
    *_after_resets(),
]
