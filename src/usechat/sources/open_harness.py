"""Open Harness: the events of its runtime, as its first adapter had them and as its version 0.2 has them."""

import re
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, Final, TypeAlias, cast

from usechat.errors import MappingError, RemoteProtocolError
from usechat.protocol.chunks import Chunk, Data, File, FinishReason, SourceDocument, SourceUrl
from usechat.protocol.codec import read_chunk
from usechat.protocol.writer import MessageWriter
from usechat.sources.open_harness_options import TransportOptions, read_options
from usechat.sources.open_harness_run import Block, Run, Totals

__all__ = ["OpenHarnessMapper", "TransportOptions", "read_options"]

_Event: TypeAlias = dict[str, Any]

_DEFAULT: Final = TransportOptions()
_FAILED: Final = "Something went wrong, and the run could not be finished."
_TIMED_OUT: Final = "A step of the run took too long, and the run could not be finished."
_INTERRUPTED: Final = "The run was interrupted before it was finished."
_AGENT_FAILED: Final = "Something went wrong while the agent was working."
_TOOL_FAILED: Final = "The tool failed."
_NO_RESULT: Final = "The call ended without a result."
_CUT_OFF: Final = "The call was cut off by an error."
_TIMEOUT: Final = re.compile(r"timed out after (\d{1,12})ms")
_FLOW_STATUS: Final = "flow-status"


