import pytest

from usechat.errors import RemoteProtocolError
from usechat.protocol.clients import ClientName
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
        2,
        "text-end",
        "part-not-open",
        "`text-end` for the part 't', which is not open.",
        "Send the part's start first; `finish-step` closes all parts for older clients.",
    )


@pytest.mark.parametrize(
    ("chunks", "client", "rule"),
    [
        ([START], "portable", "no-end"),
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
