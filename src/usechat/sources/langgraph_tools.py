"""The tool calls of one graph or sub-graph: what they were called with, how they go on, and what came of them."""

from collections.abc import Collection, Iterator
from typing import Any, Final

from msgspec import Struct

from usechat.protocol.chunks import Chunk
from usechat.sources.langgraph_interrupts import Action
from usechat.sources.langgraph_messages import field, is_command, output_of, result_in, text_of
from usechat.sources.langgraph_sinks import Growth, Sink

__all__ = ["Tools"]

_FAILED: Final = "The tool failed."
# Counts for so many characters in what a tool says while it works.
_VALUE: Final = 64


class _Progress(Struct):
    """What a tool said while it worked."""

    growth: Growth
    deltas: list[Any]
    size: int = 0

    def add(self, delta: Any) -> bool:
        """Take what the tool says; whether all of it is to be told now."""
        self.deltas.append(delta)
        self.size += len(delta) if isinstance(delta, str) else _VALUE
        return self.growth.is_due(self.size)

    @property
    def value(self) -> Any:
        return "".join(self.deltas) if all(isinstance(delta, str) for delta in self.deltas) else list(self.deltas)


class Tools:
    """Takes calls and what becomes of them; of several results that the stream has of one call, the first counts.

    With the `names` of tools, a call of any other may be the form of a structured output, and is held until the node
    that made it says more. The calls `elsewhere` are in the message already, as those of a sub-graph.
    """

    def __init__(self, sink: Sink) -> None:
        self.names: Collection[str] | None = None
        self.elsewhere: set[str] = set()
        self._sink = sink
        self._inputs: dict[str, tuple[str, Any]] = {}
        self._done: set[str] = set()
        self._failed: dict[str, None] = {}
        self._progress: dict[str, _Progress] = {}

    def is_held(self, name: str) -> bool:
        return self.names is not None and name not in self.names

    def begins(self, call_id: str, name: str, lane: str, *, by_provider: bool = False) -> Iterator[Chunk]:
        """A model makes a call, of whatever id."""
        self._done.discard(call_id)
        if call_id not in self.elsewhere:
            yield from self._sink.call_begins(call_id, name, lane, by_provider=by_provider)

    def input(self, call_id: str, name: str, args: Any, lane: str = "") -> Iterator[Chunk]:
        """The arguments of a call, as the framework read them."""
        self._inputs[call_id] = (name, args or {})
        if call_id not in self.elsewhere:
            yield from self._sink.call(call_id, name, args or {}, lane)

    def misread(self, call_id: str, name: str, args: Any) -> Iterator[Chunk]:
        """A call whose arguments the framework could not read."""
        if call_id not in self._done:
            self._close(call_id)
            yield from self._sink.misread(call_id, name, args, "")

    def message(self, message: Any) -> Iterator[Chunk]:
        """The result of a call, as a message."""
        yield from self._result(text_of(field(message, "tool_call_id")), message)

    def provider_result(self, call_id: str, output: Any, *, failed: bool) -> Iterator[Chunk]:
        """The result of a call that the model's provider carried out."""
        if self._is_open(call_id):
            self._close(call_id)
            yield from self._sink.failed(call_id, _FAILED) if failed else self._sink.output(call_id, output)

    def event(self, event: Any) -> Iterator[Chunk]:
        """A tool began, said something, ended or failed."""
        call_id = text_of(field(event, "tool_call_id"))
        match field(event, "event"):
            case "tool-started":
                name, args = self._inputs.get(call_id) or (text_of(field(event, "tool_name")), field(event, "input"))
                if name:
                    yield from self._sink.call(call_id, name, args or {}, "")
            case "tool-output-delta" if self._is_open(call_id):
                progress = self._progress.setdefault(call_id, _Progress(Growth(), []))
                if progress.add(field(event, "delta")):
                    yield from self._sink.output(call_id, progress.value, preliminary=True)
            case "tool-finished":
                yield from self._finished(call_id, field(event, "output"))
            case "tool-error" if self._is_open(call_id):
                # Whoever called the tool may still make a message of the error.
                self._failed[call_id] = None
            case _:
                pass

    def call_of(self, action: Action) -> str:
        """The id of the call that waits for this approval; "" if no such call was seen."""
        if action.call_id:
            return action.call_id
        alike = [call_id for call_id, (name, _) in self._inputs.items() if name == action.name]
        same = [call_id for call_id in alike if self._inputs[call_id][1] == action.args]
        found = next(iter(same or alike), "")
        # Of two calls that are the same, the next action is about the other.
        self._inputs.pop(found, None)
        return found

    def settle(self) -> Iterator[Chunk]:
        """Close the calls whose tool failed and of which nothing more was said."""
        for call_id in list(self._failed):
            self._close(call_id)
            yield from self._sink.failed(call_id, _FAILED)

    def _finished(self, call_id: str, output: Any) -> Iterator[Chunk]:
        message = result_in(output, call_id)
        if message is not None:
            yield from self._result(call_id, message)
        elif self._is_open(call_id) and not is_command(output):
            self._close(call_id)
            yield from self._sink.output(call_id, output)

    def _result(self, call_id: str, message: Any) -> Iterator[Chunk]:
        if not self._is_open(call_id):
            return
        self._close(call_id)
        output = output_of(message)
        if field(message, "status") == "error":
            yield from self._sink.failed(call_id, text_of(output) or text_of(field(message, "content")) or _FAILED)
        else:
            yield from self._sink.output(call_id, output)

    def _is_open(self, call_id: str) -> bool:
        return call_id not in self._done and self._sink.knows(call_id)

    def _close(self, call_id: str) -> None:
        self._done.add(call_id)
        self._inputs.pop(call_id, None)
        self._progress.pop(call_id, None)
        self._failed.pop(call_id, None)
