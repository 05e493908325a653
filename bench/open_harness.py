"""What one event of Open Harness costs from the mapper to bytes, beside the writer's own cost for the same chunks.

The turn: 20 pieces of thinking, 5 tool calls with some 300 bytes of input and of output, 2,000 pieces of text.
Run it with `PYTHONPATH=src python bench/open_harness.py`; it needs nothing but usechat.
"""

import itertools
import platform
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from usechat.events.mapper import TranslatingMapper
from usechat.integrations.open_harness.translator import OpenHarnessTranslator
from usechat.protocol.chunks import Chunk
from usechat.protocol.frames import encode_frame
from usechat.protocol.writer import MessageWriter

WRITER = "the writer alone"
MAPPER = "the mapper and its writer"
MEMORY = "peak memory of 200,000 pieces of text / of 10,000"
WORDS = ("The ", "tides ", "of ", "the ", "naïve ", "shore ", "turn ", "by ", "noon", ", ", "so ", "wait.\n")
TEXT = list(itertools.islice(itertools.cycle(WORDS), 2_000))
THOUGHTS = TEXT[:20]
INPUT = {"query": "high tide near the harbour " * 9, "limit": 5, "units": "metric"}
OUTPUT = {"rows": [{"time": "2026-05-04T12:30:00Z", "height": 4.25, "station": "north pier"}] * 4}
RUN = "7d1f8a52-0c3e-4b6f-9a41-5e2b8c6d9f10"


def new_writer() -> MessageWriter:
    ids = itertools.count()
    return MessageWriter("message", new_id=lambda: f"{next(ids):032x}")


def agent(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": f"agent:{kind}", "nodeId": "assistant", "runId": RUN, **fields, "timestamp": 1767650000000}


EVENTS = [
    agent("start", sessionId="session", prompt="When is high tide?"),
    *(agent("thinking:delta", content=delta) for delta in THOUGHTS),
    agent("thinking", content="".join(THOUGHTS)),
    *(agent("tool", toolName="search", toolInput=INPUT, toolOutput=OUTPUT, durationMs=42) for _ in range(5)),
    *(agent("text:delta", content=delta) for delta in TEXT),
    agent("text", content="".join(TEXT)),
    agent("complete", result="", durationMs=900, numTurns=2),
]


def write_turn() -> Iterator[list[Chunk]]:
    writer = new_writer()
    for delta in THOUGHTS:
        yield writer.reasoning(delta, RUN)
    yield writer.end_part(lane=RUN)
    for number in range(1, 6):
        yield writer.tool_input(f"{RUN}-{number}", "search", INPUT, lane=RUN)
        yield writer.tool_output(f"{RUN}-{number}", OUTPUT)
    for delta in TEXT:
        yield writer.text(delta, RUN)
    yield writer.end_part(lane=RUN)
    yield writer.metadata({"durationMs": 900, "numTurns": 2})
    yield writer.finish()


def map_turn() -> Iterator[Iterable[Chunk]]:
    mapper = TranslatingMapper(OpenHarnessTranslator(), new_writer())
    for event in EVENTS:
        yield mapper.map(event)


def to_bytes(turn: Callable[[], Iterable[Iterable[Chunk]]]) -> list[bytes]:
    return [encode_frame(chunk) for chunks in turn() for chunk in chunks]


def best_times(runs: dict[str, Callable[[], object]]) -> dict[str, float]:
    """The least processor time of each run; they take turns, with three goes each because the first has cold caches."""
    best = dict.fromkeys(runs, float("inf"))
    for _, (name, run), _ in itertools.product(range(20), runs.items(), range(3)):
        begin = time.process_time()
        run()
        best[name] = min(best[name], time.process_time() - begin)
    return best


def peak_memory(deltas: int) -> int:
    """The most bytes held at once while the mapper takes this many pieces of text."""
    mapper = TranslatingMapper(OpenHarnessTranslator(), new_writer())
    tracemalloc.start()
    for delta in itertools.islice(itertools.cycle(WORDS), deltas):
        for chunk in mapper.map(agent("text:delta", content=delta)):
            encode_frame(chunk)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def print_target(name: str, ratio: float, most: float) -> None:
    print(f"{f'at most {most}x: {name}':70}{ratio:7.2f}x  {'met' if ratio <= most else 'missed'}")


def main() -> None:
    turns = {WRITER: write_turn, MAPPER: map_turn}
    assert to_bytes(write_turn) == to_bytes(map_turn)
    runs: dict[str, Callable[[], object]] = {}
    for name, turn in turns.items():
        runs[f"{name}, to bytes"] = lambda turn=turn: to_bytes(turn)
        runs[f"{name}, to chunks"] = lambda turn=turn: [chunk for chunks in turn() for chunk in chunks]
    best = best_times(runs)
    print(f"{f'{len(EVENTS):,} events, CPython {platform.python_version()}':38}{'CPU µs/event':>14}")
    for name, seconds in best.items():
        print(f"{name:38}{seconds / len(EVENTS) * 1e6:14.2f}")
    print()
    print_target(f"{MAPPER} / {WRITER}, to bytes", best[f"{MAPPER}, to bytes"] / best[f"{WRITER}, to bytes"], 2)
    own = best[f"{MAPPER}, to chunks"] - best[f"{WRITER}, to chunks"]
    print_target("the mapper's own share / the writer alone, to chunks", own / best[f"{WRITER}, to chunks"], 2)
    print_target(MEMORY, peak_memory(200_000) / peak_memory(10_000), 1.1)


if __name__ == "__main__":
    main()
