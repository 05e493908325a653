"""A plain agent: an async generator that yields each kind of part."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Final, TypeAlias

from usechat.demo import paced
from usechat.errors import AgentError
from usechat.events import AgentEvent, Reasoning, ToolCall, ToolError, ToolProgress, ToolResult
from usechat.ids import new_id
from usechat.protocol.chunks import File, SourceDocument, SourceUrl
from usechat.server.page import PageAgent, PagePrompt
from usechat.turns.chat import Chat

__all__ = ["PAGE", "make_agent"]

_Events: TypeAlias = AsyncGenerator[AgentEvent, None]

_TIDES: Final = """\
## Why the sea rises twice a day

The moon pulls at the near side of the earth **more** than at its middle, and at the middle more than at the far side. \
So the water stands high on *both* sides, and the earth turns below it.

| place | high water | low water |
|---|---|---|
| Brest | 7.1 m | 1.2 m |
| Saint-Malo | 12.0 m | 1.9 m |
| Lisbon | 3.6 m | 0.7 m |

From one high water to the next it takes half a lunar day:

```python
def next_high_water(hour: float) -> float:
    return (hour + 12.42) % 24
```

> Spring tides follow the full moon and the new moon by a day or two.
"""
_PICTURE: Final = (
    "data:image/svg+xml;utf8,<svg xmlns='http://www.w3.org/2000/svg' width='640' height='320' viewBox='0 0 640 320'>"
    "<rect width='640' height='320' fill='%23f3e3c6'/><circle cx='490' cy='110' r='46' fill='%23e58a5b'/>"
    "<path d='M0 210 L90 130 L170 180 L260 110 L400 210 Z' fill='%2389a6a0'/>"
    "<path d='M0 200 q40 -16 80 0 t80 0 t80 0 t80 0 t80 0 t80 0 t80 0 t80 0 V320 H0z' fill='%231f6f63'/>"
    "<path d='M0 240 q40 -16 80 0 t80 0 t80 0 t80 0 t80 0 t80 0 t80 0 t80 0 V320 H0z' fill='%23175349'/>"
    "<path d='M300 214 h110 l-18 24 h-74z' fill='%23513a2c'/><path d='M352 110 v100 h-46z' fill='%23ffffff'/>"
    "<path d='M358 126 v84 h40z' fill='%23e7cfa4'/></svg>"
)
_DAYS: Final = 90
_LINE: Final = "Brest: high water at {hour:02}:{minute:02}, {metres:.1f} m, wind from the west. "


def make_agent(pace: float) -> Callable[[Chat], _Events]:
    """Make the agent, which writes one word every `pace` seconds."""

    def agent(chat: Chat) -> _Events:
        scene = _go_on if chat.approvals or chat.tool_results else _BY_TEXT.get(chat.text, _echo)
        return paced(scene(chat, pace), pace)

    return agent


async def _explain(chat: Chat, _pace: float) -> _Events:
    """Reasoning, text that streams, and the cost as metadata."""
    yield Reasoning("Somebody asks about the tides. I begin with the moon, and add the heights.")
    yield _TIDES
    chat.write.metadata({"usage": {"inputTokens": 1_204, "outputTokens": 187, "totalTokens": 1_391}, "cost": 0.0042})


async def _look_up(chat: Chat, pace: float) -> _Events:
    """A tool whose arguments the user sees as the model writes them."""
    call = new_id()
    chat.write.tool_input_start(call, "tide_table")
    for piece in ('{"place": "Br', 'est", "d', 'ay": "to', 'day", "uni', 't": "metres"}'):
        chat.write.tool_input_delta(call, piece)
        await asyncio.sleep(4 * pace)
    yield ToolCall(call, "tide_table", {"place": "Brest", "day": "today", "unit": "metres"})
    yield ToolProgress(call, {"status": "asking the harbour"})
    await asyncio.sleep(8 * pace)
    yield ToolResult(call, {"high": [["06:12", 7.1], ["18:37", 6.8]], "low": [["12:24", 1.2]]})
    yield "High water in Brest is at **06:12** with 7.1 m, and again at 18:37."


async def _book(_chat: Chat, pace: float) -> _Events:
    """A tool that fails, which the agent survives."""
    call = new_id()
    yield ToolCall(call, "book_boat", {"harbour": "Brest", "people": 2})
    await asyncio.sleep(8 * pace)
    yield ToolError(call, "The harbour does not answer.")
    yield "No boat could be booked: the harbour does not answer. Shall I try tomorrow?"


async def _delete(chat: Chat, _pace: float) -> _Events:
    """A call that needs approval. The turn ends here, and the next one begins in `_go_on` with the decision."""
    yield "I found one file. May I delete it?"
    call = new_id()
    yield ToolCall(call, "delete_file", {"path": "log-2019.csv", "bytes": 48_213})
    chat.write.approval_request(call)


async def _locate(_chat: Chat, _pace: float) -> _Events:
    """A call without a result is the browser's. The next turn begins in `_go_on` with its output."""
    yield "Only your browser knows that."
    yield ToolCall(new_id(), "get_location", {"precise": False})


