"""What the tools of the apps do: the same for every framework, which wraps these functions in its own way."""

import asyncio
from typing import Any

__all__ = ["EFFECTS", "boom", "get_weather", "pay", "wait"]

EFFECTS: list[str] = []
"""What was done, in order."""


async def get_weather(city: str) -> dict[str, Any]:
    """Look up the weather of a city."""
    return {"city": city, "celsius": 21}


async def boom(reason: str) -> str:
    """Fail."""
    raise RuntimeError(f"secret of the tool: {reason}")


async def pay(amount: int) -> str:
    """Pay an amount, if the user approves."""
    EFFECTS.append(f"paid {amount}")
    return f"paid {amount}"


async def wait() -> str:
    """Wait until it is cancelled."""
    EFFECTS.append("waits")
    try:
        await asyncio.Event().wait()
    finally:
        EFFECTS.append("cancelled")
    return "never"
