"""Whatever a session says, in whatever order, the stream is legal and ends."""

from itertools import count
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from support.goldens import mapped
from support.session_frames import ANY_FRAMES, SPOILT_LOGS, classify
from support.soak import draws
from usechat.errors import MappingError
from usechat.events.mapper import TranslatingMapper
from usechat.integrations.agent_ops.frames import read_frame
from usechat.integrations.agent_ops.options import read_options
from usechat.integrations.agent_ops.translator import AgentOpsTranslator
from usechat.integrations.agent_ops.turns import PromptTracker
from usechat.protocol.chunks import Chunk
from usechat.protocol.codec import encode_chunk
from usechat.protocol.verdict import judge, recorded_events
from usechat.protocol.writer import MessageWriter

OPTIONS = st.fixed_dictionaries(
    {}, optional={"forward": st.just(["git-state", "status", "audit_log"]), "transient_status": st.booleans()}
)


def legal(chunks: list[Chunk]) -> None:
    recording = b"\n".join(encode_chunk(chunk) for chunk in chunks)
    assert judge(recorded_events(recording)).violation is None


@settings(max_examples=draws(40, 150))
@given(SPOILT_LOGS, OPTIONS)
def test_a_log_that_is_shuffled_cut_or_repeated_gives_a_legal_stream(
    log: list[dict[str, Any]], options: dict[str, Any]
) -> None:
    legal(mapped("agent-ops", log, options))


@settings(max_examples=draws(40, 150))
@given(ANY_FRAMES, OPTIONS)
def test_frames_of_any_shape_give_a_legal_stream(frames: list[dict[str, Any]], options: dict[str, Any]) -> None:
    numbers = count(1)
    writer = MessageWriter("m", new_id=lambda: f"id-{next(numbers)}")
    mapper = TranslatingMapper(AgentOpsTranslator(read_options(options)), writer)
    chunks: list[Chunk] = []
    for frame in frames:
        try:
            chunks += mapper.map(read_frame(frame))
        except MappingError:
            continue
    legal([*chunks, *mapper.end()])


@settings(max_examples=draws(40, 150))
@given(ANY_FRAMES, st.sampled_from((None, "a")))
def test_no_frame_confuses_the_tracker(frames: list[dict[str, Any]], text: str | None) -> None:
    tracker = PromptTracker(text)
    tracker.mark_sent()
    for frame in frames:
        ended = tracker.ended
        kind, _ = classify(tracker, frame)
        assert not (ended and kind != "other")
        assert not (tracker.running and tracker.position)
        assert (kind == "ended") == (tracker.ended and not ended)
