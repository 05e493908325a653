"""Events of Agno in the vocabulary of `usechat.events`, as objects of a run or as the dicts of `event.to_json()`.

The events of a team are those of an agent with `Team` before their names. Runs of members, and of agents that a tool
runs, have ids of their own.
"""

import ast
import base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, TypeAlias, cast

import msgspec
from msgspec import structs

from usechat import events as e
from usechat.errors import MappingError
from usechat.protocol import chunks as c

__all__ = ["METADATA", "SIGNED", "AgnoTranslator", "answer_id", "field", "kind_of", "log_translator"]

_Event: TypeAlias = Any
_Said: TypeAlias = Iterable[e.AgentEvent]

METADATA: Final = "agno"
"""The name under which the message keeps what a provider wants back of its reasoning."""

SIGNED: Final = ("signature", "reasoning_output")
"""What Anthropic, and OpenAI with `store=False`, want back of their reasoning, as Agno names it."""

_FAILED: Final = "The agent failed."
# Agno gives the text of the exception, which is for the model and the log.
_TOOL_FAILED: Final = "The tool failed."
_INTERRUPTED: Final = "The run was interrupted."
_STATUS: Final[dict[str, Literal["running", "done", "failed", "waiting"]]] = {
    "RunCompleted": "done",
    "RunError": "failed",
    "RunCancelled": "failed",
    "RunPaused": "waiting",
}
_CACHE_APART: Final = ("Anthropic", "AwsBedrock", "AzureFoundry", "VertexAI")
# What every event has, beside the fields of a custom one.
_COMMON: Final = (
    *("created_at", "event", "run_id", "parent_run_id", "session_id", "agent_id", "agent_name", "team_id", "team_name"),
    *("workflow_id", "workflow_run_id", "step_id", "step_name", "step_index", "nested_depth", "tools", "content"),
    "tool_call_id",
)


