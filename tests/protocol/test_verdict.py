from collections.abc import Iterable
from typing import Any

import pytest

from usechat.errors import RemoteProtocolError
from usechat.protocol.clients import ClientName
from usechat.protocol.messages import UIMessage
from usechat.protocol.verdict import Event, Violation, judge, recorded_events

START = '{"type":"start","messageId":"m"}'
FINISH = '{"type":"finish"}'
BODY = f"data: {START}\n\n: keep-alive\n\nid: 2\ndata: {FINISH}\n\ndata: [DONE]\n\n"


def verdict_of(*chunks: str, client: ClientName = "portable") -> Violation | None:
    return judge([Event(line, chunk) for line, chunk in enumerate(chunks, 1)], client).violation


@pytest.mark.parametrize(
    ("recording", "events"),
    [
        (BODY, [Event(1, START), Event(6, FINISH)]),
        (f"\ufeff{BODY}", [Event(1, START), Event(6, FINISH)]),
        (BODY.replace("\n", "\r\n"), [Event(1, START), Event(6, FINISH)]),
        (f"HTTP/1.1 200 OK\r\nx: y\r\n\r\n{BODY}", [Event(4, START), Event(9, FINISH)]),
        (f"HTTP/1.1 100 Continue\r\n\r\nHTTP/2 200\nx: y\n\n{BODY}", [Event(6, START), Event(11, FINISH)]),
        (f"{START}\n\n{FINISH}\r\n", [Event(1, START), Event(3, FINISH)]),
        (f"\ufeff{START}\n", [Event(1, START)]),
        ("[]\n7\n", [Event(1, "[]"), Event(2, "7")]),
        ("HTTP/1.1 200 OK\n\n", []),
        ("<html></html>", []),
        ("", []),
    ],
)
def test_a_recording_may_have_three_forms(recording: str, events: list[Event]) -> None:
    assert recorded_events(recording.encode()) == events


def test_an_event_that_is_too_large_is_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        recorded_events(b"data: " + b"x" * (33 * 1024 * 1024))


def test_a_legal_stream_is_counted_and_its_message_built() -> None:
    text = [
        '{"type":"text-start","id":"t"}',
        '{"type":"text-delta","id":"t","delta":"x"}',
        '{"type":"text-end","id":"t"}',
    ]
    verdict = judge([Event(1, chunk) for chunk in (START, *text, FINISH)])
    assert (verdict.chunks, verdict.releases, verdict.violation) == (5, ["5.0.0", "6.0.0", "7.0.0"], None)
    assert verdict.message.parts == [{"type": "text", "text": "x", "state": "done"}]


def test_the_first_violation_is_told_with_line_rule_and_remedy() -> None:
    assert verdict_of(START, '{"type":"text-end","id":"t"}', "?") == Violation(
        "refused",
        2,
        "text-end",
        "part-not-open",
        "`text-end` for the part 't', which is not open.",
        "Send the part's start first; `finish-step` closes all parts for older clients.",
    )


@pytest.mark.parametrize(
    ("chunks", "client", "rule"),
    [
        ([], "portable", "no-chunks"),
        (['{"type":"finish","usage":1}'], "portable", "unknown-field"),
        (['{"type":"finish","usage":1}'], "v7", "unknown-field"),
        (['{"type":"abort","reason":"x"}'], "portable", "too-new"),
        (['{"type":"finish","finishReason":"stop"}'], "v5", "too-new"),
        (['{"type":"finish","finishReason":"interrupted"}'], "v7", "too-new"),
        (['{"type":"custom","kind":"a.b"}'], "v6", "too-new"),
        (['{"type":"step-start"}'], "latest", "unknown-type"),
    ],
)
def test_the_client_decides_what_is_too_new(chunks: list[str], client: ClientName, rule: str) -> None:
    violation = verdict_of(*chunks, client=client)
    assert violation is not None
    assert violation.rule == rule


def test_an_event_that_is_cut_off_is_refused_unless_nothing_was_read() -> None:
    cut = recorded_events(f"data: {START}\n\ndata: {FINISH}\n".encode())
    violation = judge(cut).violation
    assert violation is not None
    assert (violation.line, violation.rule) == (3, "event-cut-off")
    alone = judge(recorded_events(f"data: {START}\n".encode())).violation
    assert alone is not None
    assert alone.rule == "no-chunks"


