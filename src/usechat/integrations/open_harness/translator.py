"""Translates the events of an Open Harness runtime, of its first adapter and of version 0.2.

Every event of an agent has the id of its node's run (`runId`), which is the key of what the agent says. A call has no
id: version 0.2 emits it twice, first with only its input, then with only its result. Calls of the same tool get their
results in the order of the calls. A block of text comes as deltas, whole, or both.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Final, TypeAlias, cast

from msgspec import Struct

from usechat import events as e
from usechat.errors import MappingError, RemoteProtocolError
from usechat.protocol import chunks as c
from usechat.protocol.codec import read_chunk

__all__ = ["SWITCHES", "OpenHarnessTranslator", "TransportOptions", "log_translator", "read_options"]

_Event: TypeAlias = dict[str, Any]
_Said: TypeAlias = Iterable[e.AgentEvent]

_FAILED: Final = "Something went wrong, and the run could not be finished."
_TIMED_OUT: Final = "A step of the run took too long, and the run could not be finished."
_INTERRUPTED: Final = "The run was interrupted before it was finished."
_AGENT_FAILED: Final = "Something went wrong while the agent was working."
_TOOL_FAILED: Final = "The tool failed."
_NO_RESULT: Final = "The call ended without a result."
_CUT_OFF: Final = "The call was cut off by an error."
_TIMEOUT: Final = re.compile(r"timed out after (\d{1,12})ms")
_FLOW_STATUS: Final = "flow-status"
# The status of a flow after the event, and the end of its message.
_ENDS: Final[dict[str, tuple[str, c.Chunk]]] = {
    "flow:complete": ("complete", c.Finish("stop")),
    "flow:paused": ("paused", c.Finish("other")),
    "flow:aborted": ("aborted", c.Abort()),
}
_TOTALS: Final = ("totalCostUsd", "durationMs", "numTurns")
# JavaScript cannot count further, so this is not a number of tokens.
_UNCOUNTABLE: Final = 2**53


class TransportOptions(Struct, frozen=True, kw_only=True):
    """What the stream of a run contains beside text and tools.

    `send_step_markers` begins a step with every node. `send_flow_metadata` sends the events of the flow, with its state
    and commands, and `send_node_outputs` what nodes return: either may be more than a user should see.
    `generate_message_id` makes the ids of new messages in place of the server.
    """

    send_reasoning: bool = True
    send_step_markers: bool = True
    send_flow_metadata: bool = False
    send_node_outputs: bool = False
    generate_message_id: Callable[[], str] | None = None


SWITCHES: Final = tuple(name for name in TransportOptions.__struct_fields__ if name.startswith("send_"))
"""The options that are on or off."""


def read_options(given: Mapping[str, Any]) -> TransportOptions:
    """The options from JSON, by their names here or as the TypeScript adapter spells them (`sendReasoning`).

    Raises:
        ValueError: a name is not known, or a value is not true or false.
    """
    chosen: dict[str, Any] = {}
    for name, value in given.items():
        switch = next((switch for switch in SWITCHES if name in (switch, _camel(switch))), None)
        if switch is None:
            raise ValueError(f"There is no option {name!r:.60}: the options are {', '.join(SWITCHES)}.")
        if not isinstance(value, bool):
            raise ValueError(f"The option {name} is true or false, not {value!r:.60}.")
        chosen[switch] = value
    return TransportOptions(**chosen)


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


_DEFAULT: Final = TransportOptions()


class OpenHarnessTranslator:
    """Translates the events of one run into one message.

    The message ends with the flow, or with its agent if there was no event of a flow or a node. In a log, the pause or
    abort of an agent may be the last event of its flow, and ends the message as well. `live` events come from a
    runtime, which emits the end of the flow itself and may continue without the agent. At the first event, `joined`
    returns the name of the flow if the flow began before this message.
    """

    def __init__(
        self,
        options: TransportOptions = _DEFAULT,
        *,
        live: bool = False,
        joined: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._options = options
        self._live = live
        self._joined = joined
        self._has_begun = False
        self._runs: set[str] = set()
        # The run of the last piece of text, until its node ends.
        self._speaker = ""
        self._calls = 0
        self._in_flow = False
        self._flow_name = ""
        self._failure = _FAILED

    def translate(self, event: _Event) -> _Said:
        """Translate one event.

        Raises:
            MappingError: the event has an unknown type, or lacks a required field.
        """
        try:
            move = self._MOVES[event["type"]]
        except (KeyError, TypeError):
            raise _unknown(event) from None
        return move(self, event) if self._has_begun else self._begin(move, event)

    def _begin(self, move: "_Move", event: _Event) -> _Said:
        name = self._joined()
        status = () if name is None else self._status({"flowName": name}, "running")
        said = [*status, *move(self, event)]
        # Not if the event was refused.
        self._has_begun = True
        return said

    def end(self) -> _Said:
        """An error, because no event has ended the message."""
        return (c.Error(_INTERRUPTED),)

    def _text_delta(self, event: _Event) -> _Said:
        content = event.get("content")
        # The fast path: nearly all events are deltas of the same run as the one before.
        if type(content) is not str or type(event.get("nodeId")) is not str or event.get("runId") != self._speaker:
            content, self._speaker = _text(event, "content"), self._run(event)
        return (e.Text(content, self._speaker),)

    def _whole_text(self, event: _Event) -> _Said:
        return (e.Text(_text(event, "content"), self._run(event), whole=True, block=True),)

    def _thinking(self, event: _Event) -> _Said:
        content, run_id, is_whole = _text(event, "content"), self._run(event), event["type"] == "agent:thinking"
        reasoning = e.Reasoning(content, run_id, whole=is_whole, block=is_whole)
        return (reasoning,) if self._options.send_reasoning else ()

    def _tool(self, event: _Event) -> _Said:
        name, error = _text(event, "toolName"), event.get("error")
        if not name or not (error is None or isinstance(error, str)):
            raise _unusable(event, "toolName" if not name else "error")
        run_id, call_id = self._run(event), ""
        if "toolInput" in event:
            self._calls += 1
            call_id = f"{run_id}-{self._calls}"
            value = event["toolInput"]
            yield e.ToolCall(call_id, name, {} if value is None else value, key=run_id)
            if "toolOutput" not in event and error is None and event.get("durationMs") is None:
                return
        if error is None:
            yield e.ToolResult(call_id, event.get("toolOutput"), name, key=run_id)
        else:
            yield e.ToolError(call_id, error or _TOOL_FAILED, name, key=run_id)

    def _agent_part(self, event: _Event) -> _Said:
        part = event.get("part")
        try:
            chunk = read_chunk(cast("_Event", part)).chunk if isinstance(part, dict) else None
        except RemoteProtocolError:
            chunk = None
        if not isinstance(chunk, c.SourceUrl | c.SourceDocument | c.File | c.Data):
            raise _unusable(event, "part")
        self._run(event)
        return (chunk,)

    def _agent_start(self, event: _Event) -> _Said:
        return (e.EndPart(self._run(event)),)

    def _agent_error(self, event: _Event) -> _Said:
        run_id = self._run(event)
        kind, message = _or_empty(event, "errorType"), _or_empty(event, "message")
        # The text of an exception was not written for users.
        if not message or kind.casefold().endswith("exception"):
            message = _AGENT_FAILED
        data = {"nodeId": event["nodeId"], "runId": run_id, "errorType": kind, "message": message}
        return e.EndPart(run_id), e.Data("agent-error", data)

    def _agent_complete(self, event: _Event) -> _Said:
        self._run(event)
        usage = e.Usage(**_tokens(event.get("usage")), extra={name: event[name] for name in _TOTALS if name in event})
        return (usage,) if self._in_flow else (usage, c.Finish("stop"))

    def _end_agent(self, event: _Event) -> _Said:
        run_id, end = _run_id(event), c.Finish("other") if event["type"] == "agent:paused" else c.Abort()
        if not self._in_flow:
            return (end,)
        # It may be the late event of an agent that ended an earlier turn.
        if run_id not in self._runs:
            return ()
        return (e.EndPart(run_id) if self._live else end,)

    def _node_start(self, event: _Event) -> _Said:
        run_id = self._run(event)
        self._in_flow = True
        yield e.EndPart(run_id)
        if self._options.send_step_markers:
            yield e.Step()
        if self._options.send_flow_metadata:
            yield _node(event, "running")
        elif self._options.send_step_markers:
            # A page shows a step with the next chunk that changes the message, and a node may say nothing.
            yield c.MessageMetadata({})

    def _end_node(self, event: _Event) -> _Said:
        run_id, reason = _run_id(event), _NO_RESULT
        failed = event["type"] == "node:error"
        if failed:
            timeout = _TIMEOUT.search(_or_empty(event, "error"))
            self._failure = _FAILED if timeout is None else _TIMED_OUT
            reason = _CUT_OFF if timeout is None else f"The call timed out after {timeout[1]} ms."
        self._in_flow = True
        self._runs.discard(run_id)
        self._speaker = ""
        yield e.EndPart(run_id)
        yield e.EndCalls(reason, run_id)
        if self._options.send_flow_metadata:
            yield _node(event, "failed" if failed else "complete")
        if self._options.send_node_outputs and not failed:
            yield e.Data("node-output", {"nodeId": event["nodeId"], "runId": run_id, "output": event.get("output")})

    def _node_skipped(self, event: _Event) -> _Said:
        node_id = _text(event, "nodeId")
        self._in_flow = True
        data = {"nodeId": node_id, "status": "skipped", "reason": _or_empty(event, "reason")}
        # A node that is skipped has no run.
        return (e.Data("node", data, f"skipped-{node_id}"),) if self._options.send_flow_metadata else ()

    def _flow(self, event: _Event) -> _Said:
        if event["type"] not in _ENDS:
            return self._status(event, "running")
        status, end = _ENDS[event["type"]]
        if status == "complete" and event.get("status") == "failed":
            status, end = "failed", c.Error(self._failure)
        return *self._status(event, status), end

    def _status(self, event: _Event, status: str) -> _Said:
        self._in_flow = True
        # Only the first and the last event of a flow have its name.
        self._flow_name = _or_empty(event, "flowName") or self._flow_name
        data = {"status": status, "flowName": self._flow_name}
        return (e.Data(_FLOW_STATUS, data, _FLOW_STATUS),) if self._options.send_flow_metadata else ()

    def _flow_event(self, event: _Event) -> _Said:
        return (e.Data("flow-event", event),) if self._options.send_flow_metadata else ()

    def _enveloped(self, event: _Event) -> _Said:
        inner = event.get("event")
        if not isinstance(inner, dict):
            raise _unusable(event, "event")
        frame = cast("_Event", inner)
        if frame.get("type") == "event":
            raise _unknown(frame)
        return self.translate(frame)

    def _run(self, event: _Event) -> str:
        run_id = _run_id(event)
        self._runs.add(run_id)
        return run_id

    _MOVES: ClassVar[dict[str, "_Move"]] = {
        "flow:start": _flow,
        "flow:complete": _flow,
        "flow:paused": _flow,
        "flow:resumed": _flow,
        "flow:aborted": _flow,
        "node:start": _node_start,
        "node:complete": _end_node,
        "node:error": _end_node,
        "node:skipped": _node_skipped,
        "edge:fire": _flow_event,
        "loop:iterate": _flow_event,
        "state:patch": _flow_event,
        "command:received": _flow_event,
        "recording:linked": _flow_event,
        "agent:start": _agent_start,
        "agent:text:delta": _text_delta,
        "agent:text": _whole_text,
        "agent:thinking:delta": _thinking,
        "agent:thinking": _thinking,
        "agent:tool": _tool,
        # Not in the original, which has no event for sources, files and data.
        "agent:part": _agent_part,
        "agent:error": _agent_error,
        "agent:complete": _agent_complete,
        "agent:paused": _end_agent,
        "agent:aborted": _end_agent,
        # The frames of its WebSocket.
        "event": _enveloped,
    }


_Move: TypeAlias = Callable[[OpenHarnessTranslator, _Event], _Said]


def log_translator(options: Mapping[str, Any]) -> OpenHarnessTranslator:
    """The translator of a recorded log.

    Raises:
        ValueError: there is no such option, or it cannot have that value.
    """
    return OpenHarnessTranslator(read_options(options))


def _node(event: _Event, status: str) -> e.Data:
    return e.Data("node", {"nodeId": event["nodeId"], "runId": event["runId"], "status": status}, event["runId"])


def _tokens(usage: Any) -> dict[str, Any]:
    """The tokens of a `Usage`, whose input includes the cache; upstream counts the cache separately."""
    match usage:
        case {**told}:
            names = ("inputTokens", "cacheReadInputTokens", "cacheCreationInputTokens", "outputTokens")
            uncached, read, written, output = (_number(told.get(name)) for name in names)
            whole = uncached + read + written
            cached = {"cache_read_tokens": read, "cache_write_tokens": written}
            return {"input_tokens": whole, "output_tokens": output, **cached}
        case _:
            return {}


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _UNCOUNTABLE:
        return 0
    return value


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
