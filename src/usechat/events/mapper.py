"""The books of one message: what the agent said, which calls are open, which sub-agent speaks, what was used.

Each message has one `EventMapper`, whatever framework its events come from. It writes with a `MessageWriter`, which
opens and closes parts and steps, keeps the state of each call, and knows the message that is continued. Here is what
the writer cannot know, because it is about events and not about chunks:

- *Repeats.* A framework streams a text and then repeats it whole. It announces a call in pieces, whole, and again when
  the call is carried out, and reports its result twice. A text is compared with what was said under its key. A call is
  written once while it is open, and not again in the step in which it ended. The first end of a call counts. A call of
  the continued message may have ended with the text of a `Pause`; then its next end counts. A framework's events about
  a call that nobody announced are dropped.
- *Hidden calls.* They are kept until they end, in case the user is asked about one.
- *Sub-agents.* Each has one part, which holds everything that it said.
- *Usage*, summed over the model calls, with what the continued message had used.
- *The end.* The finish reason that the framework named, unless a call waits for the browser or the user.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Final, Generic, Literal, NotRequired, TypeAlias, TypedDict, TypeVar, cast, get_args

from msgspec import UNSET, structs

from usechat import events as e
from usechat.errors import AgentError, RemoteProtocolError
from usechat.protocol import chunks as c
from usechat.protocol.clients import TYPES
from usechat.protocol.codec import read_chunk
from usechat.protocol.state import CLOSED, Call
from usechat.protocol.tables import UNFINISHED
from usechat.protocol.values import VALUE_LIMIT, mend, plain
from usechat.protocol.writer import MessageWriter

__all__ = ["STRUCTURED_OUTPUT", "EventMapper", "Growth", "SubAgentCall", "SubAgentData", "TranslatingMapper"]

_Event = TypeVar("_Event")
_Spoken: TypeAlias = e.Text | e.Reasoning
_Kind: TypeAlias = Literal["text", "reasoning"]

STRUCTURED_OUTPUT: Final = "structured-output"
"""The name of the data part that a structured output is."""

_CHUNKS: Final = cast("tuple[type[c.Chunk], ...]", get_args(c.Chunk))
_DENIED: Final = ("refused", "denied")
_ASKABLE: Final = ("available", "approved", "refused")
# How many characters at its end and at its beginning identify a text, and how many pieces of it wait to be joined.
_END: Final = 64
_PIECES: Final = 128
# JavaScript cannot count further, so this is no number of tokens.
_UNCOUNTABLE: Final = 2**53
# How many characters a piece of a tool's output counts for that is no text.
_VALUE: Final = 64


class EventMapper:
    """Turns the events of one turn into chunks; what comes after the end of the message is dropped.

    `repeats` is for the events of a framework, which announces a call again and again. A plain agent that uses the id
    of a call that is over means another call, and so does one that has another input for a call of the continued
    message.
    """

    def __init__(self, writer: MessageWriter, *, repeats: bool = False) -> None:
        self._writer = writer
        self._repeats = repeats
        self._state = writer.state
        self._texts: dict[str, _Said] = {}
        self._reasonings: dict[str, _Said] = {}
        # Dicts of None, since most turns leave these sets empty, and an empty set takes three times as much memory.
        self._continued = dict.fromkeys(self._state.calls)
        # The step in which each call ended, by the id that the agent knows it by.
        self._ended: dict[str, tuple[int, int]] = {}
        # How many lazy steps were asked for. The last one may not have begun yet.
        self._lazy_steps = 0
        # The calls of the continued message whose result may be what a pause said, by the ids of the message.
        self._paused = dict.fromkeys(call.id for call in self._state.here if call.state == "done")
        self._progresses: dict[str, _Progress] = {}
        # The key and the name of each call for which no result came, also of those that `EndCalls` has closed.
        self._waiting: dict[str, tuple[str, str]] = {}
        # The open calls that are not shown, unless the user is asked about them.
        self._hidden: dict[str, e.ToolCall] = {}
        self._sources: dict[object, None] = {}
        self._sub_agents: dict[str, _SubAgentPart] = {}
        # The ids of calls inside sub-agents that are in the message, since the user was asked about them.
        self._inside: dict[str, None] = {}
        continues = writer.continues
        for part in () if continues is None else continues.parts:
            if part["type"] == "data-subagent":
                self._find_inside(f"{part.get('id')}:")
        self._usage: _UsageTotals | None = None
        self._finish: e.Finish | None = None

    def map(self, event: e.AgentEvent) -> Iterable[c.Chunk]:
        """The chunks of one event.

        Raises:
            AgentError: it is nothing that an agent may yield.
            LocalProtocolError: it is illegal here.
        """
        if self._state.phase in ("ended", "failed"):
            return ()
        write = self._WRITES.get(type(event))
        return self._other(event) if write is None else write(self, event)

    def end(self) -> Iterator[c.Chunk]:
        """Write what was held back, and end the message if the agent said how."""
        if self._state.phase in ("ended", "failed"):
            return
        for part in self._sub_agents.values():
            yield from part.write_rest()
        yield from self._write_usage()
        if self._finish is None:
            return
        waits = any(call.state in ("available", "requested") for call in self._state.open_calls())
        metadata = UNSET if self._finish.metadata is None else self._finish.metadata
        yield from self._writer.finish("tool-calls" if waits else self._finish.reason, metadata)

    def _str(self, event: str) -> list[c.Chunk]:
        return self._writer.text(event)

    def _text(self, event: e.Text) -> Iterable[c.Chunk]:
        said = self._texts.get(event.key)
        # Nearly all events are such.
        if said is not None and not event.whole and event.metadata is None:
            said.add(event.text)
            return self._writer.text(event.text, event.key)
        return self._speak(event, self._texts, self._writer.text)

    def _reasoning(self, event: e.Reasoning) -> Iterable[c.Chunk]:
        return self._speak(event, self._reasonings, self._writer.reasoning)

    def _speak(
        self, event: _Spoken, by_key: "dict[str, _Said]", write: Callable[[str, str], list[c.Chunk]]
    ) -> Iterable[c.Chunk]:
        key = event.key
        said = by_key.get(key)
        if said is None:
            said = by_key[key] = _Said()
        if event.whole:
            return self._whole(event, said, write)
        said.add(event.text)
        chunks = write(event.text, key)
        if event.metadata is None:
            return chunks
        if isinstance(event, e.Reasoning):
            # A provider may encrypt all of its reasoning, and wants it back all the same.
            chunks += self._writer.begin_reasoning(key)
        return chunks + self._writer.end_part(lane=key, metadata=event.metadata)

    def _whole(self, event: _Spoken, said: "_Said", write: Callable[[str, str], list[c.Chunk]]) -> Iterator[c.Chunk]:
        rest, is_new = said.take(event.text, block=event.block)
        metadata = UNSET if event.metadata is None else event.metadata
        if is_new:
            yield from self._writer.end_part(lane=event.key)
        yield from write(rest, event.key)
        yield from self._writer.end_part(lane=event.key, metadata=metadata)

    def _end_part(self, event: e.EndPart) -> list[c.Chunk]:
        self._texts.pop(event.key, None)
        self._reasonings.pop(event.key, None)
        return self._writer.end_part(lane=event.key)

    def _input_start(self, event: e.ToolInputStart) -> list[c.Chunk]:
        call = self._call(event.id)
        if event.id in self._inside or (call is not None and call.state not in CLOSED):
            return []
        self._begin_call(event)
        return self._writer.tool_input_start(
            event.id,
            event.name,
            lane=event.key,
            dynamic=event.dynamic,
            provider_executed=event.provider_executed or UNSET,
            title=UNSET if event.title is None else event.title,
        )

    def _input_delta(self, event: e.ToolInputDelta) -> list[c.Chunk]:
        call = self._call(event.id)
        if self._is_anothers(call) or (call is not None and call.state not in UNFINISHED):
            return []
        return self._writer.tool_input_delta(event.id, event.delta)

    def _tool_call(self, event: e.ToolCall) -> list[c.Chunk]:
        if self._is_repeated(event.id):
            return []
        if event.hidden:
            self._hidden.setdefault(event.id, event)
            self._writer.working[event.id] = None
            return []
        event = self._take_hidden(event.id) or event
        self._begin_call(event)
        return self._writer.tool_input(
            event.id,
            event.name,
            event.input,
            lane=event.key,
            dynamic=event.dynamic,
            provider_executed=event.provider_executed or UNSET,
            title=UNSET if event.title is None else event.title,
            metadata=UNSET if event.metadata is None else event.metadata,
        )

    def _input_error(self, event: e.ToolInputError) -> list[c.Chunk]:
        if self._is_repeated(event.id):
            return []
        self._begin_call(event)
        self._waiting.pop(event.id)
        chunks = self._writer.tool_input_error(event.id, event.name, event.input, event.text, lane=event.key)
        self._ended[event.id] = self._now
        return chunks

    def _progress(self, event: e.ToolProgress) -> list[c.Chunk]:
        call = self._call(event.id)
        if self._is_anothers(call) or self._is_over(call) or (call is not None and call.state in _DENIED):
            return []
        return self._writer.tool_output(event.id, event.output, preliminary=True)

    def _output_delta(self, event: e.ToolOutputDelta) -> list[c.Chunk]:
        progress = self._progresses.get(event.id)
        if progress is None:
            progress = self._progresses[event.id] = _Progress()
        return self._progress(e.ToolProgress(event.id, progress.value)) if progress.add(event.delta) else []

    def _result(self, event: e.ToolResult) -> Iterator[c.Chunk]:
        provider = event.provider_executed or UNSET
        yield from self._ends(
            event, lambda call_id: self._writer.tool_output(call_id, event.output, provider_executed=provider)
        )

    def _error(self, event: e.ToolError) -> Iterator[c.Chunk]:
        provider = event.provider_executed or UNSET
        yield from self._ends(
            event, lambda call_id: self._writer.tool_error(call_id, event.text, provider_executed=provider)
        )

    def _ends(self, event: e.ToolResult | e.ToolError, write: Callable[[str], list[c.Chunk]]) -> Iterator[c.Chunk]:
        call_id = event.id or self._oldest(event.key, event.name)
        if self._take_hidden(call_id) is not None:
            return
        call = self._call(call_id) if call_id else None
        if call is None and event.name:
            provider = event.provider_executed
            yield from self._tool_call(e.ToolCall(call_id, event.name, {}, provider_executed=provider, key=event.key))
        self._waiting.pop(call_id, None)
        if self._is_over(call) or (self._is_anothers(call) and not event.name) or self._is_asked(call):
            return
        # What has no id is another call each time.
        if call_id:
            self._note_end(call_id)
        denied = call is not None and call.state in _DENIED
        yield from self._writer.tool_denied(call_id) if denied else write(call_id)

    def _oldest(self, key: str, name: str) -> str:
        """The first of these calls for which no result came, unless it was over before the step that runs."""
        for call_id, about in self._waiting.items():
            if about == (key, name) and self._ended.get(call_id, self._now) == self._now:
                return call_id
        return ""

    def _end_calls(self, event: e.EndCalls) -> Iterator[c.Chunk]:
        for call_id, (key, _) in self._waiting.items():
            call = self._call(call_id) if key == event.key else None
            if call is not None and call.state not in CLOSED and call.state != "requested":
                self._ended[call_id] = self._now
                yield from self._writer.tool_error(call_id, event.text)

    def _denied(self, event: e.ToolDenied) -> list[c.Chunk]:
        call = self._call(event.id)
        if self._take_hidden(event.id) is not None or self._is_anothers(call) or self._is_over(call):
            return []
        self._waiting.pop(event.id, None)
        self._note_end(event.id)
        return self._writer.tool_denied(event.id)

    def _approval(self, event: e.ApprovalRequest) -> Iterator[c.Chunk]:
        if not event.call_id:
            open_calls = [call.id for call in self._state.open_calls() if call.state == "available"]
            new = [call_id for call_id in open_calls if call_id not in self._continued]
            for call_id in (*new, *self._hidden):
                yield from self._approval(structs.replace(event, call_id=call_id))
            return
        if hidden := self._take_hidden(event.call_id):
            yield from self._tool_call(structs.replace(hidden, hidden=False))
        call = self._call(event.call_id)
        state = "new" if call is None else call.state
        if state == "requested" or (self._repeats and state not in _ASKABLE):
            return
        approval_id = event.id or None
        yield from self._writer.approval_request(event.call_id, approval_id=approval_id, reason=event.reason or UNSET)

    def _answered(self, event: e.ApprovalResponse) -> Iterator[c.Chunk]:
        if self._writer.client.takes(TYPES["tool-approval-response"]):
            asked = list(self._approval(e.ApprovalRequest(event.id, event.call_id)))
            yield from asked
            if asked:
                yield from self._writer.send(c.ToolApprovalResponse(event.id, event.approved))
        if not event.approved:
            yield from self._denied(e.ToolDenied(event.call_id))

    def _pause(self, event: e.Pause) -> Iterator[c.Chunk]:
        for call in [call for call in self._state.here if call.state == "available"]:
            yield from self._writer.tool_output(call.id, event.text)
        self._finish = e.Finish("other")

    def _used(self, event: e.Usage) -> Iterable[c.Chunk]:
        if self._usage is None:
            continues = self._writer.continues
            self._usage = _UsageTotals(None if continues is None else continues.metadata)
        self._usage.add(event)
        # A running total waits for the next step or the end.
        return () if event.key else self._write_usage()

    def _write_usage(self) -> list[c.Chunk]:
        metadata = self._usage.take() if self._usage is not None and self._usage.is_new else None
        return self._writer.metadata(metadata) if metadata else []

    def _source(self, event: e.Source) -> list[c.Chunk]:
        return self._once(event.url, lambda: self._writer.source_url(event.url, title=event.title or UNSET))

    def _document(self, event: e.Document) -> list[c.Chunk]:
        filename = event.filename or UNSET
        return self._once(event, lambda: self._writer.source_document(event.title, event.media_type, filename=filename))

    def _once(self, source: object, write: Callable[[], list[c.Chunk]]) -> list[c.Chunk]:
        if source in self._sources:
            return []
        self._sources[source] = None
        return write()

    def _file(self, event: e.File) -> list[c.Chunk]:
        return self._writer.file(event.url, event.media_type)

    def _data(self, event: e.Data) -> list[c.Chunk]:
        return self._writer.data(event.name, self._owned(event), id=event.id or UNSET, transient=event.transient)

    def _batch(self, event: e.DataBatch) -> list[c.Chunk]:
        events = [{"type": one.name, **self._owned(one)} for one in event.batch]
        return self._writer.data("batch", {"events": events}, transient=event.transient)

    def _owned(self, event: e.Data) -> Any:
        if not event.call_id or not isinstance(event.data, Mapping):
            return event.data
        return {**cast("Mapping[str, Any]", event.data), "toolCallId": self._writer.wire_id(event.call_id)}

    def _output(self, event: e.StructuredOutput) -> list[c.Chunk]:
        return self._writer.data(STRUCTURED_OUTPUT, event.value)

    def _step(self, event: e.Step) -> Iterator[c.Chunk]:
        yield from self._write_usage()
        self._lazy_steps += event.lazy
        yield from self._writer.step(lazy=event.lazy)

    def _handoff(self, event: e.Handoff) -> list[c.Chunk]:
        return self._writer.data("handoff", {"from": event.from_, "to": event.to})

    def _finishes(self, event: e.Finish) -> tuple[()]:
        self._finish = event
        return ()

    def _dict(self, event: dict[str, Any]) -> list[c.Chunk]:
        try:
            return self._writer.send(read_chunk(plain(event, VALUE_LIMIT)).chunk)
        except RemoteProtocolError as error:
            raise AgentError(f"An agent cannot yield a dict that is no chunk. {error.problem}") from error

    def _other(self, event: object) -> Iterable[c.Chunk]:
        if type(event) in _CHUNKS:
            return self._writer.send(cast("c.Chunk", event))
        # A subclass of a known event or of str or dict.
        for kind, write in self._WRITES.items():
            if isinstance(event, kind):
                return write(self, event)
        if isinstance(event, _CHUNKS):
            return self._writer.send(event)
        raise AgentError(f"An agent cannot yield a value of type {type(event).__name__}.")

    def _sub_agent(self, event: e.SubAgent) -> Iterable[c.Chunk]:
        if isinstance(event.event, e.Usage):
            return self._used(event.event)
        if event.show == "lanes":
            return () if event.event is None else self._beside(event.id, event.event)
        part = self._sub_agents.get(event.id)
        if part is None:
            part = self._sub_agents[event.id] = _SubAgentPart(event, self._writer)
            # Without a part of its own, its calls in the continued message are found only now.
            self._find_inside(f"{event.id}:")
        return self._in_part(part, event)

    def _beside(self, name: str, event: e.AgentEvent) -> Iterable[c.Chunk]:
        """What a sub-agent says in a lane and with call ids of its own, and in no step of its own."""
        return () if isinstance(event, e.Step | e.Finish) else self.map(_named(name, event))

    def _in_part(self, part: "_SubAgentPart", event: e.SubAgent) -> Iterator[c.Chunk]:
        inner = event.event
        match inner:
            case e.ApprovalRequest():
                call_id = f"{event.id}:{inner.call_id}"
                self._inside[inner.call_id] = None
                if self._call(call_id) is None and (asked := part.call(inner.call_id)) is not None:
                    yield from self.map(_named(event.id, asked))
                yield from self.map(_named(event.id, inner))
            case e.ToolResult() | e.ToolError() | e.ToolDenied() | e.ToolProgress() | e.ToolOutputDelta():
                # Only a call that the user was asked about is in the message.
                if self._call(f"{event.id}:{inner.id}") is not None:
                    yield from self.map(_named(event.id, inner))
            case e.Data() if event.show == "data":
                yield from self.map(inner)
            case _:
                pass
        yield from part.take(event)

    @property
    def _now(self) -> tuple[int, int]:
        """The step that runs."""
        return self._state.step, self._lazy_steps

    def _call(self, call_id: str) -> Call | None:
        return self._state.calls.get(self._writer.wire_id(call_id))

    def _find_inside(self, prefix: str) -> None:
        for call_id in self._state.calls:
            if call_id.startswith(prefix):
                self._inside[call_id.removeprefix(prefix)] = None

    def _is_anothers(self, call: Call | None) -> bool:
        """Whether a framework speaks of a call that is not this message's."""
        return call is None and self._repeats

    def _is_over(self, call: Call | None) -> bool:
        return call is not None and call.state in CLOSED and call.id not in self._paused

    def _is_asked(self, call: Call | None) -> bool:
        """Whether a framework ends a call that waits for the user."""
        return call is not None and call.state == "requested" and self._repeats

    def _take_hidden(self, call_id: str) -> e.ToolCall | None:
        self._writer.working.pop(call_id, None)
        return self._hidden.pop(call_id, None)

    def _note_end(self, call_id: str) -> None:
        self._ended[call_id] = self._now
        self._paused.pop(self._writer.wire_id(call_id), None)
        self._progresses.pop(call_id, None)

    def _is_repeated(self, call_id: str) -> bool:
        """Whether this call is in the message already: open, or, for a framework, over in the step that runs.

        A model may use an id again in a later step. A graph may announce what one of its sub-agents has called.
        """
        if call_id in self._inside:
            return True
        call = self._call(call_id)
        if call is None or call.state in UNFINISHED:
            return False
        if call.state not in CLOSED:
            return self._repeats or call.id not in self._continued
        return self._repeats and (call.id in self._paused or self._ended.get(call_id) == self._now)

    def _begin_call(self, event: e.ToolInputStart | e.ToolCall | e.ToolInputError) -> None:
        self._ended.pop(event.id, None)
        self._waiting[event.id] = (event.key, event.name)
        for by_key in (self._texts, self._reasonings):
            if event.key in by_key:
                by_key[event.key].cut()

    _WRITES: ClassVar = cast(
        "dict[type, Callable[[EventMapper, Any], Iterable[c.Chunk]]]",
        {
            str: _str,
            e.Text: _text,
            e.Reasoning: _reasoning,
            e.EndPart: _end_part,
            e.ToolInputStart: _input_start,
            e.ToolInputDelta: _input_delta,
            e.ToolCall: _tool_call,
            e.ToolInputError: _input_error,
            e.ToolProgress: _progress,
            e.ToolOutputDelta: _output_delta,
            e.ToolResult: _result,
            e.ToolError: _error,
            e.ToolDenied: _denied,
            e.EndCalls: _end_calls,
            e.ApprovalRequest: _approval,
            e.ApprovalResponse: _answered,
            e.Pause: _pause,
            e.Usage: _used,
            e.Source: _source,
            e.Document: _document,
            e.File: _file,
            e.Data: _data,
            e.DataBatch: _batch,
            e.StructuredOutput: _output,
            e.Step: _step,
            e.SubAgent: _sub_agent,
            e.Handoff: _handoff,
            e.Finish: _finishes,
            dict: _dict,
        },
    )


