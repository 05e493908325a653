"""A chat model of LangChain's that says what a function makes of the messages, at the pace of a real one."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable

from usechat.demo.words import pieces
from usechat.ids import new_id

__all__ = ["ScriptedModel", "calls", "says"]


class ScriptedModel(BaseChatModel):
    """Answers with the chunks that `reply` gives, one each `pace` seconds."""

    reply: Callable[[Sequence[BaseMessage]], Sequence[AIMessageChunk]]
    pace: float

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
        for said in self.reply(messages):
            await asyncio.sleep(self.pace)
            chunk = ChatGenerationChunk(message=said)
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
    """Words, one after the other."""
    usage: Any = {"input_tokens": 800, "output_tokens": len(text) // 4, "total_tokens": 800 + len(text) // 4}
    end = AIMessageChunk(content="", usage_metadata=usage, chunk_position="last")
    return [*(AIMessageChunk(content=word) for word in pieces(text)), end]


def calls(name: str, **args: Any) -> list[AIMessageChunk]:
    """A call of a tool, whose arguments come in pieces."""
    head: Any = {"id": new_id(), "name": name, "args": "", "index": 0, "type": "tool_call_chunk"}
    rest: list[Any] = [
        {"id": None, "name": None, "args": piece, "index": 0, "type": "tool_call_chunk"}
        for piece in pieces(json.dumps(args))
    ]
    return [AIMessageChunk(content="", tool_call_chunks=[piece]) for piece in (head, *rest)]
