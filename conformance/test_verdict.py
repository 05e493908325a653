"""`usechat check` against the real clients: what it refuses, what it calls untidy, and the message that it shows.

`USECHAT_SEED=<seed>` draws the random streams of a failure again, as in test_reader.py.
"""

import json
from typing import Any, Final, NamedTuple

import pytest
from hypothesis import assume, given, seed, settings
from msgspec import UNSET

from judge import Judge
from levels import Outcome, levels_of, worst
from promises import PINNED, PROMISES, V6, V7, promised, release_of
from same_json import as_json, strict
from spoilt import Spoilt, spoilt
from support.soak import draws
from test_reader import MANY, NEWEST, SEED, named
from usechat.protocol.chunks import (
    Abort,
    Chunk,
    Error,
    Finish,
    FinishStep,
    MessageMetadata,
    ReasoningStart,
    Start,
    StartStep,
    TextDelta,
    TextEnd,
    TextStart,
    ToolApprovalRequest,
    ToolInputAvailable,
    ToolInputDelta,
    ToolInputError,
    ToolInputStart,
    ToolOutputAvailable,
    ToolOutputError,
)
from usechat.protocol.clients import CLIENTS, ClientName
from usechat.protocol.codec import encode_chunk
from usechat.protocol.messages import UIMessage
from usechat.protocol.rules import RULES
from usechat.protocol.verdict import Event, Verdict
from usechat.protocol.verdict import judge as check

OURS: Final = ("too-new", "unknown-field", "no-chunks", "event-cut-off")
"""The rules that other tests hold against the clients."""

BEGIN: Final[list[Chunk]] = [Start("m"), StartStep()]
END: Final[list[Chunk]] = [FinishStep(), Finish()]
QUIET_END: Final[list[Chunk]] = [FinishStep(), StartStep(), MessageMetadata({}), *END]
TEXT: Final[list[Chunk]] = [TextStart("t"), TextDelta("t", "x"), TextEnd("t")]
INPUT: Final = ToolInputAvailable("c", "f", {})
OUTPUT: Final = ToolOutputAvailable("c", 1)
STREAMED: Final[list[Chunk]] = [ToolInputStart("c", "f"), ToolInputDelta("c", "{}"), INPUT]
BY_PROVIDER: Final[list[Chunk]] = [
    ToolInputAvailable("c", "f", {}, provider_executed=True),
    ToolOutputAvailable("c", 1, provider_executed=True),
]


class Case(NamedTuple):
    """A stream, and the rule that it breaks for each profile; a profile that is not named takes it as it is."""

    chunks: list[Chunk]
    breaks: dict[ClientName, str]
    continues: UIMessage | None = None


def everywhere(rule: str, **but: str) -> dict[ClientName, str]:
    return {profile: but.get(profile, rule) for profile in CLIENTS}


def before_newest(rule: str, **but: str) -> dict[ClientName, str]:
    """All profiles but the one of 7.0.170 alone break this rule."""
    return {profile: but.get(profile, rule) for profile in CLIENTS if profile != "latest" or profile in but}


WAITING: Final = UIMessage(
    "m", "assistant", [{"type": "tool-f", "toolCallId": "c", "state": "input-available", "input": 1}]
)
CUT: Final = UIMessage(
    "m", "assistant", [{"type": "tool-f", "toolCallId": "c", "state": "input-streaming", "rawInput": "{", "input": {}}]
)

