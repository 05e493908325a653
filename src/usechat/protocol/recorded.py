"""What the clients of a profile do with a stream that another server wrote: what they refuse, what is left untidy."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, TypeAlias, cast

from msgspec import UNSET, UnsetType

from usechat.errors import RemoteProtocolError
from usechat.protocol import chunks as c
from usechat.protocol.clients import Client, Since
from usechat.protocol.messages import UIMessage, is_tool_call
from usechat.protocol.rules import remote_error
from usechat.protocol.state import Call, StreamState
from usechat.protocol.tables import CALLS, UNFINISHED, CallState

__all__ = ["RecordedStream"]

_Part: TypeAlias = Mapping[str, Any]

# What only some releases take: in each major, the first of the pinned releases that does.
_MIXED_DYNAMIC: Final = Since(None, 0, 0)
_ID_IN_TWO_STEPS: Final = Since(277, 326, 169)
_MORE_OF_A_CUT_INPUT: Final = Since(277, 326, 169)
_PARTS_OVER_STEPS: Final = Since(None, None, 169)
_QUIET_AFTER_PROVIDERS: Final = Since(92, 0, 0)
_QUIET_AFTER_PRELIMINARY: Final = Since(None, 326, 169)
_QUIET_WITH_OPEN_TEXT: Final = Since(277, 326, 169)

_MERE_ENDS: Final = (c.FinishStep, c.Finish, c.Abort)
_OPEN_PARTS: Final = frozenset(("part-left-open", "part-open-twice"))
_RESULTS: Final = frozenset[CallState](("preliminary", "done", "failed", "rejected", "denied"))
_ANSWERED: Final = _RESULTS - {"denied"}
_AFTER: Final[dict[str, CallState]] = {move: next(iter(row.values())) for move, row in CALLS.items()}
"""The state of a call after each move, whatever its state was."""

_APPROVALS: Final[dict[str, Callable[[_Part | None], bool]]] = {
    "input-streaming": lambda approval: approval is None,
    "input-available": lambda approval: approval is None,
    "approval-requested": lambda approval: approval is not None,
    "approval-responded": lambda approval: approval is not None,
    "output-available": lambda approval: approval is None or approval.get("approved") is True,
    "output-error": lambda approval: approval is None or approval.get("approved") is True,
    "output-denied": lambda approval: approval is not None and approval.get("approved") is False,
}
_WITHOUT_INPUT: Final = frozenset(("input-streaming", "output-error"))


class RecordedStream(StreamState):
    """The state of a recorded stream in the clients of a profile, which forgive more than `StreamState` does.

    `apply` raises if one of them throws or loses something. `warnings` has what leaves the message untidy, and `asks`
    what only some releases take. `continues` is the message that the stream continues.
    """

    def __init__(self, client: Client, continues: UIMessage | None = None) -> None:
        super().__init__(UNSET if continues is None else continues.id, () if continues is None else continues.parts)
        self.warnings: list[RemoteProtocolError] = []
        self.asks: list[Since] = []
        self._client = client
        # The page holds a copy of a continued message from the beginning.
        self._writes = 0 if continues is None else 2
        self._whole = {call.id for call in self.calls.values() if call.state not in UNFINISHED}
        self._begun = set[str]()
        self._cut = {call.id for call in self.here if call.state == "cut"}
        self._parts_before = 0 if continues is None else len(continues.parts)
        self._last = ""
        self._reason: c.FinishReason | UnsetType = UNSET

    def apply(self, chunk: c.Chunk) -> None:
        """Take the chunk in.

        Raises:
            ProtocolError: A client of the profile refuses the chunk, or loses something because of it.
        """
        name = c.chunk_type(chunk)
        if self.phase == "failed":
            self._unread(chunk, name)
            return
        if self.phase == "ended":
            self._warn("after-end", name, f"`{name}` comes after the end of the stream.")
            self.phase = "open"
        super().apply(chunk)

    def end(self, message: UIMessage) -> None:
        """Judge what the stream leaves behind. `message` is the one that the newest client of the profile has.

        Raises:
            RemoteProtocolError: Pages that send automatically post again and again.
        """
        if self.phase not in ("ended", "failed") and "after-end" not in self._rules():
            self._warn("no-end", "", "The stream stops without `finish`, `abort` or `error`.")
        for id_ in (*self.text, *self.reasoning):
            self._warn("part-left-open", self._last, f"The stream ends while the part {id_!r:.60} is open.")
        for part in filter(is_tool_call, message.parts):
            self._check_form(part)
        self._settle_warnings(message)
        if self._posts_again(message):
            problem = "The stream ends while all calls of the last step have results."
            raise remote_error("resubmits", self._last, problem)

    def _warn(self, rule: str, name: str, problem: str) -> None:
        self.warnings.append(remote_error(rule, name, problem))

    def _rules(self) -> set[str]:
        return {warning.rule for warning in self.warnings}

    def _takes(self, since: Since) -> bool:
        """Whether the whole profile takes it; if so, the stream asks for these releases."""
        takes = self._client.takes(since)
        if takes:
            self.asks.append(since)
        return takes

    def _unread(self, chunk: c.Chunk, name: str) -> None:
        problem = f"`{name}` comes after `error`."
        if not isinstance(chunk, _MERE_ENDS):
            raise remote_error("after-error", name, problem)
        if "after-error" not in self._rules():
            self._warn("after-error", name, problem)

    def _no_open_part(self, name: str) -> None:
        parts = [*self.text, *self.reasoning]
        if parts and not self._takes(_PARTS_OVER_STEPS):
            for id_ in parts:
                self._warn("part-left-open", name, f"`{name}` comes while the part {id_!r:.60} is open.")
            self.text.clear()
            self.reasoning.clear()

    def _part(self, chunk: c.TextChunk) -> None:
        parts = self._parts_like(chunk)
        if isinstance(chunk, c.TextStart | c.ReasoningStart) and chunk.id in parts:
            name = c.chunk_type(chunk)
            self._warn("part-open-twice", name, f"`{name}` for the part {chunk.id!r:.60}, which is already open.")
            del parts[chunk.id]
        super()._part(chunk)

    def _reset(self, chunk: c.ResetStep) -> None:
        self._reset_step(chunk)
        self._begun.clear()
        self._cut.clear()

    def _end_with(self, chunk: c.End) -> None:
        self._last = c.chunk_type(chunk)
        self.phase = self._enter(self._last, self._last)
        if isinstance(chunk, c.Finish):
            self._reason = self._reason if chunk.finish_reason is UNSET else chunk.finish_reason
            if chunk.message_metadata not in (UNSET, None):
                self._show()

    def _take_input(self, chunk: c.ToolInput) -> None:
        name = c.chunk_type(chunk)
        call = self.calls.get(chunk.tool_call_id)
        if call is not None and call.step == self.step:
            self._check_same(call, chunk, name)
        elif call is not None:
            self._check_other_step(call, name)
            call = None
        if call is None:
            call = self._begin(Call(chunk.tool_call_id, chunk.tool_name, chunk.dynamic is True, self.step))
        self._follow(call, name, name)
        (self._begun if isinstance(chunk, c.ToolInputStart) else self._whole).add(call.id)
        call.note_execution(chunk.provider_executed)

    def _begin(self, call: Call) -> Call:
        self.calls[call.id] = call
        self.here.append(call)
        self._whole.discard(call.id)
        return call

    def _check_same(self, call: Call, chunk: c.ToolInput, name: str) -> None:
        if isinstance(chunk, c.ToolInputStart) or call.id in self._whole:
            problem = f"`{name}` for the call {call.id!r:.60}, which the step already has."
            raise remote_error("call-twice", name, problem)
        # An error may replace another error while the input is not whole.
        if not isinstance(chunk, c.ToolInputError):
            self._keep_result(call, name)
        if call.dynamic is not (chunk.dynamic is True):
            raise remote_error("call-changed", name, f"`{name}` gives the call {call.id!r:.60} another kind.")

    def _check_other_step(self, call: Call, name: str) -> None:
        problem = f"`{name}` for the call {call.id!r:.60}, which began in an earlier step."
        if call.id not in self._whole and call.state not in _RESULTS:
            self._warn("call-across-steps", name, problem)
        elif not self._takes(_ID_IN_TWO_STEPS):
            raise remote_error("call-twice", name, problem)

    def _take_delta(self, chunk: c.ToolInputDelta) -> None:
        name = "tool-input-delta"
        call = self._call(chunk.tool_call_id, name)
        if call.id not in self._begun and not (call.id in self._cut and self._takes(_MORE_OF_A_CUT_INPUT)):
            raise remote_error(
                "call-order", name, f"`{name}` for the call {call.id!r:.60}, whose input is not streaming."
            )
        is_here = call.step == self.step
        if is_here or (call.state in _RESULTS and not self._takes(_ID_IN_TWO_STEPS)):
            self._keep_result(call, name)
        if not is_here:
            problem = f"`{name}` for the call {call.id!r:.60}, which began in an earlier step."
            self._warn("call-across-steps", name, problem)
            call = self._begin(Call(call.id, call.name, call.dynamic, self.step))
        self._follow(call, name, name)

    def _keep_result(self, call: Call, name: str) -> None:
        if call.state in _RESULTS:
            raise remote_error("call-order", name, f"`{name}` for the call {call.id!r:.60} takes its result away.")

    def _take_output(self, chunk: c.ToolOutput) -> None:
        name = c.chunk_type(chunk)
        call = self._call(chunk.tool_call_id, name)
        if call.dynamic is not (chunk.dynamic is True) and not self._takes(_MIXED_DYNAMIC):
            raise remote_error("call-changed", name, f"`{name}` and its call {call.id!r:.60} differ in `dynamic`.")
        available = isinstance(chunk, c.ToolOutputAvailable)
        self._follow(call, name, f"{name}, preliminary" if available and chunk.preliminary is True else name)
        # ai 5 ignores who ran a dynamic call when it takes the output.
        if not (available and call.dynamic and self._client.oldest[0].major == 5):
            call.note_execution(chunk.provider_executed)

    def _take_request(self, chunk: c.ToolApprovalRequest) -> None:
        name = "tool-approval-request"
        call = self._call(chunk.tool_call_id, name)
        self._keep_result(call, name)
        if self.approvals.get(chunk.approval_id, call) is not call:
            self._warn("approval-twice", name, f"`{name}` uses the id {chunk.approval_id!r:.60} again.")
        self._follow(call, name, name)
        self.approvals = {id_: other for id_, other in self.approvals.items() if other is not call}
        self.approvals.setdefault(chunk.approval_id, call)

    def _take_response(self, chunk: c.ToolApprovalResponse) -> None:
        name = "tool-approval-response"
        call = self.approvals.get(chunk.approval_id)
        if call is None:
            raise remote_error("approval-unknown", name, f"`{name}` for the unknown id {chunk.approval_id!r:.60}.")
        self._keep_result(call, name)
        self._follow(call, name, f"{name}, {'approved' if chunk.approved else 'refused'}")
        call.note_execution(chunk.provider_executed)

    def _follow(self, call: Call, name: str, move: str) -> None:
        self.phase = self._enter(name)
        call.state = CALLS[move].get(call.state, _AFTER[move])
        self._show()

    def _check_form(self, part: _Part) -> None:
        call_id, state = part["toolCallId"], part["state"]
        across = f"call {call_id!r:.60}, which began in an earlier step"
        if state == "input-streaming" and not any(across in warning.problem for warning in self.warnings):
            problem = f"The stream ends while the input of the call {call_id!r:.60} is streaming."
            self._warn("call-left-open", self._last, problem)
        lacks_input = "input" not in part and state not in _WITHOUT_INPUT
        if lacks_input or not _APPROVALS[state](part.get("approval")):
            problem = f"The call {call_id!r:.60} ends in a form that `validateUIMessages` refuses: `{state}`"
            self._warn(
                "call-invalid",
                self._last,
                f"{problem} without {'its input' if lacks_input else 'the approval for it'}.",
            )

    def _settle_warnings(self, message: UIMessage) -> None:
        """Drop warnings that `reset-step` has undone, and report a part that it has left open in an earlier step."""
        states = {part.get("state") for part in message.parts[self._parts_before :]}
        if "streaming" not in states:
            self.warnings[:] = [warning for warning in self.warnings if warning.rule not in _OPEN_PARTS]
        elif self._rules().isdisjoint(_OPEN_PARTS):
            self._warn("part-left-open", self._last, "The stream ends while a part is open.")
        if "input-streaming" not in states:
            self.warnings[:] = [warning for warning in self.warnings if warning.rule != "call-across-steps"]

    def _posts_again(self, message: UIMessage) -> bool:
        here = [call for call in self.calls.values() if call.step == self.shown]
        own = [call for call in here if not call.provider_executed]
        if self._reason == "interrupted" or not here:
            return False
        if self.phase == "failed" or not own or any(call.state not in _ANSWERED for call in own):
            # The first release looks at all calls except dynamic ones, and also posts after an error.
            static = [call for call in here if not call.dynamic]
            posts = bool(static) and all(call.state == "done" for call in static)
            return posts and not self._takes(_QUIET_AFTER_PROVIDERS)
        if any(call.state == "preliminary" for call in own):
            return not self._takes(_QUIET_AFTER_PRELIMINARY)
        return not (self._has_open_text(message) and self._takes(_QUIET_WITH_OPEN_TEXT))

    def _has_open_text(self, message: UIMessage) -> bool:
        """Whether a text after our own last call in the shown step has not ended."""
        # Only steps that are not shown yet can follow the shown one.
        parts = message.parts[: len(message.parts) - (self.step - self.shown)]
        for part in reversed(parts):
            if part["type"] == "text" and part.get("state") != "done":
                return True
            if is_tool_call(part) and part.get("providerExecuted") is not True:
                return False
        return False

    # Each method takes the class that is its key, which the type checker cannot follow.
    _MOVES: ClassVar = StreamState._MOVES | cast(
        "dict[type[c.Chunk], Callable[[StreamState, c.Chunk], None]]",
        {
            c.TextStart: _part,
            c.ReasoningStart: _part,
            c.ResetStep: _reset,
            c.Finish: _end_with,
            c.Abort: _end_with,
            c.Error: _end_with,
            c.ToolInputStart: _take_input,
            c.ToolInputAvailable: _take_input,
            c.ToolInputError: _take_input,
            c.ToolInputDelta: _take_delta,
            c.ToolOutputAvailable: _take_output,
            c.ToolOutputError: _take_output,
            c.ToolApprovalRequest: _take_request,
            c.ToolApprovalResponse: _take_response,
        },
    )
