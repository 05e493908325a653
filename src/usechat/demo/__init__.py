"""The product tour: scripted agents of each kind behind one page. They need no key and no network."""

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing

from usechat.events import AgentEvent, Reasoning

__all__ = ["paced", "pieces"]


async def paced(events: AsyncGenerator[AgentEvent, None], pace: float) -> AsyncGenerator[AgentEvent, None]:
    """Yield the events, with text and reasoning as a model writes them: one word every `pace` seconds."""
    async with aclosing(events):
        async for event in events:
            match event:
                case str(text) | Reasoning(text):
                    for word in pieces(text):
                        yield word if isinstance(event, str) else Reasoning(word)
                        await asyncio.sleep(pace)
                case _:
                    yield event


def pieces(text: str) -> list[str]:
    """The words of a text, each with the space or the line break after it."""
    return re.findall(r"\S+\s*|\s+", text)
