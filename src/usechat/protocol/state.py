"""The state of one stream: whether a chunk is legal, and how the stream can end.

The tables say what may follow what. The rules that do not fit a table are here, and nowhere else.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Final, cast

from msgspec import UNSET, Struct, UnsetType

from usechat.protocol import chunks as c
from usechat.protocol.messages import is_tool_call, tool_name
from usechat.protocol.rules import local_error
from usechat.protocol.tables import CALLS, MESSAGE, PARTS, UNFINISHED, CallState, Phase

__all__ = ["CLOSED", "Call", "StreamState", "closing", "closing_parts", "with_input"]

_TEXT: Final = (c.TextDelta, c.TextStart, c.TextEnd)

CLOSED: Final = frozenset[CallState](("done", "failed", "rejected", "denied"))
"""The states of a call that has a result."""
_ANSWERED: Final = frozenset[CallState](("done", "failed", "rejected", "preliminary"))
_PART_STATES: Final[dict[str, CallState]] = {
    "input-streaming": "cut",
    "input-available": "available",
    "approval-requested": "requested",
    "output-available": "done",
    "output-error": "failed",
    "output-denied": "denied",
}

# The calls that may stay open at a finish with this reason.
_WAITING: Final[dict[c.FinishReason | UnsetType, tuple[CallState, ...]]] = {
    "tool-calls": ("available", "requested"),
    UNSET: ("requested",),
}
_REASONS: Final[dict[type[c.End], str]] = {
    c.Finish: "The call ended without a result.",
    c.Abort: "The call was stopped.",
    c.Error: "The call was cut off by an error.",
}


class Call(Struct, eq=False):
    """A tool call of the message, which began in step number `step`."""

    id: str
    name: str
    dynamic: bool
    step: int
    state: CallState = "new"
    provider_executed: bool = False

    def note_execution(self, provider_executed: bool | UnsetType) -> None:  # noqa: FBT001
        """Take in who runs the call, if the chunk says it."""
        if provider_executed is not UNSET:
            self.provider_executed = provider_executed


class StreamState:
    """The state of one stream.

    `message_id` and `parts` are those of the message that the stream continues. `here` has the calls of the current
    step. `shown` is the last step that a page has seen: React sees a new step only with the next chunk that changes the
    message. `first_release` says that 5.0.0 may read the stream: its pages also post again after results of the
    provider, and it gets a denial as an error.
    """

    def __init__(self, message_id: str | UnsetType = UNSET, parts: Iterable[Mapping[str, Any]] = ()) -> None:
        self.phase: Phase = "new"
        self.first_release = False
        self.message_id = message_id
        self.step = 0
        self.text: dict[str, None] = {}
        self.reasoning: dict[str, None] = {}
        self.calls: dict[str, Call] = {}
        self.here: list[Call] = []
        self.approvals: dict[str, Call] = {}
        for part in parts:
            self._continue(part)
        self.shown = self.step
        # How often the page has written the message. The first time it takes the client's own object, whose id may
        # still change. From the second time on it holds a copy, and another id makes another message.
        self._writes = 0

    def apply(self, chunk: c.Chunk) -> None:
        """Take the chunk in.

        Raises:
            LocalProtocolError: The chunk is illegal here. The state has not changed.
        """
        self._MOVES.get(type(chunk), StreamState._anytime)(self, chunk)

    def open_calls(self) -> list[Call]:
        """The calls that have no result yet."""
        return [call for call in self.calls.values() if call.state not in CLOSED]

    def open_here(self) -> bool:
        """Whether a call of the current step has no result yet."""
        return any(call.state not in CLOSED for call in self.here)

    def has_results(self) -> bool:
        """Whether the current step has results of our own tools, and no call without a result."""
        return any(not call.provider_executed for call in self.here) and not self.open_here()

    def resubmits(self, step: int, closing: Collection[Call] = ()) -> bool:
        """Whether a page that sends automatically posts again if `step` is the last one and `closing` get results."""
        calls = [call for call in self.calls.values() if call.step == step]
        ours = [call for call in calls if not call.provider_executed]
        answered = CLOSED | _ANSWERED if self.first_release else _ANSWERED
        # 5.0.0 looks at all calls of the step, later releases only at ours.
        looks = (calls, ours) if self.first_release else (ours,)
        return any(seen and all(call.state in answered or call in closing for call in seen) for seen in looks)

    def _continue(self, part: Mapping[str, Any]) -> None:
        kind: str = part["type"]
        if kind == "step-start":
            self.step += 1
            self.here = []
        elif is_tool_call(part):
            call = Call(part["toolCallId"], tool_name(part), kind == "dynamic-tool", self.step, _call_state(part))
            call.provider_executed = part.get("providerExecuted") is True
            self.calls[call.id] = call
            self.here.append(call)
            if isinstance(part.get("approval"), dict):
                self.approvals[part["approval"]["id"]] = call

    def _enter(self, name: str, move: str = "any other") -> Phase:
        phase = MESSAGE[move].get(self.phase)
        if phase is None:
            rule = "after-error" if self.phase == "failed" else "after-end"
            raise local_error(rule, name, f"`{name}` comes after the end of the stream.")
        return phase

    def _show(self) -> None:
        self.shown = self.step
        self._writes += 1

    def _anytime(self, chunk: c.Chunk) -> None:
        self.phase = self._enter(c.chunk_type(chunk))
        if not (isinstance(chunk, c.Data) and chunk.transient is True):
            self._show()

    def _metadata(self, chunk: c.MessageMetadata) -> None:
        self.phase = self._enter("message-metadata")
        if chunk.message_metadata is not None:
            self._show()

    def _start(self, chunk: c.Start) -> None:
        phase = self._enter("start", "start")
        if self._writes > 1 and chunk.message_id not in (UNSET, self.message_id):
            raise local_error("late-start", "start", "`start` changes the id of a message that has begun.")
        self.phase = phase
        if chunk.message_id is not UNSET:
            self.message_id = chunk.message_id
        if chunk.message_id is not UNSET or chunk.message_metadata not in (UNSET, None):
            self._show()

    def _start_step(self, chunk: c.StartStep) -> None:
        self.phase = self._enter("start-step", "start-step")
        self.step += 1
        self.here = []

    def _finish_step(self, chunk: c.FinishStep) -> None:
        phase = self._enter("finish-step", "finish-step")
        self._no_open_part("finish-step")
        self.phase = phase

    def _reset_step(self, chunk: c.ResetStep) -> None:
        self.phase = self._enter("reset-step", "reset-step")
        self.text.clear()
        self.reasoning.clear()
        self.here = []
        self.calls = {id_: call for id_, call in self.calls.items() if call.step != self.step}
        self.approvals = {id_: call for id_, call in self.approvals.items() if call.step != self.step}
        self._show()

    def _end(self, chunk: c.End) -> None:
        name = c.chunk_type(chunk)
        phase = self._enter(name, name)
        self._no_open_part(name)
        for call in self.calls.values():
            if call.state in UNFINISHED:
                problem = f"`{name}` comes while the input of the call {call.id!r:.60} is streaming."
                raise local_error("call-left-open", name, problem)
        shows = isinstance(chunk, c.Finish) and chunk.message_metadata not in (UNSET, None)
        if not isinstance(chunk, c.Error) and self.resubmits(self.step if shows else self.shown):
            raise local_error("resubmits", name, f"`{name}` comes while all calls of the last step have results.")
        self.phase = phase

    def _no_open_part(self, name: str) -> None:
        left = next(iter(self.text), next(iter(self.reasoning), None))
        if left is not None:
            raise local_error("part-left-open", name, f"`{name}` comes while the part {left!r:.60} is open.")

    def _delta(self, chunk: c.TextDelta | c.ReasoningDelta) -> None:
        # The fast path: nearly every chunk is a delta, and the tables say that it changes neither phase nor part.
        if self.phase == "step" and chunk.id in self._parts_like(chunk):
            self._show()
        else:
            self._part(chunk)

    def _part(self, chunk: c.TextChunk) -> None:
        name, parts = c.chunk_type(chunk), self._parts_like(chunk)
        phase = self._enter(name)
        state = PARTS[name].get("open" if chunk.id in parts else "closed")
        if state is None:
            rule = "part-open-twice" if chunk.id in parts else "part-not-open"
            here = "already open" if chunk.id in parts else "not open"
            raise local_error(rule, name, f"`{name}` for the part {chunk.id!r:.60}, which is {here}.")
        if state == "open":
            parts[chunk.id] = None
        else:
            del parts[chunk.id]
        self.phase = phase
        self._show()

    def _parts_like(self, chunk: c.TextChunk) -> dict[str, None]:
        """The open parts of the chunk's kind."""
        return self.text if isinstance(chunk, _TEXT) else self.reasoning

    def _input(self, chunk: c.ToolInput) -> None:
        name = c.chunk_type(chunk)
        dynamic = chunk.dynamic is True
        call = self.calls.get(chunk.tool_call_id) or Call(chunk.tool_call_id, chunk.tool_name, dynamic, self.step)
        if call.state not in CALLS[name]:
            raise local_error(
                "call-twice", name, f"`{name}` for the call {call.id!r:.60}, which the message already has."
            )
        if call.dynamic is not dynamic or (call.name != chunk.tool_name and not dynamic):
            raise local_error("call-changed", name, f"`{name}` gives the call {call.id!r:.60} another name or kind.")
        self._in_its_step(call, name)
        self._follow(call, name, name)
        if call.id not in self.calls:
            self.calls[call.id] = call
            self.here.append(call)
        call.note_execution(chunk.provider_executed)

    def _input_delta(self, chunk: c.ToolInputDelta) -> None:
        call = self._call(chunk.tool_call_id, "tool-input-delta")
        self._in_its_step(call, "tool-input-delta")
        self._follow(call, "tool-input-delta", "tool-input-delta")

    def _output(self, chunk: c.ToolOutput) -> None:
        name = c.chunk_type(chunk)
        call = self._call(chunk.tool_call_id, name)
        if call.dynamic is not (chunk.dynamic is True):
            raise local_error("call-changed", name, f"`{name}` and its call {call.id!r:.60} differ in `dynamic`.")
        preliminary = isinstance(chunk, c.ToolOutputAvailable) and chunk.preliminary is True
        self._follow(call, name, f"{name}, preliminary" if preliminary else name)
        call.note_execution(chunk.provider_executed)

    def _denied(self, chunk: c.ToolOutputDenied) -> None:
        self._follow(self._call(chunk.tool_call_id, "tool-output-denied"), "tool-output-denied", "tool-output-denied")

    def _request(self, chunk: c.ToolApprovalRequest) -> None:
        name = "tool-approval-request"
        call = self._call(chunk.tool_call_id, name)
        if self.approvals.get(chunk.approval_id, call) is not call:
            raise local_error("approval-twice", name, f"`{name}` uses the id {chunk.approval_id!r:.60} again.")
        self._follow(call, name, name)
        self.approvals = {id_: other for id_, other in self.approvals.items() if other is not call}
        self.approvals[chunk.approval_id] = call

    def _response(self, chunk: c.ToolApprovalResponse) -> None:
        name = "tool-approval-response"
        call = self.approvals.get(chunk.approval_id)
        if call is None:
            raise local_error("approval-unknown", name, f"`{name}` for the unknown id {chunk.approval_id!r:.60}.")
        self._follow(call, name, f"{name}, {'approved' if chunk.approved else 'refused'}")
        call.note_execution(chunk.provider_executed)

    def _call(self, call_id: str, name: str) -> Call:
        call = self.calls.get(call_id)
        if call is None:
            raise local_error("call-unknown", name, f"`{name}` for the call {call_id!r:.60}, which is not known.")
        return call

    def _in_its_step(self, call: Call, name: str) -> None:
        if call.step != self.step:
            problem = f"`{name}` for the call {call.id!r:.60}, which began in an earlier step."
            raise local_error("call-across-steps", name, problem)

    def _follow(self, call: Call, name: str, move: str) -> None:
        phase = self._enter(name)
        state = CALLS[move].get(call.state)
        if state is None:
            raise local_error("call-order", name, f"`{move}` for the call {call.id!r:.60}, which is {call.state}.")
        call.state = state
        self.phase = phase
        self._show()

    # Each method takes the class that is its key, which the type checker cannot follow.
    _MOVES: ClassVar = cast(
        "dict[type[c.Chunk], Callable[[StreamState, c.Chunk], None]]",
        {
            c.Start: _start,
            c.StartStep: _start_step,
            c.FinishStep: _finish_step,
            c.ResetStep: _reset_step,
            c.Finish: _end,
            c.Abort: _end,
            c.Error: _end,
            c.MessageMetadata: _metadata,
            c.TextStart: _part,
            c.TextDelta: _delta,
            c.TextEnd: _part,
            c.ReasoningStart: _part,
            c.ReasoningDelta: _delta,
            c.ReasoningEnd: _part,
            c.ToolInputStart: _input,
            c.ToolInputAvailable: _input,
            c.ToolInputError: _input,
            c.ToolInputDelta: _input_delta,
            c.ToolOutputAvailable: _output,
            c.ToolOutputError: _output,
            c.ToolOutputDenied: _denied,
            c.ToolApprovalRequest: _request,
            c.ToolApprovalResponse: _response,
        },
    )


