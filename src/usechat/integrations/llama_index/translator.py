"""What a workflow of LlamaIndex writes to its stream, as `usechat.events`.

An event is an object of LlamaIndex, or a line of a log: `{"type": its class, "value": event.model_dump(mode="json")}`.

The agents of LlamaIndex tell little of what their model streams: no arguments, no citations, no finish reason. But
each `AgentStream` has the provider's own chunk in `raw`. If that is a chunk of Chat Completions, which most of
LlamaIndex's models are, `ChatCompletionsDecoder` reads it. Logs have no `raw`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeGuard, cast

from usechat import events as e
from usechat.errors import AgentError, MappingError
from usechat.models.decoders import ChatCompletionsDecoder, field_of

__all__ = ["HANDOFF", "LlamaIndexTranslator", "kinds_of", "log_translator", "values_of"]

HANDOFF: Final = "handoff"
"""The tool by which an agent of an `AgentWorkflow` hands the conversation over; no other may have this name."""

_FAILED: Final = "The tool failed."
_WAITS: Final = "This call waits for your answer."
# A log has the names of the classes, and not what they stand on.
_INTERNAL: Final = ("InternalDispatchEvent", "StepStateChanged", "UnhandledEvent", "WorkflowIdleEvent")
_SILENT: Final = ("AgentSetup", "StartEvent", *_INTERNAL)
# The first words of a `ReActAgent`, and what ends its thought. An action is shown as the call of its tool.
_THOUGHT: Final = "Thought:"
_MARK: Final = re.compile(r"\s*(Action|Answer):\s*")
_LONGEST_MARK: Final = len("\n\nAnswer: ")
# What a chunk says that LlamaIndex does not. The whole calls are LlamaIndex's to tell, which parses their arguments.
_OF_CHUNKS: Final = (e.Reasoning, e.ToolInputStart, e.ToolInputDelta, e.Source, e.File)


def kinds_of(event: Any) -> Sequence[str]:
    """The name of the event's class and of those that it stands on; a log has only the first."""
    return (event["type"],) if _is_line(event) else [kind.__name__ for kind in type(event).__mro__]


def values_of(event: Any) -> dict[str, Any]:
    """The fields of an event, also those that its class does not declare."""
    value: dict[str, Any] = event["value"] if _is_line(event) else event.model_dump()
    return {**{name: each for name, each in value.items() if name != "_data"}, **(value.get("_data") or {})}


