"""AG-UI: the events of a run, of release 1.0 and of those before it, in `usechat.events`.

The stream names what each event belongs to: a message, a tool call, and the sub-agent that it comes from. Here is what
is needed to follow these names: who owns a message or call, the arguments of a call until they are complete, and the
chunk that the next one continues. Everything comes from outside, so sizes and numbers have bounds.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Final, Literal, TypeAlias, cast

import msgspec
from msgspec import Struct, field, structs

from usechat import events as e
from usechat.errors import MappingError, UsechatError
from usechat.integrations.ag_ui.patch import apply_patch, check_size
from usechat.integrations.ag_ui.thread import PROVIDER, Thread
from usechat.protocol import chunks as c

__all__ = ["AGUIError", "AGUITranslator", "log_translator"]

_Event: TypeAlias = Mapping[str, Any]
_Said: TypeAlias = Iterator[e.AgentEvent]
_Status: TypeAlias = Literal["running", "done", "failed", "waiting"]

_PAUSED: Final = "This call waits until others are approved."
_FAILED: Final = "The tool failed."
_CUT_OFF: Final = "The AG-UI agent ended its stream before RUN_FINISHED or RUN_ERROR."
# Longer names and ids, larger arguments and more entries are refused.
_LONGEST_NAME: Final = 512
_LONGEST_ARGUMENTS: Final = 4 * 1024 * 1024
_MOST: Final = 10_000
_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_.-]+")
_CHUNKS: Final = {
    "TEXT_MESSAGE_CHUNK": "messageId",
    "REASONING_MESSAGE_CHUNK": "messageId",
    "TOOL_CALL_CHUNK": "toolCallId",
}


class AGUIError(UsechatError):
    """The run of an AG-UI agent failed. The text is for the log."""


class _Call(Struct):
    """A tool call; `place` is its place among all that is said, and `arguments` is their JSON in pieces."""

    name: str
    owner: str
    parent: str
    place: int
    arguments: list[str] = field(default_factory=list[str])
    size: int = 0
    is_whole: bool = False
    is_over: bool = False


class AGUITranslator:
    """Translates the events of one run, and keeps in `thread` what the next run needs.

    `tools` are the names of the page's tools. `continued` are the calls of the message that the run goes on with, and
    `denied` those of them that the user refused.
    """

    def __init__(
        self,
        thread: Thread | None = None,
        *,
        tools: Collection[str] = (),
        continued: Collection[str] = (),
        denied: Collection[str] = (),
    ) -> None:
        self._thread = Thread() if thread is None else thread
        self._tools = tools
        self._continued = continued
        self._denied = denied
        self._is_over = False
        self._agents: dict[str, e.SubAgent] = {}
        # The sub-agent that each message comes from, "" for the agent itself; None if it is not the assistant's.
        self._owners: dict[str, str | None] = {}
        self._calls: dict[str, _Call] = {}
        # The chunk that one without an id continues, by owner and type, and the open ones among them.
        self._chunks: dict[tuple[str, str], str] = {}
        self._open: dict[tuple[str, str], str] = {}
        # Reasoning that has ended, but what its provider wants back may follow.
        self._thought = ""
        self._activities: dict[str, Any] = {}
        self._snapshot: list[Any] = []
        self._place = 0
        # The place of what each owner said last.
        self._spoke: dict[str, int] = {}
        # How large the state was when it was told last, and how large the changes since then are.
        self._state_size = 0
        self._state_owed: int | None = None

    def translate(self, event: _Event) -> _Said:
        """What one event says.

        Raises:
            MappingError: The event is malformed, or unknown.
            AGUIError: The run failed.
        """
        kind = event.get("type")
        move = self._MOVES.get(kind) if isinstance(kind, str) else None
        if move is None:
            raise MappingError(f"AG-UI has no event of the type {kind!r:.60}.")
        if self._thought and not (kind == "REASONING_ENCRYPTED_VALUE" and event.get("entityId") == self._thought):
            yield from self._end_thought()
        if self._open:
            yield from self._end_chunks(event)
        yield from move(self, event)

    def end(self) -> Iterable[e.AgentEvent]:
        """Nothing, if the run has ended.

        Raises:
            AGUIError: It has not.
        """
        if not self._is_over:
            raise AGUIError(_CUT_OFF)
        return ()

    # The run.

    def _run_started(self, event: _Event) -> _Said:
        self._thread.wait_for({}, ())
        for call_id in self._denied:
            yield e.ToolDenied(call_id)

    def _run_finished(self, event: _Event) -> _Said:
        for call_id, call in self._calls.items():
            yield from self._complete(call_id, call)
        yield from self._take_snapshot()
        yield from self._tell_state()
        yield from _usage(event)
        outcome = _object(event, "outcome")
        self._is_over = True
        if outcome.get("type") == "interrupt":
            yield from self._interrupts(_list(outcome, "interrupts"))
            yield e.Finish("other")
            return
        yield from self._end_agents("done")
        if outcome.get("type") == "cancelled":
            yield c.Abort()
            return
        pending = _list(outcome, "pendingToolCallIds")
        for call_id, call in self._calls.items():
            # The model has gone on, so the agent carried the call out and does not say what came of it.
            if self._is_the_agents(call_id, pending) and self._spoke.get(call.owner, 0) > call.place:
                yield from self._says(call.owner, e.ToolResult(call_id, None))
        if isinstance(event.get("result"), dict | list):
            yield e.Data("output", event["result"])
        yield e.Finish()

    def _run_error(self, event: _Event) -> _Said:
        self._is_over = True
        yield from self._end_agents("failed")
        yield from self._tell_state()
        yield from _usage(event)
        raise AGUIError(f"The AG-UI agent failed: {event.get('message')!r:.500} (code {event.get('code')!r:.60}).")

    def _interrupts(self, interrupts: list[Any]) -> _Said:
        waiting: dict[str, dict[str, Any]] = {}
        asked: dict[str, None] = {}
        for interrupt in interrupts[:_MOST]:
            if not _object(interrupt).get("id"):
                continue
            interrupt_id, call_id = _name(interrupt, "id"), _name_or(interrupt, "toolCallId")
            call = self._calls.get(call_id)
            told = call_id if call is not None else self._continued_id(call_id)
            schema = _object(_object(interrupt, "responseSchema"), "properties")
            waiting[interrupt_id] = {"call": told, "edits": "editedArgs" in schema}
            if not told:
                yield e.Data("interrupt", {"id": interrupt_id, "value": interrupt}, id=interrupt_id)
                continue
            asked[call_id] = None
            owner = call.owner if call is not None else ""
            if owner:
                self._move_agent(owner, "waiting")
            yield from self._says(owner, e.ApprovalRequest(interrupt_id, told, _text(interrupt, "message")[:2000]))
        paused = [call_id for call_id in self._calls if call_id not in asked and self._is_the_agents(call_id)]
        for call_id in paused:
            yield from self._says(self._calls[call_id].owner, e.ToolResult(call_id, _PAUSED))
        self._thread.wait_for(waiting, paused)

    def _is_the_agents(self, call_id: str, pending: Collection[Any] = ()) -> bool:
        """Whether the call has no result, and none is to come from the page."""
        call = self._calls[call_id]
        return not call.is_over and call.name not in self._tools and call_id not in pending

    # Text and reasoning.

    def _text_start(self, event: _Event) -> _Said:
        self._own(_name(event, "messageId"), event)
        return iter(())

    def _text_delta(self, event: _Event) -> _Said:
        message_id = _name(event, "messageId")
        return self._speak(message_id, e.Text(_text(event, "delta"), key=message_id), event)

    def _text_end(self, event: _Event) -> _Said:
        return self._end_text(_name(event, "messageId"))

    def _end_text(self, message_id: str) -> _Said:
        kept: c.ProviderMetadata = {PROVIDER: {"messageId": message_id}}
        return self._speak(message_id, e.Text("", message_id, metadata=kept), None, e.EndPart(message_id))

    def _thought_end(self, event: _Event) -> _Said:
        self._thought = _name_or(event, "messageId")
        return iter(())

    def _thought_delta(self, event: _Event) -> _Said:
        # The THINKING_* events of the first releases have no ids.
        message_id = _name_or(event, "messageId")
        return self._speak(message_id, e.Reasoning(_text(event, "delta"), key=message_id), event)

    def _end_thought(self, **kept: str) -> _Said:
        message_id, self._thought = self._thought, ""
        metadata: c.ProviderMetadata = {PROVIDER: {"messageId": message_id, **kept}}
        # Without a text, only what the provider wants back is worth a part.
        said = e.Reasoning("", message_id, metadata=metadata) if kept or message_id in self._spoke else None
        return self._speak(message_id, said, None, e.EndPart(message_id))

    def _thinking_end(self, event: _Event) -> _Said:
        return self._speak("", e.EndPart(""), event)

    def _encrypted(self, event: _Event) -> _Said:
        entity, value = _name(event, "entityId"), _text(event, "encryptedValue")
        if event.get("subtype") == "message" and entity == self._thought:
            return self._end_thought(encryptedValue=value)
        self._thread.keep_encrypted(entity, value)
        return iter(())

    def _speak(
        self, message_id: str, said: e.AgentEvent | None, event: _Event | None, then: e.AgentEvent | None = None
    ) -> _Said:
        """Something of a message, unless it is not the assistant's."""
        if message_id not in self._owners:
            self._own(message_id, event or {})
        owner = self._owners[message_id]
        if owner is None:
            return
        if event is not None:
            self._place += 1
            self._spoke[owner] = self._spoke[message_id] = self._place
        for each in (said, then):
            if each is not None:
                yield from self._says(owner, each)

    def _own(self, message_id: str, event: _Event) -> None:
        _bound(self._owners)
        is_ours = event.get("role") in (None, "assistant", "reasoning")
        self._owners[message_id] = self._agent(event) if is_ours else None

    # Tool calls.

    def _call_start(self, event: _Event) -> _Said:
        return self._begin(_name(event, "toolCallId"), _name(event, "toolCallName"), event)

    def _begin(self, call_id: str, name: str, event: _Event) -> _Said:
        parent = _name_or(event, "parentMessageId")
        if call_id not in self._calls:
            _bound(self._calls)
            self._place += 1
            owner = self._agent(event) or self._owners.get(parent) or ""
            self._calls[call_id] = _Call(name, owner, parent, self._place)
        call = self._calls[call_id]
        return self._says(call.owner, e.ToolInputStart(call_id, call.name))

    def _call_arguments(self, event: _Event) -> _Said:
        return self._add(_name(event, "toolCallId"), _text(event, "delta"))

    def _add(self, call_id: str, delta: str) -> _Said:
        call = self._calls.get(call_id)
        if call is None or call.size + len(delta) > _LONGEST_ARGUMENTS:
            raise MappingError("An AG-UI agent sent arguments of no call, or too many of one.")
        call.arguments.append(delta)
        call.size += len(delta)
        return self._says(call.owner, e.ToolInputDelta(call_id, delta))

    def _call_end(self, event: _Event) -> _Said:
        call_id = _name(event, "toolCallId")
        call = self._calls.get(call_id)
        return iter(()) if call is None else self._complete(call_id, call)

    def _complete(self, call_id: str, call: _Call) -> _Said:
        if call.is_whole:
            return
        call.is_whole = True
        text, call.arguments = "".join(call.arguments), []
        kept: c.ProviderMetadata | None = {PROVIDER: {"messageId": call.parent}} if call.parent else None
        yield from self._says(call.owner, e.ToolCall(call_id, call.name, _arguments(text), metadata=kept))

    def _call_result(self, event: _Event) -> _Said:
        call_id, message_id = _name(event, "toolCallId"), _name_or(event, "messageId") or _name_or(event, "id")
        call = self._calls.get(call_id)
        owner = self._agent(event) if call is None else call.owner
        if call is not None:
            yield from self._complete(call_id, call)
            call.is_over = True
        if message_id:
            self._thread.keep_result(call_id, message_id)
        told = "" if call is not None else self._continued_id(call_id)
        error = event.get("error")
        failure = (error if isinstance(error, str) else _FAILED) if error else ""
        result = e.ToolError(told or call_id, failure) if failure else e.ToolResult(told or call_id, _output(event))
        yield from self._says("" if told else owner, result)

    def _continued_id(self, call_id: str) -> str:
        """The id of a call in the message that goes on: that of a sub-agent, which may be a new one, stands before."""
        return next((one for one in self._continued if call_id and f":{one}".endswith(f":{call_id}")), "")

    # Chunks, which begin and end what they belong to.

    def _chunk(self, event: _Event) -> _Said:
        kind = event["type"]
        owner = self._agent(event)
        continued = self._chunks.get((owner, kind)) or next(
            (one for (_, other), one in self._chunks.items() if other == kind), ""
        )
        entity = _name_or(event, _CHUNKS[kind]) or continued
        if not entity:
            raise MappingError("An AG-UI agent sent a chunk that continues nothing.")
        delta = _text(event, "delta")
        if kind == "TOOL_CALL_CHUNK":
            if entity not in self._calls:
                yield from self._begin(entity, _name(event, "toolCallName"), event)
            self._chunks[owner, kind] = self._open[owner, kind] = entity
            if delta:
                yield from self._add(entity, delta)
            return
        if entity not in self._owners:
            self._own(entity, event)
        self._chunks[owner, kind] = self._open[owner, kind] = entity
        kind_of = e.Text if kind == "TEXT_MESSAGE_CHUNK" else e.Reasoning
        yield from self._speak(entity, kind_of(delta, key=entity), event)

    def _end_chunks(self, event: _Event) -> _Said:
        """End the chunks of the event's owner that it does not continue."""
        owner, kind = self._agent(event), event["type"]
        for (agent, chunk), entity in list(self._open.items()):
            continues = chunk == kind and event.get(_CHUNKS[chunk]) in (None, entity)
            if agent != owner or continues:
                continue
            del self._open[agent, chunk]
            if chunk == "TOOL_CALL_CHUNK":
                yield from self._complete(entity, self._calls[entity])
            elif chunk == "TEXT_MESSAGE_CHUNK":
                yield from self._end_text(entity)
            else:
                self._thought = entity
                yield from self._end_thought()

    # Snapshots of messages.

    def _messages(self, event: _Event) -> _Said:
        self._snapshot = _list(event, "messages")
        for message in self._snapshot:
            if _object(message).get("role") == "tool" and message.get("id") not in self._thread.known:
                yield from self._call_result(message)

    def _take_snapshot(self) -> _Said:
        """The answer of an agent that does not stream: what the snapshot has after the user's last message."""
        if self._spoke or self._calls:
            return
        messages = [_object(message) for message in self._snapshot]
        asked = max((index for index, one in enumerate(messages) if one.get("role") == "user"), default=-1)
        for message in messages[asked + 1 :]:
            if message.get("id") in self._thread.known:
                continue
            match message.get("role"):
                case "reasoning" | "assistant" as role:
                    message_id = _name(message, "id")
                    kind = e.Text if role == "assistant" else e.Reasoning
                    kept: c.ProviderMetadata = {PROVIDER: {"messageId": message_id}}
                    if text := _text(message, "content"):
                        yield from self._speak(message_id, kind(text, message_id, metadata=kept), message)
                    for call in _list(message, "toolCalls"):
                        function = _object(call, "function")
                        yield from self._begin(
                            _name(call, "id"), _name(function, "name"), {"parentMessageId": message_id}
                        )
                        yield from self._add(call["id"], _text(function, "arguments"))
                        yield from self._complete(call["id"], self._calls[call["id"]])
                case "tool":
                    yield from self._call_result(message)
                case _:
                    pass

    # State, activities and other data.

    def _state(self, event: _Event) -> _Said:
        if event["type"] == "STATE_SNAPSHOT":
            self._thread.state = check_size(event.get("snapshot"))
            self._state_owed = self._state_size
        else:
            self._thread.state = apply_patch(self._thread.state, event.get("delta"))
            self._state_owed = (self._state_owed or 0) + len(msgspec.json.encode(event["delta"]))
        # A large state that changes a little again and again is sent whole more rarely.
        if self._state_owed * 8 >= self._state_size:
            yield from self._tell_state()

    def _tell_state(self) -> _Said:
        if self._state_owed is not None:
            state = self._thread.state
            self._state_owed, self._state_size = None, len(msgspec.json.encode(state))
            yield e.Data("state", state, id="state")

    def _activity(self, event: _Event) -> _Said:
        message_id, kind = _name(event, "messageId"), _name(event, "activityType")
        if event["type"] == "ACTIVITY_DELTA":
            content = apply_patch(self._activities.get(message_id, {}), event.get("patch"))
        elif event.get("replace") is False and message_id in self._activities:
            return
        else:
            content = check_size(_object(event, "content"))
        _bound(self._activities)
        self._activities[message_id] = content
        yield e.Data("activity", {"activityType": kind, "content": content}, id=message_id)

    def _step(self, event: _Event) -> _Said:
        status = "running" if event["type"] == "STEP_STARTED" else "done"
        yield e.Data("step", {"name": _name(event, "stepName"), "status": status}, transient=True)

    def _custom(self, event: _Event) -> _Said:
        name = _NOT_IN_NAMES.sub("-", _name(event, "name")).strip("-")[:64]
        if not name:
            raise MappingError("An AG-UI agent sent a custom event whose name has no letters.")
        yield e.Data(name, event.get("value"))

    def _raw(self, event: _Event) -> _Said:
        source = _name_or(event, "source")
        yield e.Data("raw", {"event": event.get("event"), **({"source": source} if source else {})}, transient=True)

    # Sub-agents.

    def _agent_started(self, event: _Event) -> _Said:
        agent_id = _name(event, "subagentRunId")
        _bound(self._agents)
        self._agents[agent_id] = e.SubAgent(
            agent_id,
            _name(event, "name"),
            call_id=_name_or(event, "parentToolCallId"),
            parent=_name_or(event, "parentSubagentRunId"),
        )
        yield self._agents[agent_id]

    def _agent_ended(self, event: _Event) -> _Said:
        status: _Status = "failed" if event["type"] == "SUBAGENT_ERROR" else "done"
        if _object(event, "outcome").get("type") == "suspended":
            status = "waiting"
        _name(event, "subagentRunId")
        yield self._move_agent(self._agent(event), status)

    def _end_agents(self, status: _Status) -> _Said:
        for agent in list(self._agents.values()):
            if agent.status == "running":
                yield self._move_agent(agent.id, status)

    def _move_agent(self, agent_id: str, status: _Status) -> e.SubAgent:
        agent = self._agents[agent_id] = structs.replace(self._agents[agent_id], status=status)
        return agent

    def _agent(self, event: _Event) -> str:
        """The sub-agent that an event comes from. Some agents do not announce theirs."""
        agent_id = _name_or(event, "subagentRunId")
        if agent_id and agent_id not in self._agents:
            _bound(self._agents)
            self._agents[agent_id] = e.SubAgent(agent_id, agent_id)
        return agent_id

    def _says(self, owner: str, event: e.AgentEvent) -> _Said:
        yield structs.replace(self._agents[owner], event=event) if owner else event

    def _nothing(self, event: _Event) -> _Said:
        return iter(())

    _MOVES: ClassVar[dict[str, Callable[["AGUITranslator", _Event], _Said]]] = {
        "RUN_STARTED": _run_started,
        "RUN_FINISHED": _run_finished,
        "RUN_ERROR": _run_error,
        "TEXT_MESSAGE_START": _text_start,
        "TEXT_MESSAGE_CONTENT": _text_delta,
        "TEXT_MESSAGE_END": _text_end,
        "TEXT_MESSAGE_CHUNK": _chunk,
        "REASONING_START": _nothing,
        "REASONING_MESSAGE_START": _text_start,
        "REASONING_MESSAGE_CONTENT": _thought_delta,
        "REASONING_MESSAGE_END": _thought_end,
        "REASONING_MESSAGE_CHUNK": _chunk,
        "REASONING_END": _nothing,
        "REASONING_ENCRYPTED_VALUE": _encrypted,
        "THINKING_START": _nothing,
        "THINKING_TEXT_MESSAGE_START": _nothing,
        "THINKING_TEXT_MESSAGE_CONTENT": _thought_delta,
        "THINKING_TEXT_MESSAGE_END": _thinking_end,
        "THINKING_END": _thinking_end,
        "TOOL_CALL_START": _call_start,
        "TOOL_CALL_ARGS": _call_arguments,
        "TOOL_CALL_END": _call_end,
        "TOOL_CALL_CHUNK": _chunk,
        "TOOL_CALL_RESULT": _call_result,
        "STATE_SNAPSHOT": _state,
        "STATE_DELTA": _state,
        "MESSAGES_SNAPSHOT": _messages,
        "ACTIVITY_SNAPSHOT": _activity,
        "ACTIVITY_DELTA": _activity,
        "STEP_STARTED": _step,
        "STEP_FINISHED": _step,
        "CUSTOM": _custom,
        "RAW": _raw,
        "SUBAGENT_STARTED": _agent_started,
        "SUBAGENT_FINISHED": _agent_ended,
        "SUBAGENT_ERROR": _agent_ended,
    }


