"""DeepAgent: the events of one run, as one message."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

from usechat.errors import MappingError
from usechat.integrations.deepagent_sdk.calls import Call, OpenCalls
from usechat.integrations.deepagent_sdk.fields import Event, error_text, identifier, is_abort, text, unknown, unusable
from usechat.integrations.deepagent_sdk.options import DeepAgentOptions, read_options
from usechat.integrations.deepagent_sdk.parts import SIDE_EVENTS
from usechat.integrations.deepagent_sdk.shown import DataParts, read_side_event
from usechat.integrations.deepagent_sdk.sources import SEARCH, Citations
from usechat.integrations.deepagent_sdk.usage import UsageTotals
from usechat.protocol.chunks import Chunk, ToolApprovalResponse
from usechat.protocol.clients import TYPES
from usechat.protocol.messages import IDENTIFIER
from usechat.protocol.writer import MessageWriter

__all__ = ["FLUSH", "DeepAgentMapper", "DeepAgentOptions", "read_options"]

FLUSH: Final = "flush"
"""The type of an event that is not the agent's: whoever has a clock lets side events that wait for others be shown."""

_DEFAULT: Final = DeepAgentOptions()
_FAILED: Final = "Something went wrong, and the run could not be finished."
_INTERRUPTED: Final = "The run was interrupted before it was finished."