def _is_line(event: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(event, dict)


class LlamaIndexTranslator:
    """Translates the events of one run.

    It knows which agent has the conversation. Others speak only if a tool runs an agent and writes its events to the
    stream; they are sub-agents. Events of tools do not say whose they are, so it keeps who made which call.
    """

    def __init__(self) -> None:
        self._agent = ""
        self._next = ""
        self._callers: dict[str, str] = {}
        self._running: dict[str, None] = {}
        self._calls: dict[str, _ModelCall] = {}
        self._questions = 0
        self._has_result = False
        # Whether no model has read the last text: that of a tool may be the answer.
        self._is_direct = True

    def translate(self, event: Any) -> Iterable[e.AgentEvent]:
        """What the event says.

        Raises:
            MappingError: it is no event of LlamaIndex.
            AgentError: the run has failed.
        """
        fields: Any = event.get("value") if _is_line(event) else event
        if _is_line(event) and not (isinstance(event.get("type"), str) and isinstance(fields, dict)):
            raise MappingError("An event of LlamaIndex has a `type` and a `value`.")
        for kind in kinds_of(event):
            if kind in _SILENT:
                return ()
            if kind in self._READS:
                return self._READS[kind](self, fields)
            if kind == "InputRequiredEvent":
                return self._asks(values_of(event))
            if kind == "StopEvent":
                return self._result(event)
        return (e.Data(_name(kinds_of(event)[0]), values_of(event)),)

    def end(self) -> Iterable[e.AgentEvent]:
        for name, call in self._calls.items():
            yield from self._said_by(name, call.end())
        if self._questions and not self._has_result:
            yield e.Pause(_WAITS)

    def _input(self, event: Any) -> Iterator[e.AgentEvent]:
        """A model is about to be called."""
        name = field_of(event, "current_agent_name")
        if name == self._next or not self._agent:
            if self._agent:
                yield e.Handoff(name, self._agent)
            self._agent, self._next = name, ""
        self._calls[name] = _ModelCall()
        if name == self._agent:
            self._is_direct = False
            yield e.Step()
        else:
            self._running[name] = None
            yield e.SubAgent(name, name)

    def _stream(self, event: Any) -> Iterator[e.AgentEvent]:
        name = field_of(event, "current_agent_name")
        yield from self._said_by(name, self._call_of(name).chunk(event))
        for call in field_of(event, "tool_calls") or ():
            yield from self._begun(name, field_of(call, "tool_id"), field_of(call, "tool_name"))

    def _output(self, event: Any) -> Iterator[e.AgentEvent]:
        """A model has answered. Its calls follow as events of their own."""
        name = field_of(event, "current_agent_name")
        yield from self._said_by(name, self._call_of(name).whole(event))
        for call in field_of(event, "tool_calls") or ():
            self._callers.setdefault(field_of(call, "tool_id"), name)

    def _tool_call(self, event: Any) -> Iterator[e.AgentEvent]:
        call_id, name = field_of(event, "tool_id"), field_of(event, "tool_name")
        if name != HANDOFF:
            yield from self._of_call(call_id, e.ToolCall(call_id, name, field_of(event, "tool_kwargs") or {}))

    def _tool_result(self, event: Any) -> Iterator[e.AgentEvent]:
        call_id, name, result = field_of(event, "tool_id"), field_of(event, "tool_name"), field_of(event, "tool_output")
        if name == HANDOFF:
            self._next = field_of(field_of(event, "tool_kwargs"), "to_agent") or ""
            return
        if self._callers.get(call_id, self._agent) == self._agent:
            for agent in self._running:
                yield e.SubAgent(agent, agent, status="done")
            self._running.clear()
            self._is_direct = isinstance(_value(result), str)
        if field_of(result, "is_error"):
            # Its text is that of the tool's exception, which is not for strangers.
            yield from self._of_call(call_id, e.ToolError(call_id, _FAILED, name))
            return
        yield from self._of_call(call_id, e.ToolResult(call_id, _value(result), name))
        yield from _sources(field_of(result, "raw_output"))

    def _structured(self, event: Any) -> Iterator[e.AgentEvent]:
        yield e.Data("output", field_of(event, "output"))

    def _asks(self, values: dict[str, Any]) -> Iterator[e.AgentEvent]:
        self._questions += 1
        question = f"input-{self._questions}"
        yield e.Data("input-required", {"id": question, **values}, id=question)

    def _result(self, event: Any) -> Iterator[e.AgentEvent]:
        self._has_result = True
        if kinds_of(event)[0] == "StopEvent":
            result: Any = event["value"].get("result") if _is_line(event) else event.result
        else:
            # The result of a run that ends with an event of the user's own class is this event.
            result = values_of(event)
        if isinstance(result, str):
            yield e.Text(result, whole=True)
        elif field_of(result, "current_agent_name") is not None:
            if self._is_direct:
                yield e.Step(lazy=True)
                yield e.Text(_text(field_of(result, "response")), whole=True)
        elif result is not None and result != {}:
            yield e.Data("output", result)

    def _failed(self, _: Any) -> Iterator[e.AgentEvent]:
        """The end of a log. In a turn the driver raises what has failed."""
        raise AgentError("The workflow failed, or was cancelled.")

    def _begun(self, name: str, call_id: str, tool: str) -> Iterator[e.AgentEvent]:
        if call_id and tool and tool != HANDOFF:
            self._callers.setdefault(call_id, name)
            yield from self._of_call(call_id, e.ToolInputStart(call_id, tool))

    def _call_of(self, name: str) -> "_ModelCall":
        return self._calls.setdefault(name, _ModelCall())

    def _of_call(self, call_id: str, event: e.AgentEvent) -> Iterator[e.AgentEvent]:
        return self._said_by(self._callers.get(call_id, self._agent), (event,))

    def _said_by(self, name: str, events: Iterable[e.AgentEvent]) -> Iterator[e.AgentEvent]:
        for event in events:
            yield event if name in ("", self._agent) else e.SubAgent(name, name, event)

    _READS: Final = {
        "AgentInput": _input,
        "AgentStream": _stream,
        "AgentOutput": _output,
        "AgentStreamStructuredOutput": _structured,
        "ToolCall": _tool_call,
        "ToolCallResult": _tool_result,
        "WorkflowFailedEvent": _failed,
        "WorkflowTimedOutEvent": _failed,
        "WorkflowCancelledEvent": _failed,
    }


class _ModelCall:
    """One call of a model, whose chunks come in `AgentStream` and which ends with `AgentOutput`."""

    def __init__(self) -> None:
        self._words = _Words()
        self._decoder: ChatCompletionsDecoder | None = None
        self._has_said = False

    def chunk(self, event: Any) -> Iterator[e.AgentEvent]:
        raw, delta = field_of(event, "raw"), field_of(event, "delta")
        self._has_said = self._has_said or bool(delta)
        if field_of(raw, "choices") is None:
            if thought := field_of(event, "thinking_delta"):
                yield e.Reasoning(thought)
            yield from self._words.add(delta)
            return
        self._decoder = self._decoder or ChatCompletionsDecoder()
        for said in self._decoder.translate(raw):
            if isinstance(said, e.Text):
                yield from self._words.add(said.text)
            elif isinstance(said, _OF_CHUNKS) and not (isinstance(said, e.ToolInputStart) and said.name == HANDOFF):
                yield said

    def whole(self, event: Any) -> Iterator[e.AgentEvent]:
        """The answer, of which nothing is new if it was streamed, and what it has used.

        Raises:
            IncompleteStreamError: the provider's stream stopped before its end.
        """
        message, raw = field_of(event, "response"), field_of(event, "raw")
        if not self._has_said:
            for block in field_of(message, "blocks") or ():
                if thought := field_of(block, "content") if field_of(block, "block_type") == "thinking" else None:
                    yield e.Reasoning(thought, whole=True)
            yield from self._words.add(_text(message))
        yield from self.end()
        if self._decoder is None:
            yield from _usage(raw)
        else:
            yield from (said for said in self._decoder.end() if isinstance(said, e.Usage | e.Finish))

    def end(self) -> Iterator[e.AgentEvent]:
        return self._words.end()


class _Words:
    """The text of a model, as it is; that of a `ReActAgent` is a thought, and then an answer or an action."""

    def __init__(self) -> None:
        self._kind: Literal["unknown", "thought", "action", "text"] = "unknown"
        self._held = ""
        self._is_start = False

    def add(self, delta: str) -> Iterator[e.AgentEvent]:
        self._held += delta
        if self._kind == "unknown":
            begin = self._held.lstrip()
            if len(begin) < len(_THOUGHT) and _THOUGHT.startswith(begin):
                return
            if begin.startswith(_THOUGHT):
                self._turn("thought", begin[len(_THOUGHT) :])
            else:
                self._kind = "text"
        if self._is_start:
            self._held = self._held.lstrip()
            self._is_start = not self._held
        if self._kind == "thought" and (mark := _MARK.search(self._held)):
            yield e.Reasoning(self._held[: mark.start()])
            self._turn("text" if mark[1] == "Answer" else "action", self._held[mark.end() :])
        match self._kind:
            case "text":
                ready, self._held = self._held, ""
                self._is_start = self._is_start and not ready
                yield e.Text(ready)
            case "thought":
                ready, self._held = self._held[:-_LONGEST_MARK], self._held[-_LONGEST_MARK:]
                yield e.Reasoning(ready)
            case _:
                self._held = ""

    def end(self) -> Iterator[e.AgentEvent]:
        rest, self._held = self._held, ""
        if rest.strip():
            yield e.Reasoning(rest.rstrip()) if self._kind == "thought" else e.Text(rest)

    def _turn(self, kind: Literal["thought", "action", "text"], rest: str) -> None:
        self._kind, self._held, self._is_start = kind, rest, True


def _name(kind: str) -> str:
    """The name of the data of an event: `ProgressEvent` is `data-progress`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", kind.removesuffix("Event") or kind).lower()


def _text(message: Any) -> str:
    blocks = field_of(message, "blocks") or ()
    return "\n".join(field_of(block, "text") for block in blocks if field_of(block, "block_type") == "text")


def _value(result: Any) -> Any:
    """What a tool returned; of an object that is no value, such as the response of an index, its text."""
    raw = field_of(result, "raw_output")
    if field_of(raw, "source_nodes") is None:
        if raw is None or isinstance(raw, str | int | float | list | tuple | dict):
            return cast("Any", raw)
        if hasattr(raw, "model_dump"):
            return raw.model_dump()
    return _text(result)


def _sources(raw: Any) -> Iterator[e.AgentEvent]:
    """The pages and the documents that an index has found."""
    for found in field_of(raw, "source_nodes") or ():
        about: Mapping[str, Any] = field_of(field_of(found, "node"), "metadata") or {}
        url, name = about.get("url") or about.get("source_url"), about.get("file_name")
        if isinstance(url, str) and url.startswith(("http://", "https://")):
            yield e.Source(url, str(about.get("title") or name or ""))
        elif name:
            yield e.Document(str(name), str(about.get("file_type") or "text/plain"), str(name))


def _usage(raw: Any) -> Iterator[e.AgentEvent]:
    used = field_of(raw, "usage") or field_of(raw, "usage_metadata") or field_of(field_of(raw, "response"), "usage")
    if used is not None:
        yield e.Usage(
            input_tokens=_first(used, "prompt_tokens", "input_tokens", "prompt_token_count"),
            output_tokens=_first(used, "completion_tokens", "output_tokens", "candidates_token_count"),
            total_tokens=_first(used, "total_tokens", "total_token_count"),
        )


def _first(used: Any, *names: str) -> Any:
    return next((count for name in names if (count := field_of(used, name)) is not None), None)


def log_translator(options: Mapping[str, Any]) -> LlamaIndexTranslator:
    """The translator of a recorded log.

    Raises:
        ValueError: there is no such option.
    """
    if options:
        raise ValueError("LlamaIndex has no options.")
    return LlamaIndexTranslator()
