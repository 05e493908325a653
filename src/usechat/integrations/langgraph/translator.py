"""LangGraph: the parts of a graph's stream, as `astream(…, version="v2")` gives them, in `usechat.events`.

The stream has everything twice or more: models speak in chunks, a node then gives its message whole, and a graph takes
over what its sub-graph gave. `EventMapper` knows what was said of a call, its result and its usage. Here is what only
LangGraph's stream needs: a *scope* for each namespace, in it the *model calls* that speak, and which chunk belongs to
which of them, since providers change the ids of messages on the way.
"""

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, TypeAlias, cast

import msgspec
from msgspec import Struct, structs
from msgspec import field as default

from usechat import events as e
from usechat.errors import MappingError
from usechat.integrations.langgraph.interrupts import Action, read_interrupt
from usechat.integrations.langgraph.messages import (
    Block,
    blocks_of,
    called_by,
    field,
    is_command,
    messages_of,
    output_of,
    result_in,
    text_of,
)
from usechat.protocol.chunks import FinishReason
from usechat.protocol.messages import UIMessage, is_tool_call, tool_name
from usechat.protocol.values import plain

__all__ = ["LangGraphOptions", "LangGraphTranslator", "Subgraphs", "log_translator", "read_options"]

_Part: TypeAlias = Mapping[str, Any]
_Namespace: TypeAlias = tuple[str, ...]
_Said: TypeAlias = Iterator[e.AgentEvent]
Subgraphs: TypeAlias = Literal["data", "lanes", "off"]

_FAILED: Final = "The tool failed."
_MISREAD: Final = "The model's call of the tool could not be read."
_FOR_APPROVAL: Final = "This call waits until others are approved."
_FOR_ANSWER: Final = "This call waits for an answer."
# How the ids that LangChain itself gives begin; others are the provider's.
_RUN: Final = ("lc_run-", "run-")
_REASONS: Final[dict[str, FinishReason]] = {
    "length": "length",
    "max_tokens": "length",
    "MAX_TOKENS": "length",
    "content_filter": "content-filter",
    "refusal": "content-filter",
    "SAFETY": "content-filter",
}


class LangGraphOptions(Struct, frozen=True, kw_only=True):
    """What of a graph's run a page is shown.

    `state` are the keys of its state to show as `data-<key>`. `subgraphs` have one part each (`data`), speak
    like the graph itself (`lanes`), or are not shown (`off`). With the names of its `tools`, a call of any other may be
    the form of a structured output, and is not shown before the node that made it says more.
    """

    state: tuple[str, ...] = ()
    subgraphs: Subgraphs = "data"
    tools: tuple[str, ...] | None = None


_DEFAULT: Final = LangGraphOptions()


def read_options(given: Mapping[str, Any]) -> LangGraphOptions:
    """The options from JSON.

    Raises:
        ValueError: a name is not known, or a value is none that the option can have.
    """
    chosen: dict[str, Any] = {}
    for name, value in given.items():
        match name, value:
            case "state" | "tools", list() if all(isinstance(key, str) for key in cast("list[Any]", value)):
                chosen[name] = tuple(cast("list[str]", value))
            case "subgraphs", "data" | "lanes" | "off":
                chosen[name] = value
            case "state" | "tools", _:
                raise ValueError(f"The option {name} is a list of names.")
            case "subgraphs", _:
                raise ValueError("The option subgraphs is data, lanes or off.")
            case _:
                raise ValueError(f"There is no option {name!r:.60}: the options are state, subgraphs and tools.")
    return LangGraphOptions(**chosen)


