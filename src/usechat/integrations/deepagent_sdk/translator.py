"""DeepAgent: the events of one run, in `usechat.events`.

The message ends when the events have run out, since some come after `done`, or with an `error`. A run is *aborted*
without an event for it: its last step, after others, was never finished.

A page can answer a question only when the run has ended. So a question whether a call may be carried out is held back
until then. It is dropped if somebody else answers it, or if the call gets a result. A call that has no result when the
run is done waits for the user as well: the original stops there without an event.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from typing import Any, ClassVar, Final, Literal, TypeAlias, cast

from msgspec import Struct

from usechat import events as e
from usechat.errors import MappingError
from usechat.integrations.deepagent_sdk.events import (
    BATCH,
    CRITICAL,
    EVENTS,
    NOISY,
    SIDE_EVENTS,
    TALK,
    TOOLS,
    Event,
    error_text,
    identifier_in,
    is_abort,
    kind_of,
    read_side_event,
    text_in,
    unknown,
    unusable,
)
from usechat.integrations.deepagent_sdk.pages import document_of, found_pages
from usechat.integrations.deepagent_sdk.side_events import OpenCalls, SideEventBatches
from usechat.protocol import chunks as c
from usechat.protocol.messages import IDENTIFIER, UIMessage, is_tool_call, tool_name

__all__ = [
    "DeepAgentLog",
    "DeepAgentOptions",
    "DeepAgentTranslator",
    "Shown",
    "SourceForm",
    "log_translator",
    "read_options",
]

_Said: TypeAlias = Iterable[e.AgentEvent]
Shown: TypeAlias = Literal["all", "critical"] | Collection[str]
SourceForm: TypeAlias = Literal["data", "standard", "both"]

_FAILED: Final = "Something went wrong, and the run could not be finished."
_INTERRUPTED: Final = "The run was interrupted before it was finished."
# The search tool of the original.
_SEARCH: Final = "web_search"
_TODOS: Final = "todos-changed"
_FORMS: Final = ("data", "standard", "both")
_BATCH_SIZE: Final = 20
_LARGEST_BATCH: Final = 1_000


class DeepAgentOptions(Struct, frozen=True, kw_only=True):
    """What is shown of a run.

    `events`: all; the critical ones, which are text, reasoning, tools, todos, and the start and finish of sub-agents;
    or those that are named. A set of names without text, reasoning or a tool event is about the side events only.
    Steps, approvals, the structured output, usage and the end are always shown.

    `sources`: in the form `standard`, pages that were found become `source-url` and files that were written become
    `source-document` instead of `data-file-written`; `both` has that part as well.

    `batch`: the most side events that may be put together into one part; True is 20, and False puts none together.

    `transient`: the side events that are shown and not kept in the message.

    Raises:
        ValueError: one of them has another value.
    """

    events: Shown = "all"
    sources: SourceForm = "data"
    batch: bool | int = False
    transient: Collection[str] = NOISY

    def __post_init__(self) -> None:
        if isinstance(self.events, str) and self.events not in ("all", "critical"):
            raise ValueError(f'events is "all", "critical" or a set of names, not {self.events!r:.60}.')
        if not isinstance(self.events, str):
            _check_names(self.events, EVENTS, "events")
        if self.sources not in _FORMS:
            raise ValueError(f"sources is one of {', '.join(_FORMS)}, not {self.sources!r:.60}.")
        if not 0 <= self.batch <= _LARGEST_BATCH:
            raise ValueError(f"batch is a number of events up to {_LARGEST_BATCH:,}, not {self.batch!r:.60}.")
        _check_names(self.transient, SIDE_EVENTS.keys(), "transient")

    @property
    def shown(self) -> frozenset[str]:
        """The names of what is shown; those of tool events are all in it or none is."""
        if self.events == "all":
            return EVENTS
        names = CRITICAL if self.events == "critical" else frozenset(self.events)
        if not names & TALK:
            return names | TALK
        return names | TOOLS if names & TOOLS else names

    @property
    def batches(self) -> SideEventBatches | None:
        """What puts side events together, if that is asked for."""
        most = _BATCH_SIZE if self.batch is True else self.batch
        return SideEventBatches(most, self.transient) if most > 1 else None


def _check_names(names: object, known: Set[str], option: str) -> None:
    if isinstance(names, str) or not isinstance(names, Collection):
        raise ValueError(f"{option} must be a set of names, not {names!r:.60}.")
    for name in cast("Collection[object]", names):
        if name not in known:
            raise ValueError(f"{name!r:.60} in {option} is none of {', '.join(sorted(known))}.")


def read_options(given: Mapping[str, Any]) -> DeepAgentOptions:
    """The options from JSON.

    Raises:
        ValueError: a name is not known, or a value is of the wrong kind.
    """
    chosen: dict[str, Any] = {}
    for name, value in given.items():
        match name, value:
            case ("events", str() | list()) | ("transient", list()) | ("sources", str()) | ("batch", bool() | int()):
                chosen[name] = value
            case "transient", str():
                chosen[name] = [value]
            case "events" | "transient" | "sources" | "batch", _:
                raise ValueError(f"The option {name} is {_KINDS[name]}, not {value!r:.60}.")
            case _:
                raise ValueError(f"There is no option {name!r:.60}: the options are {', '.join(_KINDS)}.")
    return DeepAgentOptions(**chosen)


_KINDS: Final = {
    "events": "all, critical or a list of names",
    "sources": "data, standard or both",
    "batch": "true, false or a number",
    "transient": "a list of names",
}
_DEFAULT: Final = DeepAgentOptions()


class DeepAgentTranslator:
    """Translates the events of one run. `continues` is the message that the run goes on with."""

    def __init__(self, options: DeepAgentOptions = _DEFAULT, *, continues: UIMessage | None = None) -> None:
        self._sources = options.sources
        self._shown = options.shown
        self._transient = frozenset(options.transient)
        self._calls = OpenCalls()
        # The calls that search, also those of tools with another name.
        self._searches: set[str] = set()
        # The id of the question about each call that is not answered yet, and the ids of all questions.
        self._asked: dict[str, str] = {}
        self._approval_ids: set[str] = set()
        # The calls of the continued message that the user refused, and whether they are denied yet.
        self._refused: list[str] = []
        self._is_denied = False
        self._continues = False
        for part in () if continues is None else continues.parts:
            if is_tool_call(part):
                self._go_on(part)
        # The run's own todos, and whether a sub-agent shows others in their place.
        self._todos: e.Data | None = None
        self._todos_inside = False
        self._used = False
        self._spoke = False
        self._done = False
        # Whether a step runs, whether anything was said in it, and whether one before it was finished.
        self._begun = False
        self._in_step = False
        self._finished_steps = False

    def translate(self, event: Event) -> _Said:
        """What one event says.

        Raises:
            MappingError: the event has no type that DeepAgent has, or lacks what every event of its type has.
        """
        try:
            move = self._MOVES[event["type"]]
        except (KeyError, TypeError):
            raise unknown(event) from None
        said = move(self, event)
        return said if self._is_denied else (*self._deny(), *said)

    def end(self) -> _Said:
        """How the message ends, since no more events come; without `done` or a question, the run was interrupted."""
        yield from self._deny()
        if self._done and self._finished_steps and self._in_step:
            yield c.Abort()
        elif not self._done and not self._asked:
            yield c.Error(_INTERRUPTED)
        else:
            for call_id, approval_id in self._asked.items():
                yield e.ApprovalRequest(approval_id, call_id)
            if self._done:
                yield e.ApprovalRequest()
            yield e.Finish()

    def _go_on(self, part: Mapping[str, Any]) -> None:
        self._continues = True
        call_id: str = part["toolCallId"]
        approval: Mapping[str, Any] = part.get("approval") or {}
        if "id" in approval:
            self._approval_ids.add(approval["id"])
        if part["state"] == "approval-responded" and approval["approved"]:
            self._calls.see({"type": "tool-call", "toolCallId": call_id, "toolName": tool_name(part)})
        elif part["state"] == "approval-responded":
            self._refused.append(call_id)

    def _deny(self) -> list[e.ToolDenied]:
        """What the user refused is denied before anything else is said."""
        refused = [] if self._is_denied else self._refused
        self._is_denied = True
        return [e.ToolDenied(call_id) for call_id in refused]

    def _text(self, event: Event) -> _Said:
        text = text_in(event, "text")
        if not text or "text" not in self._shown:
            return ()
        self._spoke, self._in_step = True, self._begun
        return (text,)

    def _reasoning(self, event: Event) -> _Said:
        text = text_in(event, "text")
        if not text or "reasoning" not in self._shown:
            return ()
        self._in_step = self._begun
        return (e.Reasoning(text),)

    def _step_start(self, _: Event) -> _Said:
        self._begun, self._in_step = True, False
        return e.EndPart(), e.Step(lazy=True)

    def _step_finish(self, _: Event) -> _Said:
        self._begun, self._in_step, self._finished_steps = False, False, True
        return e.EndPart(), e.Step(lazy=True)

    def _tool_input_start(self, event: Event) -> _Said:
        call_id, tool = identifier_in(event, "toolCallId"), identifier_in(event, "toolName")
        self._calls.see(event)
        self._in_step = self._begun
        return (e.ToolInputStart(call_id, tool),) if "tool-call" in self._shown else ()

    def _tool_input_delta(self, event: Event) -> _Said:
        call_id, delta = identifier_in(event, "toolCallId"), text_in(event, "delta")
        return (e.ToolInputDelta(call_id, delta),) if "tool-call" in self._shown else ()

    def _tool_call(self, event: Event) -> _Said:
        call_id, tool = identifier_in(event, "toolCallId"), identifier_in(event, "toolName")
        if call_id in self._refused:
            # The run goes on with it, and nothing comes of it.
            return ()
        self._calls.see(event)
        if tool == _SEARCH:
            self._searches.add(call_id)
        is_shown = "tool-call" in self._shown
        self._in_step = self._begun and (is_shown or self._in_step)
        return (e.ToolCall(call_id, tool, _args(event), hidden=not is_shown),)

    def _tool_result(self, event: Event) -> Iterator[e.AgentEvent]:
        call_id, tool, result = identifier_in(event, "toolCallId"), event.get("toolName"), event.get("result")
        self._calls.see(event)
        self._asked.pop(call_id, None)
        # With its name, a call that was not announced is made up.
        name = str.__str__(tool) if isinstance(tool, str) and "tool-call" in self._shown else ""
        if event.get("isError") is True:
            yield e.ToolError(call_id, error_text(result), name)
            return
        yield e.ToolResult(call_id, result, name)
        if self._sources != "data" and (tool == _SEARCH or call_id in self._searches):
            yield from found_pages(result)

    def _approval_requested(self, event: Event) -> _Said:
        call_id, approval_id = identifier_in(event, "toolCallId"), identifier_in(event, "approvalId")
        tool = identifier_in(event, "toolName")
        if IDENTIFIER(approval_id) or approval_id in self._approval_ids:
            raise unusable(event, "approvalId")
        if call_id not in self._calls:
            self._calls.see({**event, "type": "tool-call"})
        self._approval_ids.add(approval_id)
        self._asked[call_id] = approval_id
        self._in_step = self._begun
        asked = e.Data("approval-requested", {"approvalId": approval_id}, transient=True, call_id=call_id)
        return e.ToolCall(call_id, tool, _args(event)), asked

    def _approval_response(self, event: Event) -> _Said:
        approval_id, approved = identifier_in(event, "approvalId"), event.get("approved")
        if not isinstance(approved, bool):
            raise unusable(event, "approved")
        call_id = next((call_id for call_id, asked in self._asked.items() if asked == approval_id), None)
        if call_id is None:
            if self._continues:
                # It is the answer that the run goes on with.
                return ()
            raise MappingError("A DeepAgent event `approval-response` answers nothing that was asked.")
        del self._asked[call_id]
        data = {"approvalId": approval_id, "approved": approved}
        answered = e.Data("approval-response", data, transient=True, call_id=call_id)
        return answered, e.ApprovalResponse(approval_id, call_id, approved)

    def _side(self, event: Event) -> list[e.AgentEvent]:
        name, data = event["type"], read_side_event(event)
        owner = self._calls.see(event)
        is_inside = self._calls.in_agent(owner)
        if owner is not None and name.startswith("web-search-") and not is_inside:
            self._searches.add(owner)
        said = [] if self._sources == "data" else list(_cited(name, data))
        if name in self._shown and not (name == "file-written" and self._sources == "standard"):
            is_transient = name in self._transient
            part = e.Data(name, data, "todos" if name == _TODOS else "", transient=is_transient, call_id=owner or "")
            said += (part, *self._own_todos(part, is_inside=is_inside))
        return said

    def _own_todos(self, part: e.Data, *, is_inside: bool) -> _Said:
        """The run's own todos again, when the sub-agent that has shown others in their place is over."""
        if part.name == _TODOS:
            self._todos_inside = is_inside
            self._todos = self._todos if is_inside else part
        elif part.name == "subagent-finish" and self._todos_inside and not self._calls.in_agent(None):
            self._todos_inside = False
            return () if self._todos is None else (self._todos,)
        return ()

    def _batch(self, event: Event) -> Iterator[e.AgentEvent]:
        events = event.get("events")
        if not isinstance(events, list) or not all(kind_of(one) in SIDE_EVENTS for one in cast("list[Any]", events)):
            raise unusable(event, "events")
        said = [one for side_event in cast("list[Event]", events) for one in self._side(side_event)]
        parts = tuple(one for one in said if isinstance(one, e.Data) and not one.id)
        yield from (e.DataBatch(parts, transient=parts[0].transient),) if len(parts) > 1 else parts
        yield from (one for one in said if not isinstance(one, e.Data) or one.id)

    def _source(self, event: Event) -> _Said:
        url, title = identifier_in(event, "url"), event.get("title")
        source = e.Source(url, str.__str__(title) if isinstance(title, str) else "")
        return (source,) if "source" in self._shown else ()

    def _usage(self, event: Event) -> _Said:
        told: dict[str, Any] = {
            name: count for name, path in _COUNTS.items() if (count := _count(event, path)) is not None
        }
        self._used = self._used or bool(told)
        return (e.Usage(**told),) if told else ()

    def _finish(self, event: Event) -> Iterator[e.AgentEvent]:
        if self._done:
            return
        self._done = True
        text = event.get("text")
        # An agent that does not stream says it here for the first time.
        if not self._spoke and isinstance(text, str) and "text" in self._shown:
            yield str.__str__(text)
        yield e.EndPart()
        if event.get("output") is not None:
            yield e.Data("output", event["output"])
        if not self._used and isinstance(event.get("usage"), Mapping):
            yield from self._usage(event["usage"])

    def _error(self, event: Event) -> _Said:
        return (c.Abort() if is_abort(event.get("error")) else c.Error(_FAILED),)

    def _nothing(self, _: Event) -> _Said:
        return ()

    _MOVES: ClassVar[dict[str, Callable[["DeepAgentTranslator", Event], _Said]]] = {
        **dict.fromkeys(SIDE_EVENTS, _side),
        BATCH: _batch,
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
        "usage": _usage,
        "text-segment": _nothing,
        "user-message": _nothing,
        "done": _finish,
        "error": _error,
    }


