"""LangGraph: the parts of a graph's stream, as `astream(…, version="v2")` gives them."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, ClassVar, Final, Literal, TypeAlias, cast

from msgspec import UNSET, Struct

from usechat.errors import MappingError
from usechat.protocol.chunks import Chunk, FinishReason
from usechat.protocol.values import plain
from usechat.protocol.writer import MessageWriter
from usechat.sources.langgraph_interrupts import Interrupt, read_interrupt
from usechat.sources.langgraph_messages import called_by, field, messages_of, text_of
from usechat.sources.langgraph_scope import Scope
from usechat.sources.langgraph_sinks import MessageSink, SubgraphSink
from usechat.sources.langgraph_usage import Usage

__all__ = ["BEGINS", "LangGraphMapper", "LangGraphOptions", "Subgraphs", "read_options"]

_Part: TypeAlias = Mapping[str, Any]
_Namespace: TypeAlias = tuple[str, ...]
Subgraphs: TypeAlias = Literal["data", "lanes", "off"]

BEGINS: Final = "usechat:begins"
"""The type of a part of our own, which may come first. Its data may have the names of the `tools` that the graph runs,
if it may also call for a structured output, the `parts` and the `metadata` of the message that is continued, and how
far the `thread` is."""

_FOR_APPROVAL: Final = "This call waits until others are approved."
_FOR_ANSWER: Final = "This call waits for an answer."
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

    `state` are the keys of its state to show as `data-<key>`. `subgraphs` are told in one part each (`data`), speak
    like the graph itself (`lanes`), or not at all (`off`).
    """

    state: tuple[str, ...] = ()
    subgraphs: Subgraphs = "data"


_DEFAULT: Final = LangGraphOptions()


def read_options(given: Mapping[str, Any]) -> LangGraphOptions:
    """The options from JSON.

    Raises:
        ValueError: a name is not known, or a value is none that the option can have.
    """
    for name in given:
        if name not in ("state", "subgraphs"):
            raise ValueError(f"There is no option {name!r:.60}: the options are state and subgraphs.")
    state, subgraphs = given.get("state", ()), given.get("subgraphs", "data")
    if not isinstance(state, list | tuple) or not all(isinstance(key, str) for key in cast("list[Any]", state)):
        raise ValueError("The option state is a list of names.")
    if subgraphs not in ("data", "lanes", "off"):
        raise ValueError("The option subgraphs is data, lanes or off.")
    return LangGraphOptions(state=tuple(cast("list[str]", state)), subgraphs=subgraphs)