def test_the_data_stream_of_ai_sdk_4_is_told_from_garbage() -> None:
    violation = verdict_of('0:"Hello"')
    assert violation is not None
    assert violation.problem == "This is the data stream of AI SDK 4, which no client from AI SDK 5 on reads."


def test_who_takes_the_finish_reason_unknown_is_told() -> None:
    violation = verdict_of(START, '{"type":"finish","finishReason":"unknown"}')
    assert violation is not None
    assert violation.problem.startswith(
        "The finish chunk has the reason 'unknown', which only ai 5.0.92 and later 5 take"
    )


def test_the_newest_client_ignores_unknown_fields() -> None:
    assert verdict_of('{"type":"finish","usage":1}', client="latest") is None


def test_portable_lets_approvals_pass_and_tells_who_takes_them() -> None:
    chunks = [
        '{"type":"tool-input-available","toolCallId":"c","toolName":"x","input":1}',
        '{"type":"tool-approval-request","toolCallId":"c","approvalId":"a"}',
        FINISH,
    ]
    verdict = judge([Event(1, chunk) for chunk in chunks])
    assert (verdict.violation, verdict.releases) == (None, ["6.0.0", "7.0.0"])
    violation = verdict_of(*chunks, client="v5")
    assert violation is not None
    assert violation.problem == "ai 5.0.0 refuses the chunk `tool-approval-request`."


def test_a_signed_approval_is_newer_than_portable_allows() -> None:
    signed = '{"type":"tool-approval-request","toolCallId":"c","approvalId":"a","signature":"s"}'
    violation = verdict_of('{"type":"tool-input-available","toolCallId":"c","toolName":"x","input":1}', signed)
    assert violation is not None
    assert violation.problem == "ai 6.0.0 refuses the field `signature` of `tool-approval-request`."


STEP = '{"type":"start-step"}'
STEP_END = '{"type":"finish-step"}'
TEXT = '{"type":"text-start","id":"t"}'
TEXT_DELTA = '{"type":"text-delta","id":"t","delta":"x"}'
TEXT_END = '{"type":"text-end","id":"t"}'
BEGUN = '{"type":"tool-input-start","toolCallId":"c","toolName":"f"}'
DELTA = '{"type":"tool-input-delta","toolCallId":"c","inputTextDelta":"{}"}'
INPUT = '{"type":"tool-input-available","toolCallId":"c","toolName":"f","input":{}}'
DYNAMIC = '{"type":"tool-input-available","toolCallId":"c","toolName":"f","input":{},"dynamic":true}'
WRONG = '{"type":"tool-input-error","toolCallId":"c","toolName":"f","input":1,"errorText":"no"}'
OUTPUT = '{"type":"tool-output-available","toolCallId":"c","output":1}'
PRELIMINARY = '{"type":"tool-output-available","toolCallId":"c","output":1,"preliminary":true}'
FAILED = '{"type":"tool-output-error","toolCallId":"c","errorText":"no"}'
OTHER = '{"type":"tool-input-available","toolCallId":"d","toolName":"f","input":{}}'
ASK = '{"type":"tool-approval-request","toolCallId":"c","approvalId":"a"}'
ASK_OTHER = '{"type":"tool-approval-request","toolCallId":"d","approvalId":"a"}'
APPROVE = '{"type":"tool-approval-response","approvalId":"a","approved":true}'
PROVIDED = INPUT[:-1] + ',"providerExecuted":true}'
SHOW = '{"type":"message-metadata","messageMetadata":{}}'
ERROR = '{"type":"error","errorText":"no"}'
RESET = '{"type":"reset-step"}'
QUIET = (STEP, SHOW, FINISH)


def rules_of(
    chunks: Iterable[str], client: ClientName = "portable", continues: UIMessage | None = None
) -> tuple[str | None, list[str]]:
    verdict = judge([Event(line, chunk) for line, chunk in enumerate(chunks, 1)], client, continues=continues)
    return verdict.violation and verdict.violation.rule, [warning.rule for warning in verdict.warnings]