class LangGraphTranslator:
    """Translates the parts of one run.

    It reads the modes `messages`, `updates`, `custom`, `tools` and `tasks`, and `values` for keys of the state; parts
    of other modes are left alone. `tools` gives the names of the graph's tools when the first part has come, in place
    of those of the options. `continues` is the message that the run goes on with.
    """

    def __init__(
        self,
        options: LangGraphOptions = _DEFAULT,
        *,
        tools: Callable[[], Collection[str] | None] | None = None,
        continues: UIMessage | None = None,
    ) -> None:
        self._options = options
        self._root = _Scope(tools or (lambda: options.tools))
        self._subs: dict[_Namespace, _Scope] = {}
        # The calls that the user was asked about, by the ids that they have in the message.
        self._waiting = {
            part["toolCallId"]: (tool_name(part), part.get("input"))
            for part in (() if continues is None else continues.parts)
            if is_tool_call(part) and not part["state"].startswith("output-")
        }
        self._root.calls.update(self._waiting)
        # The name of each task, or of its tool, and the call that the tool answers.
        self._tasks: dict[str, tuple[str, str]] = {}
        self._name = ""
        self._used: dict[str, Any] = {}
        self._reason: FinishReason = "stop"
        self._interrupts: set[str] = set()
        self._pause = ""
        self._state: dict[str, Any] | None = None

    def translate(self, event: _Part) -> Iterable[e.AgentEvent]:
        """What one part says.

        Raises:
            MappingError: it is not a part of such a stream.
        """
        try:
            kind, namespace, data = event["type"], tuple(event.get("ns", ())), event["data"]
        except (AttributeError, KeyError, TypeError):
            raise MappingError("A part of LangGraph's stream has no type or no data.") from None
        move = self._MOVES.get(kind)
        return () if move is None else move(self, namespace, data)

    def end(self) -> _Said:
        """The run has ended, or waits for an answer."""
        for scope in (self._root, *self._subs.values()):
            yield from scope.says(scope.settle())
        yield from self._tell_usage()
        yield e.Pause(self._pause) if self._pause else e.Finish(self._reason)

    def _messages(self, namespace: _Namespace, data: Any) -> _Said:
        try:
            message, metadata = data
        except (TypeError, ValueError):
            raise MappingError("A message of LangGraph's stream has no metadata.") from None
        kind = field(message, "type")
        if kind == "tool":
            scope = self._scope(namespace, metadata)
            yield from scope.says(scope.result(text_of(field(message, "tool_call_id")), message))
        elif kind in ("AIMessageChunk", "ai"):
            used = field(message, "usage_metadata")
            if used:
                self._add_usage(used)
            # Models of middlewares speak to the graph, as one that sums up what was said.
            if not field(metadata, "lc_source") and not field(metadata, "lc_internal_call"):
                scope = self._scope(namespace, metadata)
                task = text_of(field(metadata, "langgraph_checkpoint_ns"))
                yield from scope.says(scope.whole(message, task) if kind == "ai" else scope.chunk(message, task))
                if not namespace:
                    self._note_reason(field(message, "response_metadata"))
            if kind == "ai" or field(message, "chunk_position") == "last":
                yield from self._tell_usage()

    def _note_reason(self, told: Any) -> None:
        reason = (field(told, "finish_reason") or field(told, "stop_reason")) if told else None
        if isinstance(reason, str):
            self._reason = _REASONS.get(reason, "stop")

    def _add_usage(self, told: Any) -> None:
        """Sum the usage that the chunks of a model call have."""
        ins, outs = field(told, "input_token_details"), field(told, "output_token_details")
        for name, count in (
            ("input_tokens", field(told, "input_tokens")),
            ("output_tokens", field(told, "output_tokens")),
            ("cache_read_tokens", field(ins, "cache_read")),
            ("cache_write_tokens", field(ins, "cache_creation")),
            ("reasoning_tokens", field(outs, "reasoning")),
        ):
            if type(count) is int:
                self._used[name] = self._used.get(name, 0) + count

    def _tell_usage(self) -> _Said:
        if self._used:
            used, self._used = self._used, {}
            yield e.Usage(**used)

    def _updates(self, namespace: _Namespace, data: Any) -> _Said:
        for node, update in cast("Mapping[str, Any]", data).items() if isinstance(data, Mapping) else ():
            if node == "__interrupt__":
                for raw in update:
                    yield from self._interrupted(namespace, raw)
                continue
            scope = self._scope(namespace)
            for each in cast("list[Any]", update) if isinstance(update, list) else [update]:
                messages = list(messages_of(each))
                if not namespace and self._options.subgraphs != "lanes":
                    yield from self._taken_over(messages)
                yield from scope.says(scope.update(messages))
                output = field(each, "structured_response")
                if not namespace and output is not None:
                    yield e.Data("output", output)

    def _taken_over(self, messages: Collection[Any]) -> _Said:
        """What a sub-graph said to itself and its graph has now taken over is said by the graph."""
        for message in messages:
            message_id = text_of(field(message, "id"))
            if any(message_id in scope.ids for scope in self._subs.values()):
                yield from self._root.whole(message)

    def _interrupted(self, namespace: _Namespace, raw: Any) -> _Said:
        interrupt = read_interrupt(raw)
        # One of a sub-graph comes again from the graph.
        if interrupt.id in self._interrupts:
            return
        self._interrupts.add(interrupt.id)
        scope = self._scope(namespace)
        known = set(scope.calls)
        calls = [scope.call_of(action) for action in interrupt.actions]
        if not calls or not all(calls):
            self._pause = self._pause or _FOR_ANSWER
            yield e.Data("interrupt", {"id": interrupt.id, "value": interrupt.value}, id=interrupt.id)
            return
        self._pause = _FOR_APPROVAL
        for call_id, action in zip(calls, interrupt.actions, strict=True):
            if call_id not in known:
                yield from scope.says([e.ToolCall(call_id, action.name, action.args)])
            yield from scope.says([e.ApprovalRequest(action.approval_id, call_id, action.reason)])

    def _custom(self, namespace: _Namespace, data: Any) -> _Said:
        if namespace and self._options.subgraphs == "off":
            return
        match data:
            case {"type": str(kind), "data": value} if kind.startswith("data-") and len(kind) > len("data-"):
                event = cast("Mapping[str, Any]", data)
                name, transient = text_of(kind).removeprefix("data-"), event.get("transient") is True
                yield e.Data(name, value, id=text_of(event.get("id")), transient=transient)
            case _:
                yield e.Data("custom", data)

    def _tools(self, namespace: _Namespace, data: Any) -> Iterable[e.AgentEvent]:
        scope = self._scope(namespace)
        return scope.says(scope.tool(data))

    def _task(self, namespace: _Namespace, data: Any) -> _Said:
        task_id, name = text_of(field(data, "id")), text_of(field(data, "name"))
        if field(data, "triggers") is not None:
            agent = text_of(field(field(data, "metadata"), "lc_agent_name"))
            if not namespace:
                self._name = agent
            self._tasks[task_id] = called_by(field(data, "input")) or (name, "")
            around = _task_of(namespace)
            if around in self._tasks and agent not in ("", self._name):
                self._tasks[around] = (agent, self._tasks[around][1])
            return
        for scope in self._subs.values():
            if scope.agent is not None and scope.agent.id == task_id:
                scope.agent = structs.replace(scope.agent, status=_status(data))
                yield scope.agent

    def _values(self, namespace: _Namespace, data: Any) -> _Said:
        if namespace:
            return
        chosen = {key: plain(field(data, key)) for key in self._options.state if field(data, key) is not None}
        # What the state had before is not news.
        before, self._state = chosen if self._state is None else self._state, chosen
        for key, value in chosen.items():
            if key not in before or before[key] != value:
                yield e.Data(key, value, id=key)

    def _scope(self, namespace: _Namespace, metadata: Any = None) -> "_Scope":
        if not namespace:
            return self._root
        scope = self._subs.get(namespace)
        if scope is None:
            scope = self._subs[namespace] = _Scope(lambda: None, self._sub_agent(namespace, metadata))
            prefix = f"{_task_of(namespace)}:"
            for call_id, call in self._waiting.items():
                if call_id.startswith(prefix):
                    scope.calls[call_id.removeprefix(prefix)] = call
        return scope

    def _sub_agent(self, namespace: _Namespace, metadata: Any) -> e.SubAgent:
        task = _task_of(namespace)
        name, call_id = self._tasks.get(task, (namespace[-1].partition(":")[0], ""))
        agent = text_of(field(metadata, "lc_agent_name"))
        if agent not in ("", self._name):
            name = agent
        return e.SubAgent(task, name, call_id=call_id, parent=_task_of(namespace[:-1]), show=self._options.subgraphs)

    _MOVES: ClassVar[dict[str, Callable[["LangGraphTranslator", _Namespace, Any], Iterable[e.AgentEvent]]]] = {
        "messages": _messages,
        "updates": _updates,
        "custom": _custom,
        "tools": _tools,
        "tasks": _task,
        "values": _values,
    }


