"""Agno: an agent whose session in a database is its history."""

import json
from pathlib import Path

from agno.agent import Agent
from agno.db.sqlite import AsyncSqliteDb

import effects
from live.agno_agent import TOOLS, model

__all__ = ["agent"]


async def get_weather(city: str) -> str:
    """Look up the weather of a city."""
    # The session has an object as Python prints it, and the model reads that.
    return json.dumps(await effects.get_weather(city))


# The home of the test is a folder of its own, which two servers share.
database = AsyncSqliteDb(db_file=str(Path.home() / "agno.db"))
agent = Agent(
    name="main",
    model=model(),
    tools=[get_weather, *TOOLS[1:]],
    db=database,
    add_history_to_context=True,
    telemetry=False,
)
