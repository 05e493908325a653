"""Where what is said in a graph goes: into the message itself, or into one data part for each sub-graph."""

from collections.abc import Collection, Mapping
from typing import Any, Final, Protocol, cast

from msgspec import UNSET

from usechat.protocol.chunks import Chunk
from usechat.protocol.state import Call
from usechat.protocol.tables import UNFINISHED
from usechat.protocol.writer import MessageWriter
from usechat.sources.langgraph_messages import field, text_of

__all__ = ["Growth", "MessageSink", "Sink", "SubgraphSink"]

_DENIED: Final = ("refused", "denied")
_MISREAD: Final = "The model's call of the tool could not be read."


class Growth:
    """Says when something that grows is told again as a whole: often at first, and rarely once it is long.

    So the sum of all that is told stays within a few times the length of the last.
    """

    def __init__(self) -> None:
        self._next = 1

    def is_due(self, length: int) -> bool:
        if length < self._next:
            return False
        self._next = length + max(64, length // 4)
        return True


class Sink(Protocol):
    """Takes what a graph says; lanes keep apart what is said at the same time. Tool calls are named by their ids."""

    def begin(self) -> list[Chunk]:
        """A model is called."""
        ...

    def text(self, delta: str, lane: str) -> list[Chunk]: ...

    def reasoning(self, delta: str, lane: str) -> list[Chunk]: ...

    def end(self, lane: str) -> list[Chunk]:
        """What the lane says next is a part of its own."""
        ...

    def source(self, url: str, title: str) -> list[Chunk]: ...

    def file(self, url: str, media_type: str) -> list[Chunk]: ...

    def knows(self, call_id: str) -> bool: ...

    def call_begins(self, call_id: str, name: str, lane: str, *, by_provider: bool = False) -> list[Chunk]: ...

    def call_delta(self, call_id: str, delta: str) -> list[Chunk]: ...

    def call(self, call_id: str, name: str, args: Any, lane: str, *, by_provider: bool = False) -> list[Chunk]:
        """The whole input of a call that may have begun; nothing if it is there already."""
        ...

    def misread(self, call_id: str, name: str, args: Any, lane: str) -> list[Chunk]: ...

    def output(self, call_id: str, value: Any, *, preliminary: bool = False) -> list[Chunk]: ...

    def failed(self, call_id: str, text: str) -> list[Chunk]: ...


class MessageSink:
    """Writes into the message. That of a sub-graph has a `name`, by which its lanes and calls differ from others."""

    def __init__(self, writer: MessageWriter, name: str = "") -> None:
        self._writer = writer
        self._name = name
        # The calls that began here: a model may use an id again.
        self._begun: dict[str, Call] = {}

    def begin(self) -> list[Chunk]:
        return [] if self._name else self._writer.step()

    def text(self, delta: str, lane: str) -> list[Chunk]:
        return self._writer.text(delta, self._name + lane)

    def reasoning(self, delta: str, lane: str) -> list[Chunk]:
        return self._writer.reasoning(delta, self._name + lane)

    def end(self, lane: str) -> list[Chunk]:
        return self._writer.end_part(lane=self._name + lane)

    def source(self, url: str, title: str) -> list[Chunk]:
        return self._writer.source_url(url, title=title or UNSET)

    def file(self, url: str, media_type: str) -> list[Chunk]:
        return self._writer.file(url, media_type)

    def knows(self, call_id: str) -> bool:
        return self._known(call_id) is not None

    def call_begins(self, call_id: str, name: str, lane: str, *, by_provider: bool = False) -> list[Chunk]:
        own, before = self._own(call_id), len(self._writer.state.calls)
        chunks = self._writer.tool_input_start(
            own, name, lane=self._name + lane, provider_executed=True if by_provider else UNSET
        )
        self._begun[own] = list(self._writer.state.calls.values())[before]
        return chunks

    def call_delta(self, call_id: str, delta: str) -> list[Chunk]:
        return self._writer.tool_input_delta(self._own(call_id), delta)

    def call(self, call_id: str, name: str, args: Any, lane: str, *, by_provider: bool = False) -> list[Chunk]:
        known = self._known(call_id)
        if known is not None and known.state not in UNFINISHED:
            return []
        provider = True if by_provider else UNSET
        return self._writer.tool_input(
            self._own(call_id), name, args, lane=self._name + lane, provider_executed=provider
        )

    def misread(self, call_id: str, name: str, args: Any, lane: str) -> list[Chunk]:
        return self._writer.tool_input_error(self._own(call_id), name, args, _MISREAD, lane=self._name + lane)

    def output(self, call_id: str, value: Any, *, preliminary: bool = False) -> list[Chunk]:
        if self._is_denied(call_id):
            return self._writer.tool_denied(self._own(call_id))
        return self._writer.tool_output(self._own(call_id), value, preliminary=preliminary)

    def failed(self, call_id: str, text: str) -> list[Chunk]:
        if self._is_denied(call_id):
            return self._writer.tool_denied(self._own(call_id))
        return self._writer.tool_error(self._own(call_id), text)

    def ask(self, call_id: str, approval_id: str, reason: str) -> list[Chunk]:
        """Ask for the approval of a call that is known, unless that was done."""
        known = self._known(call_id)
        if known is not None and known.state == "requested":
            return []
        return self._writer.approval_request(self._own(call_id), approval_id=approval_id, reason=reason or UNSET)

    def waiting(self, name: str, taken: Collection[str]) -> str:
        """The id of a call of this tool that has no result, other than those that are taken; "" if there is none."""
        for call in self._writer.state.open_calls():
            prefix, _, call_id = call.id.rpartition(":") if self._name else ("", "", call.id)
            if call.name == name and prefix == self._name and call_id not in taken:
                return call_id
        return ""

    def _own(self, call_id: str) -> str:
        return f"{self._name}:{call_id}" if self._name else call_id

    def _known(self, call_id: str) -> Call | None:
        own = self._own(call_id)
        return self._begun.get(own) or self._writer.state.calls.get(own)

    def _is_denied(self, call_id: str) -> bool:
        known = self._known(call_id)
        return known is not None and known.state in _DENIED


class SubgraphSink:
    """Collects what a sub-graph says, and tells it as a whole in a part that is replaced in place.

    `told` is what the part had when its message was continued. Of a tool call it has the name and the state. A call
    whose approval was asked for is in the message, too, and so is its result. If it is not `shown`, that is all.
    """

    def __init__(
        self, writer: MessageWriter, part_id: str, about: Mapping[str, Any], told: Any = None, *, shown: bool = True
    ) -> None:
        self._writer = writer
        self._shown = shown
        self._message = MessageSink(writer, part_id)
        self._id = part_id
        self._growth = Growth()
        self._before = {name: text for name in ("text", "reasoning") if (text := text_of(field(told, name)))}
        self._texts: dict[str, list[list[str]]] = {"text": [], "reasoning": []}
        self._open: dict[str, tuple[str, list[str]]] = {}
        self._length = 0
        self._calls: dict[str, dict[str, str]] = {}
        calls = field(told, "tools")
        for call in cast("list[Any]", calls) if isinstance(calls, list) else ():
            call_id, name, state = (text_of(field(call, name)) for name in ("toolCallId", "toolName", "state"))
            if call_id and name and state:
                self._put(call_id, name, state)
        self.about: dict[str, Any] = {**about, "status": "running"}

    def begin(self) -> list[Chunk]:
        return []

    def text(self, delta: str, lane: str) -> list[Chunk]:
        return self._add("text", delta, lane)

    def reasoning(self, delta: str, lane: str) -> list[Chunk]:
        return self._add("reasoning", delta, lane)

    def end(self, lane: str) -> list[Chunk]:
        return self.tell() if self._open.pop(lane, None) else []

    def source(self, url: str, title: str) -> list[Chunk]:
        return []

    def file(self, url: str, media_type: str) -> list[Chunk]:
        return []

    def knows(self, call_id: str) -> bool:
        return call_id in self._calls or self._message.knows(call_id)

    def call_begins(self, call_id: str, name: str, lane: str, *, by_provider: bool = False) -> list[Chunk]:
        self._open.pop(lane, None)
        return self._state(call_id, name, "streaming")

    def call_delta(self, call_id: str, delta: str) -> list[Chunk]:
        return []

    def call(self, call_id: str, name: str, args: Any, lane: str, *, by_provider: bool = False) -> list[Chunk]:
        self._open.pop(lane, None)
        known = self._calls.get(call_id)
        is_new = known is None or known["state"] == "streaming"
        return self._state(call_id, name, "running") if is_new else []

    def misread(self, call_id: str, name: str, args: Any, lane: str) -> list[Chunk]:
        return self._state(call_id, name, "failed")

    def output(self, call_id: str, value: Any, *, preliminary: bool = False) -> list[Chunk]:
        shown = self._message.output(call_id, value, preliminary=preliminary) if self._message.knows(call_id) else []
        return shown if preliminary else [*shown, *self._state(call_id, "", "done")]

    def failed(self, call_id: str, text: str) -> list[Chunk]:
        shown = self._message.failed(call_id, text) if self._message.knows(call_id) else []
        return [*shown, *self._state(call_id, "", "failed")]

    def over(self, status: str) -> list[Chunk]:
        """The sub-graph has ended, or waits."""
        self.about["status"] = status
        return self.tell()

    def tell(self) -> list[Chunk]:
        if not self._shown:
            return []
        said = {name: text for name in self._texts if (text := self._whole(name))}
        tools = {"tools": list(self._calls.values())} if self._calls else {}
        return self._writer.data("subgraph", {**self.about, "text": "", **said, **tools}, id=self._id)

    def _whole(self, name: str) -> str:
        before = [self._before[name]] if name in self._before else []
        return "\n\n".join([*before, *("".join(pieces) for pieces in self._texts[name])])

    def _add(self, kind: str, delta: str, lane: str) -> list[Chunk]:
        if not delta:
            return []
        if lane not in self._open or self._open[lane][0] != kind:
            self._open[lane] = (kind, [])
            self._texts[kind].append(self._open[lane][1])
        self._open[lane][1].append(delta)
        self._length += len(delta)
        return self.tell() if self._growth.is_due(self._length) else []

    def _state(self, call_id: str, name: str, state: str) -> list[Chunk]:
        self._put(call_id, name, state)
        return self.tell()

    def _put(self, call_id: str, name: str, state: str) -> None:
        self._calls.setdefault(call_id, {"toolCallId": call_id, "toolName": name})["state"] = state
