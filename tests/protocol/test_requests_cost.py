"""What the largest bodies cost. bench/requests.py has the times; here is counted what would be decoded."""

import json
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from usechat.errors import RequestError
from usechat.protocol.requests import JsonScan, Limits, check_cost, decode_request, scan_json
from usechat.protocol.websocket import read_send

SIZE = Limits().body
USER = b'{"id":"m","role":"user","parts":[{"type":"text","text":"x"}]}'
VALUES = "The body must not hold more than 50,000 values."
ESCAPES = "The body must not hold more than 1,000,000 escaped characters."
DIGITS = "The body must not hold a number of more than 400 digits."
INVALID = "The body is not valid JSON."
CODE = json.dumps('def f(a, b=[1, 2], **c):\n    return {"x": [a, b], "y": c}  # {{{[[[,,,\n')[1:-1].encode()


def with_text(unit: bytes, before: bytes = b"", after: bytes = b"") -> bytes:
    """A body with one text, as long as it may be."""
    begin = b'{"id":"c","body":{},"messages":[{"id":"m","role":"user","parts":[{"type":"text","text":"' + before
    end = after + b'"}]}]}'
    return begin + unit * ((SIZE - len(begin) - len(end)) // len(unit)) + end


def with_field(unit: bytes, before: bytes, after: bytes) -> bytes:
    """A body with one field, as large as it may be."""
    begin, end = b'{"id":"c","body":{},"messages":[%b],"x":%b' % (USER, before), after + b"}"
    units = unit * ((SIZE - len(begin) - len(end)) // len(unit))
    return begin + units.removesuffix(b",") + end


def with_messages(message: bytes, count: int) -> bytes:
    return b'{"id":"c","body":{},"messages":[%b]}' % b",".join([message] * (count - 1) + [USER])


def refusal(body: bytes) -> str:
    with pytest.raises(RequestError) as caught:
        decode_request(body)
    assert caught.value.status == 400
    return str(caught.value)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        pytest.param(lambda: with_text(b"tide "), "tide ", id="words"),
        pytest.param(lambda: with_text(b"QUJD"), "QUJD", id="a base64 image"),
        pytest.param(lambda: with_text(CODE), json.loads(b'"%b"' % CODE), id="code, full of commas and brackets"),
        pytest.param(lambda: with_text(b",[{"), ",[{", id="commas and brackets alone"),
        pytest.param(lambda: with_text("😀".encode()), "😀", id="emoji"),
        pytest.param(lambda: with_text(b"1"), "1", id="digits"),
        pytest.param(lambda: with_text(b"QUJD", b"\\ud83d\\\\\\ud83d"), "QUJD", id="half an emoji before an image"),
    ],
)
def test_one_text_may_be_as_long_as_a_body(make: Callable[[], bytes], text: str) -> None:
    body = make()
    for request in (decode_request(body), read_send(body, Limits())):
        decoded = request.text.removeprefix("\ufffd\\\ufffd")
        assert decoded == text * (len(decoded) // len(text))
        assert len(decoded.encode()) > SIZE // 2


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        pytest.param(lambda: with_field(b"[],", b"[", b"]"), VALUES, id="empty lists"),
        pytest.param(lambda: with_field(b"{},", b"[", b"]"), VALUES, id="empty objects"),
        pytest.param(lambda: with_field(b"1,", b"[", b"]"), VALUES, id="numbers"),
        pytest.param(lambda: with_field(b'"",', b"[", b"]"), VALUES, id="strings"),
        pytest.param(lambda: with_field(b'"a":1,', b"{", b"}"), VALUES, id="members"),
        pytest.param(lambda: with_field(b"[" * 60 + b"]" * 60 + b",", b"[", b"]"), VALUES, id="lists in lists"),
        pytest.param(lambda: with_field(b"[],", b'["\\\\",', b"]"), VALUES, id="lists behind a backslash"),
        pytest.param(lambda: with_field(b"[],", b"[", b"]\\"), VALUES, id="lists before an error"),
        pytest.param(lambda: with_field(b"[", b"", b""), VALUES, id="open lists"),
        pytest.param(lambda: with_field(b'"', b"", b""), VALUES, id="quotes"),
        pytest.param(lambda: with_field(b",", b"", b""), VALUES, id="commas"),
        pytest.param(lambda: b'{%b"id":"c"}' % (b'"a":1,' * 60_000), VALUES, id="fields"),
        pytest.param(lambda: with_messages(b"1", 60_000), VALUES, id="messages"),
        pytest.param(
            lambda: with_messages(b'{"id":"m","role":"user","parts":[%b1]}' % (b"1," * 999), 1_000), VALUES, id="parts"
        ),
        pytest.param(lambda: with_field(b"\\", b"", b""), ESCAPES, id="backslashes"),
        pytest.param(lambda: with_text(b"\\n"), ESCAPES, id="escaped newlines"),
        pytest.param(lambda: with_text(b"\\ud83d"), ESCAPES, id="halves of emoji"),
        pytest.param(lambda: with_text(b"\\\\", after=b"\\ud83d"), ESCAPES, id="escaped backslashes and half an emoji"),
        pytest.param(lambda: with_field(b"1", b"", b""), DIGITS, id="one long number"),
        pytest.param(lambda: with_field(b"1", b"0.", b""), DIGITS, id="one long fraction"),
        pytest.param(lambda: with_field(b"1" * 4_000 + b",", b"[", b"]"), DIGITS, id="long numbers"),
        pytest.param(lambda: with_field(b"\0", b"", b""), INVALID, id="zero bytes"),
        pytest.param(
            lambda: with_text(b"x", b"\\ud83d" + b"\\n" * 100_000), INVALID, id="half an emoji among many escapes"
        ),
        pytest.param(lambda: with_text(b"x", b"\\ud83d" * 100_001), INVALID, id="very many halves of emoji"),
    ],
)
def test_what_would_take_long_to_decode_is_refused(make: Callable[[], bytes], sentence: str) -> None:
    assert refusal(make()) == sentence