def log_translator(options: Mapping[str, Any]) -> AGUITranslator:
    """The translator of a recorded log; `tools` are the names of the page's tools.

    Raises:
        ValueError: There is no such option, or it cannot have that value.
    """
    tools: Any = options.get("tools", [])
    if options.keys() - {"tools"}:
        raise ValueError(f"There is no option {min(options.keys() - {'tools'})!r:.60}: the only one is tools.")
    if not isinstance(tools, list) or not all(isinstance(name, str) for name in cast("list[Any]", tools)):
        raise ValueError("The option tools is a list of names.")
    return AGUITranslator(tools=cast("list[str]", tools))


def _name(event: Any, name: str) -> str:
    """A name or an id.

    Raises:
        MappingError: There is none, or it is no such text.
    """
    value = _object(event).get(name)
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_NAME:
        raise MappingError(f"An AG-UI agent sent an event without the text {name}, or with a very long one.")
    return value


def _name_or(event: Any, name: str) -> str:
    return _name(event, name) if _object(event).get(name) else ""


def _text(event: Any, name: str) -> str:
    value = _object(event).get(name)
    return value if isinstance(value, str) else ""


def _object(value: Any, name: str | None = None) -> _Event:
    inner = cast("_Event", value).get(name) if name is not None and isinstance(value, dict) else value
    return cast("_Event", inner) if isinstance(inner, dict) else {}


