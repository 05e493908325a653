"""What one chunk costs from the writer's call to bytes, beside the floor and pydantic-ai. Run it with `make bench`.

The turn: 20 reasoning deltas, 5 tool calls with some 300 bytes of input and of output, 2,000 text deltas, 2 steps.
"""

import asyncio
import importlib
import itertools
import platform
import re
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import asdict, astuple

from usechat.protocol.chunks import Chunk
from usechat.protocol.frames import Frames, encode_frame
from usechat.protocol.reader import MessageReader
from usechat.protocol.writer import MessageWriter

# pydantic-ai is installed in the benchmark's own environment only, where the type checker does not look.
agent: Any = importlib.import_module("pydantic_ai.messages")
vercel_ai: Any = importlib.import_module("pydantic_ai.ui.vercel_ai")
models: Any = importlib.import_module("pydantic_ai.ui.vercel_ai.response_types")

Run: TypeAlias = Callable[[], Sequence[object]]

FLOOR = "floor, build and encode"
ENCODER = "usechat, chunks to bytes"
WRITER = "usechat, writer to bytes"
READER = "usechat, chunks to message"
PEER_ENCODER = "pydantic-ai, chunks to bytes"
PEER_WRITER = "pydantic-ai, events to bytes"
MEMORY = "peak memory of 200,000 text deltas / of 10,000"
DATA_MEMORY = "memory of 150,000 small data parts, log and message / their frames"
WORDS = ("The ", "tides ", "of ", "the ", "naïve ", "shore ", "turn ", "by ", "noon", ", ", "so ", "wait.\n")
TEXT = list(itertools.islice(itertools.cycle(WORDS), 2_000))
THOUGHTS = TEXT[:20]
CALLS = ["call-1", "call-2", "call-3", "call-4", "call-5"]
INPUT = {"query": "high tide near the harbour " * 9, "limit": 5, "units": "metric"}
OUTPUT = {"rows": [{"time": "2026-05-04T12:30:00Z", "height": 4.25, "station": "north pier"}] * 4}
FRAGMENTS = re.findall(".{1,50}", msgspec.json.encode(INPUT).decode())


def new_writer() -> MessageWriter:
    ids = itertools.count()
    return MessageWriter("message", new_id=lambda: f"{next(ids):032x}")


def write_turn() -> Iterator[list[Chunk]]:
    writer = new_writer()
    yield writer.start()
    for delta in THOUGHTS:
        yield writer.reasoning(delta)
    for call in CALLS:
        yield writer.tool_input_start(call, "search")
        for fragment in FRAGMENTS:
            yield writer.tool_input_delta(call, fragment)
    for call in CALLS:
        yield writer.tool_input(call, "search", INPUT)
    for call in CALLS:
        yield writer.tool_output(call, OUTPUT)
    for delta in TEXT:
        yield writer.text(delta)
    yield writer.finish()


def usechat_writer() -> list[bytes]:
    return [encode_frame(chunk) for chunks in write_turn() for chunk in chunks]


def usechat_encoder(chunks: Sequence[Chunk]) -> Run:
    made_of = [(type(chunk), astuple(chunk)) for chunk in chunks]
    return lambda: [encode_frame(kind(*values)) for kind, values in made_of]


def usechat_reader(chunks: Sequence[Chunk]) -> Run:
    def read() -> list[dict[str, Any]]:
        reader = MessageReader()
        for chunk in chunks:
            reader.apply(chunk)
        return reader.message.parts

    return read


def floor(chunks: Sequence[Chunk]) -> Run:
    made_of, encode = [(type(chunk), astuple(chunk)) for chunk in chunks], msgspec.json.encode
    return lambda: [encode(kind(*values)) for kind, values in made_of]


def pydantic_ai_encoder(chunks: Sequence[Chunk]) -> Run:
    """The same chunks, built as pydantic-ai's models, encoded and framed by it."""
    encode = vercel_ai.VercelAIEventStream(sdk_version=6).encode_event
    kinds = [getattr(models, f"{type(chunk).__name__}Chunk") for chunk in chunks]
    fields = [{name: value for name, value in asdict(chunk).items() if value is not msgspec.UNSET} for chunk in chunks]
    return lambda: [encode(kind(**values)).encode() for kind, values in zip(kinds, fields, strict=True)]


def pydantic_ai_writer(runner: asyncio.Runner) -> Run:
    """The part of pydantic-ai that does the writer's work; the agent's events are built before."""
    events = list(agent_events())

    async def replay() -> AsyncIterator[object]:
        for event in events:
            yield event

    async def play() -> list[bytes]:
        stream = vercel_ai.VercelAIEventStream(sdk_version=6)
        return [text.encode() async for text in stream.encode_stream(stream.transform_stream(replay()))]

    return lambda: runner.run(play())