CASES: Final[dict[str, Case]] = {
    "a provider's call, its result, text": Case([*BEGIN, *BY_PROVIDER, *TEXT, *END], {"v5": "resubmits"}),
    "a call, its result, an error": Case([*BEGIN, INPUT, OUTPUT, FinishStep(), Error("no")], {"v5": "resubmits"}),
    "a dynamic call without a result beside one with": Case(
        [*BEGIN, ToolInputAvailable("d", "g", {}, dynamic=True), INPUT, OUTPUT, FinishStep(), Finish()],
        {"v5": "resubmits"},
    ),
    "a provider's call fails": Case([*BEGIN, BY_PROVIDER[0], ToolOutputError("c", "no"), *TEXT, *END], {}),
    "dynamic on the input alone": Case(
        [*BEGIN, ToolInputAvailable("c", "f", {}, dynamic=True), OUTPUT, *QUIET_END],
        {"portable": "call-changed", "v5": "call-changed"},
    ),
    "dynamic on the output alone": Case(
        [*BEGIN, INPUT, ToolOutputError("c", "no", dynamic=True), *QUIET_END],
        {"portable": "call-changed", "v5": "call-changed"},
    ),
    "a call that changes its kind": Case(
        [*BEGIN, ToolInputStart("c", "f", dynamic=True), INPUT, ToolOutputAvailable("c", 1, dynamic=True), *QUIET_END],
        everywhere("call-changed"),
    ),
    "a call that changes its name": Case(
        [*BEGIN, ToolInputStart("c", "f"), ToolInputAvailable("c", "g", {}), OUTPUT, *QUIET_END], {}
    ),
    "one call id in two steps": Case(
        [*BEGIN, INPUT, OUTPUT, FinishStep(), StartStep(), INPUT, OUTPUT, *QUIET_END], before_newest("call-twice")
    ),
    "one call id twice in a step": Case([*BEGIN, INPUT, OUTPUT, INPUT, OUTPUT, *QUIET_END], everywhere("call-twice")),
    "an end on a preliminary output": Case(
        [*BEGIN, INPUT, ToolOutputAvailable("c", 1, preliminary=True), *END],
        before_newest("resubmits", v5="too-new"),
    ),
    "an end on an output": Case([*BEGIN, INPUT, OUTPUT, *END], everywhere("resubmits")),
    "no end on an output": Case([*BEGIN, INPUT, OUTPUT], everywhere("resubmits")),
    "an interrupted end on an output": Case([*BEGIN, INPUT, OUTPUT, Finish("interrupted")], before_newest("too-new")),
    "an end in a text after an output": Case(
        [*BEGIN, INPUT, OUTPUT, *TEXT[:2], Abort()], before_newest("resubmits", latest="part-left-open")
    ),
    "more of an input that was whole": Case(
        [*BEGIN, *STREAMED, ToolInputDelta("c", " "), *END], everywhere("call-left-open")
    ),
    "more of an input that was whole, and an output": Case(
        [*BEGIN, *STREAMED, ToolInputDelta("c", " "), OUTPUT, *QUIET_END], {}
    ),
    "more of an input that has an output": Case(
        [*BEGIN, *STREAMED, OUTPUT, ToolInputDelta("c", " "), *END], everywhere("call-order")
    ),
    "more of an input that never streamed": Case(
        [*BEGIN, INPUT, ToolInputDelta("c", " "), *END], everywhere("call-order")
    ),
    "an input over two steps": Case(
        [*BEGIN, *STREAMED[:2], FinishStep(), StartStep(), ToolInputDelta("c", " "), INPUT, OUTPUT, *QUIET_END],
        everywhere("call-across-steps"),
    ),
    "a text over two steps": Case(
        [*BEGIN, *TEXT[:1], FinishStep(), StartStep(), *TEXT[1:], *END], before_newest("part-not-open")
    ),
    "a text that its step leaves open": Case([*BEGIN, *TEXT[:2], *END], everywhere("part-left-open")),
    "a text that begins twice": Case([*BEGIN, *TEXT[:2], *TEXT, *END], everywhere("part-open-twice")),
    "Vercel's abort": Case([*BEGIN, *TEXT[:2], Abort()], everywhere("part-left-open")),
    "Vercel's abort in a thought": Case([*BEGIN, ReasoningStart("r"), Abort()], everywhere("part-left-open")),
    "Vercel's abort in an input": Case([*BEGIN, *STREAMED[:2], Abort()], everywhere("call-left-open")),
    "Vercel's error": Case([*BEGIN, *TEXT[:2], Error("no"), *END], everywhere("part-left-open")),
    "content after an error": Case([*BEGIN, Error("no"), *TEXT], everywhere("after-error")),
    "content after the end": Case([*BEGIN, *END, StartStep(), *TEXT], everywhere("after-end")),
    "no end": Case([*BEGIN, *TEXT], everywhere("no-end")),
    "an output for an approval that nobody gave": Case(
        [*BEGIN, INPUT, ToolApprovalRequest("a", "c"), OUTPUT, *QUIET_END],
        everywhere("call-invalid", v5="too-new"),
    ),
    "an output without an input": Case([*BEGIN, *STREAMED[:1], OUTPUT, *QUIET_END], everywhere("call-invalid")),
    "an approval that stays open": Case([*BEGIN, INPUT, ToolApprovalRequest("a", "c"), *END], {"v5": "too-new"}),
    "an output for a call of before": Case([Start("m"), OUTPUT, StartStep(), *TEXT, *END], {}, WAITING),
    "a start without an id": Case([Start(), OUTPUT, StartStep(), *TEXT, *END], {}, WAITING),
    "a start with an id after one chunk that a page shows": Case(
        [StartStep(), *TEXT[:1], Start("m"), *TEXT[1:], *END], {}
    ),
    "a start with an id after metadata": Case([MessageMetadata({}), Start("m"), StartStep(), *TEXT, *END], {}),
    "a start with an id after nulls": Case(
        [MessageMetadata(None), Start(message_metadata=None), MessageMetadata({}), Start("m"), *BEGIN[1:], *TEXT, *END],
        {},
    ),
    "a start with an id after two chunks that a page shows": Case(
        [StartStep(), *TEXT[:2], Start("m"), *TEXT[2:], *END], everywhere("late-start")
    ),
    "a start with another id after a start": Case([Start("a"), *BEGIN, *TEXT, *END], {}),
    "a third id": Case([Start("a"), Start("b"), *BEGIN, *TEXT, *END], everywhere("late-start")),
    "another id after a start and a chunk that a page shows": Case(
        [Start("a"), MessageMetadata({}), *BEGIN, *TEXT, *END], everywhere("late-start")
    ),
    "another id after two starts with the same": Case(
        [Start("a"), Start("a"), *BEGIN, *TEXT, *END], everywhere("late-start")
    ),
    "a start again that shows an empty step": Case(
        [*BEGIN, INPUT, OUTPUT, FinishStep(), StartStep(), Start("m"), *END], {}
    ),
    "a start again that shows nothing": Case(
        [*BEGIN, INPUT, OUTPUT, FinishStep(), StartStep(), Start(), *END], everywhere("resubmits")
    ),
    "a start with another id": Case(
        [Start("other"), OUTPUT, StartStep(), *TEXT, *END], everywhere("late-start"), WAITING
    ),
    "more of an input of before": Case(
        [Start("m"), ToolInputDelta("c", "}"), INPUT, OUTPUT, *QUIET_END], before_newest("call-order"), CUT
    ),
}


