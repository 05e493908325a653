"""What the LangGraph source adds to the cost of a graph's own stream: the same run bare, and through to bytes.

The turn: 1,000 pieces of text, 5 tool calls with streamed arguments, another 1,000 pieces of text. Both ways ask the
graph for the same modes, in turns and in one process.
Run it with `PYTHONPATH=src:tests python -P bench/langgraph.py`; it needs langchain. Without `-P` the scripts of this
folder would be taken for packages of the same names.
"""

import asyncio
import itertools
import platform
import time
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any

from support.scripted_model import ScriptedModel, calls, says
from usechat.events.mapper import TranslatingMapper
from usechat.integrations.langgraph import LangGraphAgent
from usechat.integrations.langgraph.translator import LangGraphOptions, LangGraphTranslator
from usechat.protocol.frames import encode_frame
from usechat.protocol.writer import MessageWriter

WORDS = ("The ", "tides ", "of ", "the ", "naïve ", "shore ", "turn ", "by ", "noon", ", ", "so ", "wait.\n")
TEXT = list(itertools.islice(itertools.cycle(WORDS), 1_000))
ROUNDS = 7
BARE = "astream alone"
SOURCE = "astream, the source and its frames"
MODES = list(LangGraphAgent.modes)
_agents: Any = import_module("langchain.agents")
_tools: Any = import_module("langchain_core.tools")


@_tools.tool
async def search(query: str) -> str:
    """Search."""
    return query.upper()


def new_graph() -> Any:
    asked = [chunk for n in range(5) for chunk in calls(f"c{n}", "search", {"query": "high tide " * 9}, n)]
    model = ScriptedModel(replies=[[*says(*TEXT), *asked], says(*TEXT)])
    return _agents.create_agent(model, [search])


def stream_of(graph: Any) -> Any:
    return graph.astream({"messages": [("user", "Hi")]}, stream_mode=MODES, subgraphs=True, version="v2")


async def run_bare(graph: Any) -> int:
    return len([part async for part in stream_of(graph)])


async def run_source(graph: Any) -> int:
    numbers = itertools.count()
    writer = MessageWriter("message", new_id=lambda: f"{next(numbers):032x}")
    mapper = TranslatingMapper(LangGraphTranslator(LangGraphOptions(tools=("search",))), writer)
    frames: list[bytes] = []
    parts = 0
    async for part in stream_of(graph):
        parts += 1
        frames += [encode_frame(chunk) for chunk in mapper.map(part)]
    frames += [encode_frame(chunk) for chunk in mapper.end()]
    assert len(frames) > 2_000
    return parts


async def best_times() -> dict[str, float]:
    """The least processor time of each way per part; they take turns."""
    ways: dict[str, Callable[[Any], Awaitable[int]]] = {BARE: run_bare, SOURCE: run_source}
    best = dict.fromkeys(ways, float("inf"))
    for _, (name, run) in itertools.product(range(ROUNDS), ways.items()):
        graph = new_graph()
        begin = time.process_time()
        parts = await run(graph)
        best[name] = min(best[name], (time.process_time() - begin) / parts)
    return best


def main() -> None:
    best = asyncio.run(best_times())
    print(f"{f'a run of a graph, CPython {platform.python_version()}':38}{'CPU µs/event':>14}{'events/s':>12}")
    for name, seconds in best.items():
        print(f"{name:38}{seconds * 1e6:14.1f}{1 / seconds:12,.0f}")
    added = best[SOURCE] / best[BARE] - 1
    print()
    print(f"{'at most 10 % added to the stream of the graph':70}{added:7.1%}  {'met' if added <= 0.1 else 'missed'}")


if __name__ == "__main__":
    main()
