"""What a turn costs in a chat that already has many: the processor time of one turn after 10 and after 1,000 others.

Run it with `make bench`. PostgreSQL is measured too if `USECHAT_POSTGRES` has the URL of a database for it.
"""

import asyncio
import os
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from usechat.database import Database
from usechat.history import History, HistoryStore, MemoryHistory
from usechat.protocol.messages import UIMessage
from usechat.protocol.requests import ChatRequest
from usechat.server.endpoint import ChatEndpoint

TURNS: Final = (10, 1_000)
MEASURED: Final = 50
ROUNDS: Final = 3
TEXT: Final = "The tides of the shore turn by noon, so wait. " * 54


async def agent(_chat: object) -> Any:
    yield TEXT


def message(message_id: str, role: Any) -> UIMessage:
    return UIMessage(message_id, role, [{"type": "text", "text": TEXT}])


async def fill(history: HistoryStore, chat: str, turns: int) -> None:
    for number in range(turns):
        tail = await history.read(chat, "", lambda stored: stored.tail)
        new = [message(f"u{number}", "user")]
        await history.begin(chat, "", f"t{number}", after=tail, keep=tail.length, new=new, epoch=1)
        await history.end(chat, f"t{number}", 1, message(f"a{number}", "assistant"))
    assert await history.read(chat, "", lambda stored: stored.tail.length) == 2 * turns


async def take_turn(endpoint: ChatEndpoint, chat: str, number: int) -> None:
    request = ChatRequest(id=chat, last=message(f"new-{number}", "user"), only_last=True)
    reader = await endpoint.chats.begin(request, None, {})
    while not reader.ended:
        if not reader.take(1 << 20):
            await reader.log.changed()
    reader.leave()


async def cost(history: HistoryStore, turns: int, marker: str) -> float:
    """The least processor time of one turn among some rounds, in seconds."""
    endpoint, best = ChatEndpoint(agent, history=history), float("inf")
    for round_number in range(ROUNDS):
        chat = f"{marker}-{turns}-{round_number}"
        await fill(history, chat, turns)
        began = time.process_time()
        for number in range(MEASURED):
            await take_turn(endpoint, chat, number)
        best = min(best, (time.process_time() - began) / MEASURED)
    return best


async def measure(name: str, history: HistoryStore) -> None:
    costs = [await cost(history, turns, f"{time.time_ns()}") for turns in TURNS]
    ratio = costs[1] / costs[0]
    figures = "".join(f"{seconds * 1e6:14,.0f}" for seconds in costs)
    print(f"{name:22}{figures}{ratio:11.2f}x  {'met' if ratio <= 2 else 'missed'}")


async def main() -> None:
    heading = "".join(f"{f'CPU µs at {turns:,}':>14}" for turns in TURNS)
    print(f"{'one turn, 2.5 KB each':22}{heading}{'ratio':>12}  at most 2x")
    await measure("in memory", MemoryHistory())
    with tempfile.TemporaryDirectory() as folder:
        database = Database(f"sqlite:///{Path(folder) / 'chats.db'}")
        await measure("SQLite file", History(database))
        await database.aclose()
    if url := os.environ.get("USECHAT_POSTGRES"):
        database = Database(url)
        await measure("PostgreSQL", History(database))
        await database.aclose()


if __name__ == "__main__":
    asyncio.run(main())
