"""Whatever a run says, in whatever order, the stream is legal and ends."""

from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.deep_agent_runs import ANY_EVENTS, OPTIONS, SPOILT_RUNS
from support.goldens import mapped
from support.soak import draws
from usechat.errors import MappingError
from usechat.events.mapper import TranslatingMapper
from usechat.integrations.deepagent_sdk.translator import DeepAgentTranslator, read_options
from usechat.protocol.chunks import Chunk
from usechat.protocol.clients import ClientName
from usechat.protocol.codec import encode_chunk
from usechat.protocol.messages import UIMessage
from usechat.protocol.reader import MessageReader
from usechat.protocol.verdict import judge, recorded_events
from usechat.protocol.writer import MessageWriter

CLIENTS: list[ClientName] = ["portable", "v5", "latest"]


def legal(chunks: list[Chunk], client: ClientName) -> None:
    recording = b"\n".join(encode_chunk(chunk) for chunk in chunks)
    assert judge(recorded_events(recording), client).violation is None


@pytest.mark.parametrize("client", CLIENTS)
@settings(max_examples=draws(25, 200))
@given(SPOILT_RUNS, OPTIONS)
def test_a_log_that_is_shuffled_cut_or_repeated_gives_a_legal_stream(
    client: ClientName, log: list[dict[str, Any]], options: dict[str, Any]
) -> None:
    legal(mapped("deep-agent", log, options, client), client)


def answered(state: str, number: int, **approval: Any) -> dict[str, Any]:
    part: dict[str, Any] = {"type": "tool-ls", "toolCallId": f"c-{number}", "state": state, "input": {}}
    return (
        {**part, "approval": {"id": f"a-{number}", **approval}} if approval or state == "approval-requested" else part
    )


CONTINUED = st.sampled_from(
    (
        [],
        [answered("approval-responded", 1, approved=True), answered("approval-responded", 2, approved=False)],
        [answered("approval-responded", 1, approved=False), answered("approval-requested", 2)],
        [answered("approval-responded", 3, approved=True), answered("input-available", 1)],
    )
)


@settings(max_examples=draws(50, 180))
@given(ANY_EVENTS, OPTIONS, CONTINUED, st.sampled_from(CLIENTS))
def test_events_of_any_shape_give_a_legal_stream(
    events: list[dict[str, Any]], options: dict[str, Any], calls: list[dict[str, Any]], client: ClientName
) -> None:
    numbers = count(1)
    continues = UIMessage("m", "assistant", [{"type": "step-start"}, *calls]) if calls else None
    writer = MessageWriter("m", new_id=lambda: f"id-{next(numbers)}", continues=continues, client=client)
    mapper = TranslatingMapper(DeepAgentTranslator(read_options(options), continues=continues), writer)
    chunks: list[Chunk] = []
    for event in events:
        try:
            chunks += mapper.map(event)
        except MappingError:
            continue
    chunks += mapper.end()
    assert writer.state.phase in ("ended", "failed")
    assert list(mapper.end()) == []
    reader = MessageReader(continues)
    for chunk in chunks:
        reader.apply(chunk)
    if continues is None:
        legal(chunks, client)
