"""A chat model that says what a test wrote down, in pieces or at once."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, TypeAlias, cast

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from pydantic import Field

__all__ = ["Reply", "ScriptedModel", "calls", "says", "thinks"]

Reply: TypeAlias = Sequence[AIMessageChunk | asyncio.Event | Exception]
"""The chunks of one answer. At an event the model waits, and an exception it raises."""


class ScriptedModel(BaseChatModel):
    """Answers with one reply after the other, or with what a function makes of the messages.

    `seen` are the messages of each call. Each answer used 10 tokens of input and 5 of output.
    """

    # A list of replies, or a function; pydantic would take them apart.
    replies: Any
    streams: bool = True
    seen: list[list[BaseMessage]] = Field(default_factory=list[list[BaseMessage]])

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **_options: Any) -> Runnable[Any, AIMessage]:
        return self

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **_options: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        if not self.streams:
            raise NotImplementedError
        for item in self._next(messages):
            if isinstance(item, Exception):
                raise item
            if isinstance(item, asyncio.Event):
                await item.wait()
                continue
            chunk = ChatGenerationChunk(message=item)
            if run_manager is not None:
                await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **_options: Any,
    ) -> ChatResult:
        whole = AIMessageChunk(content="")
        for item in self._next(messages):
            assert isinstance(item, AIMessageChunk)
            whole = whole + item
        message = AIMessage(
            content=whole.content, tool_calls=whole.tool_calls, usage_metadata=whole.usage_metadata, id=whole.id
        )
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _should_stream(self, **options: Any) -> bool:
        return self.streams and super()._should_stream(**options)

    def _next(self, messages: list[BaseMessage]) -> Iterable[AIMessageChunk | asyncio.Event | Exception]:
        self.seen.append(messages)
        replies: Any = self.replies
        reply = cast("Reply", replies(messages) if callable(replies) else replies.pop(0))
        usage: Any = {
            "input_tokens": 10,
            "output_tokens": 5,
            "total_tokens": 15,
            "input_token_details": {"cache_read": 2},
            "output_token_details": {"reasoning": 1},
        }
        return [*reply, AIMessageChunk(content="", usage_metadata=usage, chunk_position="last")]


def says(*texts: str) -> Reply:
    return [AIMessageChunk(content=text) for text in texts]


def thinks(*texts: str, index: int = 0) -> Reply:
    return [AIMessageChunk(content=[{"type": "reasoning", "reasoning": text, "index": index}]) for text in texts]


def calls(call_id: str, name: str, args: dict[str, Any], index: int = 0) -> Reply:
    """A tool call in three pieces: its name, and its arguments in two."""
    written = json.dumps(args)
    half = len(written) // 2
    pieces: list[Any] = [
        {"id": call_id, "name": name, "args": "", "index": index, "type": "tool_call_chunk"},
        {"id": None, "name": None, "args": written[:half], "index": index, "type": "tool_call_chunk"},
        {"id": None, "name": None, "args": written[half:], "index": index, "type": "tool_call_chunk"},
    ]
    return [AIMessageChunk(content="", tool_call_chunks=[piece]) for piece in pieces]