async def _go_on(chat: Chat, _pace: float) -> _Events:
    """Continue the same message when the user or the browser has answered."""
    for approval in chat.approvals:
        if approval.approved:
            yield ToolResult(approval.call_id, {"deleted": True})
            said = "It is deleted."
        else:
            chat.write.tool_denied(approval.call_id)
            said = f"I keep the file. You said: {approval.reason}." if approval.reason else "I keep the file."
        yield said
    for answer in chat.tool_results:
        said = f"The browser says: `{answer.output}`." if answer.error is None else "The browser could not tell."
        yield said


async def _cite(_chat: Chat, _pace: float) -> _Events:
    """Sources: pages and documents."""
    yield "The heights are those of the harbour masters, the times those of the almanac."
    yield SourceUrl("s1", "https://tides.example/brest", title="Tides in Brest")
    yield SourceUrl("s2", "https://tides.example/lisbon", title="Tides in Lisbon")
    yield SourceDocument("s3", "application/pdf", "Nautical almanac", filename="almanac.pdf")


async def _draw(_chat: Chat, _pace: float) -> _Events:
    """A file: a picture in a data URL."""
    yield "This is the harbour in the evening:"
    yield File(_PICTURE, "image/svg+xml")


async def _recite(_chat: Chat, _pace: float) -> _Events:
    """An answer that is long enough to stop it, or to reload the page while it streams."""
    for day in range(_DAYS):
        minutes = 372 + day * 50
        line = _LINE.format(hour=minutes // 60 % 24, minute=minutes % 60, metres=5.5 + (day % 15 - 7) / 5)
        yield f"**Day {day + 1}.** {line}\n\n"


async def _fail(chat: Chat, _pace: float) -> _Events:
    """An error that the user reads. Any other exception is masked. The second attempt works."""
    yield "I ask the harbour. "
    if chat.trigger != "regenerate-message":
        raise AgentError("The harbour is closed. Try again.")
    yield "Now it is open."


async def _echo(chat: Chat, _pace: float) -> _Events:
    known = "".join(f"\n- {prompt}" for prompt in _BY_TEXT)
    yield f"You said: {chat.text}\n\nI am scripted, and know this:\n{known}"


_SCENES: Final[Mapping[PagePrompt, Callable[[Chat, float], _Events]]] = {
    PagePrompt("Explain the tides", "Thoughts and streaming text"): _explain,
    PagePrompt("High water in Brest?", "Streaming tool arguments"): _look_up,
    PagePrompt("Book a boat", "A tool that fails"): _book,
    PagePrompt("Delete the old log", "An approval"): _delete,
    PagePrompt("Where am I?", "A browser tool"): _locate,
    PagePrompt("Cite your sources", "Sources"): _cite,
    PagePrompt("Draw the harbour", "An image"): _draw,
    PagePrompt("Recite the tide table", "A long answer: stop, reload"): _recite,
    PagePrompt("Ask the closed harbour", "An error and a retry"): _fail,
}
_BY_TEXT: Final = {prompt.text: scene for prompt, scene in _SCENES.items()}
PAGE: Final = PageAgent(
    path="/api/generator",
    name="Python generator",
    about="An async generator in Python. It yields text, thoughts, tools, sources and files.",
    prompts=tuple(_SCENES),
)
