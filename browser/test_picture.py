"""The picture of the README, of the real page: with `USECHAT_PICTURES=write` this test takes it anew."""

import asyncio
import os
from collections.abc import AsyncGenerator
from typing import Any, Final

from chromium import HERE, SCREENSHOTS, Chromium
from page_steps import ask, button
from support.loopback import serving
from usechat import Chat, Reasoning, Source, ToolCall, ToolResult, create_app

FOLDER: Final = HERE.parent / "docs" / "images" if os.environ.get("USECHAT_PICTURES") == "write" else SCREENSHOTS
TODOS: Final = ["Look up the tide", "Look at the wind", "Write the plan"]
PLAN: Final = """\
**Leave at 06:30.** The ebb carries you out through the Goulet, and the wind is on your side until noon.

| time | where | |
|---|---|---|
| 06:12 | Brest | high water, 7.1 m |
| 08:00 | Camaret | breakfast at the quay |
| 12:30 | Brest | back with the flood |
"""


async def sailor(chat: Chat) -> AsyncGenerator[Any, None]:
    yield Reasoning("First the tide, then the wind.")
    show_todos(chat, done=0)
    chat.write.tool_input_start("tide", "look_up_tide")
    for piece in ('{"port": "Br', 'est", "day": ', '"tomorrow"}'):
        chat.write.tool_input_delta("tide", piece)
        await asyncio.sleep(0.02)
    chat.write.tool_input("tide", "look_up_tide", {"port": "Brest", "day": "tomorrow"})
    await asyncio.sleep(0.15)
    yield ToolResult("tide", {"high": "06:12", "metres": 7.1})
    show_todos(chat, done=1)
    yield ToolCall("wind", "look_at_wind", {"place": "Goulet de Brest"})
    await asyncio.sleep(0.1)
    yield ToolResult("wind", {"from": "west", "beaufort": 4})
    show_todos(chat, done=2)
    for start in range(0, len(PLAN), 9):
        yield PLAN[start : start + 9]
        await asyncio.sleep(0.008)
    show_todos(chat, done=3)
    yield Source("https://tides.example/brest", "Tides in Brest")
    chat.write.metadata({"usage": {"inputTokens": 1284, "outputTokens": 167}, "cost": 0.0021})


def show_todos(chat: Chat, *, done: int) -> None:
    states = ["completed" if place < done else "in_progress" if place == done else "pending" for place in range(3)]
    todos = [{"content": text, "status": state} for text, state in zip(TODOS, states, strict=True)]
    chat.write.data("todos-changed", {"todos": todos}, id="todos")


def test_the_picture_of_the_readme_is_of_the_page(chromium: Chromium) -> None:
    inspector = 'role=region[name="Inspector"]'
    app = create_app(sailor, page=True, lists_all=True)
    with serving(app) as url, chromium.opened(url) as tab:
        tab.look_like("light", 1360)
        tab.click(button("Inspector"))
        ask(tab, "When do we sail to Camaret tomorrow?")
        assert tab.wait_for(f"{inspector} >> .verdict").startswith("accepted")
        tab.run("document.querySelector('.timeline').scrollTop = 5 * 28")
        for scheme in ("light", "dark"):
            tab.look_like(scheme, 1360)
            tab.screenshot(f"page-{scheme}", FOLDER)
        assert tab.look().problems == []
