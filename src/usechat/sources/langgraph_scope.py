"""What is said in one graph or sub-graph: the calls of its models, in pieces or as a whole."""

from collections.abc import Collection, Generator, Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec import field as default

from usechat.protocol.chunks import Chunk
from usechat.sources.langgraph_messages import Block, blocks_of, field, text_of
from usechat.sources.langgraph_sinks import Sink
from usechat.sources.langgraph_tools import Tools

__all__ = ["Scope"]

_RUN: Final = ("lc_run-", "run-")


class _ToolCall(Struct):
    """A tool call while a model says it."""

    id: str = ""
    name: str = ""
    args: str = ""
    begun: bool = False
    by_provider: bool = False


class _ModelCall(Struct, eq=False):
    """A call of a model, in a task of the graph.

    Its chunks have the id of LangChain's run, or one of the provider's, which some providers give only to the first.
    """

    task: str
    lane: str
    run: str = ""
    id: str = ""
    calls: dict[Any, _ToolCall] = default(default_factory=dict[Any, _ToolCall])
    last: _ToolCall | None = None
    text: list[str] = default(default_factory=list[str])
    thought: Any = None

    def takes(self, message_id: str) -> bool:
        """Whether a chunk with this id belongs to the call."""
        if message_id.startswith(_RUN):
            self.run = self.run or message_id
            return self.run == message_id
        self.id = self.id or message_id
        return self.id == message_id


