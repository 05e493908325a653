"""What an agent says, from the chunks of the UI message stream to the original's agent events."""

import asyncio
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from msgspec import Struct

from usechat.protocol.chunks import (
    Chunk,
    Error,
    Finish,
    MessageMetadata,
    ReasoningDelta,
    ReasoningEnd,
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

__all__ = ["AgentEvents"]


class _Call(Struct, frozen=True):
    name: str
    input: Any
    began: float


class AgentEvents:
    """Says one turn after another, as `agent:text`, `agent:thinking` and `agent:tool` with their deltas.

    `text` is the last block of text, `usage` the sum over the turns of what the agent gave last as `metadata.usage`.
    Chunks that have no event of their own (sources, files, data) are not told.
    """

    # The newest one, so that nothing is changed for the sake of an older one.
    client: Final[ClientName] = "v7"

    def __init__(self, emit: Callable[[Mapping[str, Any]], None]) -> None:
        self.text = ""
        self.usage = {"inputTokens": 0, "outputTokens": 0}
        self._turn_usage: dict[str, int] = {}
        self._emit = emit
        self._ended = True
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._blocks: dict[str, str] = {}
        self._calls: dict[str, _Call] = {}

    def begin(self) -> MessageWriter:
        """Begin a turn, and give its writer."""
        self.text = ""
        self._ended = False
        self.writer = MessageWriter(str(uuid.uuid4()), new_id=lambda: str(uuid.uuid4()), client=self.client)
        return self.writer

    def say(self, method: Callable[..., Iterable[Chunk]], *arguments: Any, **options: Any) -> None:
        """Tell what a method of the writer or the mapper gives; from another thread, as soon as the loop has time.

        After the end of a turn nothing is told.
        """
        if threading.get_ident() != self._thread:
            self._loop.call_soon_threadsafe(lambda: self.say(method, *arguments, **options))
            return
        if not self._ended:
            for chunk in method(*arguments, **options):
                self._tell(chunk)

    def end(self) -> None:
        """End the turn; a call without a result fails, since no browser is there to answer it."""
        self.say(self.writer.finish)
        self._ended = True
        for name, count in self._turn_usage.items():
            self.usage[name] += count
        self._turn_usage = {}

    def _tell(self, chunk: Chunk) -> None:
        match chunk:
            case TextDelta() | ReasoningDelta():
                self._tell_delta(chunk)
            case TextEnd() | ReasoningEnd():
                self._tell_block(chunk)
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
            case Start() | Finish() | MessageMetadata():
                self._count(chunk.message_metadata)
            case Error():
                raise RuntimeError(chunk.error_text)
            case _:
                pass

    def _tell_delta(self, chunk: TextDelta | ReasoningDelta) -> None:
        kind = "text" if isinstance(chunk, TextDelta) else "thinking"
        block = self._blocks[chunk.id] = self._blocks.get(chunk.id, "") + chunk.delta
        if kind == "text":
            self.text = block
        self._emit({"type": f"agent:{kind}:delta", "content": chunk.delta})

    def _tell_block(self, chunk: TextEnd | ReasoningEnd) -> None:
        kind = "text" if isinstance(chunk, TextEnd) else "thinking"
        self._emit({"type": f"agent:{kind}", "content": self._blocks.pop(chunk.id, "")})

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
