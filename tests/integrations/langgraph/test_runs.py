"""The installed frameworks still stream what was recorded: what comes live is mapped as the golden files are."""

from itertools import count, groupby

import pytest

from support.goldens import cases
from support.graph_runs import RUNS, live_parts, renamed
from usechat.events.mapper import TranslatingMapper
from usechat.integrations.langgraph.translator import LangGraphTranslator, read_options
from usechat.protocol.codec import encode_chunk
from usechat.protocol.writer import MessageWriter
from usechat.stream import map_events

pytestmark = pytest.mark.anyio

RECORDED = {case.name: case for case in cases("langgraph")}


def in_order(lines: list[str]) -> str:
    """The lines with requests that follow each other by their calls: those of parallel tasks come in any order."""
    runs = groupby(lines, key=lambda line: '"tool-approval-request"' in line)
    ordered = (sorted(run, key=lambda line: line.rpartition("toolCallId")[2]) if asks else run for asks, run in runs)
    return "\n".join(line for run in ordered for line in run)


@pytest.mark.parametrize("name", RUNS)
async def test_a_live_run_is_shown_as_the_recorded_one(name: str) -> None:
    case = RECORDED[name]
    numbers = count(1)
    writer = MessageWriter("message-1", new_id=lambda: f"id-{next(numbers)}")
    mapper = TranslatingMapper(LangGraphTranslator(read_options(case.options)), writer)
    chunks = [encode_chunk(chunk).decode() async for chunk in map_events(live_parts(name), mapper, writer)]
    recorded = case.chunks.read_text("utf-8").splitlines()
    assert renamed(in_order(chunks)).split("\n") == renamed(in_order(recorded)).split("\n")
