"""What an agent says, from the chunks of the UI message stream to the original's agent events."""

import asyncio
import threading
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct

from usechat.errors import AgentError
from usechat.protocol.chunks import (
    Chunk,
    Data,
    Error,
    File,
    Finish,
    MessageMetadata,
    ReasoningDelta,
    ReasoningEnd,
    SourceDocument,
    SourceUrl,
    Start,
    TextDelta,
    TextEnd,
    ToolInputAvailable,
    ToolInputError,
    ToolOutputAvailable,
    ToolOutputDenied,
    ToolOutputError,
)
from usechat.protocol.clients import ClientName
from usechat.protocol.writer import MessageWriter
from usechat.sources.plain import STRUCTURED_OUTPUT
from usechat.turns.output import Output

__all__ = ["AgentEvents"]

# After so many events an agent waits for room, and at least for others to run.
_IN_A_ROW: Final = 16


class _Call(Struct, frozen=True):
    name: str
    input: Any
    began: float


class Said:
    """What a turn said, for those who come after it; data that was replaced, or not to be kept, is left out."""

    def __init__(self) -> None:
        self.blocks: list[list[str]] = []
        self._parts: dict[str, list[dict[str, Any]]] = {"sources": [], "files": [], "data": []}
        self._structured: Any = UNSET

    def text(self, *, last_block: bool = False) -> str:
        """All of the text, or its last block."""
        blocks = self.blocks[-1:] if last_block else self.blocks
        return "".join(chain.from_iterable(blocks))

    @property
    def structured(self) -> dict[str, Any]:
        return {} if self._structured is UNSET else {"structuredOutput": self._structured}

    @property
    def parts(self) -> dict[str, list[dict[str, Any]]]:
        """The sources, files and data, as they stand in a message, each if there are some."""
        return {name: list(parts) for name, parts in self._parts.items() if parts}

    def add_part(self, chunk: SourceUrl | SourceDocument | File | Data) -> dict[str, Any]:
        """Keep the part, and give the chunk as it is on the wire."""
        part: dict[str, Any] = msgspec.to_builtins(chunk)
        if not isinstance(chunk, Data):
            self._parts["files" if isinstance(chunk, File) else "sources"].append(part)
        elif chunk.type == f"data-{STRUCTURED_OUTPUT}":
            self._structured = chunk.data
        elif chunk.transient is not True:
            self._add_data(part)
        return part

    def _add_data(self, part: dict[str, Any]) -> None:
        kept = self._parts["data"]
        name = (part["type"], part.get("id"))
        for number, other in enumerate(kept):
            if "id" in part and (other["type"], other.get("id")) == name:
                kept[number] = part
                return
        kept.append(part)


