"""What usechat adds to a run of Pydantic AI, beside what the framework's own `VercelAIAdapter` adds.

The turn: 1,000 pieces of text, 5 tool calls with streamed arguments, another 1,000 pieces of text, by a scripted
`FunctionModel`. Four ways take turns in one process: the run with a handler of its events, which usechat builds on,
the framework's own stream of them, the events as frames of usechat, and as the text of the adapter.
Run it with `PYTHONPATH=src:tests python -P bench/pydantic_ai.py`; it needs pydantic-ai-slim and starlette. Without `-P`
this file would be taken for the framework.
"""

import asyncio
import itertools
import json
import platform
import time
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable
from importlib import import_module
from typing import Any

from support.driving import Control, new_chat, user
from usechat.integrations import mapper_of
from usechat.integrations.pydantic_ai import PydanticAIAgent
from usechat.protocol.frames import encode_frame
from usechat.protocol.writer import MessageWriter

WORDS = ("The ", "tides ", "of ", "the ", "naïve ", "shore ", "turn ", "by ", "noon", ", ", "so ", "wait.\n")
TEXT = list(itertools.islice(itertools.cycle(WORDS), 1_000))
ROUNDS = 9
HANDLER = "run, with a handler that counts the events"
EVENTS = "run_stream_events, counted"
USECHAT = "usechat, to frames"
ADAPTER = "VercelAIAdapter, to text"
_pydantic_ai: Any = import_module("pydantic_ai")
_function: Any = import_module("pydantic_ai.models.function")
_vercel_ai: Any = import_module("pydantic_ai.ui.vercel_ai")
BODY = json.dumps(
    {
        "trigger": "submit-message",
        "id": "c",
        "messages": [{"id": "u1", "role": "user", "parts": [{"type": "text", "text": "Hi"}]}],
    }
).encode()


async def script(messages: list[Any], _: Any) -> AsyncGenerator[Any, None]:
    for word in TEXT:
        yield word
    if len(messages) > 1:
        return
    arguments = json.dumps({"query": "high tide " * 9})
    for number in range(1, 6):
        yield {number: _function.DeltaToolCall(name="search", tool_call_id=f"c{number}")}
        for start in range(0, len(arguments), 10):
            yield {number: _function.DeltaToolCall(json_args=arguments[start : start + 10])}


async def search(query: str) -> str:
    """Search."""
    return query.upper()


agent: Any = _pydantic_ai.Agent(_function.FunctionModel(stream_function=script), tools=[search])


async def run_handler() -> int:
    count = 0

    async def handle(_: Any, events: AsyncIterable[Any]) -> None:
        nonlocal count
        async for _event in events:
            count += 1

    await agent.run("Hi", event_stream_handler=handle)
    return count


async def run_events() -> int:
    async with agent.run_stream_events("Hi") as events:
        return len([event async for event in events])


async def run_usechat() -> int:
    numbers = itertools.count()
    writer = MessageWriter("message", new_id=lambda: f"{next(numbers):032x}")
    served, chat = PydanticAIAgent(agent), new_chat(user("Hi"), control=Control())
    mapper = mapper_of(served, chat, writer)
    frames: list[bytes] = []
    async for event in served.run(chat):
        frames += [encode_frame(chunk) for chunk in mapper.map(event)]
    frames += [encode_frame(chunk) for chunk in mapper.end()]
    return len(frames)


async def run_adapter() -> int:
    adapter_of = _vercel_ai.VercelAIAdapter
    adapter = adapter_of(agent=agent, run_input=adapter_of.build_run_input(BODY), sdk_version=6)
    return len([text async for text in adapter.encode_stream(adapter.run_stream())])


async def best_times() -> dict[str, float]:
    """The least processor time of each way; they take turns."""
    ways: dict[str, Callable[[], Awaitable[int]]] = {
        HANDLER: run_handler,
        EVENTS: run_events,
        USECHAT: run_usechat,
        ADAPTER: run_adapter,
    }
    best = dict.fromkeys(ways, float("inf"))
    for _, (name, run) in itertools.product(range(ROUNDS), ways.items()):
        begin = time.process_time()
        assert await run() > 2_000
        best[name] = min(best[name], time.process_time() - begin)
    return best


def main() -> None:
    best = asyncio.run(best_times())
    print(f"{f'a run of Pydantic AI, CPython {platform.python_version()}':46}{'CPU ms/turn':>14}{'to stream':>12}")
    for name, seconds in best.items():
        print(f"{name:46}{seconds * 1e3:14.1f}{seconds / best[EVENTS] - 1:+12.1%}")
    added, ahead = best[USECHAT] / best[EVENTS] - 1, best[ADAPTER] / best[USECHAT]
    print()
    print(f"{'at most 10 % added to run_stream_events':60}{added:+8.1%}  {'met' if added <= 0.1 else 'missed'}")
    print(f"{'ahead of VercelAIAdapter':60}{ahead:7.2f}x  {'met' if ahead > 1 else 'missed'}")


if __name__ == "__main__":
    main()