class LangGraphMapper:
    """Turns the parts of one run into one message.

    It reads the modes `messages`, `updates`, `custom`, `tools` and `tasks`, and `values` for keys of the state; parts
    of other modes are left alone.
    """

    def __init__(self, writer: MessageWriter, options: LangGraphOptions = _DEFAULT) -> None:
        self._writer = writer
        self._options = options
        self._root = Scope(MessageSink(writer))
        self._subs: dict[_Namespace, Scope] = {}
        self._tasks: dict[str, dict[str, str]] = {}
        self._told: dict[Any, Any] = {}
        self._name = ""
        self._usage = Usage()
        self._reason: FinishReason = "stop"
        self._interrupts: set[str] = set()
        self._asked = False
        self._waits = False
        self._state: dict[str, Any] | None = None

    def map(self, event: _Part) -> Iterator[Chunk]:
        """The chunks of one part.

        Raises:
            MappingError: it is not a part of such a stream.
        """
        try:
            kind, namespace, data = event["type"], tuple(event.get("ns", ())), event["data"]
        except (AttributeError, KeyError, TypeError):
            raise MappingError("A part of LangGraph's stream has no type or no data.") from None
        move = self._MOVES.get(kind)
        if move is not None:
            yield from move(self, namespace, data)

    def end(self) -> Iterator[Chunk]:
        """End the message because the run has ended, or waits for an answer."""
        yield from self._root.tools.settle()
        for scope in self._subs.values():
            yield from scope.tools.settle()
        if self._usage.changed:
            yield from self._writer.metadata(self._usage.take())
        if self._asked:
            yield from self._pause(_FOR_APPROVAL)
            yield from self._writer.finish("tool-calls")
        elif self._waits:
            yield from self._pause(_FOR_ANSWER)
            yield from self._writer.finish("other")
        else:
            # A call that the graph leaves alone is the browser's.
            is_left = any(call.state == "available" for call in self._writer.state.here)
            yield from self._writer.finish("tool-calls" if is_left else self._reason)

    def _begins(self, namespace: _Namespace, data: Any) -> Iterator[Chunk]:
        self._root.tools.names = field(data, "tools")
        self._usage.go_on(field(data, "metadata"))
        parts = field(data, "parts") or ()
        self._told = {part.get("id"): part.get("data") for part in parts if part["type"] == "data-subgraph"}
        # The calls of sub-graphs that were asked for, by the ids that they have there.
        self._root.tools.elsewhere.update(call_id.partition(":")[2] for call_id in self._writer.state.calls)
        yield from ()

    def _messages(self, namespace: _Namespace, data: Any) -> Iterator[Chunk]:
        try:
            message, metadata = data
        except (TypeError, ValueError):
            raise MappingError("A message of LangGraph's stream has no metadata.") from None
        kind = field(message, "type")
        if kind == "tool":
            yield from self._scope(namespace, metadata).tools.message(message)
        elif kind in ("AIMessageChunk", "ai"):
            self._usage.add(field(message, "usage_metadata"))
            if not field(metadata, "lc_source") and not field(metadata, "lc_internal_call"):
                yield from self._said(namespace, message, metadata, whole=kind == "ai")
            if self._usage.changed and (kind == "ai" or field(message, "chunk_position") == "last"):
                yield from self._writer.metadata(self._usage.take())

    def _said(self, namespace: _Namespace, message: Any, metadata: Any, *, whole: bool) -> Iterator[Chunk]:
        scope = self._scope(namespace, metadata)
        task = text_of(field(metadata, "langgraph_checkpoint_ns"))
        yield from scope.whole(message, task) if whole else scope.chunk(message, task)
        told = field(message, "response_metadata")
        if told and not namespace:
            reason = field(told, "finish_reason") or field(told, "stop_reason")
            self._reason = _REASONS.get(reason, "stop") if isinstance(reason, str) else self._reason

    def _updates(self, namespace: _Namespace, data: Any) -> Iterator[Chunk]:
        for node, update in cast("Mapping[str, Any]", data).items() if isinstance(data, Mapping) else ():
            if node == "__interrupt__":
                for raw in update:
                    yield from self._interrupted(namespace, read_interrupt(raw))
                continue
            scope = self._scope(namespace)
            for each in cast("list[Any]", update) if isinstance(update, list) else [update]:
                messages = list(messages_of(each))
                if not namespace and self._options.subgraphs != "lanes":
                    yield from self._joined(messages)
                yield from scope.update(messages)
                output = field(each, "structured_response")
                if not namespace and output is not None:
                    yield from self._writer.data("output", output)

    def _joined(self, messages: Collection[Any]) -> Iterator[Chunk]:
        """What a sub-graph said to itself and its graph has now taken over is said by the graph."""
        for message in messages:
            message_id = text_of(field(message, "id"))
            if any(message_id in scope.ids for scope in self._subs.values()):
                yield from self._root.whole(message)

    def _interrupted(self, namespace: _Namespace, interrupt: Interrupt) -> Iterator[Chunk]:
        # One of a sub-graph comes again from the graph.
        if interrupt.id in self._interrupts:
            return
        self._interrupts.add(interrupt.id)
        tools, sink = self._scope(namespace).tools, MessageSink(self._writer, _task_of(namespace))
        calls: list[str] = []
        for action in interrupt.actions:
            calls.append(tools.call_of(action) or sink.waiting(action.name, calls))
        if not calls or not all(calls):
            self._waits = True
            yield from self._writer.data("interrupt", {"id": interrupt.id, "value": interrupt.value}, id=interrupt.id)
            return
        self._asked = True
        if namespace:
            self._root.tools.elsewhere.update(calls)
        for call_id, action in zip(calls, interrupt.actions, strict=True):
            yield from sink.call(call_id, action.name, action.args, "")
            yield from sink.ask(call_id, action.approval_id, action.reason)

    def _pause(self, result: str) -> Iterator[Chunk]:
        """Give the calls that go on only after an answer a result until then: without one they would be closed as
        failed, and a page that waits for all calls of the last step would never send the user's answer."""
        for call in [call for call in self._writer.state.here if call.state == "available"]:
            yield from self._writer.tool_output(call.id, result)

    def _custom(self, namespace: _Namespace, data: Any) -> Iterator[Chunk]:
        if namespace and self._options.subgraphs == "off":
            return
        match data:
            case {"type": str(kind), "data": value} if kind.startswith("data-") and len(kind) > len("data-"):
                event = cast("Mapping[str, Any]", data)
                part_id = text_of(event.get("id")) or UNSET
                transient = event.get("transient") is True
                yield from self._writer.data(kind.removeprefix("data-"), value, id=part_id, transient=transient)
            case _:
                yield from self._writer.data("custom", data)

    def _tools(self, namespace: _Namespace, data: Any) -> Iterator[Chunk]:
        yield from self._scope(namespace).tools.event(data)

    def _task(self, namespace: _Namespace, data: Any) -> Iterator[Chunk]:
        task_id, name = text_of(field(data, "id")), text_of(field(data, "name"))
        if field(data, "triggers") is not None:
            agent = text_of(field(field(data, "metadata"), "lc_agent_name"))
            if not namespace:
                self._name = agent
            called = called_by(field(data, "input"))
            self._tasks[task_id] = {"name": name} if called is None else {"name": called.tool, "toolCallId": called.id}
            parent = self._tasks.get(_task_of(namespace))
            if parent is not None and agent not in ("", self._name):
                parent["name"] = agent
        else:
            scope = next((scope for ns, scope in self._subs.items() if _task_of(ns) == task_id), None)
            if scope is not None and isinstance(scope.sink, SubgraphSink):
                yield from scope.sink.over(_status(data))

    def _values(self, namespace: _Namespace, data: Any) -> Iterator[Chunk]:
        if namespace:
            return
        chosen = {key: plain(field(data, key)) for key in self._options.state if field(data, key) is not None}
        # What the state had before is not news.
        before, self._state = chosen if self._state is None else self._state, chosen
        for key, value in chosen.items():
            if key not in before or before[key] != value:
                yield from self._writer.data(key, value, id=key)

    def _scope(self, namespace: _Namespace, metadata: Any = None) -> Scope:
        if not namespace:
            return self._root
        scope = self._subs.get(namespace)
        if scope is None:
            scope = self._subs[namespace] = Scope(self._sink(namespace, metadata))
        return scope

    def _sink(self, namespace: _Namespace, metadata: Any) -> MessageSink | SubgraphSink:
        task = _task_of(namespace)
        if self._options.subgraphs == "lanes":
            return MessageSink(self._writer, task)
        about: dict[str, str] = {"name": namespace[-1].partition(":")[0], **self._tasks.get(task, {})}
        agent = text_of(field(metadata, "lc_agent_name"))
        if agent and agent != self._name:
            about["name"] = agent
        if len(namespace) > 1:
            about["parent"] = _task_of(namespace[:-1])
        shown = self._options.subgraphs == "data"
        return SubgraphSink(self._writer, task, about, self._told.get(task), shown=shown)

    _MOVES: ClassVar[dict[str, Callable[["LangGraphMapper", _Namespace, Any], Iterator[Chunk]]]] = {
        BEGINS: _begins,
        "messages": _messages,
        "updates": _updates,
        "custom": _custom,
        "tools": _tools,
        "tasks": _task,
        "values": _values,
    }


def _task_of(namespace: _Namespace) -> str:
    """The id of the task that a sub-graph runs in, which is the same when it goes on after an interrupt."""
    return namespace[-1].partition(":")[2] if namespace else ""


def _status(result: Any) -> str:
    if field(result, "error"):
        return "failed"
    return "waiting" if field(result, "interrupts") else "complete"