def _list(value: Any, name: str) -> list[Any]:
    inner = _object(value).get(name)
    return cast("list[Any]", inner) if isinstance(inner, list) else []


def _bound(entries: Mapping[str, Any]) -> None:
    if len(entries) >= _MOST:
        raise MappingError(f"An AG-UI agent sent more than {_MOST:,} messages, calls, activities or sub-agents.")


def _arguments(text: str) -> Any:
    """The arguments of a call; a model may have got their JSON wrong."""
    try:
        return msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError):
        return text


def _output(event: _Event) -> Any:
    """The result of a call. AG-UI has an object as its JSON, which a page gets as the object."""
    content = event.get("content")
    if isinstance(content, str) and content[:1] in ("{", "["):
        return _arguments(content)
    return content


def _usage(event: _Event) -> _Said:
    for entry in _list(event, "usage")[:_MOST]:
        counts = _object(entry)
        yield e.Usage(
            input_tokens=counts.get("inputTokens"),
            output_tokens=counts.get("outputTokens"),
            total_tokens=counts.get("totalTokens"),
            cache_read_tokens=counts.get("cachedInputTokens"),
            cache_write_tokens=counts.get("cacheWriteInputTokens"),
            reasoning_tokens=counts.get("reasoningTokens"),
            model=_text(counts, "model")[:_LONGEST_NAME],
        )