@pytest.mark.parametrize(
    ("chunks", "client", "refused", "untidy"),
    [
        ((START,), "portable", None, ["no-end"]),
        ((START, TEXT, FINISH), "portable", None, ["part-left-open"]),
        ((START, TEXT, TEXT, TEXT_END, FINISH), "portable", None, ["part-open-twice"]),
        ((START, TEXT, STEP_END, FINISH), "portable", None, ["part-left-open"]),
        ((START, TEXT, STEP_END, TEXT_END, FINISH), "portable", "part-not-open", ["part-left-open"]),
        ((START, TEXT, STEP_END, TEXT_END, FINISH), "latest", None, []),
        ((START, STEP, TEXT, TEXT, RESET, FINISH), "latest", None, []),
        ((START, TEXT, STEP, RESET, FINISH), "latest", None, ["part-left-open"]),
        ((START, TEXT, ERROR, STEP_END, FINISH), "portable", None, ["after-error", "part-left-open"]),
        ((START, ERROR, TEXT), "portable", "after-error", []),
        ((START, FINISH, TEXT, TEXT_END), "portable", None, ["after-end"]),
        ((START, BEGUN, FINISH), "portable", None, ["call-left-open"]),
        ((START, BEGUN, DELTA, INPUT, DELTA, FINISH), "portable", None, ["call-left-open"]),
        ((START, BEGUN, DELTA, INPUT, DELTA, OUTPUT, *QUIET), "portable", None, []),
        ((START, BEGUN, INPUT, DELTA, INPUT, FINISH), "portable", "call-twice", []),
        ((START, BEGUN, INPUT, OUTPUT, DELTA), "portable", "call-order", []),
        ((START, INPUT, DELTA), "portable", "call-order", []),
        ((START, DELTA), "portable", "call-unknown", []),
        ((START, BEGUN, STEP, INPUT, FINISH), "portable", None, ["call-across-steps"]),
        ((START, BEGUN, STEP, DELTA, FINISH), "portable", None, ["call-across-steps"]),
        ((START, BEGUN, INPUT, OUTPUT, STEP, DELTA), "portable", "call-order", []),
        ((START, BEGUN, INPUT, OUTPUT, STEP, DELTA, FINISH), "latest", None, ["call-across-steps"]),
        ((START, STEP, BEGUN, STEP, INPUT, RESET, FINISH), "latest", None, ["call-across-steps"]),
        ((START, INPUT, OUTPUT, STEP, INPUT, FINISH), "portable", "call-twice", []),
        ((START, INPUT, OUTPUT, STEP, INPUT, FINISH), "latest", None, []),
        ((START, BEGUN, DYNAMIC), "v7", "call-changed", []),
        ((START, BEGUN, FAILED, WRONG, *QUIET), "portable", None, []),
        ((START, BEGUN, FAILED, INPUT, FINISH), "portable", "call-order", []),
        ((START, DYNAMIC, OUTPUT, *QUIET), "portable", "call-changed", []),
        ((START, DYNAMIC, OUTPUT, *QUIET), "v6", None, []),
        ((START, BEGUN, OUTPUT, *QUIET), "portable", None, ["call-invalid"]),
        ((START, INPUT, ASK, OUTPUT, *QUIET), "portable", None, ["call-invalid"]),
        ((START, INPUT, ASK, FAILED, *QUIET), "portable", None, ["call-invalid"]),
        ((START, INPUT, ASK, APPROVE, OUTPUT, *QUIET), "v7", None, []),
        ((START, INPUT, ASK, APPROVE, OUTPUT, APPROVE), "v7", "call-order", []),
        ((START, INPUT, OUTPUT, ASK), "portable", "call-order", []),
        ((START, INPUT, OTHER, ASK, ASK_OTHER, FINISH), "portable", None, ["approval-twice"]),
        ((START, INPUT, APPROVE), "v7", "approval-unknown", []),
        ((START, INPUT, OUTPUT, FINISH), "portable", "resubmits", []),
        ((START, INPUT, OUTPUT), "portable", "resubmits", ["no-end"]),
        ((START, INPUT, OUTPUT, ERROR), "portable", None, []),
        ((START, INPUT, OUTPUT, STEP, '{"type":"finish","messageMetadata":{}}'), "portable", None, []),
        ((START, INPUT, OUTPUT, '{"type":"finish","finishReason":"interrupted"}'), "latest", None, []),
        ((START, INPUT, PRELIMINARY, FINISH), "portable", "resubmits", []),
        ((START, INPUT, PRELIMINARY, FINISH), "latest", None, []),
        ((START, INPUT, OUTPUT, TEXT, FINISH), "portable", "resubmits", ["part-left-open"]),
        ((START, INPUT, OUTPUT, TEXT, FINISH), "latest", None, ["part-left-open"]),
        ((START, TEXT, INPUT, OUTPUT, FINISH), "latest", "resubmits", ["part-left-open"]),
        ((START, INPUT, OUTPUT, TEXT, TEXT_END, STEP, FINISH), "latest", "resubmits", []),
        ((START, PROVIDED, OUTPUT, TEXT, TEXT_END, FINISH), "portable", None, []),
        ((START, PROVIDED, OUTPUT, TEXT, TEXT_END, FINISH), "v5", "resubmits", []),
        ((START, PROVIDED, FAILED, TEXT, TEXT_END, FINISH), "v5", None, []),
        (
            (START, DYNAMIC, OUTPUT[:-1] + ',"dynamic":true,"providerExecuted":true}', FINISH),
            "portable",
            "resubmits",
            [],
        ),
        ((START, DYNAMIC, OUTPUT[:-1] + ',"dynamic":true,"providerExecuted":true}', FINISH), "v6", None, []),
    ],
)
def test_a_breach_is_refused_or_leaves_the_message_untidy(
    chunks: tuple[str, ...], client: ClientName, refused: str | None, untidy: list[str]
) -> None:
    assert rules_of(chunks, client) == (refused, untidy)