class AgnoTranslator:
    """Translates one run. `answered` is how calls have ended by the user's answer, of which Agno 3.1 has no event."""

    def __init__(self, answered: Sequence[e.ToolDenied | e.ToolResult] = ()) -> None:
        self._answered = answered
        self._run = ""
        self._is_over = False

    def translate(self, event: _Event) -> Iterator[e.AgentEvent]:
        kind, run_id, parent = kind_of(event), field(event, "run_id") or "", field(event, "parent_run_id") or ""
        if not self._run:
            self._run = parent or run_id
            yield from self._answered
        if run_id in ("", self._run):
            yield from self._read(kind, event)
            self._is_over = self._is_over or kind in _STATUS
            return
        name = field(event, "agent_name") or field(event, "team_name") or "agent"
        above = "" if parent == self._run else parent
        if kind == "RunContinued":
            for end in self._answered:
                own = structs.replace(end, id=end.id.removeprefix(f"{run_id}:"))
                yield e.SubAgent(run_id, name, own, parent=above)
        # How a sub-agent's run ends says nothing of the message, and the team repeats what a member waits for.
        for said in () if kind in _STATUS else self._read(kind, event):
            yield e.SubAgent(run_id, name, said, parent=above)
        if kind in _STATUS or kind == "RunStarted":
            yield e.SubAgent(run_id, name, status=_STATUS.get(kind, "running"), parent=above)

    def end(self) -> _Said:
        return () if self._is_over else (c.Error(_INTERRUPTED),)

    def _read(self, kind: str, event: _Event) -> _Said:
        read = self._READS.get(kind)
        # A page has no use for hooks, memories, summaries and compactions. Steps of reasoning are tool calls, too.
        return () if read is None else read(self, event)

    def _step(self, _: _Event) -> _Said:
        return (e.Step(),)

    def _content(self, event: _Event) -> _Said:
        if thought := field(event, "reasoning_content"):
            yield e.Reasoning(thought)
        given = field(event, "model_provider_data")
        if signed := {name: field(given, name) for name in SIGNED if field(given, name)}:
            yield e.Reasoning("", metadata={METADATA: signed})
        content = field(event, "content")
        if isinstance(content, str):
            if content:
                yield e.Text(content)
        elif content is not None:
            yield e.Data("output", _json(content))
        yield from _sources(event)
        yield from _files((field(event, "image"),), "image/png")

    def _thought(self, event: _Event) -> _Said:
        return (e.Reasoning(field(event, "reasoning_content") or ""),)

    def _call(self, event: _Event) -> _Said:
        return (_tool_call(field(event, "tool")),)

    def _result(self, event: _Event) -> _Said:
        tool = field(event, "tool")
        call_id, name, result = field(tool, "tool_call_id"), field(tool, "tool_name"), field(tool, "result")
        if field(tool, "tool_call_error"):
            yield e.ToolError(call_id, _TOOL_FAILED, name)
        else:
            yield e.ToolResult(call_id, _value(result), name)
        yield from _files(field(event, "images") or (), "image/png")
        yield from _files(field(event, "files") or (), "application/octet-stream")

    def _tool_error(self, event: _Event) -> _Said:
        tool = field(event, "tool")
        return (e.ToolError(field(tool, "tool_call_id"), _TOOL_FAILED),)

    def _used(self, event: _Event) -> _Said:
        used = [field(event, name) for name in ("input_tokens", "cache_read_tokens", "cache_write_tokens")]
        # Agno 3.1 has zeros for a model that reports none.
        if not used[0] and not field(event, "output_tokens"):
            return ()
        # Agno 3.1 has the numbers of these providers as they are: their input is only what no cache has.
        cached = sum(filter(None, used[1:])) if field(event, "model_provider") in _CACHE_APART else 0
        total = field(event, "total_tokens")
        return (
            e.Usage(
                input_tokens=(used[0] or 0) + cached,
                output_tokens=field(event, "output_tokens"),
                total_tokens=None if total is None else total + cached,
                cache_read_tokens=used[1],
                cache_write_tokens=used[2],
                reasoning_tokens=field(event, "reasoning_tokens"),
                model=field(event, "model") or "",
            ),
        )

    def _paused(self, event: _Event) -> _Said:
        for requirement in field(event, "requirements") or ():
            tool, member = field(requirement, "tool_execution"), field(requirement, "member_run_id")
            call, call_id = _tool_call(tool), answer_id(requirement)
            # A run that waits again has what it has waited for before, too.
            if any(field(tool, name) is not None for name in ("confirmed", "answered", "result")):
                continue
            # The page runs a tool that is to be executed outside; all others wait for the user.
            if field(tool, "external_execution_required"):
                yield structs.replace(call, id=call_id)
                continue
            for said in (call, e.ApprovalRequest("", call.id)):
                if member:
                    name = field(requirement, "member_agent_name") or "agent"
                    yield e.SubAgent(member, name, said, "waiting")
                else:
                    yield said
            inputs, questions = field(tool, "user_input_schema"), field(tool, "user_feedback_schema")
            if inputs or questions:
                asked = {"fields": _json(inputs or []), "questions": _json(questions or [])}
                yield e.Data("input-required", asked, id=call_id, call_id=call_id)
        yield e.Finish()

    def _suggested(self, event: _Event) -> _Said:
        return (e.Data("followups", _json(field(event, "followups") or [])),)

    def _custom(self, event: _Event) -> _Said:
        fields = cast("Mapping[str, Any]", event if isinstance(event, Mapping) else vars(event))
        data = {name: _json(value) for name, value in fields.items() if name not in _COMMON}
        return (e.Data("custom-event", data, call_id=field(event, "tool_call_id") or ""),)

    def _completed(self, event: _Event) -> _Said:
        # A team has them only here.
        yield from _sources(event)
        yield e.Finish()

    def _failed(self, _: _Event) -> _Said:
        return (c.Error(_FAILED),)

    def _cancelled(self, _: _Event) -> _Said:
        return (c.Abort(),)

    _READS: ClassVar[dict[str, Callable[["AgnoTranslator", _Event], _Said]]] = {
        "ModelRequestStarted": _step,
        "ModelRequestCompleted": _used,
        "RunContent": _content,
        "ReasoningContentDelta": _thought,
        "ToolCallStarted": _call,
        "ToolCallCompleted": _result,
        "ToolCallError": _tool_error,
        "RunPaused": _paused,
        "FollowupsCompleted": _suggested,
        "CustomEvent": _custom,
        "RunCompleted": _completed,
        "RunError": _failed,
        "RunCancelled": _cancelled,
    }


