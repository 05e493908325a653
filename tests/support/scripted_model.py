"""The demo's scripted model with what tests need: replies one after the other, waits, failures, no streaming."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, TypeAlias, cast

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import Field

from usechat.demo import deep_agent
from usechat.demo.deep_agent import tool_call

__all__ = ["Reply", "ScriptedModel", "calls", "says", "thinks"]

Reply: TypeAlias = Sequence[AIMessageChunk | asyncio.Event | Exception]
"""The chunks of one reply. At an event the model waits, and an exception it raises."""


class ScriptedModel(deep_agent.ScriptedModel):
    """Gives one reply after the other, or the replies that a function makes of the messages.

    `seen` are the messages of each call. Each reply used 10 tokens of input and 5 of output.
    """

    reply: Any = None
    # A list of replies, or a function; pydantic would look into their types.
    replies: Any
    streams: bool = True
    seen: list[list[BaseMessage]] = Field(default_factory=list[list[BaseMessage]])

    async def chunks(self, messages: Sequence[BaseMessage]) -> AsyncIterator[AIMessageChunk]:
        if not self.streams:
            raise NotImplementedError
        for item in self._next(messages):
            if isinstance(item, Exception):
                raise item
            if isinstance(item, asyncio.Event):
                await item.wait()
            else:
                yield item

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

    def _next(self, messages: Sequence[BaseMessage]) -> Iterable[AIMessageChunk | asyncio.Event | Exception]:
        self.seen.append([*messages])
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
    return tool_call(call_id, name, [written[:half], written[half:]], index)
