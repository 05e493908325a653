"""Text at the pace of a model."""

import asyncio
import re
from collections.abc import AsyncGenerator

__all__ = ["pieces", "words"]


async def words(text: str, pace: float) -> AsyncGenerator[str, None]:
    """The words of a text, one every `pace` seconds."""
    for word in pieces(text):
        yield word
        await asyncio.sleep(pace)


def pieces(text: str) -> list[str]:
    """The words of a text, each with the space or the line break after it."""
    return re.findall(r"\S+\s*|\s+", text)
