"""The raw Anthropic SDK: streams of its Messages API."""

from collections.abc import AsyncGenerator
from typing import Any

from usechat.events import AgentEvent
from usechat.integrations.provider_streams import read_stream
from usechat.models.decoders import AnthropicDecoder

__all__ = ["anthropic_events"]


def anthropic_events(stream: Any) -> AsyncGenerator[AgentEvent, None]:
    """What a stream of the Anthropic SDK says: `async for event in anthropic_events(stream): yield event` in an agent.

    `stream` is what `client.messages.create(stream=True)` or `client.messages.stream(…)` returns. A complete call is a
    `ToolCall`, so that a tool loop can collect them. The response is closed when the generator is, and when the turn is
    stopped.

    Raises:
        TypeError: It is not an async stream.
        IncompleteStreamError: It ends before its answer does.
    """
    return read_stream(stream, lambda _: AnthropicDecoder(), "AsyncAnthropic")