class OpenHarnessMapper:
    """Turns the events of one run into one message; what comes after its end is dropped.

    `ended` tells that the message is complete. It ends with the flow, or with its agent if no event of a flow or a node
    was seen. In a log an agent that was paused or aborted may be the last that is told of its flow, and ends the
    message as well; not so if `live`, as the runtime then tells of the flow, and may go on without the agent.
    """

    def __init__(self, writer: MessageWriter, options: TransportOptions = _DEFAULT, *, live: bool = False) -> None:
        self.ended = False
        self._writer = writer
        self._options = options
        self._live = live
        self._runs: dict[str, Run] = {}
        self._last: Run | None = None
        self._calls = 0
        self._totals = Totals()
        self._in_flow = False
        self._flow_name = ""
        self._failure = _FAILED

    def map(self, event: _Event) -> list[Chunk]:
        """The chunks of one event.

        Raises:
            MappingError: the event has no type that Open Harness has, or lacks what every event of its type has.
        """
        if self.ended:
            return []
        try:
            move = self._MOVES[event["type"]]
        except (KeyError, TypeError):
            raise _unknown(event) from None
        return move(self, event)

    def end(self) -> list[Chunk]:
        """End the message because no more events come; nothing if it has ended."""
        return [] if self.ended else self._fail(_INTERRUPTED)

    def _text_delta(self, event: _Event) -> list[Chunk]:
        run, content = self._last, event.get("content")
        # Nearly all events are such and go on with the same run, which was looked at before.
        if (
            run is None
            or event.get("runId") != run.id
            or type(content) is not str
            or type(event.get("nodeId")) is not str
        ):
            content, run = _text(event, "content"), self._run(event)
            self._last = run
        run.text.add(content)
        return self._writer.text(content, run.id)

    def _thinking_delta(self, event: _Event) -> list[Chunk]:
        content, run = _text(event, "content"), self._run(event)
        if not self._options.send_reasoning:
            return []
        run.thinking.add(content)
        return self._writer.reasoning(content, run.id)

    def _whole_text(self, event: _Event) -> list[Chunk]:
        content, run = _text(event, "content"), self._run(event)
        return self._end_block(run, run.text, content, self._writer.text)

    def _whole_thinking(self, event: _Event) -> list[Chunk]:
        content, run = _text(event, "content"), self._run(event)
        if not self._options.send_reasoning:
            return []
        return self._end_block(run, run.thinking, content, self._writer.reasoning)

    def _end_block(self, run: Run, block: Block, content: str, write: Callable[[str, str], list[Chunk]]) -> list[Chunk]:
        rest, goes_on = block.rest_of(content)
        apart = [] if goes_on else self._writer.end_part(lane=run.id)
        return [*apart, *write(rest, run.id), *self._writer.end_part(lane=run.id)]

    def _tool(self, event: _Event) -> list[Chunk]:
        name, error = _text(event, "toolName"), event.get("error")
        if not name or not (error is None or isinstance(error, str)):
            raise _unusable(event, "toolName" if not name else "error")
        run = self._run(event)
        # Version 0.2 tells of a call twice, first with nothing but its input, then without it.
        waiting = None if "toolInput" in event else run.calls.get(name)
        if waiting:
            call = waiting.popleft()
            return [] if call is None else self._result(call, event, error)
        self._calls += 1
        call = f"{run.id}-{self._calls}"
        value = event.get("toolInput")
        chunks = self._writer.tool_input(call, name, {} if value is None else value, lane=run.id)
        over = "toolOutput" in event or error is not None or event.get("durationMs") is not None
        if "toolInput" in event and not over:
            run.calls.setdefault(name, deque()).append(call)
            return chunks
        return chunks + self._result(call, event, error)

    def _result(self, call: str, event: _Event, error: str | None) -> list[Chunk]:
        if error is None:
            return self._writer.tool_output(call, event.get("toolOutput"))
        return self._writer.tool_error(call, error or _TOOL_FAILED)

    def _agent_part(self, event: _Event) -> list[Chunk]:
        part = event.get("part")
        try:
            chunk = read_chunk(cast("_Event", part)).chunk if isinstance(part, dict) else None
        except RemoteProtocolError:
            chunk = None
        if not isinstance(chunk, SourceUrl | SourceDocument | File | Data):
            raise _unusable(event, "part")
        self._run(event)
        return self._writer.send(chunk)

    def _agent_start(self, event: _Event) -> list[Chunk]:
        return self._again(self._run(event))

    def _agent_error(self, event: _Event) -> list[Chunk]:
        run = self._run(event)
        kind, message = _or_empty(event, "errorType"), _or_empty(event, "message")
        # What an exception says was not written for users.
        if not message or kind.casefold().endswith("exception"):
            message = _AGENT_FAILED
        data = {"nodeId": event["nodeId"], "runId": run.id, "errorType": kind, "message": message}
        return self._again(run) + self._writer.data("agent-error", data)

    def _agent_complete(self, event: _Event) -> list[Chunk]:
        self._run(event)
        metadata = self._totals.add(event)
        chunks = self._writer.metadata(metadata) if metadata else []
        return chunks if self._in_flow else chunks + self._finish("stop")

    def _agent_paused(self, event: _Event) -> list[Chunk]:
        return self._end_agent(event, lambda: self._finish("other"))

    def _agent_aborted(self, event: _Event) -> list[Chunk]:
        return self._end_agent(event, self._abort)

    def _end_agent(self, event: _Event, end: Callable[[], list[Chunk]]) -> list[Chunk]:
        run = self._runs.get(_run_id(event))
        if not self._in_flow:
            return end()
        # The agent that ended the turn before may still be on its way.
        if run is None:
            return []
        return self._again(run) if self._live else end()

    def _node_start(self, event: _Event) -> list[Chunk]:
        run = self._run(event)
        self._in_flow = True
        run.calls.clear()
        chunks = self._again(run)
        if self._options.send_step_markers:
            chunks += self._writer.step()
        if self._options.send_flow_metadata:
            chunks += self._node(event, run.id, "running")
        elif self._options.send_step_markers:
            # A page learns of a step by the next chunk that changes the message, and a node may say nothing.
            chunks += self._writer.metadata({})
        return chunks

    def _node_complete(self, event: _Event) -> list[Chunk]:
        run = self._run(event)
        self._in_flow = True
        chunks = self._close(run, _NO_RESULT)
        if self._options.send_flow_metadata:
            chunks += self._node(event, run.id, "complete")
        if self._options.send_node_outputs:
            data = {"nodeId": event["nodeId"], "runId": run.id, "output": event.get("output")}
            chunks += self._writer.data("node-output", data)
        return chunks

    def _node_error(self, event: _Event) -> list[Chunk]:
        run = self._run(event)
        self._in_flow = True
        timeout = _TIMEOUT.search(_or_empty(event, "error"))
        self._failure = _FAILED if timeout is None else _TIMED_OUT
        reason = _CUT_OFF if timeout is None else f"The call timed out after {timeout[1]} ms."
        chunks = self._close(run, reason)
        if self._options.send_flow_metadata:
            chunks += self._node(event, run.id, "failed")
        return chunks

    def _node_skipped(self, event: _Event) -> list[Chunk]:
        node_id = _text(event, "nodeId")
        self._in_flow = True
        if not self._options.send_flow_metadata:
            return []
        data = {"nodeId": node_id, "status": "skipped", "reason": _or_empty(event, "reason")}
        # A node that is skipped has no run.
        return self._writer.data("node", data, id=f"skipped-{node_id}")

    def _node(self, event: _Event, run_id: str, status: str) -> list[Chunk]:
        return self._writer.data("node", {"nodeId": event["nodeId"], "runId": run_id, "status": status}, id=run_id)

    def _again(self, run: Run) -> list[Chunk]:
        """What the run says from here on is said anew, even if it was said before."""
        run.text, run.thinking = Block(), Block()
        return self._writer.end_part(lane=run.id)

    def _close(self, run: Run, reason: str) -> list[Chunk]:
        chunks = self._writer.end_part(lane=run.id)
        for call in run.close_calls():
            chunks += self._writer.tool_error(call, reason)
        if not run.calls:
            del self._runs[run.id]
            self._last = None
        return chunks

    def _flow_start(self, event: _Event) -> list[Chunk]:
        return self._status(event, "running")

    def _flow_complete(self, event: _Event) -> list[Chunk]:
        if event.get("status") == "failed":
            return self._status(event, "failed") + self._fail(self._failure)
        return self._status(event, "complete") + self._finish("stop")

    def _flow_paused(self, event: _Event) -> list[Chunk]:
        return self._status(event, "paused") + self._finish("other")

    def _flow_aborted(self, event: _Event) -> list[Chunk]:
        return self._status(event, "aborted") + self._abort()

    def _status(self, event: _Event, status: str) -> list[Chunk]:
        self._in_flow = True
        # Only the first and the last event of a flow have its name.
        self._flow_name = _or_empty(event, "flowName") or self._flow_name
        if not self._options.send_flow_metadata:
            return []
        return self._writer.data(_FLOW_STATUS, {"status": status, "flowName": self._flow_name}, id=_FLOW_STATUS)

    def _flow_event(self, event: _Event) -> list[Chunk]:
        return self._writer.data("flow-event", event) if self._options.send_flow_metadata else []

    def _enveloped(self, event: _Event) -> list[Chunk]:
        inner = event.get("event")
        if not isinstance(inner, dict):
            raise _unusable(event, "event")
        frame = cast("_Event", inner)
        if frame.get("type") == "event":
            raise _unknown(frame)
        return self.map(frame)

    def _finish(self, reason: FinishReason) -> list[Chunk]:
        self.ended = True
        return self._writer.finish(reason)

    def _abort(self) -> list[Chunk]:
        self.ended = True
        return self._writer.abort()

    def _fail(self, text: str) -> list[Chunk]:
        self.ended = True
        return self._writer.fail(text)

    def _run(self, event: _Event) -> Run:
        run_id = _run_id(event)
        run = self._runs.get(run_id)
        if run is None:
            run = self._runs[run_id] = Run.fresh(run_id)
        return run

    _MOVES: ClassVar[dict[str, Callable[["OpenHarnessMapper", _Event], list[Chunk]]]] = {
        "flow:start": _flow_start,
        "flow:complete": _flow_complete,
        "flow:paused": _flow_paused,
        "flow:resumed": _flow_start,
        "flow:aborted": _flow_aborted,
        "node:start": _node_start,
        "node:complete": _node_complete,
        "node:error": _node_error,
        "node:skipped": _node_skipped,
        "edge:fire": _flow_event,
        "loop:iterate": _flow_event,
        "state:patch": _flow_event,
        "command:received": _flow_event,
        "recording:linked": _flow_event,
        "agent:start": _agent_start,
        "agent:text:delta": _text_delta,
        "agent:text": _whole_text,
        "agent:thinking:delta": _thinking_delta,
        "agent:thinking": _whole_thinking,
        "agent:tool": _tool,
        # Not the original's: it has no event for what an agent of ours gives beside text and tools.
        "agent:part": _agent_part,
        "agent:error": _agent_error,
        "agent:complete": _agent_complete,
        "agent:paused": _agent_paused,
        "agent:aborted": _agent_aborted,
        # The frames of its WebSocket.
        "event": _enveloped,
    }


def _run_id(event: _Event) -> str:
    run_id = event.get("runId")
    if not isinstance(run_id, str) or not isinstance(event.get("nodeId"), str):
        raise _unusable(event, "runId" if isinstance(event.get("nodeId"), str) else "nodeId")
    return run_id


def _text(event: _Event, name: str) -> str:
    value = event.get(name)
    if not isinstance(value, str):
        raise _unusable(event, name)
    return value


def _or_empty(event: _Event, name: str) -> str:
    value = event.get(name)
    return value if isinstance(value, str) else ""


def _unusable(event: _Event, name: str) -> MappingError:
    return MappingError(f"An Open Harness event `{event['type']}` has no usable `{name}`.")


def _unknown(event: object) -> MappingError:
    kind = cast("_Event", event).get("type") if isinstance(event, dict) else None
    if isinstance(kind, str):
        return MappingError(f"Open Harness has no event of the type {kind!r:.60}.")
    return MappingError("An Open Harness event has no type.")