def log_translator(options: Mapping[str, Any]) -> LangGraphTranslator:
    """The translator of a recorded log.

    Raises:
        ValueError: there is no such option, or it cannot have that value.
    """
    return LangGraphTranslator(read_options(options))


def _task_of(namespace: _Namespace) -> str:
    """The id of the task that a sub-graph runs in, which is the same when it goes on after an interrupt."""
    return namespace[-1].partition(":")[2] if namespace else ""


def _status(result: Any) -> Literal["done", "failed", "waiting"]:
    if field(result, "error"):
        return "failed"
    return "waiting" if field(result, "interrupts") else "done"


class _StreamedCall(Struct):
    """A tool call while a model says it."""

    id: str = ""
    name: str = ""
    args: str = ""
    begun: bool = False
    by_provider: bool = False


class _ModelCall(Struct, eq=False):
    """A call of a model, in a task of the graph; what it says has the key.

    Its chunks have the id of LangChain's run, or one of the provider's, which some providers give only to the first.
    """

    task: str
    key: str
    run: str = ""
    id: str = ""
    calls: dict[Any, _StreamedCall] = default(default_factory=dict[Any, _StreamedCall])
    last: _StreamedCall | None = None
    text: list[str] = default(default_factory=list[str])
    thought: Any = None

    def takes(self, message_id: str) -> bool:
        """Whether a chunk with this id belongs to the call."""
        if message_id.startswith(_RUN):
            self.run = self.run or message_id
            return self.run == message_id
        self.id = self.id or message_id
        return self.id == message_id


