import json
import re
from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from usechat.errors import RequestError
from usechat.protocol.requests import ChatRequest, Limits, decode_request

JSON = dict[str, Any]

CALL: JSON = {"type": "tool-x", "toolCallId": "c", "input": {}}
PARTS: list[JSON] = [
    {"type": "text", "text": "Hello\u2028", "state": "done"},
    {"type": "reasoning", "text": "hm", "providerMetadata": {"x": {"y": 1}}},
    {"type": "file", "mediaType": "image/png", "url": "data:,x", "filename": "x.png"},
    {"type": "source-url", "sourceId": "s", "url": "https://x"},
    {"type": "steering-message", "id": "s", "parts": [{"type": "text", "text": "stop"}]},
    {"type": "data-x", "id": "d", "data": [[["deep"]]]},
    {**CALL, "state": "approval-responded", "approval": {"id": "p", "approved": True}},
    {**CALL, "state": "output-available", "output": [1.5, -7, None, True], "preliminary": False},
    {**CALL, "type": "dynamic-tool", "toolName": "x", "state": "output-error", "errorText": "boom"},
]
BODY = json.dumps(
    {
        "id": "chat",
        "trigger": "submit-message",
        "messageId": "a",
        "session": {"deep": [[["x"]]]},
        "messages": [
            {"role": "user", "content": "old form \ud83d 😀"},
            {"id": "a", "role": "assistant", "metadata": None, "parts": PARTS},
            {"id": "u", "role": "user", "parts": PARTS[:1]},
        ],
    }
).encode()

# A mutation cuts out up to 40 bytes anywhere and puts something there that parsers trip over.
STUMBLING_BLOCKS = st.binary(max_size=4) | st.sampled_from(
    [
        *(b"{", b"}", b"[", b"]", b'"', b",", b":", b"\\", b"\\ud800", b"null", b"NaN", b"1e999", b"\0", b"\xff"),
        *(b"9" * 5_000, b"[" * 2_000, b"\xed\xa0\x80", b"\xef\xbb\xbf", b'"parts":', b'"message":{},', b'"type":"x",'),
    ]
)
MUTATIONS = st.lists(st.tuples(st.integers(0, len(BODY)), st.integers(0, 40), STUMBLING_BLOCKS), max_size=4)

FIELDS = st.sampled_from(sorted({field for part in PARTS for field in part}))
STRINGS = st.text(max_size=5) | st.sampled_from([part["type"] for part in PARTS] + ["input-streaming", "output-denied"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | STRINGS,
    lambda value: st.lists(value, max_size=3) | st.dictionaries(FIELDS, value, max_size=3),
    max_leaves=6,
)
CHANGES = st.dictionaries(FIELDS, VALUES, max_size=2)

ONE_PLAIN_SENTENCE = re.compile(r"[ -~]{1,250}\.")


def decode(body: bytes) -> ChatRequest | str:
    try:
        request = decode_request(body, Limits(nesting=12))
        _ = (request.messages, request.text)
    except RequestError as error:
        return str(error)
    return request


def is_request_or_one_plain_sentence(outcome: ChatRequest | str) -> bool:
    return isinstance(outcome, ChatRequest) or bool(ONE_PLAIN_SENTENCE.fullmatch(outcome))


@given(st.binary(max_size=200))
def test_random_bytes_are_a_request_or_our_error(body: bytes):
    assert is_request_or_one_plain_sentence(decode(body))


@given(MUTATIONS)
def test_a_mutated_body_is_a_request_or_our_error(mutations: list[tuple[int, int, bytes]]):
    body = BODY
    for start, length, block in mutations:
        body = body[:start] + block + body[start + length :]
    assert is_request_or_one_plain_sentence(decode(body))


@given(st.sampled_from(PARTS), CHANGES)
@example(PARTS[0], {})
def test_a_changed_part_is_kept_as_it_is_or_refused_with_its_path(part: JSON, changes: JSON):
    messages = [{"id": "a", "role": "assistant", "parts": [*PARTS, {**part, **changes}]}]
    outcome = decode(json.dumps({"id": "chat", "messages": messages}).encode())
    if isinstance(outcome, ChatRequest):
        assert json.loads(msgspec.json.encode(outcome.messages)) == messages
    else:
        assert changes
        assert re.fullmatch(r"messages\[0\]\.parts\[9\](\.[A-Za-z]+|\[\d\])+ (must be|is) [ -~]+\.", outcome)


@given(st.lists(st.sampled_from([r"\ud83d", r"\ude00", r"\uDBFF", r"\uDC00", r"\\", "ud83d", r"\n", r"\u0041", "x"])))
def test_escapes_are_read_as_the_standard_library_reads_them_but_for_lone_surrogates(pieces: list[str]):
    escaped = "".join(pieces)
    body = json.dumps({"id": "chat", "message": {"role": "user", "content": "HERE"}}).replace("HERE", escaped)
    expected = re.sub("[\ud800-\udfff]", "\ufffd", json.loads(f'"{escaped}"'))
    assert decode_request(body.encode()).text == expected