def call_part(**fields: Any) -> UIMessage:
    return UIMessage("m", "assistant", [{"type": "tool-f", "toolCallId": "c", **fields}])


@pytest.mark.parametrize(
    ("chunks", "client", "continues", "refused"),
    [
        ((START, OUTPUT, *QUIET), "portable", call_part(state="input-available", input={}), None),
        ((OUTPUT, *QUIET), "portable", call_part(state="input-available", input={}), None),
        (('{"type":"start","messageId":"n"}',), "portable", call_part(state="input-available"), "late-start"),
        ((START, DELTA), "portable", call_part(state="input-streaming", rawInput=""), "call-order"),
        ((START, DELTA, INPUT, FINISH), "latest", call_part(state="input-streaming", rawInput=""), None),
        ((START, INPUT), "latest", call_part(state="input-available", input={}), "call-twice"),
    ],
)
def test_a_continuation_is_judged_with_the_message_that_it_continues(
    chunks: tuple[str, ...], client: ClientName, continues: UIMessage, refused: str | None
) -> None:
    assert rules_of(chunks, client, continues) == (refused, [])


@pytest.mark.parametrize(("continues", "told"), [(None, True), (UIMessage("m", "assistant", []), False)])
def test_without_the_message_before_the_remedy_says_how_to_give_it(continues: UIMessage | None, told: bool) -> None:
    violation = judge([Event(1, OUTPUT)], continues=continues).violation
    assert violation is not None
    assert ("--continues FILE" in violation.remedy) is told


def test_a_warning_has_the_line_of_its_chunk_and_what_stays_open_that_of_the_end() -> None:
    verdict = judge([Event(line, chunk) for line, chunk in enumerate((START, TEXT, TEXT, FINISH), 1)])
    assert [(warning.level, warning.line, warning.rule) for warning in verdict.warnings] == [
        ("untidy", 3, "part-open-twice"),
        ("untidy", 4, "part-left-open"),
    ]


@pytest.mark.parametrize(
    ("chunks", "client", "releases"),
    [
        ((START, DYNAMIC, OUTPUT, *QUIET), "v6", ["6.0.0", "7.0.0"]),
        ((START, PROVIDED, OUTPUT, FINISH), "portable", ["5.0.92", "6.0.0", "7.0.0"]),
        ((START, TEXT, STEP_END, TEXT_END, FINISH), "latest", ["7.0.169"]),
    ],
)
def test_the_releases_are_those_that_take_the_whole_stream(
    chunks: tuple[str, ...], client: ClientName, releases: list[str]
) -> None:
    assert judge([Event(1, chunk) for chunk in chunks], client).releases == releases


@pytest.mark.parametrize(("client", "field"), [("portable", "input"), ("v6", "rawInput")])
def test_the_message_is_that_of_the_newest_client_of_the_profile(client: ClientName, field: str) -> None:
    part = judge([Event(1, chunk) for chunk in (START, WRONG)], client).message.parts[0]
    assert part == {"type": "tool-f", "toolCallId": "c", "state": "output-error", "errorText": "no", field: 1}


def test_a_data_part_keeps_its_unknown_fields() -> None:
    chunk = '{"type":"data-a","data":1,"more":2}'
    assert judge([Event(1, chunk)], "latest").message.parts == [{"type": "data-a", "data": 1, "more": 2}]
