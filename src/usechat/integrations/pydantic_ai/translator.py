"""Pydantic AI: the events of a run, in `usechat.events`.

Events are the framework's objects, or their JSON in a recorded log. Each part of a model's response has a start, deltas
and an end, and its index begins at 0 again with each response. The tools then tell of each call and its result.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, TypeAlias, cast

import msgspec
from msgspec import Struct

from usechat import events as e
from usechat.errors import MappingError
from usechat.models.decoders import field_of
from usechat.protocol.chunks import FinishReason

__all__ = ["METADATA", "OUTPUT_TOOL", "PydanticAITranslator", "SubAgentEvent", "UsageEvent", "log_translator"]

_Said: TypeAlias = Iterable[e.AgentEvent]

METADATA: Final = "pydantic_ai"
"""The key of the provider metadata in which a part keeps what its provider wants back, as in Pydantic AI's adapter."""

OUTPUT_TOOL: Final = "final_result"
"""How the names of output tools begin, unless the agent's `ToolOutput` names them."""

_KEPT: Final = ("id", "signature", "provider_name", "provider_details", "tool_kind")
_NOT_SHOWN: Final = frozenset(
    (
        "capability",
        "capability_load_delta",
        "enqueued_messages",
        # It comes with the first text, even if calls follow.
        "final_result",
        "model_settings_delta",
        "tool_availability_delta",
    )
)
_CHUNKS: Final = ("data-", "source-", "file")
_REASONS: Final[dict[str | None, FinishReason]] = {
    # Not every model tells.
    None: "stop",
    "stop": "stop",
    "length": "length",
    "content_filter": "content-filter",
    "tool_call": "stop",
}


class SubAgentEvent(Struct, frozen=True, kw_only=True):
    """An event of a run that a tool has started, or how it goes with that run."""

    run_id: str
    name: str
    event: Any = None
    status: Literal["running", "done", "failed"] = "running"
    event_kind: Literal["sub_agent"] = "sub_agent"


class UsageEvent(Struct, frozen=True, kw_only=True):
    """What a run has used so far, those of its tools included."""

    usage: Any
    event_kind: Literal["usage"] = "usage"