def values_in(value: object, *, empty: int = 1) -> int:
    """How many values it is, with itself; one that is an empty list or object counts as `empty`."""
    if not isinstance(value, dict | list):
        return 1
    entries = cast("dict[str, object] | list[object]", value)
    inner = entries.values() if isinstance(entries, dict) else entries
    return 1 + sum(values_in(item, empty=empty) for item in inner) if entries else empty


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text('\\",[{1a\n😀')
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text('\\",[{1'), inner),
)


@given(JSON, st.booleans(), st.sampled_from([None, 1]))
def test_values_are_counted_as_a_parser_sees_them(value: Any, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    scan = scan_json(text.encode(), 1_000)
    expected = JsonScan(values_in(value, empty=2), text.count("\\"), 0, 0, too_long=False)
    assert scan._replace(extremes=0, long=0) == expected


@given(JSON)
def test_more_values_than_allowed_are_never_overlooked(value: Any) -> None:
    text = json.dumps(value).encode()
    most = values_in(value) - 1
    assert scan_json(text, most).values > most
    # Whatever follows, a parser has made all of these values before it finds the error.
    for tail in (b"\\", b'"', b'\\"', b"]]", b"\xff"):
        assert scan_json(text + tail, most).values > most


def test_many_numbers_of_more_digits_than_a_float_holds_are_refused() -> None:
    def body(number: bytes, count: int) -> bytes:
        return b'{"id":"c","body":{},"messages":[%b],"x":[%b]}' % (USER, b",".join([number] * count))

    sentence = "The body must not hold more than 10,000 times 20 digits in a row."
    assert refusal(body(b"9" * 200 + b"e99", 1_001)) == sentence
    assert refusal(body(b"0." + b"9" * 20, 10_001)) == sentence
    assert len(decode_request(body(b"9" * 200 + b"e99", 1_000)).extra["x"]) == 1_000
    assert len(decode_request(body(b"9" * 19, 40_000)).extra["x"]) == 40_000


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"1" * 400, False),
        (b"1" * 401, True),
        (b'["%b"]' % (b"1" * 500), False),
        (b'["\\"%b"]' % (b"1" * 500), False),
        (b'["\\\\",%b]' % (b"1" * 500), True),
        (b'{"a":-0.%be9}' % (b"1" * 401), True),
    ],
)
def test_a_long_number_is_found_outside_strings(text: bytes, found: bool) -> None:
    assert scan_json(text, 1_000).too_long is found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"[1e308,-2.5E+308,1e-320,3e0308]", 4),
        (b'[1e99,1e-99,true,false,null,"1e308",{"1e308":0}]', 0),
        (b'["\\"1e308",1e308]', 1),
    ],
)
def test_exponents_of_three_digits_are_counted_outside_strings(text: bytes, found: int) -> None:
    assert scan_json(text, 1_000).extremes == found


def test_numbers_at_the_ends_of_the_range_are_few() -> None:
    def body(count: int) -> bytes:
        extremes = b",".join([b"1e308"] * count)
        return b'{"id":"x","message":{"id":"m","role":"user","content":"a"},"n":[%b]}' % extremes

    assert decode_request(body(1_000)).extra == {"n": [1e308] * 1_000}
    with pytest.raises(RequestError, match="more than 1,000 numbers with an exponent of three digits"):
        decode_request(body(1_001))


def test_a_body_may_be_checked_and_decoded_one_after_the_other() -> None:
    body = with_messages(USER, 3)
    check_cost(body)
    for request in (decode_request(body, checked=True), read_send(body, Limits(), checked=True)):
        assert [message.text for message in request.decoded()] == ["x"] * 3
    with pytest.raises(RequestError, match="larger than"):
        check_cost(b" " * (SIZE + 1))