class DeepAgentLog:
    """Translates the events of a log. Without a clock, side events wait for others until something else happens."""

    def __init__(self, options: DeepAgentOptions) -> None:
        self._translator = DeepAgentTranslator(options)
        self._batches = options.batches

    def translate(self, event: Event) -> _Said:
        if self._batches is None:
            return self._translator.translate(event)
        return self._all(self._batches.take(event))

    def end(self) -> Iterator[e.AgentEvent]:
        if self._batches is not None:
            yield from self._all(self._batches.flush())
        yield from self._translator.end()

    def _all(self, events: Iterable[Event]) -> Iterator[e.AgentEvent]:
        for event in events:
            yield from self._translator.translate(event)


def log_translator(options: Mapping[str, Any]) -> DeepAgentLog:
    """The translator of a recorded log.

    Raises:
        ValueError: there is no such option, or it cannot have that value.
    """
    return DeepAgentLog(read_options(options))


def _args(event: Event) -> Any:
    return {} if event.get("args") is None else event["args"]


def _cited(name: str, data: Mapping[str, Any]) -> _Said:
    """The sources of a side event: a file, a page that was read, or what a sub-agent has found."""
    match name:
        case "file-written":
            yield document_of(data["path"])
        case "fetch-url-finish" if data["success"]:
            yield e.Source(data["url"])
        case "subagent-step":
            for call in data["toolCalls"]:
                if call["toolName"] == _SEARCH:
                    yield from found_pages(_output(call.get("result")))
        case _:
            pass


def _output(result: object) -> object:
    """The output of a sub-agent's call, which the original wraps."""
    return cast("Mapping[str, object]", result).get("output") if isinstance(result, Mapping) else result


# Where each count may stand; the second names are those of the seed and of older releases of the SDK.
_COUNTS: Final = {
    "input_tokens": ("inputTokens", "promptTokens"),
    "output_tokens": ("outputTokens", "completionTokens"),
    "total_tokens": ("totalTokens",),
    "cache_read_tokens": ("inputTokenDetails.cacheReadTokens", "cachedInputTokens"),
    "cache_write_tokens": ("inputTokenDetails.cacheWriteTokens",),
    "reasoning_tokens": ("outputTokenDetails.reasoningTokens", "reasoningTokens"),
}


def _count(usage: Event, places: Iterable[str]) -> float | None:
    for place in places:
        group, _, name = place.rpartition(".")
        found = usage.get(group) if group else usage
        count = cast("Event", found).get(name) if isinstance(found, Mapping) else None
        if type(count) in (int, float):
            return count
    return None