def log_translator(options: Mapping[str, Any]) -> AgnoTranslator:
    """The translator of a recorded log.

    Raises:
        ValueError: there is no such option.
    """
    if options:
        raise ValueError("Agno has no options.")
    return AgnoTranslator()


def field(thing: Any, name: str) -> Any:
    """A field of an object of Agno, or of its JSON; None if it has none."""
    if isinstance(thing, Mapping):
        return cast("Mapping[str, Any]", thing).get(name)
    return getattr(thing, name, None)


def kind_of(event: _Event) -> str:
    """The name of an event, which is the same for agents and teams.

    Raises:
        MappingError: it is no event.
    """
    kind = field(event, "event")
    if not isinstance(kind, str):
        raise MappingError(f"Agno has no event of the type {type(event).__name__}.")
    return str.__str__(kind).removeprefix("Team")


def answer_id(requirement: Any) -> str:
    """The id that the message has for the call of a requirement: calls of members have the run before their own."""
    call_id, member = field(field(requirement, "tool_execution"), "tool_call_id"), field(requirement, "member_run_id")
    return f"{member}:{call_id}" if member else call_id


def _tool_call(tool: Any) -> e.ToolCall:
    return e.ToolCall(field(tool, "tool_call_id"), field(tool, "tool_name") or "", field(tool, "tool_args") or {})


def _value(result: Any) -> Any:
    """What a tool returned: Agno 3.1 has it as text, an object or a list by `str`, which is no JSON."""
    if not isinstance(result, str) or result[:1] not in ("{", "["):
        return result
    try:
        return msgspec.json.decode(result)
    except msgspec.DecodeError:
        pass
    try:
        return _json(ast.literal_eval(result))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return result


def _json(value: Any) -> Any:
    """A value of Agno as JSON; what has none is left out."""
    match value:
        case Mapping():
            return {str(key): _json(item) for key, item in cast("Mapping[Any, Any]", value).items()}
        case list() | tuple() | set():
            return [_json(item) for item in cast("Iterable[Any]", value)]
        case None | str() | int() | float():
            return value
        case _:
            dump = getattr(value, "model_dump", None)
            to_dict = getattr(value, "to_dict", None)
            if dump is not None:
                return dump(mode="json")
            return _json(to_dict()) if to_dict is not None else None


def _sources(event: _Event) -> _Said:
    citations = field(event, "citations")
    # Agno 3.1 takes the words that Claude cites for the title of the page.
    titles = {field(raw, "url"): field(raw, "title") for raw in field(citations, "raw") or ()}
    for cited in field(citations, "urls") or ():
        if url := field(cited, "url"):
            yield e.Source(url, titles.get(url) or field(cited, "title") or "")
    for cited in field(citations, "documents") or ():
        yield e.Document(field(cited, "document_title") or field(cited, "file_name") or "", "application/pdf")


def _files(media: Iterable[Any], default: str) -> _Said:
    for file in media:
        content, media_type = field(file, "content"), field(file, "mime_type") or default
        if url := field(file, "url"):
            yield e.File(url, media_type)
        elif content:
            # In JSON it is base64 already.
            encoded = content if isinstance(content, str) else base64.b64encode(content).decode()
            yield e.File(f"data:{media_type};base64,{encoded}", media_type)