class Scope:
    """Takes the messages of one namespace, and hands what they say to a sink.

    `ids` are those of the messages that were said here.
    """

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.tools = Tools(sink)
        self.ids: set[str] = set()
        self._open: list[_ModelCall] = []
        self._ended: _ModelCall | None = None
        self._sources: set[str] = set()

    def chunk(self, message: Any, task: str) -> Iterator[Chunk]:
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
                yield from self.sink.text(content, call.lane)
        else:
            for block in blocks_of(message):
                yield from self._block(block, call)
        if field(message, "chunk_position") == "last":
            yield from self._end(call)

    def whole(self, message: Any, task: str = "") -> Iterator[Chunk]:
        """All that a model, or a node without one, says at once, unless it was said in pieces."""
        message_id = text_of(field(message, "id"))
        if message_id in self.ids or self._is_repeated(message, message_id, task):
            return
        call = yield from self._begin(message_id, task)
        for block in blocks_of(message):
            yield from self._block(block, call)
        yield from self._end(call)

    def update(self, messages: Sequence[Any]) -> Iterator[Chunk]:
        """The messages that a node gave to the state: what was said is complete, and calls have their arguments."""
        answered = {field(message, "tool_call_id") for message in messages if field(message, "type") == "tool"}
        for message in messages:
            message_id = text_of(field(message, "id"))
            if field(message, "type") == "tool":
                yield from self.tools.message(message)
            elif message_id in self.ids:
                for call in [call for call in self._open if message_id in (call.run, call.id)]:
                    yield from self._end(call)
                yield from self._final(message, answered)

    def _begin(self, message_id: str, task: str) -> Generator[Chunk, None, _ModelCall]:
        yield from self.tools.settle()
        is_alone = not self._open
        call = _ModelCall(task, "" if is_alone else message_id)
        call.takes(message_id)
        self.ids.update(filter(None, (message_id,)))
        self._open.append(call)
        if is_alone:
            yield from self.sink.begin()
        return call

    def _end(self, call: _ModelCall) -> Iterator[Chunk]:
        self._open.remove(call)
        self._ended = call
        self.ids.update(filter(None, (call.run, call.id)))
        for tool_call in call.calls.values():
            yield from self._provider_input(tool_call, call)
        yield from self.sink.end(call.lane)

    def _is_repeated(self, message: Any, message_id: str, task: str) -> bool:
        """Whether a node gives anew what its model said."""
        last = self._ended
        if last is None or last.task != task:
            return False
        said = "".join(text_of(block.get("text")) for block in blocks_of(message) if block.get("type") == "text")
        if not said or said != "".join(last.text):
            return False
        self.ids.add(message_id)
        return True

    def _block(self, block: Block, call: _ModelCall) -> Iterator[Chunk]:
        match block.get("type"):
            case "text":
                yield from self._text(block, call)
            case "reasoning" | "thinking":
                yield from self._reasoning(block, call)
            case "tool_call_chunk" | "server_tool_call_chunk":
                yield from self._call_chunk(block, call)
            case "tool_call" | "server_tool_call":
                yield from self._whole_call(block, call)
            case "server_tool_result":
                yield from self._provider_result(block, call)
            case "image" | "audio" | "video" | "file":
                yield from self._file(block)
            case _:
                pass

    def _text(self, block: Block, call: _ModelCall) -> Iterator[Chunk]:
        delta = text_of(block.get("text"))
        call.text.append(delta)
        yield from self.sink.text(delta, call.lane)
        for note in block.get("annotations") or ():
            url = text_of(field(note, "url"))
            if field(note, "type") == "citation" and url and url not in self._sources:
                self._sources.add(url)
                yield from self.sink.source(url, text_of(field(note, "title")))

    def _reasoning(self, block: Block, call: _ModelCall) -> Iterator[Chunk]:
        index = block.get("index")
        if index != call.thought:
            yield from self.sink.end(call.lane)
        call.thought = index
        yield from self.sink.reasoning(text_of(block.get("reasoning")) or text_of(block.get("thinking")), call.lane)

    def _file(self, block: Block) -> Iterator[Chunk]:
        any_type = "application/octet-stream" if block["type"] == "file" else f"{block['type']}/*"
        media_type = text_of(block.get("mime_type")) or any_type
        url, data = text_of(block.get("url")), text_of(block.get("base64"))
        if url or data:
            yield from self.sink.file(url or f"data:{media_type};base64,{data}", media_type)

    def _call_chunk(self, block: Block, call: _ModelCall) -> Iterator[Chunk]:
        index, call_id = block.get("index"), text_of(block.get("id"))
        known = call.last if index is None else call.calls.get(index)
        if known is None or (call_id and known.id not in ("", call_id)):
            known = _ToolCall(by_provider=block["type"] == "server_tool_call_chunk")
            call.calls[len(call.calls) if index is None else index] = known
        call.last = known
        known.id, known.name = known.id or call_id, known.name or text_of(block.get("name"))
        delta = text_of(block.get("args"))
        known.args += delta
        if known.begun:
            yield from self.sink.call_delta(known.id, delta)
        elif known.id and known.name and (known.by_provider or not self.tools.is_held(known.name)):
            known.begun = True
            yield from self.tools.begins(known.id, known.name, call.lane, by_provider=known.by_provider)
            yield from self.sink.call_delta(known.id, known.args)

    def _whole_call(self, block: Block, call: _ModelCall) -> Iterator[Chunk]:
        call_id, name = text_of(block.get("id")), text_of(block.get("name"))
        by_provider = block["type"] == "server_tool_call"
        if not call_id or not name or (not by_provider and self.tools.is_held(name)):
            return
        yield from self.tools.begins(call_id, name, call.lane, by_provider=by_provider)
        if by_provider:
            yield from self.sink.call(call_id, name, block.get("args") or {}, call.lane, by_provider=True)
        else:
            yield from self.tools.input(call_id, name, block.get("args"), call.lane)

    def _provider_input(self, tool_call: _ToolCall, call: _ModelCall) -> Iterator[Chunk]:
        """The input of a call that no update tells of, since the provider carries it out."""
        if not tool_call.by_provider or not tool_call.begun:
            return
        try:
            args = msgspec.json.decode(tool_call.args or "{}")
        except msgspec.DecodeError:
            args = {"input": tool_call.args}
        yield from self.sink.call(tool_call.id, tool_call.name, args, call.lane, by_provider=True)

    def _provider_result(self, block: Block, call: _ModelCall) -> Iterator[Chunk]:
        call_id = text_of(block.get("tool_call_id"))
        for tool_call in call.calls.values():
            if tool_call.id == call_id:
                yield from self._provider_input(tool_call, call)
        yield from self.tools.provider_result(call_id, block.get("output"), failed=block.get("status") == "error")

    def _final(self, message: Any, answered: Collection[Any]) -> Iterator[Chunk]:
        for tool_call in field(message, "tool_calls") or ():
            call_id, name = text_of(field(tool_call, "id")), text_of(field(tool_call, "name"))
            # A node that made the call and answers it itself has only filled in a form.
            if call_id and name and not (call_id in answered and self.tools.is_held(name)):
                yield from self.tools.input(call_id, name, field(tool_call, "args"))
        for tool_call in field(message, "invalid_tool_calls") or ():
            call_id, name = text_of(field(tool_call, "id")), text_of(field(tool_call, "name"))
            if call_id and name:
                yield from self.tools.misread(call_id, name, field(tool_call, "args"))