class AgentEvents:
    """The sink of an agent node: it tells one turn after another, as `agent:text`, `agent:thinking` and `agent:tool`.

    It takes chunks in any thread and tells of them, in their order, in that of the event loop. Sources, files and data,
    for which the original has no event, are told as `agent:part`. `said` is what the last turn said, `usage` the sum
    over the turns of what the agent gave last as `metadata.usage`.
    """

    # The newest one, so that nothing is changed for the sake of an older one.
    client: Final[ClientName] = "v7"

    def __init__(self, emit: Callable[[Mapping[str, Any]], None], wait_for_room: Callable[[], Awaitable[None]]) -> None:
        self.said = Said()
        self.usage = {"inputTokens": 0, "outputTokens": 0}
        # Whether the turn's task was cancelled here, since somebody else had ended the message.
        self.halted = False
        self._turn_usage: dict[str, int] = {}
        self._emit = emit
        self._wait_for_room = wait_for_room
        self._failure: BaseException | None = None
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._task: asyncio.Task[Any] | None = None
        self._untold: deque[Chunk] = deque()
        self._in_a_row = 0
        self._blocks: dict[str, list[str]] = {}
        self._calls: dict[str, _Call] = {}

    def begin(self) -> Output:
        """Begin a turn in the current task, and give its output."""
        self.said = Said()
        self.halted = False
        self._turn_usage = {}
        self._task = asyncio.current_task()
        writer = MessageWriter(str(uuid.uuid4()), new_id=lambda: str(uuid.uuid4()), client=self.client)
        self._output = Output(writer, self)
        return self._output

    def finish(self) -> None:
        """End the message; a call without a result fails, since no browser is there to answer it.

        Raises:
            AgentError: the agent has ended it with an error.
        """
        self._output.say(self._output.writer.finish)
        self._tell_all()
        if self._failure is not None:
            raise self._failure
        for name, count in self._turn_usage.items():
            self.usage[name] += count

    def close(self) -> None:
        """Tell what was said, and nothing after that."""
        self._task = None
        with self._output.lock:
            self._output.flush()
            self._output.closed = True
        self._tell_all()

    @property
    def full(self) -> Callable[[], bool]:
        return lambda: self._in_a_row + len(self._untold) >= _IN_A_ROW

    async def room(self) -> None:
        self._in_a_row = 0
        await self._wait_for_room()

    def take(self, chunks: Iterable[Chunk]) -> None:
        try:
            self._untold.extend(chunks)
        finally:
            self._in_loop(self._tell_all)
            if self._output.writer.state.phase in ("ended", "failed"):
                self._output.closed = True
                self._in_loop(self._halt)

    def take_texts(self, part: str, texts: Sequence[str]) -> None:
        self.take(TextDelta(part, text) for text in texts)

    def fail(self, error: BaseException) -> None:
        self._output.closed = True
        self._failure = error
        self._halt()

    def _in_loop(self, callback: Callable[[], None]) -> None:
        if threading.get_ident() == self._thread:
            callback()
        else:
            self._loop.call_soon_threadsafe(callback)

    def _halt(self) -> None:
        """Cancel the agent, unless it has ended its message itself."""
        if self._task is not None and self._task is not asyncio.current_task():
            self.halted = True
            self._task.cancel()

    def _tell_all(self) -> None:
        while self._untold:
            self._in_a_row += 1
            self._tell(self._untold.popleft())

    def _tell(self, chunk: Chunk) -> None:
        match chunk:
            case TextDelta() | ReasoningDelta():
                self._tell_delta(chunk)
            case TextEnd() | ReasoningEnd():
                self._tell_block(chunk)
            case SourceUrl() | SourceDocument() | File() | Data():
                self._emit({"type": "agent:part", "part": self.said.add_part(chunk)})
            case Start() | Finish() | MessageMetadata():
                self._count(chunk.message_metadata)
            case Error():
                self._failure = AgentError(chunk.error_text)
            case _:
                self._tell_tool(chunk)

    def _tell_tool(self, chunk: Chunk) -> None:
        match chunk:
            case ToolInputAvailable():
                self._calls[chunk.tool_call_id] = _Call(chunk.tool_name, chunk.input, time.monotonic())
            case ToolInputError():
                self._calls[chunk.tool_call_id] = _Call(chunk.tool_name, chunk.input, time.monotonic())
                self._tell_failure(chunk.tool_call_id, chunk.error_text)
            case ToolOutputAvailable() if chunk.preliminary is not True:
                self._tell_call(chunk.tool_call_id, {"toolOutput": chunk.output})
            case ToolOutputError():
                self._tell_failure(chunk.tool_call_id, chunk.error_text)
            case ToolOutputDenied():
                self._tell_failure(chunk.tool_call_id, "The call was denied.")
            case _:
                pass

    def _tell_delta(self, chunk: TextDelta | ReasoningDelta) -> None:
        kind = "text" if isinstance(chunk, TextDelta) else "thinking"
        block = self._blocks.get(chunk.id)
        if block is None:
            block = self._blocks[chunk.id] = []
            if kind == "text":
                self.said.blocks.append(block)
        block.append(chunk.delta)
        self._emit({"type": f"agent:{kind}:delta", "content": chunk.delta})

    def _tell_block(self, chunk: TextEnd | ReasoningEnd) -> None:
        kind = "text" if isinstance(chunk, TextEnd) else "thinking"
        self._emit({"type": f"agent:{kind}", "content": "".join(self._blocks.pop(chunk.id, ()))})

    def _tell_failure(self, call_id: str, error: str) -> None:
        self._tell_call(call_id, {"toolOutput": {"error": error}, "error": error})

    def _tell_call(self, call_id: str, result: Mapping[str, Any]) -> None:
        call = self._calls.pop(call_id)
        duration = round((time.monotonic() - call.began) * 1000)
        about = {"toolName": call.name, "toolInput": call.input}
        self._emit({"type": "agent:tool", **about, **result, "durationMs": duration})

    def _count(self, metadata: Any) -> None:
        match metadata:
            case {"usage": {**usage}}:
                counts = {name: usage.get(name) for name in self.usage}
                self._turn_usage = {name: count for name, count in counts.items() if isinstance(count, int)}
            case _:
                pass
