"""Whatever a runtime says, in whatever order, the stream is legal and ends."""

from typing import Any

from hypothesis import given, settings

from support.goldens import mapped
from support.harness_runs import ANY_EVENTS, OPTIONS, RUNS, Story, texts_of
from support.soak import draws
from usechat.protocol.chunks import Chunk
from usechat.protocol.codec import encode_chunk
from usechat.protocol.verdict import judge, recorded_events


def stream_of(events: list[dict[str, Any]], options: dict[str, Any]) -> list[Chunk]:
    chunks = mapped("open-harness", events, options)
    recording = b"\n".join(encode_chunk(chunk) for chunk in chunks)
    assert judge(recorded_events(recording)).violation is None
    return chunks


@settings(max_examples=draws(40, 75))
@given(RUNS, OPTIONS)
def test_what_the_runs_of_a_flow_say_is_said_once_in_parts_of_their_own(story: Story, options: dict[str, Any]) -> None:
    said = story.said
    if options.get("send_reasoning") is False:
        said = {(run, kind): text for (run, kind), text in said.items() if kind == "text"}
    assert texts_of(stream_of(story.events, options)) == said


@settings(max_examples=draws(40, 100))
@given(ANY_EVENTS, OPTIONS)
def test_events_of_any_shape_in_any_order_give_a_legal_stream(
    events: list[dict[str, Any]], options: dict[str, Any]
) -> None:
    stream_of(events, options)