class PydanticAITranslator:
    """Reads the events of one run. `output_tools` are the names that the agent has given to its output tools."""

    def __init__(self, output_tools: Collection[str] = ()) -> None:
        self._output_tools = frozenset(output_tools)
        # The name and the id of the call that is the answer of the run.
        self._output_call = ""
        self._is_merged = False
        self._requests: Any = None
        self._sub_agents: dict[str, PydanticAITranslator] = {}

    def translate(self, event: Any) -> _Said:
        kind = field_of(event, "event_kind")
        read = self._READS.get(kind)
        if read is None:
            if kind in _NOT_SHOWN or str(kind).startswith("realtime_"):
                return ()
            raise MappingError(f"Pydantic AI has no event of the kind {kind!r:.60}.")
        return read(self, event)

    def end(self) -> Iterator[e.AgentEvent]:
        """Ask the user about the calls with which the run has ended; those of the page stay open."""
        reasons: Mapping[str, Any] = field_of(self._requests, "metadata") or {}
        for call in field_of(self._requests, "approvals") or ():
            call_id = field_of(call, "tool_call_id")
            reason = field_of(reasons.get(call_id), "reason")
            yield e.ApprovalRequest(call_id=call_id, reason=reason if isinstance(reason, str) else "")

    def _part_delta(self, event: Any) -> _Said:
        delta = field_of(event, "delta")
        match field_of(delta, "part_delta_kind"):
            case "text":
                text = field_of(delta, "content_delta")
                # Nearly all events are such.
                if field_of(delta, "provider_details") is None and not field_of(delta, "citations_delta"):
                    return (text,)
                return (*_sources(delta, "citations_delta"), text)
            case "thinking":
                content = field_of(delta, "content_delta")
                return (e.Reasoning(content),) if content else ()
            case "tool_call":
                arguments, call_id = field_of(delta, "args_delta"), field_of(delta, "tool_call_id")
                # Pieces of a dict are no JSON text; the end of the part has all of them.
                return (e.ToolInputDelta(call_id, arguments),) if isinstance(arguments, str) and arguments else ()
            case _:
                return ()

    def _part_start(self, event: Any) -> _Said:
        part = field_of(event, "part")
        # The first part of a response begins a step.
        step = (e.Step(lazy=True),) if field_of(event, "index") == 0 else ()
        match field_of(part, "part_kind"):
            case "text":
                return (*step, *_sources(part, "citations"), field_of(part, "content"))
            case "thinking":
                content = field_of(part, "content")
                return (*step, e.Reasoning(content)) if content else step
            case "tool-call" | "builtin-tool-call" as kind if not self._is_output(part):
                call_id, name, text = _call(part)
                start = e.ToolInputStart(call_id, name, provider_executed=kind == "builtin-tool-call")
                return (*step, start, e.ToolInputDelta(call_id, text)) if text else (*step, start)
            case "builtin-tool-return":
                return (*step, *_result(part, provider_executed=True))
            case "file":
                return (*step, *_file(field_of(part, "content")))
            case "compaction":
                return (*step, e.Data("compaction", {"content": field_of(part, "content")}))
            case _:
                return step

    def _part_end(self, event: Any) -> _Said:
        part = field_of(event, "part")
        match field_of(part, "part_kind"):
            case "text":
                return self._text_end(part, is_followed=field_of(event, "next_part_kind") == "text")
            case "thinking":
                metadata = _metadata(part)
                return (e.EndPart(),) if metadata is None else (e.Reasoning("", metadata=metadata),)
            case "tool-call" | "builtin-tool-call" as kind if not self._is_output(part):
                return (_tool_call(part, provider_executed=kind == "builtin-tool-call"),)
            case _:
                return ()

    def _text_end(self, part: Any, *, is_followed: bool) -> _Said:
        """End a text. One without an id goes on in the next: Anthropic cuts a sentence where a citation begins."""
        metadata = None if self._is_merged else _metadata(part)
        if is_followed and not field_of(part, "id"):
            self._is_merged = True
            return ()
        self._is_merged = False
        return (*_sources(part, "citations"), e.EndPart() if metadata is None else e.Text("", metadata=metadata))

    def _is_output(self, part: Any) -> bool:
        """Whether it is a call of an output tool, which is the answer of the run and not shown."""
        name = field_of(part, "tool_name")
        return name.startswith(OUTPUT_TOOL) or name in self._output_tools

    def _tool_called(self, event: Any) -> _Said:
        part = field_of(event, "part")
        return () if self._is_output(part) else (_tool_call(part),)

    def _tool_ended(self, event: Any) -> _Said:
        part = field_of(event, "part")
        # A tool may return chunks of Pydantic AI's own adapter beside its result.
        metadata = field_of(part, "metadata")
        said = cast("Sequence[Any]", metadata) if isinstance(metadata, list | tuple) else (metadata,)
        return (*_result(part), *(chunk for chunk in map(_chunk, said) if chunk is not None))

    def _output_ended(self, event: Any) -> _Said:
        """Note the call that is the answer. In a log it may be shown, since its name is not known, and then it ends."""
        part = field_of(event, "part")
        if field_of(part, "outcome") == "success":
            self._output_call = f"{field_of(part, 'tool_name')}:{field_of(part, 'tool_call_id')}"
        return _result(part)

    def _deferred(self, event: Any) -> _Said:
        self._requests = field_of(event, "requests")
        return ()

    def _resolved(self, _: Any) -> _Said:
        """A capability has answered. What is still open then is the output of the run."""
        self._requests = None
        return ()

    def _custom(self, event: Any) -> _Said:
        # An event may say that it is none for pages, or carry a chunk of Pydantic AI's own adapter.
        if field_of(event, "ui") is False:
            return ()
        payload = _payload(event)
        return (_chunk(payload) or e.Data(field_of(event, "name"), payload),)

    def _run_result(self, event: Any) -> Iterator[e.AgentEvent]:
        result = field_of(event, "result")
        output, usage, response = field_of(result, "output"), _usage(result), _response(result)
        if field_of(output, "approvals") is not None and field_of(output, "calls") is not None:
            self._requests = output
        elif isinstance(output, str) and self._output_call:
            yield e.Text(output)
        elif output is not None and not isinstance(output, str) and field_of(output, "kind") != "binary":
            yield e.Data("output", output, id=self._output_call)
        if usage is not None:
            yield _used(usage, field_of(response, "model_name") or "")
        yield e.Finish(_REASONS.get(field_of(response, "finish_reason"), "other"))

    def _usage_so_far(self, event: Any) -> _Said:
        return (_used(field_of(event, "usage")),)

    def _sub_agent(self, event: Any) -> Iterator[e.AgentEvent]:
        run_id, name, status = (field_of(event, key) for key in ("run_id", "name", "status"))
        inner = field_of(event, "event")
        if inner is None:
            yield e.SubAgent(run_id, name, status=status)
            return
        translator = self._sub_agents.setdefault(run_id, PydanticAITranslator())
        for said in translator.translate(inner):
            yield e.SubAgent(run_id, name, said)

    _READS: ClassVar[Mapping[Any, Any]] = {
        "part_delta": _part_delta,
        "part_start": _part_start,
        "part_end": _part_end,
        "function_tool_call": _tool_called,
        "function_tool_result": _tool_ended,
        "output_tool_call": _tool_called,
        "output_tool_result": _output_ended,
        "deferred_tool_requests": _deferred,
        "deferred_tool_results": _resolved,
        "custom": _custom,
        "agent_run_result": _run_result,
        "sub_agent": _sub_agent,
        "usage": _usage_so_far,
    }


def log_translator(options: Mapping[str, Any]) -> PydanticAITranslator:
    """The translator of a recorded log.

    Raises:
        ValueError: there is no such option.
    """
    if options:
        raise ValueError("Logs of Pydantic AI have no options.")
    return PydanticAITranslator()