class TranslatingMapper(Generic[_Event]):
    """Maps the events of a framework, by its translator."""

    def __init__(self, translator: e.Translator[_Event], writer: MessageWriter) -> None:
        self._translator = translator
        self._mapper = EventMapper(writer, repeats=True)
        self._state = writer.state

    def map(self, event: _Event) -> Iterable[c.Chunk]:
        """The chunks of one event.

        Raises:
            MappingError: the translator cannot use it.
        """
        if self._state.phase in ("ended", "failed"):
            return ()
        said = self._translator.translate(event)
        # Nearly all events say one thing.
        if isinstance(said, tuple) and len(said) == 1:
            return self._mapper.map(said[0])
        return self._map_all(said)

    def end(self) -> Iterator[c.Chunk]:
        yield from self._map_all(self._translator.end())
        yield from self._mapper.end()

    def _map_all(self, said: Iterable[e.AgentEvent]) -> Iterator[c.Chunk]:
        # Each event is translated after the chunks of the one before it are written.
        for event in said:
            yield from self._mapper.map(event)


class Growth:
    """Says when something that grows is written again as a whole: often at first, and rarely once it is long.

    So all that is written stays within a few times the length of the last.
    """

    def __init__(self) -> None:
        self._next = 1

    def is_due(self, length: int) -> bool:
        if length < self._next:
            return False
        self._next = length + max(64, length // 4)
        return True


class _Progress:
    """What a tool said while it works."""

    def __init__(self) -> None:
        self._growth = Growth()
        self._deltas: list[Any] = []
        self._size = 0

    def add(self, delta: Any) -> bool:
        """Take what the tool says; whether all of it is to be written now."""
        self._deltas.append(delta)
        self._size += len(delta) if isinstance(delta, str) else _VALUE
        return self._growth.is_due(self._size)

    @property
    def value(self) -> Any:
        return "".join(self._deltas) if all(isinstance(delta, str) for delta in self._deltas) else list(self._deltas)


class _Said:
    """What was said under one key: in all, and since the last tool call, of which a framework repeats either.

    The length and the two ends of a text tell a repeat of it, so that memory does not grow with the text.
    """

    __slots__ = ("_head", "_length", "_pieces", "_since", "_tail", "_whole")

    def __init__(self) -> None:
        self._whole: tuple[int, str] | None = None
        self._begin()

    def _begin(self) -> None:
        # The pieces that are not counted yet.
        self._pieces: list[str] = []
        self._length = 0
        self._head: str = ""
        self._tail: str = ""
        # How long the text was before the last tool call.
        self._since = 0

    def add(self, text: str) -> None:
        self._pieces.append(text)
        if len(self._pieces) > _PIECES:
            self._count()

    def cut(self) -> None:
        """A tool call follows what was said."""
        self._count()
        self._since = self._length

    def take(self, whole: str, *, block: bool) -> tuple[str, bool]:
        """What of a whole text is still to be said, and whether it is another text than the one that was said."""
        if not whole:
            return "", False
        self._count()
        length, since, head, tail, last = self._length, self._since, self._head, self._tail, self._whole
        self._begin()
        mark = len(whole), whole[-_END:]
        self._whole = None if block else mark
        if not length:
            return ("", False) if last == mark else (whole, last is not None)
        for said in (length, length - since):
            if said and whole.endswith(tail[-said:], 0, said):
                return whole[said:], False
            if len(whole) < said and (whole.endswith(tail) or tail.endswith(whole)):
                return "", False
        if block and len(whole) < length and whole.startswith(head[: len(whole)]):
            # What is left was said of the next block.
            self._length = length - len(whole)
            self._tail = tail[-self._length :]
            self._head = self._tail if self._length <= _END else ""
            return "", False
        return whole, True

    def _count(self) -> None:
        text = "".join(self._pieces)
        # The second half of a character that was cut in two is still to come.
        is_cut = not text.isascii() and "\ud800" <= text[-1] <= "\udbff"
        self._pieces = [text[-1]] if is_cut else []
        text = mend(text[:-1] if is_cut else text)
        if self._length < _END:
            self._head = (self._head + text)[:_END]
        self._length += len(text)
        self._tail = (self._tail + text)[-_END:]


class SubAgentCall(TypedDict):
    """A tool call of a sub-agent."""

    toolCallId: str
    toolName: str
    state: Literal["streaming", "running", "done", "failed"]


class SubAgentData(TypedDict):
    """The data of a `data-subagent` part: `toolCallId` is the call that the sub-agent works for, `parent` the id of
    the sub-agent that started it."""

    id: str
    name: str
    status: Literal["running", "done", "failed", "waiting"]
    text: str
    reasoning: NotRequired[str]
    tools: list[SubAgentCall]
    toolCallId: NotRequired[str]
    parent: NotRequired[str]


class _SubAgentPart:
    """Collects what a sub-agent says, and writes it as a whole into a part that is replaced in place.

    The part of a message that is continued goes on. Of a tool call it has the name and the state.
    """

    def __init__(self, first: e.SubAgent, writer: MessageWriter) -> None:
        self._writer = writer
        self._about = first
        self._status = "running"
        self._growth = Growth()
        self._before: dict[_Kind, str] = {}
        self._texts: dict[_Kind, list[list[str]]] = {"text": [], "reasoning": []}
        # What is being said under each key.
        self._open: dict[str, tuple[_Kind, list[str]]] = {}
        self._length = 0
        self._is_written = True
        self._tools: dict[str, SubAgentCall] = {}
        # The open calls with their inputs, in case the user is asked about one.
        self._calls: dict[str, e.ToolCall] = {}
        for part in () if writer.continues is None else writer.continues.parts:
            if part["type"] == "data-subagent" and part.get("id") == first.id and isinstance(part["data"], Mapping):
                self._go_on(cast("Mapping[str, Any]", part["data"]))

    def call(self, call_id: str) -> e.ToolCall | None:
        """The open call with this id."""
        return self._calls.get(call_id)

    def take(self, event: e.SubAgent) -> list[c.Chunk]:
        before, self._about, self._status = self._status, event, event.status
        is_news = event.status != before or (event.event is None and event.status == "running")
        if event.event is not None:
            is_news = self._hear(event.event) or is_news
        if is_news:
            is_working = event.status == "running" and any(one["state"] == "running" for one in self._tools.values())
            if is_working:
                self._writer.working[event.id] = None
            else:
                self._writer.working.pop(event.id, None)
        return self._write() if is_news else []

    def write_rest(self) -> list[c.Chunk]:
        """Write the part again if the sub-agent has said more."""
        return [] if self._is_written else self._write()

    def _hear(self, event: e.AgentEvent) -> bool:
        """Take in what the sub-agent says; whether the part is to be written now."""
        match event:
            case str():
                return self._add("text", event, "")
            case e.Text():
                return self._speak("text", event)
            case e.Reasoning():
                return self._speak("reasoning", event)
            case e.EndPart():
                return self._open.pop(event.key, None) is not None
            case e.ToolInputStart():
                self._open.pop(event.key, None)
                return self._move(event.id, event.name, "streaming")
            case e.ToolCall():
                self._open.pop(event.key, None)
                self._calls[event.id] = event
                known = self._tools.get(event.id)
                is_new = known is None or known["state"] == "streaming"
                return is_new and self._move(event.id, event.name, "running")
            case e.ToolResult():
                return self._end_call(event.id, event.name, "done")
            case e.ToolInputError() | e.ToolError():
                return self._end_call(event.id, event.name, "failed")
            case e.ToolDenied():
                return self._end_call(event.id, "", "failed")
            case _:
                return False

    def _speak(self, kind: _Kind, event: _Spoken) -> bool:
        if not event.whole:
            return self._add(kind, event.text, event.key)
        open_kind, pieces = self._open.get(event.key, (kind, []))
        said = "".join(pieces) if open_kind == kind else ""
        is_due = self._add(kind, event.text.removeprefix(said), event.key)
        return self._open.pop(event.key, None) is not None or is_due

    def _add(self, kind: _Kind, delta: str, key: str) -> bool:
        if not delta:
            return False
        if key not in self._open or self._open[key][0] != kind:
            self._open[key] = (kind, [])
            self._texts[kind].append(self._open[key][1])
        self._open[key][1].append(delta)
        self._length += len(delta)
        self._is_written = False
        return self._growth.is_due(self._length)

    def _end_call(self, call_id: str, name: str, state: Literal["done", "failed"]) -> bool:
        known = self._tools.get(call_id)
        # The first end counts, and a framework speaks of calls that are not this sub-agent's.
        if (known is None and not name) or (known is not None and known["state"] in ("done", "failed")):
            return False
        self._calls.pop(call_id, None)
        return self._move(call_id, name, state)

    def _move(self, call_id: str, name: str, state: Literal["streaming", "running", "done", "failed"]) -> bool:
        known = self._tools.get(call_id)
        self._tools[call_id] = {"toolCallId": call_id, "toolName": known["toolName"] if known else name, "state": state}
        return True

    def _write(self) -> list[c.Chunk]:
        self._is_written = True
        about = self._about
        if about.show != "data":
            return []
        data: SubAgentData = {
            "id": about.id,
            "name": about.name,
            "status": about.status,
            "text": self._whole("text"),
            "tools": list(self._tools.values()),
        }
        if reasoning := self._whole("reasoning"):
            data["reasoning"] = reasoning
        if about.call_id:
            data["toolCallId"] = self._writer.wire_id(about.call_id)
        if about.parent:
            data["parent"] = about.parent
        return self._writer.data("subagent", data, id=about.id)

    def _whole(self, kind: _Kind) -> str:
        before = [self._before[kind]] if kind in self._before else []
        return "\n\n".join([*before, *("".join(pieces) for pieces in self._texts[kind])])

    def _go_on(self, told: Mapping[str, Any]) -> None:
        for kind in self._texts:
            text = told.get(kind)
            if isinstance(text, str) and text:
                self._before[kind] = text
        tools = told.get("tools")
        for tool in cast("list[Any]", tools) if isinstance(tools, list) else ():
            match tool:
                case {
                    "toolCallId": str(call_id),
                    "toolName": str(name),
                    "state": "streaming" | "running" | "done" | "failed" as state,
                }:
                    self._move(call_id, name, state)
                case _:
                    pass


def _named(name: str, event: e.AgentEvent) -> e.AgentEvent:
    """The event with keys and call ids that no other speaker has."""
    match event:
        case str():
            return e.Text(event, key=name)
        case e.Text() | e.Reasoning() | e.EndPart():
            return structs.replace(event, key=name + event.key)
        case e.ToolInputStart() | e.ToolCall() | e.ToolInputError():
            return structs.replace(event, id=f"{name}:{event.id}", key=name + event.key)
        case e.ToolInputDelta() | e.ToolProgress() | e.ToolOutputDelta():
            return structs.replace(event, id=f"{name}:{event.id}")
        case e.ToolResult() | e.ToolError() | e.ToolDenied():
            return structs.replace(event, id=f"{name}:{event.id}")
        case e.ApprovalRequest():
            return structs.replace(event, call_id=f"{name}:{event.call_id}")
        case _:
            return event


class _UsageTotals:
    """What the model calls of a message used, as the AI SDK's LanguageModelUsage.

    `metadata` is that of the message that is continued. Counts that nobody gave are left out of the details.
    """

    def __init__(self, metadata: Any) -> None:
        self.is_new = False
        self._sums: dict[str, float] = {}
        self._extra: dict[str, float] = {}
        self._by_key: dict[str, e.Usage] = {}
        self._model = ""
        match metadata:
            case {"usage": {"inputTokens": _, "outputTokens": _, "totalTokens": total} as usage}:
                ins, outs = usage.get("inputTokenDetails"), usage.get("outputTokenDetails")
                self._sum(_told(usage, ins, outs, total))
            case _:
                pass
        self._before: Mapping[str, Any] = cast("Any", metadata) if isinstance(metadata, dict) else {}

    def add(self, usage: e.Usage) -> None:
        if usage.key:
            if usage.key in self._by_key:
                self._sum(self._by_key[usage.key], -1)
            self._by_key[usage.key] = usage
        self._model = usage.model or self._model
        self._sum(usage)
        self.is_new = True

    def take(self) -> dict[str, Any]:
        """The metadata of the message; `is_new` is then False."""
        self.is_new = False
        sums, told = self._sums, dict[str, Any](self._extra)
        if self._model:
            told["model"] = self._model
        if not sums:
            return told
        used, said = sums.get("input_tokens", 0), sums.get("output_tokens", 0)
        usage: dict[str, Any] = {"inputTokens": used, "inputTokenDetails": {}, "outputTokens": said}
        usage |= {"outputTokenDetails": {}, "totalTokens": sums.get("total_tokens", 0)}
        if "cache_read_tokens" in sums or "cache_write_tokens" in sums:
            read, written = sums.get("cache_read_tokens", 0), sums.get("cache_write_tokens", 0)
            rest = max(used - read - written, 0)
            usage["inputTokenDetails"] = {
                "noCacheTokens": rest,
                "cacheReadTokens": read,
                "cacheWriteTokens": written,
            }
            usage["cachedInputTokens"] = read
        if "reasoning_tokens" in sums:
            thought = sums["reasoning_tokens"]
            usage["outputTokenDetails"] = {"textTokens": max(said - thought, 0), "reasoningTokens": thought}
            usage["reasoningTokens"] = thought
        return {"usage": usage, **told}

    def _sum(self, usage: e.Usage, sign: int = 1) -> None:
        for name in _COUNTS:
            count = _count(getattr(usage, name))
            if count is not None:
                self._sums[name] = self._sums.get(name, 0) + sign * count
        counts = [count for count in (_count(usage.input_tokens), _count(usage.output_tokens)) if count is not None]
        if _count(usage.total_tokens) is None and counts:
            self._sums["total_tokens"] = self._sums.get("total_tokens", 0) + sign * sum(counts)
        for name, value in (usage.extra or {}).items():
            count = _count(value)
            if count is not None:
                before = self._extra[name] if name in self._extra else _count(self._before.get(name)) or 0
                self._extra[name] = before + sign * count


_COUNTS: Final = (
    "input_tokens",
    "output_tokens",
    "total_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "reasoning_tokens",
)


def _told(usage: Mapping[str, Any], ins: Any, outs: Any, total: Any) -> e.Usage:
    ins = cast("Mapping[str, Any]", ins) if isinstance(ins, Mapping) else {}
    outs = cast("Mapping[str, Any]", outs) if isinstance(outs, Mapping) else {}
    return e.Usage(
        input_tokens=usage["inputTokens"],
        output_tokens=usage["outputTokens"],
        total_tokens=total,
        cache_read_tokens=ins.get("cacheReadTokens"),
        cache_write_tokens=ins.get("cacheWriteTokens"),
        reasoning_tokens=outs.get("reasoningTokens"),
    )


def _count(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _UNCOUNTABLE:
        return None
    return value