def agent_events() -> Iterator[object]:
    yield from part_events(agent.ThinkingPart(""), [agent.ThinkingPartDelta(content_delta=delta) for delta in THOUGHTS])
    for call in CALLS:
        deltas = [agent.ToolCallPartDelta(args_delta=fragment, tool_call_id=call) for fragment in FRAGMENTS]
        yield from part_events(agent.ToolCallPart("search", tool_call_id=call), deltas)
    for call in CALLS:
        yield agent.FunctionToolCallEvent(agent.ToolCallPart("search", INPUT, call), args_valid=True)
    for call in CALLS:
        yield agent.FunctionToolResultEvent(agent.ToolReturnPart("search", OUTPUT, call))
    yield from part_events(agent.TextPart(""), [agent.TextPartDelta(delta) for delta in TEXT])


def part_events(part: Any, deltas: Sequence[Any]) -> Iterator[object]:
    yield agent.PartStartEvent(index=0, part=part)
    for delta in deltas:
        yield agent.PartDeltaEvent(index=0, delta=delta)
    yield agent.PartEndEvent(index=0, part=part)


def check_same_work(runs: dict[str, Run], chunks: Sequence[Chunk]) -> None:
    def sent(name: str) -> list[Any]:
        payloads = [event.removeprefix(b"data: ") for event in runs[name]() if isinstance(event, bytes)]
        return [msgspec.json.decode(payload) for payload in payloads if payload != b"[DONE]\n\n"]

    expected = msgspec.to_builtins(chunks)
    for name in (FLOOR, ENCODER, WRITER, PEER_ENCODER):
        assert sent(name) == expected, name
    # Ids and finish reason are pydantic-ai's own here.
    assert [chunk["type"] for chunk in sent(PEER_WRITER)] == [chunk["type"] for chunk in expected]


def best_times(runs: dict[str, Run]) -> dict[str, float]:
    """The least processor time of each run; they take turns, with three goes each because the first has cold caches."""
    best = dict.fromkeys(runs, float("inf"))
    for _, (name, run), _ in itertools.product(range(15), runs.items(), range(3)):
        begin = time.process_time()
        run()
        best[name] = min(best[name], time.process_time() - begin)
    return best


def peak_memory(deltas: int) -> int:
    """The most bytes held at once while the writer streams this many text deltas."""
    writer = new_writer()
    tracemalloc.start()
    for delta in itertools.islice(itertools.cycle(WORDS), deltas):
        for chunk in writer.text(delta):
            encode_frame(chunk)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def data_memory(parts: int) -> float:
    """How many times their bytes on the wire these data parts take while a turn runs: as frames, and as its message."""
    writer, frames, reader, log = new_writer(), Frames("12345678"), MessageReader(), list[bytes]()
    tracemalloc.start()
    for number in range(parts):
        for chunk in writer.data("point", {"n": number}):
            log.append(frames.frame(len(log) + 1, chunk))
            reader.apply(chunk)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return held / sum(map(len, log))


def print_times(best: dict[str, float], count: int) -> None:
    print(f"{f'{count:,} chunks, CPython {platform.python_version()}':34}{'CPU µs/chunk':>14}{'to the floor':>14}")
    for name, seconds in best.items():
        print(f"{name:34}{seconds / count * 1e6:14.2f}{seconds / best[FLOOR]:13.2f}x")
    print()


def print_targets(best: dict[str, float]) -> None:
    for name, ratio, most in (
        (f"{WRITER} / {FLOOR}", best[WRITER] / best[FLOOR], 4),
        (MEMORY, peak_memory(200_000) / peak_memory(10_000), 1.1),
        (DATA_MEMORY, data_memory(150_000), 8),
    ):
        print(f"{f'at most {most}x: {name}':70}{ratio:7.2f}x  {'met' if ratio <= most else 'missed'}")
    for peer, ours in ((PEER_WRITER, WRITER), (PEER_ENCODER, ENCODER), (PEER_ENCODER, WRITER)):
        ratio = best[peer] / best[ours]
        print(f"{f'at least 5x: {peer} / {ours}':70}{ratio:7.2f}x  {'met' if ratio >= 5 else 'missed'}")


def main() -> None:
    chunks = [chunk for written in write_turn() for chunk in written]
    runs = {FLOOR: floor(chunks), ENCODER: usechat_encoder(chunks), WRITER: usechat_writer}
    runs |= {READER: usechat_reader(chunks), PEER_ENCODER: pydantic_ai_encoder(chunks)}
    with asyncio.Runner() as runner:
        runs[PEER_WRITER] = pydantic_ai_writer(runner)
        check_same_work(runs, chunks)
        best = best_times(runs)
    print_times(best, len(chunks))
    print_targets(best)


if __name__ == "__main__":
    main()