def _call_state(part: Mapping[str, Any]) -> CallState:
    if part["state"] == "approval-responded":
        return "approved" if part["approval"]["approved"] else "refused"
    if part.get("preliminary") is True:
        return "preliminary"
    return _PART_STATES[part["state"]]


def closing(state: StreamState, last: c.End) -> Iterator[c.Chunk]:
    """The chunks that close every part and call and end the stream with `last`. The page does not post again.

    If the stream finishes with `tool-calls`, calls that wait for the browser or for an approval stay open. If it
    finishes without a reason, as the streams of other servers do, calls that wait for an approval stay open.
    """
    waiting = _WAITING.get(last.finish_reason, ()) if isinstance(last, c.Finish) else ()
    calls = [call for call in state.open_calls() if call.state not in waiting]
    # Closing something makes the page see the current step.
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
    """The ends of all open parts."""
    yield from [c.TextEnd(id_) for id_ in state.text]
    yield from [c.ReasoningEnd(id_) for id_ in state.reasoning]


def with_input(call: Call, step: int) -> Iterator[c.Chunk]:
    """The empty input of a call that has none yet: without an input, a part with a result is not valid."""
    if call.state == "started" and call.step == step:
        yield c.ToolInputDelta(call.id, "{}")


def _closing_call(call: Call, reason: str, step: int) -> Iterator[c.Chunk]:
    if call.state == "refused":
        yield c.ToolOutputDenied(call.id)
        return
    yield from with_input(call, step)
    yield c.ToolOutputError(call.id, reason, dynamic=True if call.dynamic else UNSET)