class _Scope:
    """What is said in one namespace: by the graph itself, or by a sub-graph, which is the `agent`.

    `ids` are those of the messages that were said here. `calls` are those that an interrupt may be about: of the last
    message, or of the one that is continued.
    """

    def __init__(self, tools: Callable[[], Collection[str] | None], agent: e.SubAgent | None = None) -> None:
        self.agent = agent
        self.ids: set[str] = set()
        self.calls: dict[str, tuple[str, Any]] = {}
        self._tools = tools
        self._open: list[_ModelCall] = []
        self._ended: _ModelCall | None = None
        self._failed: dict[str, None] = {}

    def says(self, events: Iterable[e.AgentEvent]) -> Iterable[e.AgentEvent]:
        """The events as this graph or sub-graph says them."""
        agent = self.agent
        return events if agent is None else (structs.replace(agent, event=event) for event in events)

    def chunk(self, message: Any, task: str) -> _Said:
        """A piece of what a model says."""
        message_id = text_of(field(message, "id"))
        call = next((call for call in self._open if call.task == task and call.takes(message_id)), None)
        if call is None:
            call = yield from self._begin(message_id, task)
        content = field(message, "content")
        if type(content) is str and not field(message, "additional_kwargs") and not field(message, "tool_call_chunks"):
            # Nearly all chunks are such, and LangChain takes its time to make blocks of them.
            if content:
                call.text.append(content)
                yield e.Text(content, call.key)
        else:
            for block in blocks_of(message):
                yield from self._block(block, call)
        if field(message, "chunk_position") == "last":
            yield from self._end(call)

    def whole(self, message: Any, task: str = "") -> _Said:
        """All that a model, or a node without one, says at once, unless it was said in pieces."""
        message_id = text_of(field(message, "id"))
        if message_id in self.ids or self._is_repeated(message, message_id, task):
            return
        call = yield from self._begin(message_id, task)
        for block in blocks_of(message):
            yield from self._block(block, call)
        yield from self._end(call)

    def update(self, messages: Sequence[Any]) -> _Said:
        """The messages that a node gave to the state: what was said is complete, and calls have their arguments."""
        answered = {field(message, "tool_call_id") for message in messages if field(message, "type") == "tool"}
        for message in messages:
            message_id = text_of(field(message, "id"))
            if field(message, "type") == "tool":
                yield from self.result(text_of(field(message, "tool_call_id")), message)
                continue
            for call in [call for call in self._open if message_id and message_id in (call.run, call.id)]:
                yield from self._end(call)
            if message_id in self.ids:
                yield from self._final(message, answered)

    def tool(self, event: Any) -> _Said:
        """A tool began, said something, ended or failed."""
        call_id = text_of(field(event, "tool_call_id"))
        match field(event, "event"):
            case "tool-started" if name := text_of(field(event, "tool_name")):
                yield e.ToolCall(call_id, name, field(event, "input") or {})
            case "tool-output-delta":
                yield e.ToolOutputDelta(call_id, field(event, "delta"))
            case "tool-finished":
                output = field(event, "output")
                message = result_in(output, call_id)
                if message is not None:
                    yield from self.result(call_id, message)
                elif not is_command(output):
                    yield e.ToolResult(call_id, output)
            case "tool-error":
                # Middleware may still make a message of the error.
                self._failed[call_id] = None
            case _:
                pass

    def result(self, call_id: str, message: Any) -> _Said:
        """The result of a call, as a message."""
        self._failed.pop(call_id, None)
        output = output_of(message)
        if field(message, "status") == "error":
            yield e.ToolError(call_id, text_of(output) or text_of(field(message, "content")) or _FAILED)
        else:
            yield e.ToolResult(call_id, output)

    def settle(self) -> _Said:
        """The calls whose tool failed and of which nothing more was said have failed."""
        failed, self._failed = self._failed, {}
        for call_id in failed:
            yield e.ToolError(call_id, _FAILED)

    def call_of(self, action: Action) -> str:
        """The id of the call that waits for this approval; "" if no such call was seen."""
        alike = [call_id for call_id, (name, _) in self.calls.items() if name == action.name]
        same = [call_id for call_id in alike if self.calls[call_id][1] == action.args]
        found = action.call_id or next(iter(same or alike), "")
        # Of two calls that are the same, the next action is about the other.
        self.calls.pop(found, None)
        return found

    def _is_form(self, name: str) -> bool:
        """Whether a model that calls this may only fill in the form of a structured output."""
        tools = self._tools()
        return tools is not None and name not in tools

    def _begin(self, message_id: str, task: str) -> Generator[e.AgentEvent, None, _ModelCall]:
        yield from self.settle()
        is_alone = not self._open
        if is_alone:
            self.calls.clear()
        call = _ModelCall(task, "" if is_alone else message_id)
        call.takes(message_id)
        self.ids.update(filter(None, (message_id,)))
        self._open.append(call)
        if is_alone:
            yield e.Step()
        return call

    def _end(self, call: _ModelCall) -> _Said:
        self._open.remove(call)
        self._ended = call
        self.ids.update(filter(None, (call.run, call.id)))
        for streamed in call.calls.values():
            yield from self._provider_input(streamed, call)
        yield e.EndPart(call.key)

    def _is_repeated(self, message: Any, message_id: str, task: str) -> bool:
        """Whether a node gives anew, under another id, what its model said."""
        last = self._ended
        if last is None or last.task != task:
            return False
        said = "".join(text_of(block.get("text")) for block in blocks_of(message) if block.get("type") == "text")
        if not said or said != "".join(last.text):
            return False
        self.ids.add(message_id)
        return True

    def _block(self, block: Block, call: _ModelCall) -> _Said:
        match block.get("type"):
            case "text":
                yield from self._text(block, call)
            case "reasoning" | "thinking":
                if block.get("index") != call.thought:
                    yield e.EndPart(call.key)
                call.thought = block.get("index")
                yield e.Reasoning(text_of(block.get("reasoning")) or text_of(block.get("thinking")), call.key)
            case "tool_call_chunk" | "server_tool_call_chunk":
                yield from self._call_chunk(block, call)
            case "tool_call" | "server_tool_call":
                yield from self._whole_call(block, call)
            case "server_tool_result":
                yield from self._provider_result(block, call)
            case "image" | "audio" | "video" | "file":
                any_type = "application/octet-stream" if block["type"] == "file" else f"{block['type']}/*"
                media_type = text_of(block.get("mime_type")) or any_type
                url, data = text_of(block.get("url")), text_of(block.get("base64"))
                if url or data:
                    yield e.File(url or f"data:{media_type};base64,{data}", media_type)
            case _:
                pass

    def _text(self, block: Block, call: _ModelCall) -> _Said:
        delta = text_of(block.get("text"))
        call.text.append(delta)
        yield e.Text(delta, call.key)
        for note in block.get("annotations") or ():
            url = text_of(field(note, "url"))
            if field(note, "type") == "citation" and url:
                yield e.Source(url, text_of(field(note, "title")))

    def _call_chunk(self, block: Block, call: _ModelCall) -> _Said:
        index, call_id = block.get("index"), text_of(block.get("id"))
        known = call.last if index is None else call.calls.get(index)
        if known is None or (call_id and known.id not in ("", call_id)):
            known = _StreamedCall(by_provider=block["type"] == "server_tool_call_chunk")
            call.calls[len(call.calls) if index is None else index] = known
        call.last = known
        known.id, known.name = known.id or call_id, known.name or text_of(block.get("name"))
        delta = text_of(block.get("args"))
        known.args += delta
        if known.begun:
            yield e.ToolInputDelta(known.id, delta)
        elif known.id and known.name and (known.by_provider or not self._is_form(known.name)):
            known.begun = True
            yield e.ToolInputStart(known.id, known.name, provider_executed=known.by_provider, key=call.key)
            yield e.ToolInputDelta(known.id, known.args)

    def _whole_call(self, block: Block, call: _ModelCall) -> _Said:
        call_id, name, by_provider = *_named(block), block["type"] == "server_tool_call"
        if call_id and name and (by_provider or not self._is_form(name)):
            args: Any = block.get("args") or {}
            if not by_provider:
                self.calls[call_id] = (name, args)
            yield e.ToolInputStart(call_id, name, provider_executed=by_provider, key=call.key)
            yield e.ToolCall(call_id, name, args, provider_executed=by_provider, key=call.key)

    def _provider_input(self, streamed: _StreamedCall, call: _ModelCall) -> _Said:
        """The input of a call that is in no update, since the provider carries it out."""
        if not streamed.by_provider or not streamed.begun:
            return
        try:
            args = msgspec.json.decode(streamed.args or "{}")
        except msgspec.DecodeError:
            args = {"input": streamed.args}
        yield e.ToolCall(streamed.id, streamed.name, args, provider_executed=True, key=call.key)

    def _provider_result(self, block: Block, call: _ModelCall) -> _Said:
        call_id = text_of(block.get("tool_call_id"))
        for streamed in call.calls.values():
            if streamed.id == call_id:
                yield from self._provider_input(streamed, call)
        failed = block.get("status") == "error"
        yield e.ToolError(call_id, _FAILED) if failed else e.ToolResult(call_id, block.get("output"))

    def _final(self, message: Any, answered: Collection[Any]) -> _Said:
        for tool_call in field(message, "tool_calls") or ():
            call_id, name = _named(tool_call)
            # A node that made the call and answers it itself has only filled in a form.
            if call_id and name and not (call_id in answered and self._is_form(name)):
                args: Any = field(tool_call, "args") or {}
                self.calls[call_id] = (name, args)
                yield e.ToolCall(call_id, name, args)
        for tool_call in field(message, "invalid_tool_calls") or ():
            call_id, name = _named(tool_call)
            if call_id and name:
                yield e.ToolInputError(call_id, name, field(tool_call, "args"), _MISREAD)


def _named(tool_call: Any) -> tuple[str, str]:
    return text_of(field(tool_call, "id")), text_of(field(tool_call, "name"))
