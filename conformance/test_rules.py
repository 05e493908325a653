"""The rules against the real clients: what is called wrong hurts one of them, what is called legal hurts none."""

from collections.abc import Iterable
from itertools import pairwise, starmap
from typing import Final

import pytest
from msgspec import UNSET

from breaches import BREACHES, LEGAL, Breach, state_after
from chat_faults import INVALID, faults_of
from judge import Judge, body_of
from lives import MOVES, WAYS, Way
from promises import PINNED, PROMISES, knowing
from usechat.errors import LocalProtocolError
from usechat.protocol.chunks import Chunk, Finish, FinishStep, MessageMetadata, StartStep, chunk_type
from usechat.protocol.reader import MessageReader
from usechat.protocol.rules import RULES
from usechat.protocol.state import closing
from usechat.protocol.tables import CALLS
from usechat.protocol.verdict import judge as check
from usechat.protocol.verdict import recorded_events
from witnesses import WITNESSES

_OLD: Final = {"5.0.92", "5.0.216", "6.0.0"}
_INVALID_CALLS: Final[dict[tuple[str, str], set[str]]] = {
    # The wrong input of a static call goes to `rawInput`, and the old check asks for `input`.
    ("", "tool-input-error"): _OLD,
    ("tool-input-start", "tool-input-error"): _OLD,
    ("tool-input-delta", "tool-input-error"): _OLD,
    ("tool-input-error", "tool-output-error"): _OLD,
    # There is no input.
    ("tool-input-start", "tool-output-error"): _OLD,
    # The approval was not given.
    ("tool-approval-request", "tool-output-error"): set(PINNED),
}
"""Two moves of a call after which these clients show the right message and call it invalid all the same."""

_INVALID_IF_EMPTY: Final = {"5.0.92", "6.0.0", "7.0.0"}
"""The clients that call an assistant message without parts invalid."""

# A page posts again after any result that has no step after it, so that this would be no fault of the move.
_QUIET_END: Final[list[Chunk]] = [FinishStep(), StartStep(), MessageMetadata({}), FinishStep(), Finish()]


def _faults(judge: Judge, way: Way, following: list[Chunk]) -> dict[str, set[str]]:
    body = body_of([*way.chunks(), *following])
    return faults_of(judge, body, way.clients(following), continues=way.message)


def _faults_of(judge: Judge, stream: list[Chunk]) -> dict[str, set[str]]:
    return faults_of(judge, body_of(stream), knowing(stream))


def _moves(stream: Iterable[Chunk]) -> list[str]:
    return [chunk_type(chunk) for chunk in stream if chunk_type(chunk).startswith("tool-")]


def test_every_rule_has_a_witness_or_is_one_of_at_most_five_advices() -> None:
    advice = {name for name, rule in RULES.items() if rule.reason is not UNSET}
    assert set(WITNESSES) == set(RULES) - advice
    assert len(advice) <= 5


@pytest.mark.parametrize("rule", WITNESSES)
def test_check_names_the_rule_and_a_promised_client_minds(judge: Judge, rule: str) -> None:
    body, client, faults, profile = WITNESSES[rule]
    verdict = check(recorded_events(body.encode()), profile)
    violations = verdict.warnings if verdict.violation is None else [verdict.violation]
    assert (rule, RULES[rule].level) in {(violation.rule, violation.level) for violation in violations}
    assert client in PROMISES[profile]
    assert faults_of(judge, body, [client]) == {client: faults}


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_a_move_that_the_table_of_calls_lacks_hurts_a_client(judge: Judge, way: Way) -> None:
    ends = [_QUIET_END, [MOVES["tool-input-available"], *_QUIET_END]]
    ends = ends if way.into in ("started", "streaming") else ends[:1]
    without = [_faults(judge, way, end) for end in ends]
    unminded = set[str]()
    for move in (move for move in CALLS if way.into not in CALLS[move]):
        with pytest.raises(LocalProtocolError) as raised:
            way.state().apply(MOVES[move])
        assert raised.value.chunk == chunk_type(MOVES[move])
        found = [_faults(judge, way, [MOVES[move], *end]) for end in ends]
        if not all(starmap(_is_worse, zip(found, without, strict=True))):
            unminded.add(move)
    assert unminded == set()


def _is_worse(found: dict[str, set[str]], without: dict[str, set[str]]) -> bool:
    return any(faults - without[client] for client, faults in found.items())


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_a_move_that_the_table_of_calls_has_hurts_no_client(judge: Judge, way: Way) -> None:
    for move in (move for move in CALLS if way.into in CALLS[move]):
        state = way.state()
        assert [call.state for call in state.calls.values()] == [way.into] * bool(way.moves)
        state.apply(MOVES[move])
        waits = state.calls["call"].state in ("available", "requested")
        for last in (Finish(), Finish("tool-calls")) if waits else (Finish(),):
            end = list(closing(state, last))
            life = ["", *way.moves, move, *_moves(end)]
            found = _faults(judge, way, [MOVES[move], *end])
            assert found == {client: _expected(client, way, life) for client in found}, life


def _expected(client: str, way: Way, life: list[str]) -> set[str]:
    return {INVALID for pair in pairwise(life) if client in _INVALID_CALLS.get(pair, ())}


@pytest.mark.parametrize(
    ("before", "chunk"), LEGAL, ids=[" > ".join(map(chunk_type, [*before, chunk])) for before, chunk in LEGAL]
)
def test_what_the_tables_of_parts_and_messages_have_hurts_no_client(
    judge: Judge, before: list[Chunk], chunk: Chunk
) -> None:
    state = state_after([*before, chunk])
    stream = [*before, chunk]
    if state.phase not in ("ended", "failed"):
        stream += closing(state, Finish())
    reader = MessageReader()
    for each in stream:
        reader.apply(each)
    found = _faults_of(judge, stream)
    for client in () if reader.message.parts else found.keys() & _INVALID_IF_EMPTY:
        found[client].discard(INVALID)
    assert found == {client: set() for client in knowing(stream)}


@pytest.mark.parametrize("breach", BREACHES, ids=lambda breach: f"{breach.rule}: {chunk_type(breach.chunk)}")
def test_a_chunk_that_breaks_a_rule_hurts_a_client(judge: Judge, breach: Breach) -> None:
    with pytest.raises(LocalProtocolError) as raised:
        state_after(breach.before).apply(breach.chunk)
    assert raised.value.rule == breach.rule
    legal = [*breach.before, *breach.instead]
    state_after(legal)
    assert _faults_of(judge, legal) == {client: set() for client in knowing(legal)}
    assert any(_faults_of(judge, [*breach.before, breach.chunk, *breach.after]).values())