def judged(chunks: list[Chunk], profile: ClientName, continues: UIMessage | None = None) -> Verdict:
    events = [Event(line, encode_chunk(chunk).decode()) for line, chunk in enumerate(chunks, 1)]
    return check(events, profile, continues=continues)


def outcome_of(verdict: Verdict) -> Outcome:
    return "refused" if verdict.violation is not None else "untidy" if verdict.warnings else "clean"


@pytest.mark.parametrize("name", CASES)
def test_the_verdict_on_each_profile_is_what_its_clients_do(judge: Judge, name: str) -> None:
    chunks, breaks, continues = CASES[name]
    levels = levels_of(judge, chunks, PINNED, continues)
    for profile in CLIENTS:
        verdict = judged(chunks, profile, continues)
        found = [verdict.violation] if verdict.violation is not None else verdict.warnings
        rules = {violation.rule for violation in found}
        rule = breaks.get(profile)
        # Vercel's server says that it has finished even after an error.
        assert rules - ({"after-error"} - {rule}) == ({rule} if rule else set()), profile
        expected = worst(levels[client] for client in promised(profile, chunks) or PROMISES[profile])
        if rule is None or RULES[rule].reason is UNSET:
            assert outcome_of(verdict) == expected, (profile, levels)
        else:
            assert (outcome_of(verdict), expected) == ("untidy", "clean"), (profile, levels)


@pytest.mark.parametrize("name", CASES)
def test_the_releases_that_are_named_take_the_stream(judge: Judge, name: str) -> None:
    chunks, _, continues = CASES[name]
    levels = levels_of(judge, chunks, PINNED, continues)
    for profile in CLIENTS:
        verdict = judged(chunks, profile, continues)
        firsts = [release_of(release) for release in verdict.releases]
        for client in () if verdict.violation is not None else PINNED:
            if any(first.major == release_of(client).major and first <= release_of(client) for first in firsts):
                assert levels[client] != "refused", (profile, client)


def _agree(verdict: Verdict, levels: dict[str, Outcome], profile: ClientName) -> bool:
    ours, theirs = outcome_of(verdict), worst(levels.values())
    if ours == "refused" or theirs == "refused":
        return ours == theirs or _is_hasty(verdict) or _is_minded_by_v5_alone(verdict, levels, profile)
    # What is untidy is so in the newest clients: old ones refuse calls and messages that all others take.
    theirs = worst(level for client, level in levels.items() if client in NEWEST)
    return ours == theirs or (ours == "untidy" and all(_is_advice(warning.rule) for warning in verdict.warnings))


