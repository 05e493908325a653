"""A chat model for LangChain that follows a script, at the pace of a real one. The demo and the tests use it."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable

from usechat.demo.words import pieces
from usechat.ids import new_id

__all__ = ["ScriptedModel", "calls", "says", "tool_call"]


class ScriptedModel(BaseChatModel):
    """Streams the chunks that `reply` makes of the messages, one every `pace` seconds."""

    # A function; pydantic would look into its type.
    reply: Any
    pace: float = 0

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **_options: Any) -> Runnable[Any, AIMessage]:
        return self

    async def chunks(self, messages: Sequence[BaseMessage]) -> AsyncIterator[AIMessageChunk]:
        for chunk in self.reply(messages):
            await asyncio.sleep(self.pace)
            yield chunk

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **_options: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        async for message in self.chunks(messages):
            chunk = ChatGenerationChunk(message=message)
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
        raise NotImplementedError("This model only streams.")


def says(text: str) -> list[AIMessageChunk]:
    """Text, word by word, and what it cost."""
    usage: Any = {"input_tokens": 800, "output_tokens": len(text) // 4, "total_tokens": 800 + len(text) // 4}
    end = AIMessageChunk(content="", usage_metadata=usage, chunk_position="last")
    return [*(AIMessageChunk(content=word) for word in pieces(text)), end]


def calls(name: str, **args: Any) -> list[AIMessageChunk]:
    """A tool call whose arguments stream word by word."""
    return tool_call(new_id(), name, pieces(json.dumps(args)))


def tool_call(call_id: str, name: str, args: Iterable[str], index: int = 0) -> list[AIMessageChunk]:
    """A tool call whose arguments stream in these pieces."""
    head: Any = {"id": call_id, "name": name, "args": "", "index": index, "type": "tool_call_chunk"}
    rest: list[Any] = [{**head, "id": None, "name": None, "args": piece} for piece in args]
    return [AIMessageChunk(content="", tool_call_chunks=[piece]) for piece in (head, *rest)]
