"""The raw OpenAI SDK: Chat Completions and Responses, also of LiteLLM and other servers that speak them."""

from collections.abc import AsyncGenerator, Iterable
from typing import Any

from usechat.events import AgentEvent, Translator
from usechat.integrations.provider_streams import read_stream
from usechat.models.decoders import ChatCompletionsDecoder, ResponsesDecoder, field_of

__all__ = ["openai_events"]


def openai_events(stream: Any) -> AsyncGenerator[AgentEvent, None]:
    """What a stream of the OpenAI SDK says: an agent writes `async for event in openai_events(stream): yield event`.

    `stream` is what `client.chat.completions.create(stream=True)`, `client.responses.create(stream=True)`,
    `client.responses.stream(…)` or `litellm.acompletion(stream=True)` returns. A complete call is a `ToolCall`, so that
    a tool loop can collect them. The response is closed when the generator is, and when the turn is stopped.

    Raises:
        TypeError: It is not an async stream.
        IncompleteStreamError: It ends before its answer does.
    """
    return read_stream(stream, _decoder, "AsyncOpenAI")


def _decoder(event: Any) -> Translator[Any]:
    kind = field_of(event, "type")
    if kind == "chunk":
        return _HelperDecoder()
    return ResponsesDecoder() if isinstance(kind, str) else ChatCompletionsDecoder()


class _HelperDecoder:
    """Reads `client.chat.completions.stream(…)`, which puts the chunks among events of its own."""

    def __init__(self) -> None:
        self._chunks = ChatCompletionsDecoder()

    def translate(self, event: Any) -> Iterable[AgentEvent]:
        return self._chunks.translate(event.chunk) if event.type == "chunk" else ()

    def end(self) -> Iterable[AgentEvent]:
        return self._chunks.end()
