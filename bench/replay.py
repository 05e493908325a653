"""How long a replay of the largest turn keeps its event loop waiting: processor time of the longest steps, in ms.

Of the longest step it also says how much of it was Python's garbage collector, which may come in any step of anybody.
Run it with `PYTHONPATH=src python bench/replay.py`.
"""

import gc
import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from usechat.protocol.chunks import (
    Chunk,
    Data,
    File,
    Start,
    StartStep,
    TextDelta,
    TextEnd,
    TextStart,
    ToolInputAvailable,
    ToolInputDelta,
    ToolInputStart,
    ToolOutputAvailable,
)
from usechat.protocol.clients import CLIENTS
from usechat.protocol.frames import Frames
from usechat.protocol.messages import UIMessage
from usechat.protocol.replay import Replay

LOG = 16 * 1024 * 1024
FRAMES_TAKEN = 1_000
BYTES_TAKEN = 64 * 1024
FRAMES = Frames("12345678")
OBJECT = {"name": "north pier", "height": 4.25, "seen": [1, 2, 3]}


def log_of(chunks: Iterable[Chunk]) -> list[bytes]:
    frames: list[bytes] = []
    size = 0
    for index, chunk in enumerate(itertools.chain((Start("m"), StartStep()), chunks), 1):
        frames.append(FRAMES.frame(index, chunk))
        size += len(frames[-1])
        if size > LOG:
            break
    return frames


def one_text(delta: str) -> Iterator[Chunk]:
    yield TextStart("part")
    while True:
        yield TextDelta("part", delta)


def one_input() -> Iterator[Chunk]:
    yield ToolInputStart("call", "write")
    while True:
        yield ToolInputDelta("call", "a few words ")


def texts() -> Iterator[Chunk]:
    for number in itertools.count():
        yield from (TextStart(f"{number}"), TextDelta(f"{number}", "word "), TextEnd(f"{number}"))


def calls(output: Any) -> Iterator[Chunk]:
    for number in itertools.count():
        yield ToolInputAvailable(f"{number}", "search", {"query": "tides"})
        yield ToolOutputAvailable(f"{number}", output)


TURNS: dict[str, Callable[[], Iterable[Chunk]]] = {
    "small deltas of one text": lambda: one_text("word "),
    "large deltas of one text": lambda: one_text("word " * 200_000),
    "one text of CJK": lambda: one_text("潮の満ち引き"),
    "small deltas of one tool input": one_input,
    "short texts": texts,
    "data with ids": lambda: (Data("data-x", number, f"{number}") for number in itertools.count()),
    "one image": lambda: [File("data:image/png;base64," + "QUJD" * 4_000_000, "image/png")],
    "one data part, replaced": lambda: itertools.repeat(Data("data-x", OBJECT, "same")),
    "small results": lambda: calls(OBJECT),
    "results of 1 MB, objects": lambda: calls([OBJECT] * 18_000),
    "results of 1 MB, empty lists": lambda: calls([[]] * 340_000),
    "results of 1 MB, text": lambda: calls("tide " * 200_000),
}
MESSAGES: dict[str, list[dict[str, Any]]] = {
    "one text": [{"type": "text", "text": "tide " * 3_300_000}],
    "short texts": [{"type": "text", "text": "word ", "state": "done"}] * 200_000,
    "data parts": [{"type": "data-x", "id": "1", "data": OBJECT}] * 150_000,
    "results of 1 MB, objects": [
        {
            "type": "tool-search",
            "toolCallId": "c",
            "state": "output-available",
            "input": {},
            "output": [OBJECT] * 18_000,
        }
    ]
    * 16,
    "one raw input": [
        {
            "type": "tool-write",
            "toolCallId": "c",
            "state": "input-streaming",
            "rawInput": '{"text":"' + "tide " * 3_300_000,
        }
    ],
}


class Collector:
    """How long the garbage collector has worked, in ms."""

    def __init__(self) -> None:
        self.worked = 0.0
        self._began = 0.0
        gc.callbacks.append(self._called)

    def _called(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.process_time()
        else:
            self.worked += (time.process_time() - self._began) * 1000


COLLECTOR = Collector()


class Steps(NamedTuple):
    """The longest step, what of it was the collector, the longest without it, the time of all, and their number."""

    longest: float
    collector: float
    own: float
    total: float
    number: int


def measure_steps(steps: Iterator[object]) -> Steps:
    longest = collector = own = total = 0.0
    for number in itertools.count():
        begin, before = time.process_time(), COLLECTOR.worked
        done = next(steps, None) is None
        took, collected = (time.process_time() - begin) * 1000, COLLECTOR.worked - before
        total += took
        own = max(own, took - collected)
        if took > longest:
            longest, collector = took, collected
        if done:
            return Steps(longest, collector, own, total, number)
    raise AssertionError


def taking(replay: Replay, log: list[bytes]) -> Iterator[object]:
    begin = 0
    while begin < len(log):
        sizes = itertools.accumulate(map(len, log[begin : begin + FRAMES_TAKEN]))
        end = begin + 1 + sum(size < BYTES_TAKEN for size in sizes)
        yield replay.take(log[begin:end]) or True
        begin = end


def measure(name: str, message: UIMessage | None, log: list[bytes]) -> None:
    begin = time.process_time()
    replay = Replay(message, CLIENTS["portable"], FRAMES)
    made = (time.process_time() - begin) * 1000
    take = measure_steps(taking(replay, log))
    begin = time.process_time()
    pieces = replay.encoded()
    begun = (time.process_time() - begin) * 1000
    piece = measure_steps(pieces)
    row = f"{name:46}{made:8.2f}{take.longest:8.2f}{take.collector:11.2f}{take.own:8.2f}"
    print(f"{row}{begun:8.2f}{piece.longest:8.2f}{piece.total:10.0f}{piece.number:8,}")


def main() -> None:
    heading = f"{'longest step in ms':46}{'make':>8}{'take':>8}{'collector':>11}{'without':>8}"
    print(f"{heading}{'begin':>8}{'piece':>8}{'all':>10}{'pieces':>8}")
    for name, chunks in TURNS.items():
        measure(f"turn of 16 MB: {name}", None, log_of(chunks()))
    for name, parts in MESSAGES.items():
        measure(f"continued, 16 MB: {name}", UIMessage("m", "assistant", parts), [])


if __name__ == "__main__":
    main()