class DeepAgentMapper:
    """Turns the events of one run into one message; `ended` tells that the message is complete.

    The message ends when the events have run out, since some come after `done`, or with an `error`. What comes after
    the end is dropped. A run whose last step, after others, was never finished was aborted. A call that has no result
    at the end waits for the user's approval: whether the run asked for it with an event or just stopped there.

    A question whether a call may be carried out is put to the page when the run has ended, since only then can the page
    answer it. One that is answered during the run is told in the data parts `approval-requested` and
    `approval-response`, and by clients that know the answer as a chunk.
    """

    def __init__(self, writer: MessageWriter, options: DeepAgentOptions = _DEFAULT) -> None:
        self.ended = False
        self._writer = writer
        self._sources = options.sources
        self._shown = options.shown
        self._parts = DataParts(writer, options)
        self._usage = UsageTotals()
        self._open = OpenCalls()
        self._calls: dict[str, Call] = {}
        self._asked: dict[str, Call] = {}
        self._approval_ids = set(writer.state.approvals)
        self._continues = bool(writer.state.calls)
        for call in writer.state.open_calls():
            state = call.state if call.state in ("approved", "refused") else "waiting"
            self._calls[call.id] = Call(call.id, call.name, None, state, shown=True)
            if state == "approved":
                self._open.see({"type": "tool-call", "toolCallId": call.id, "toolName": call.name})
        self._refused = [call.id for call in self._calls.values() if call.state == "refused"]
        self._citations = Citations(writer)
        self._todos: dict[str, Any] | None = None
        self._todos_inside = False
        self._done = False
        self._spoke = False
        # A step that is due begins with its first content, so that one without any is not shown.
        self._step_due = False
        self._finished_steps = False
        self._in_step = False
        self._begun = False

    def map(self, event: Event) -> list[Chunk]:
        """The chunks of one event.

        Raises:
            MappingError: the event has no type that DeepAgent has, or lacks what every event of its type has.
        """
        if self.ended:
            return []
        try:
            move = self._MOVES[event["type"]]
        except (KeyError, TypeError):
            raise unknown(event) from None
        return move(self, event)

    def end(self) -> list[Chunk]:
        """End the message because no more events come; nothing if it has ended."""
        if self.ended:
            return []
        chunks = self._before()
        waiting = [call for call in self._calls.values() if call.state == "running" and (self._done or call.approval)]
        if self._done and self._finished_steps and self._in_step:
            return chunks + self._abort()
        if not self._done and not waiting:
            return chunks + self._fail(_INTERRUPTED)
        for call in waiting:
            chunks += self._ask(call)
        self.ended = True
        open_calls = self._writer.state.open_calls()
        return chunks + self._writer.finish("tool-calls" if any(c.state == "requested" for c in open_calls) else "stop")

    def _before(self) -> list[Chunk]:
        """What goes before everything else: the calls that the user refused, and side events that wait for others."""
        if not self._refused:
            return self._parts.flush()
        refused, self._refused = self._refused, []
        return [chunk for call_id in refused for chunk in self._writer.tool_denied(call_id)] + self._parts.flush()

    def _before_content(self) -> list[Chunk]:
        chunks = self._before()
        if self._step_due:
            self._step_due = False
            chunks += self._writer.step()
        self._in_step = self._begun
        return chunks

    def _text(self, event: Event) -> list[Chunk]:
        return self._say(text(event, "text"), "text", self._writer.text)

    def _reasoning(self, event: Event) -> list[Chunk]:
        return self._say(text(event, "text"), "reasoning", self._writer.reasoning)

    def _say(self, text: str, kind: str, write: Callable[[str], list[Chunk]]) -> list[Chunk]:
        if not text or kind not in self._shown:
            return []
        self._spoke = self._spoke or kind == "text"
        before = self._before_content()
        return before + write(text) if before else write(text)

    def _step_start(self, _: Event) -> list[Chunk]:
        self._begun = True
        return self._end_step()

    def _step_finish(self, _: Event) -> list[Chunk]:
        self._finished_steps, self._begun = True, False
        return self._end_step()

    def _end_step(self) -> list[Chunk]:
        self._step_due, self._in_step = True, False
        return self._before() + self._writer.end_part()

    def _tool_input_start(self, event: Event) -> list[Chunk]:
        call_id, tool = identifier(event, "toolCallId"), identifier(event, "toolName")
        known = self._calls.get(call_id)
        if known is not None and known.state != "over":
            return []
        self._open.see(event)
        call = self._calls[call_id] = Call(call_id, tool, None, "streaming")
        if "tool-call" not in self._shown:
            return []
        call.shown = True
        return self._before_content() + self._writer.tool_input_start(call_id, tool)

    def _tool_input_delta(self, event: Event) -> list[Chunk]:
        delta, call = text(event, "delta"), self._calls.get(identifier(event, "toolCallId"))
        if call is None or call.state != "streaming":
            raise MappingError("A DeepAgent event `tool-input-delta` is of no call whose input streams.")
        return self._before() + self._writer.tool_input_delta(call.id, delta) if call.shown else []

    def _tool_call(self, event: Event) -> list[Chunk]:
        call_id, tool = identifier(event, "toolCallId"), identifier(event, "toolName")
        known = self._calls.get(call_id)
        if known is not None and known.state not in ("streaming", "over"):
            # It came twice, or the run goes on with a call that the user was asked about.
            return []
        self._open.see(event)
        return self._show_call(self._whole(call_id, tool, event.get("args")))

    def _whole(self, call_id: str, tool: str, args: Any) -> Call:
        call = self._calls.get(call_id)
        if call is None or call.state == "over":
            call = self._calls[call_id] = Call(call_id, tool, None, "running")
        call.args, call.state = {} if args is None else args, "running"
        return call

    def _show_call(self, call: Call, *, anyway: bool = False) -> list[Chunk]:
        if not (anyway or call.shown or "tool-call" in self._shown):
            return []
        args, call.args, call.shown = call.args, None, True
        return self._before_content() + self._writer.tool_input(call.id, call.tool, args)

    def _tool_result(self, event: Event) -> list[Chunk]:
        call_id = identifier(event, "toolCallId")
        call = self._calls.get(call_id)
        if call is not None and call.state == "waiting":
            raise MappingError("A DeepAgent event `tool-result` is of a call that waits for an answer.")
        chunks: list[Chunk] = []
        if call is None:
            call = self._whole(call_id, identifier(event, "toolName"), None)
            chunks = self._show_call(call)
        self._open.see(event)
        is_refused = call.state == "refused" or (call.state == "over" and not call.shown)
        return chunks if is_refused else chunks + self._before() + self._result(call, event)

    def _result(self, call: Call, event: Event) -> list[Chunk]:
        call.state, call.approval = "over", None
        result = event.get("result")
        if event.get("isError") is True:
            return self._writer.tool_error(call.id, error_text(result)) if call.shown else []
        chunks = self._writer.tool_output(call.id, result) if call.shown else []
        is_search = call.searches or call.tool == SEARCH
        return chunks + self._citations.pages(result) if is_search and self._sources != "data" else chunks

    def _approval_requested(self, event: Event) -> list[Chunk]:
        call_id, approval_id = identifier(event, "toolCallId"), identifier(event, "approvalId")
        call, tool = self._calls.get(call_id), identifier(event, "toolName")
        if IDENTIFIER(approval_id) or approval_id in self._approval_ids:
            raise unusable(event, "approvalId")
        if call is not None and call.state in ("over", "refused", "waiting"):
            raise MappingError("A DeepAgent event `approval-requested` is of a call that is over or waits already.")
        if call is None or call.state == "streaming":
            self._open.see({**event, "type": "tool-call"})
            call = self._whole(call_id, tool, event.get("args"))
            chunks = self._show_call(call, anyway=True)
        else:
            chunks = [] if call.shown else self._show_call(call, anyway=True)
        call.state, call.approval = "running", approval_id
        self._asked[approval_id] = call
        self._approval_ids.add(approval_id)
        return chunks + self._tell(call, {"approvalId": approval_id}, "approval-requested")

    def _approval_response(self, event: Event) -> list[Chunk]:
        approval_id, approved = identifier(event, "approvalId"), event.get("approved")
        if not isinstance(approved, bool):
            raise unusable(event, "approved")
        call = self._asked.pop(approval_id, None)
        if call is None or call.approval != approval_id:
            if self._continues:
                # It is the answer that the run goes on with.
                return []
            raise MappingError("A DeepAgent event `approval-response` answers nothing that was asked.")
        chunks = self._tell(call, {"approvalId": approval_id, "approved": approved}, "approval-response")
        if self._writer.client.takes(TYPES["tool-approval-response"]):
            chunks += self._ask(call) + self._writer.send(ToolApprovalResponse(approval_id, approved))
        call.approval = None
        if not approved:
            call.state, call.shown = "over", False
            chunks += self._writer.tool_denied(call.id)
        return chunks

    def _tell(self, call: Call, told: dict[str, Any], name: str) -> list[Chunk]:
        data = {**told, "toolCallId": self._writer.wire_id(call.id)}
        return self._before() + self._writer.data(name, data, transient=True)

    def _ask(self, call: Call) -> list[Chunk]:
        """Ask the user whether the call may be carried out."""
        chunks = [] if call.shown else self._show_call(call, anyway=True)
        return chunks + self._writer.approval_request(call.id, approval_id=call.approval)

    def _side(self, event: Event) -> list[Chunk]:
        name, data = event["type"], read_side_event(event)
        owner = self._open.see(event)
        if owner is not None:
            data["toolCallId"] = self._writer.wire_id(owner)
        inside = self._open.in_agent(owner)
        call = self._calls.get(owner or "")
        if name.startswith("web-search-") and call is not None and not inside:
            call.searches = True
        cited = [] if self._sources == "data" else self._citations.side_event(name, data)
        if name not in self._shown or (name == "file-written" and self._sources == "standard"):
            return cited
        return cited + self._parts.show(name, data) + self._show_todos(name, data, inside=inside)

    def _show_todos(self, name: str, data: dict[str, Any], *, inside: bool) -> list[Chunk]:
        """Show the run's own todos again when the sub-agent that has shown others in their place is over."""
        if name == "todos-changed":
            self._todos_inside = inside
            self._todos = self._todos if inside else data
        elif name == "subagent-finish" and self._todos_inside and not self._open.in_agent(None):
            self._todos_inside = False
            return [] if self._todos is None else self._parts.show("todos-changed", self._todos)
        return []

    def _source(self, event: Event) -> list[Chunk]:
        url, title = identifier(event, "url"), event.get("title")
        if "source" not in self._shown:
            return []
        return self._citations.page(url, str.__str__(title) if isinstance(title, str) else "")

    def _used(self, event: Event) -> list[Chunk]:
        usage = self._usage.add(event)
        return [] if usage is None else self._writer.metadata({"usage": usage})

    def _finish(self, event: Event) -> list[Chunk]:
        if self._done:
            return []
        self._done = True
        chunks, said = self._before(), event.get("text")
        if not self._spoke and isinstance(said, str):
            # An agent that does not stream says it here for the first time.
            in_step = self._in_step
            chunks += self._say(text(event, "text"), "text", self._writer.text)
            self._in_step = in_step
        chunks += self._writer.end_part()
        if event.get("output") is not None:
            chunks += self._writer.data("output", event["output"])
        if not self._usage.told and isinstance(event.get("usage"), Mapping):
            chunks += self._used(event["usage"])
        return chunks

    def _error(self, event: Event) -> list[Chunk]:
        chunks = self._before()
        return chunks + (self._abort() if is_abort(event.get("error")) else self._fail(_FAILED))

    def _flush(self, _: Event) -> list[Chunk]:
        return self._before()

    def _nothing(self, _: Event) -> list[Chunk]:
        return []

    def _abort(self) -> list[Chunk]:
        self.ended = True
        return self._writer.abort()

    def _fail(self, sentence: str) -> list[Chunk]:
        self.ended = True
        return self._writer.fail(sentence)

    _MOVES: ClassVar[dict[str, Callable[["DeepAgentMapper", Event], list[Chunk]]]] = {
        **dict.fromkeys(SIDE_EVENTS, _side),
        "text": _text,
        "reasoning": _reasoning,
        "step-start": _step_start,
        "step-finish": _step_finish,
        "tool-input-start": _tool_input_start,
        "tool-input-delta": _tool_input_delta,
        "tool-call": _tool_call,
        "tool-result": _tool_result,
        "approval-requested": _approval_requested,
        "approval-response": _approval_response,
        "source": _source,
        "usage": _used,
        "text-segment": _nothing,
        "user-message": _nothing,
        "done": _finish,
        "error": _error,
        FLUSH: _flush,
    }
