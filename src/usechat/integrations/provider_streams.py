"""Reads a stream of a provider's SDK to its end, and closes it whatever happens."""

import inspect
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from contextlib import AsyncExitStack
from typing import Any, cast

from usechat.events import AgentEvent, Translator
from usechat.models.decoders import IncompleteStreamError

__all__ = ["read_stream"]


async def read_stream(
    stream: Any, decoder_for: Callable[[Any], Translator[Any]], client: str
) -> AsyncGenerator[AgentEvent, None]:
    """The events of a stream, or of a manager that opens one; `decoder_for` chooses by the first event.

    Raises:
        TypeError: It is no async stream; `client` is the class to use.
        IncompleteStreamError: It ends before its answer does.
    """
    async with AsyncExitStack() as opened:
        if inspect.isawaitable(stream):
            stream = await stream
        if not isinstance(stream, AsyncIterable) and hasattr(stream, "__aenter__"):
            stream = await opened.enter_async_context(stream)
        if not isinstance(stream, AsyncIterable):
            raise TypeError(
                f"{type(stream).__name__} is not an async stream: use {client}, and give what create(stream=True) or "
                "stream() returns."
            )
        opened.push_async_callback(_close, stream)
        decoder: Translator[Any] | None = None
        async for event in cast("AsyncIterable[Any]", stream):
            if decoder is None:
                decoder = decoder_for(event)
            for said in decoder.translate(event):
                yield said
        if decoder is None:
            raise IncompleteStreamError("The stream ended before it began.")
        for said in decoder.end():
            yield said


async def _close(stream: Any) -> None:
    """Close the response. The SDKs keep its connection open when an iteration just stops."""
    close = getattr(stream, "aclose", None) or getattr(stream, "close", None)
    if close is not None and inspect.isawaitable(closing := close()):
        await closing
