"""Where a chat's messages go and its streams come from, without HTTP between."""

from collections.abc import AsyncGenerator
from typing import Protocol

from usechat.protocol.chunks import Chunk
from usechat.protocol.requests import ChatRequest

__all__ = ["ChatTransport"]


class ChatTransport(Protocol):
    """The AI SDK's interface of the same name. Leaving a stream is not a stop; `stop` is."""

    async def send_messages(self, request: ChatRequest) -> AsyncGenerator[Chunk, None]:
        """Begin a turn; its chunks, from `start` to its end."""
        ...

    async def reconnect_to_stream(self, chat_id: str) -> AsyncGenerator[Chunk, None] | None:
        """The turn that runs in the chat, from its beginning; None if nothing runs."""
        ...

    async def stop(self, chat_id: str) -> None:
        """Stop the turn that runs in the chat, if one does."""
        ...