def _is_hasty(verdict: Verdict) -> bool:
    """Whether a loss was told that the rest of the stream may make good or never bring about.

    A result that is taken away may come again; an id that is used again for a call of the other kind harms old clients
    only with its result, and so does a call that changes its kind.
    """
    problem = "" if verdict.violation is None else verdict.violation.problem
    hasty = ("takes its result away", "which began in an earlier step", "another kind")
    return any(loss in problem for loss in hasty)


def _is_minded_by_v5_alone(verdict: Verdict, levels: dict[str, Outcome], profile: ClientName) -> bool:
    """Whether only the profile's clients of v5 mind, which were not asked, since the stream has an approval."""
    problem = "" if verdict.violation is None else verdict.violation.problem
    left_out = {client for client in PROMISES[profile] if release_of(client).major == 5} - levels.keys()
    return "differ in `dynamic`" in problem and bool(left_out)


def _is_advice(rule: str) -> bool:
    # These two leave the message as it is: what comes after an error is not read, and the same id hurts who answers.
    return RULES[rule].reason is not UNSET or rule in ("after-error", "approval-twice")


@pytest.mark.parametrize("profile", CLIENTS)
def test_random_streams_are_refused_and_untidy_where_the_clients_have_it_so(judge: Judge, profile: ClientName) -> None:
    @seed(SEED)
    @settings(MANY, max_examples=draws(25, 16))
    @given(spoilt(profile))
    def compare(stream: Spoilt) -> None:
        # A page gives an id to each message that comes without one, and takes an empty one for none.
        assume(stream.continues is None or stream.continues.id)
        assume(not any(isinstance(chunk, Start) and chunk.message_id == "" for chunk in stream.chunks))
        verdict = judged(stream.chunks, profile, stream.continues)
        assume(verdict.violation is None or verdict.violation.rule not in OURS)
        clients = promised(profile, stream.chunks)
        if stream.continues is not None and any("approval" in part for part in stream.continues.parts):
            clients = [client for client in clients if release_of(client).major > 5]
        # The first parsers fail on this value, which is no matter of the stream.
        assume(clients and not any(b'"constructor":null' in encode_chunk(chunk) for chunk in stream.chunks))
        levels = levels_of(judge, stream.chunks, clients, stream.continues)
        assert _agree(verdict, levels, profile), (f"USECHAT_SEED={SEED}", verdict.violation, verdict.warnings, levels)
        if verdict.violation is None and NEWEST[-1] in clients:
            reading = judge.read(
                stream.chunks, NEWEST[-1:], continues=None if stream.continues is None else as_json(stream.continues)
            )
            assert strict(as_json(verdict.message)) == strict(named(reading[NEWEST[-1]]["accumulated"]))

    compare()


@pytest.mark.parametrize(("profile", "client"), [("v6", V6), ("v7", V7), ("portable", V7)])
def test_the_message_is_that_of_the_newest_client_of_the_profile(
    judge: Judge, profile: ClientName, client: str
) -> None:
    wrong: list[Chunk] = [*BEGIN, ToolInputError("c", "f", {"city": 1}, "not a city"), *QUIET_END]
    message = judge.read(wrong, [client])[client]["accumulated"]
    assert as_json(judged(wrong, profile).message) == message


def test_unknown_fields_of_data_and_steering_parts_stay_in_the_part(judge: Judge) -> None:
    wires: list[dict[str, Any]] = [
        {"type": "start", "messageId": "m"},
        {"type": "data-a", "data": 1, "id": "1", "more": [1]},
        {"type": "data-a", "data": 2, "id": "1", "other": 2},
        {"type": "data-a", "data": 3, "transient": True, "more": 3},
        {
            "type": "steering-message",
            "id": "s",
            "parts": [
                {"type": "text", "text": "x", "more": 4},
                {"type": "file", "mediaType": "a/b", "url": "u", "x": 5},
            ],
            "more": 6,
        },
        {"type": "finish"},
    ]
    client = PROMISES["latest"][0]
    body = "".join(f"data: {json.dumps(wire)}\n\n" for wire in wires)
    theirs = judge.read(body, [client])[client]["accumulated"]
    verdict = check([Event(1, json.dumps(wire)) for wire in wires], "latest")
    assert (verdict.violation, as_json(verdict.message)) == (None, theirs)