def _call(part: Any) -> tuple[str, str, str]:
    """The id and the name of a call, and what there is of the JSON of its arguments."""
    arguments = field_of(part, "args")
    return field_of(part, "tool_call_id"), field_of(part, "tool_name"), arguments if isinstance(arguments, str) else ""


def _tool_call(part: Any, *, provider_executed: bool = False) -> e.ToolCall:
    call_id, name, text = _call(part)
    arguments: Any = field_of(part, "args") or {}
    if text:
        try:
            arguments = msgspec.json.decode(text)
        except msgspec.DecodeError:
            # The framework lets the model try again, and says so in the result.
            arguments = text
    return e.ToolCall(call_id, name, arguments, provider_executed=provider_executed, metadata=_metadata(part))


def _result(part: Any, *, provider_executed: bool = False) -> _Said:
    call_id, content = field_of(part, "tool_call_id"), field_of(part, "content")
    match field_of(part, "outcome"):
        case "denied":
            return (e.ToolDenied(call_id),)
        case "success" | "interrupted":
            return (e.ToolResult(call_id, _output(content), provider_executed=provider_executed),)
        case _:
            # A `RetryPromptPart` of releases before `outcome="retried"` has none.
            return (e.ToolError(call_id, _error_text(content), provider_executed=provider_executed),)


def _output(content: Any) -> Any:
    """A result whose files are as the framework dumps them, so that they can be files again."""
    if isinstance(content, list | tuple):
        return [_output(item) for item in cast("Sequence[Any]", content)]
    kind = getattr(content, "kind", "")
    if not isinstance(kind, str) or not kind.endswith(("binary", "-url")):
        return content
    names = ("data", "media_type") if kind == "binary" else ("url",)
    return {"kind": kind, **{name: msgspec.to_builtins(getattr(content, name)) for name in names}}


def _error_text(content: Any) -> str:
    """What the tool told the model, or what is wrong with the arguments, as Pydantic lists it."""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        return "The tool failed."
    errors = cast("Sequence[Any]", content)
    places = (".".join(map(str, field_of(error, "loc") or ())) for error in errors)
    return "; ".join(f"{place}: {field_of(error, 'msg')}" for place, error in zip(places, errors, strict=True))


def _metadata(part: Any) -> dict[str, Any] | None:
    """What the provider wants back with the part."""
    kept = {name: value for name in _KEPT if (value := field_of(part, name))}
    return {METADATA: kept} if kept else None


def _sources(part: Any, name: str) -> Iterator[e.AgentEvent]:
    for citation in field_of(part, name) or ():
        for source in field_of(citation, "sources"):
            url, title = field_of(source, "url"), field_of(source, "title") or ""
            if url:
                yield e.Source(url, title)
            elif title:
                yield e.Document(title, "text/plain")
    # Before `citations`, OpenAI's were here, with the setting `openai_include_raw_annotations`.
    for raw in field_of(field_of(part, "provider_details"), "annotations") or ():
        if field_of(raw, "type") == "url_citation":
            yield e.Source(field_of(raw, "url"), field_of(raw, "title") or "")


def _file(content: Any) -> Iterator[e.File]:
    data, media_type = field_of(content, "data"), field_of(content, "media_type")
    encoded = msgspec.to_builtins(data) if isinstance(data, bytes) else data
    yield e.File(f"data:{media_type};base64,{encoded}", media_type)


def _payload(event: Any) -> Any:
    """What an event of the app carries: its own fields."""
    if callable(dump := getattr(event, "to_payload", None)):
        return dump()
    own = ("name", "event_kind", "tool_call_id", "tool_name")
    return {name: value for name, value in cast("dict[str, Any]", event).items() if name not in own}


def _chunk(value: Any) -> dict[str, Any] | None:
    """A chunk of `pydantic_ai.ui.vercel_ai`, with which an agent speaks to its page."""
    if type(value).__module__ != "pydantic_ai.ui.vercel_ai.response_types":
        return None
    chunk = cast("dict[str, Any]", value.model_dump(mode="json", by_alias=True, exclude_none=True))
    return chunk if chunk["type"].startswith(_CHUNKS) else None


def _used(usage: Any, model: str = "") -> e.Usage:
    details: Mapping[str, Any] = field_of(usage, "details") or {}
    return e.Usage(
        input_tokens=field_of(usage, "input_tokens"),
        output_tokens=field_of(usage, "output_tokens"),
        cache_read_tokens=field_of(usage, "cache_read_tokens"),
        cache_write_tokens=field_of(usage, "cache_write_tokens"),
        reasoning_tokens=field_of(usage, "output_reasoning_tokens") or details.get("reasoning_tokens"),
        model=model,
        # The run counts by itself.
        key="run",
    )


def _usage(result: Any) -> Any:
    # A log of releases that dump the private fields has it in there.
    return field_of(result, "usage") or field_of(field_of(result, "_state"), "usage")


def _response(result: Any) -> Any:
    """The last response of the model."""
    if not isinstance(result, dict):
        return field_of(result, "response")
    messages = field_of(result, "messages") or field_of(field_of(result, "_state"), "message_history") or ()
    return next((message for message in reversed(messages) if field_of(message, "kind") == "response"), None)
