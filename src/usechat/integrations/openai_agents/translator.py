"""Turns the events of the OpenAI Agents SDK into ours, as objects of the SDK or as the JSON of a recorded log.

The SDK streams three kinds of events: those of the Responses API, whatever the model is; the items that it makes of
them; and the agent that takes over. What it does not stream, the driver adds in the same form: an item
`tool_approval_requested` for each call that waits for the user, `tool_failed`, and `final_output`. An agent that is
used as a tool streams to a callback, as `{"event", "agent", "tool_call"}`.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Final, cast

import msgspec

from usechat import events as e
from usechat.models.decoders import ResponsesDecoder, field_of

__all__ = ["OpenAIAgentsTranslator", "log_translator"]

_FAILED: Final = "The tool failed."
# What the SDK tells the model of a tool that failed. An item has no other sign of it, and 0.17 adds the exception.
_FAILURES: Final = ("An error occurred while running the tool.", "An error occurred while parsing tool arguments.")
_PAUSED: Final = "Goes on when the approvals are answered."
_HANDOFF: Final = "transfer_to_"


class OpenAIAgentsTranslator:
    """`agent` has the conversation, and `handoffs` are the tools by which one agent hands it to another.

    The agents in `structured` answer with a value, which comes as `final_output`, so their text is not shown. In a log,
    a handoff is known by the prefix that the SDK gives it.
    """

    def __init__(
        self, agent: str = "", *, handoffs: Collection[str] | None = None, structured: Collection[str] = ()
    ) -> None:
        self._agent = agent
        self._handoffs = handoffs
        self._structured = structured
        self._responses = ResponsesDecoder()
        # The names of the agents that work as tools, and what reads those that stream, by the ids of their calls.
        self._working: dict[str, str] = {}
        self._streaming: dict[str, OpenAIAgentsTranslator] = {}
        # Whether an agent that works as a tool waits for the user, and its call with it.
        self._is_paused = False

    def translate(self, event: Any) -> Iterable[e.AgentEvent]:
        match field_of(event, "type"):
            case "raw_response_event":
                return self._raw(field_of(event, "data"))
            case "run_item_stream_event":
                read = self._ITEMS.get(field_of(event, "name"))
                return () if read is None else read(self, field_of(event, "item"))
            case "agent_updated_stream_event":
                return self._updated(field_of(field_of(event, "new_agent"), "name"))
            case "tool_failed":
                return (e.ToolError(field_of(event, "call_id"), _FAILED),)
            case "final_output":
                return (e.Data("output", field_of(event, "output")),)
            case _:
                call = field_of(event, "tool_call")
                return () if call is None else self._inside(event, field_of(call, "call_id"))

    def end(self) -> Iterable[e.AgentEvent]:
        yield from self._responses.end()
        if self._is_paused:
            yield e.Pause(_PAUSED)

    def _raw(self, data: Any) -> Iterator[e.AgentEvent]:
        for said in self._responses.translate(data):
            is_hidden = (isinstance(said, e.Text) and self._agent in self._structured) or (
                isinstance(said, e.ToolInputStart | e.ToolCall | e.ToolInputError) and self._is_handoff(said.name)
            )
            if not is_hidden:
                yield said

    def _is_handoff(self, tool: str) -> bool:
        return tool.startswith(_HANDOFF) if self._handoffs is None else tool in self._handoffs

    def _updated(self, name: str) -> Iterator[e.AgentEvent]:
        before, self._agent = self._agent, name
        # The first one only begins.
        if before and before != name:
            yield e.Handoff(name, before)

    def _inside(self, event: Any, call_id: str) -> Iterator[e.AgentEvent]:
        name = field_of(field_of(event, "agent"), "name")
        reader = self._streaming.get(call_id)
        if reader is None:
            reader = self._streaming[call_id] = OpenAIAgentsTranslator(handoffs=self._handoffs)
        self._working[call_id] = name
        for said in reader.translate(field_of(event, "event")):
            yield e.SubAgent(call_id, name, said, call_id=call_id)

    def _called(self, item: Any) -> Iterator[e.AgentEvent]:
        raw = field_of(item, "raw_item")
        # Tools that OpenAI runs have no such id, and the responses have told all of them.
        if (call_id := field_of(raw, "call_id")) is None:
            return
        call = _call(raw, call_id)
        # 0.17 calls a handoff a tool, too.
        if not self._is_handoff(call.name):
            yield call
        if name := _agent_as_tool(item):
            self._working[call_id] = name
            yield e.SubAgent(call_id, name, call_id=call_id)

    def _output(self, item: Any) -> Iterator[e.AgentEvent]:
        call_id, output = field_of(field_of(item, "raw_item"), "call_id"), field_of(item, "output")
        is_failed = isinstance(output, str) and output.startswith(_FAILURES)
        if name := _agent_as_tool(item):
            self._working.pop(call_id, None)
            is_told = is_failed or self._streaming.pop(call_id, None) is not None or not isinstance(output, str)
            said = None if is_told else e.Text(cast("str", output))
            yield e.SubAgent(call_id, name, said, status="failed" if is_failed else "done", call_id=call_id)
        yield e.ToolError(call_id, _FAILED) if is_failed else e.ToolResult(call_id, output)

    def _approval(self, item: Any) -> Iterator[e.AgentEvent]:
        raw, name = field_of(item, "raw_item"), field_of(field_of(item, "agent"), "name")
        call_id = field_of(raw, "call_id") or field_of(raw, "id")
        call, asked = _call(raw, call_id), e.ApprovalRequest("", call_id)
        # An agent that works as a tool has asked, if the one that has the conversation has not.
        owner = next((one for one, agent in self._working.items() if agent == name != self._agent), None)
        if owner is None:
            yield call
            yield asked
        else:
            self._is_paused = True
            yield e.SubAgent(owner, name, call, call_id=owner)
            yield e.SubAgent(owner, name, asked, status="waiting", call_id=owner)

    def _mcp_answer(self, item: Any) -> Iterator[e.AgentEvent]:
        # OpenAI runs the call under another id, so the question itself is over.
        raw = field_of(item, "raw_item")
        asked, approved = field_of(raw, "approval_request_id"), field_of(raw, "approve")
        yield e.ToolResult(asked, {"approved": True}) if approved else e.ToolDenied(asked)

    _ITEMS: ClassVar[dict[str, Callable[["OpenAIAgentsTranslator", Any], Iterable[e.AgentEvent]]]] = {
        "tool_called": _called,
        "tool_output": _output,
        # It ends a call that was not known to be a handoff.
        "handoff_occured": _output,
        "tool_approval_requested": _approval,
        "mcp_approval_response": _mcp_answer,
    }


def _agent_as_tool(item: Any) -> str:
    """The name of the agent that is the tool of this item, if one is."""
    origin = field_of(item, "tool_origin")
    return (field_of(origin, "agent_name") or "") if field_of(origin, "type") == "agent_as_tool" else ""


def _call(raw: Any, call_id: str) -> e.ToolCall | e.ToolInputError:
    """A call, whose name is its type if the tool has none of its own, as for a shell."""
    name = field_of(raw, "name") or field_of(raw, "type").removesuffix("_call")
    arguments = field_of(raw, "arguments")
    if arguments is None:
        given = field_of(raw, "input") or field_of(raw, "action") or field_of(raw, "operation")
        return e.ToolCall(call_id, name, {} if given is None else given)
    try:
        return e.ToolCall(call_id, name, msgspec.json.decode(arguments or "{}"))
    except msgspec.DecodeError:
        return e.ToolInputError(call_id, name, arguments, "The model wrote arguments that are not valid JSON.")


def log_translator(options: Mapping[str, Any]) -> OpenAIAgentsTranslator:
    """The translator of a recorded log, with the `handoffs` and the `structured` agents as options.

    Raises:
        ValueError: there is no such option, or it is no list of names.
    """
    for name, value in options.items():
        if name not in ("handoffs", "structured") or not isinstance(value, list):
            raise ValueError("The options are handoffs, a list of tools, and structured, a list of agents.")
    return OpenAIAgentsTranslator(**options)
