import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from usechat.errors import RequestError
from usechat.protocol.chunks import TextDelta
from usechat.protocol.codec import encode_chunk
from usechat.protocol.frames import encode_event
from usechat.protocol.requests import Limits, decode_request
from usechat.protocol.websocket import (
    chunk_frame,
    chunk_opening,
    notice,
    open_frame,
    read_headers,
    read_resume,
    read_send,
)

JSON = dict[str, Any]

OLDER: JSON = {"id": "m1", "role": "assistant", "parts": [{"type": "text", "text": "Hi."}]}
LAST: JSON = {"id": "m2", "role": "user", "parts": [{"type": "text", "text": "Hello"}]}
SEND: JSON = {
    "type": "send",
    "requestId": "r1",
    "id": "chat",
    "trigger": "submit-message",
    "messages": [OLDER, LAST],
    "headers": {},
    "body": {},
}
RESUME: JSON = {"type": "resume", "requestId": "r1", "id": "chat", "headers": {}, "body": {}}
LIMITS = Limits()


def frame(fields: JSON) -> bytes:
    return json.dumps(fields).encode()


def problem(read: Any, *arguments: Any) -> tuple[int, str]:
    with pytest.raises(RequestError) as caught:
        read(*arguments)
    return caught.value.status, str(caught.value)


@pytest.mark.parametrize("kind", ["send", "resume", "abort", "something newer"])
def test_a_frame_says_what_it_is_and_which_request_it_belongs_to(kind: str):
    opened = open_frame(frame({**SEND, "type": kind}))
    assert (opened.type, opened.request_id) == (kind, "r1")


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "A frame is not valid JSON."),
        (b"{", "A frame is not valid JSON."),
        (b'{"body":' + b"[" * 1_000_000, "A frame is nested too deeply."),
        (b'{"type":"\xff","requestId":"r"}', "A frame is not valid UTF-8."),
        (b"[]", "A frame must be a JSON object with a type and a requestId."),
        (b"null", "A frame must be a JSON object with a type and a requestId."),
        (b'{"type":"send"}', "A frame must be a JSON object with a type and a requestId."),
        (b'{"requestId":"r"}', "A frame must be a JSON object with a type and a requestId."),
        (b'{"type":1,"requestId":"r"}', "A frame must be a JSON object with a type and a requestId."),
        (b'{"type":"send","requestId":1}', "A frame must be a JSON object with a type and a requestId."),
        (
            b'{"type":"send","requestId":""}',
            "requestId must be a string of 1 to 512 characters without control characters.",
        ),
        (
            frame({"type": "send", "requestId": "r" * 513}),
            "requestId must be a string of 1 to 512 characters without control characters.",
        ),
    ],
)
def test_a_frame_that_belongs_to_no_request_is_refused(data: bytes, sentence: str):
    assert problem(open_frame, data) == (400, sentence)


def test_half_an_emoji_in_a_message_costs_only_that_character():
    cut: JSON = {**LAST, "parts": [{"type": "text", "text": "half \ud83d"}]}
    data = frame({**SEND, "messages": [cut]})
    assert open_frame(data).request_id == "r1"
    assert read_send(data, LIMITS).text == "half \ufffd"


def test_the_headers_of_a_frame_are_given_by_lower_case_name():
    opened = open_frame(frame({**RESUME, "headers": {"Authorization": "Bearer abc", "x-name": "Zoë\t1"}}))
    assert read_headers(opened) == {"authorization": "Bearer abc", "x-name": "Zoë\t1"}


@pytest.mark.parametrize(
    ("headers", "sentence"),
    [
        (None, "headers must be an object of strings."),
        ([], "headers must be an object of strings."),
        ({"a": 1}, "headers must be an object of strings."),
        ({"a": None}, "headers must be an object of strings."),
        ({"": "b"}, "headers must hold HTTP headers, and '' is not one."),
        ({"a b": "c"}, "headers must hold HTTP headers, and 'a b' is not one."),
        ({"a\n": "c"}, "headers must hold HTTP headers, and 'a\\n' is not one."),
        ({"ä": "c"}, "headers must hold HTTP headers, and '\\xe4' is not one."),
        ({"a": "b\r\nc: d"}, "headers must hold HTTP headers, and 'a' is not one."),
        ({"a": "b\0"}, "headers must hold HTTP headers, and 'a' is not one."),
        ({"a": "€"}, "headers must hold HTTP headers, and 'a' is not one."),
        ({"a": "b" * 16_385}, "headers must hold HTTP headers, and 'a' is not one."),
        ({"a" * 257: "b"}, f"headers must hold HTTP headers, and '{'a' * 40}' is not one."),
        ({str(n): "b" * 1000 for n in range(70)}, "headers must not be larger than 65,536 bytes."),
    ],
)
def test_headers_that_http_could_not_carry_are_refused(headers: Any, sentence: str):
    assert problem(read_headers, open_frame(frame({**RESUME, "headers": headers}))) == (400, sentence)


def test_a_frame_without_headers_is_refused():
    opened = open_frame(b'{"type":"resume","requestId":"r1"}')
    assert problem(read_headers, opened) == (400, "headers must be an object of strings.")


def test_a_send_is_the_request_that_a_post_with_the_same_fields_is():
    fields: JSON = {"id": "chat", "trigger": "regenerate-message", "messageId": "m1", "messages": [OLDER, LAST]}
    sent = read_send(frame({**SEND, **fields, "body": {"model": "m"}}), LIMITS)
    posted = decode_request(frame({"model": "m", **fields}), LIMITS)
    assert (sent.id, sent.trigger, sent.message_id, sent.extra) == ("chat", "regenerate-message", "m1", {"model": "m"})
    assert (sent, sent.messages) == (posted, posted.messages)


def test_the_body_of_a_send_cannot_name_another_chat():
    body: JSON = {"id": "other", "trigger": "x", "messageId": "x", "messages": [], "message": {}, "kept": 1}
    request = read_send(frame({**SEND, "body": body}), LIMITS)
    assert (request.id, request.trigger, request.message_id) == ("chat", "submit-message", None)
    assert (request.messages[-1].id, request.extra) == ("m2", {"kept": 1})


@pytest.mark.parametrize(
    ("fields", "extra"),
    [
        ({}, {}),
        ({"metadata": {"a": 1}}, {"metadata": {"a": 1}}),
        ({"metadata": {"a": 1}, "body": {"metadata": 2}}, {"metadata": 2}),
        ({"newer": 1, "body": {"b": 2}}, {"b": 2}),
    ],
)
def test_a_send_gives_its_body_and_its_metadata_as_extra_fields(fields: JSON, extra: JSON):
    assert read_send(frame({**SEND, **fields}), LIMITS).extra == extra


WRONG_SENDS: list[tuple[JSON, str]] = [
    ({"body": None}, "body must be an object."),
    ({"body": []}, "body must be an object."),
    ({"id": 7}, "id must be a string of 1 to 512 characters without control characters."),
    ({"id": "c" * 10_000}, "id must be a string of 1 to 512 characters without control characters."),
    ({"trigger": "x"}, "trigger must be one of submit-message, regenerate-message."),
    ({"messageId": 7}, "messageId must be a string of at most 512 characters without control characters."),
    ({"messages": []}, "messages must not be empty."),
    ({"messages": None}, "messages must be a list."),
    ({"messages": [{}]}, "messages[0].id is missing."),
]


@pytest.mark.parametrize(("fields", "sentence"), WRONG_SENDS)
def test_a_send_is_refused_for_what_a_post_is_refused_for(fields: JSON, sentence: str):
    assert problem(read_send, frame({**SEND, **fields}), LIMITS) == (400, sentence)


def test_a_send_must_have_a_body():
    without = {name: value for name, value in SEND.items() if name != "body"}
    assert problem(read_send, frame(without), LIMITS) == (400, "body must be an object.")


def test_a_send_is_bounded_like_a_post():
    data = frame(SEND)
    assert problem(read_send, data, Limits(body=100)) == (413, "The body is larger than 100 bytes.")
    assert problem(read_send, data, Limits(messages=1)) == (400, "messages must not hold more than 1 messages.")


@pytest.mark.parametrize(("fields", "seen"), [({}, None), ({"lastSequence": None}, None), ({"lastSequence": 7}, 7)])
def test_a_resume_names_its_chat_and_the_last_chunk_that_the_client_has(fields: JSON, seen: int | None):
    assert read_resume(open_frame(frame({**RESUME, **fields}))) == ("chat", seen)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"id": None}, "id must be a string."),
        ({"id": ""}, "id must be a string of 1 to 512 characters without control characters."),
        ({"id": "c" * 10_000}, "id must be a string of 1 to 512 characters without control characters."),
        ({"lastSequence": -1}, "lastSequence must not be negative."),
        ({"lastSequence": 1.5}, "lastSequence must be a whole number."),
        ({"lastSequence": "1"}, "lastSequence must be a whole number."),
        ({"lastSequence": True}, "lastSequence must be a whole number."),
    ],
)
def test_a_resume_that_means_no_chat_or_no_chunk_is_refused(fields: JSON, sentence: str):
    assert problem(read_resume, open_frame(frame({**RESUME, **fields}))) == (400, sentence)


EMPTY: JSON = {}
FIELDS = st.dictionaries(st.sampled_from(sorted(RESUME)), st.text() | st.none() | st.just(EMPTY))


@given(st.binary(max_size=60) | FIELDS.map(frame) | FIELDS.map(lambda fields: frame({**SEND, **fields})))
def test_any_bytes_are_a_frame_or_refused(data: bytes):
    with suppress(RequestError):
        opened = open_frame(data)
        for read in (lambda: read_headers(opened), lambda: read_resume(opened), lambda: read_send(data, LIMITS)):
            with suppress(RequestError):
                read()


def test_notices_are_frames_without_a_chunk():
    assert [
        notice("start", "r1"),
        notice("end", "r1"),
        notice("no-active", 'r"1'),
        notice("error", "r1", "You are not signed in."),
    ] == [
        '{"type":"start","requestId":"r1"}',
        '{"type":"end","requestId":"r1"}',
        '{"type":"no-active","requestId":"r\\"1"}',
        '{"type":"error","requestId":"r1","errorText":"You are not signed in."}',
    ]


@given(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.integers(0),
    st.text(st.characters(exclude_categories=["Cs"])),
    st.none() | st.integers(1),
)
def test_a_chunk_goes_from_the_log_into_its_frame_as_it_is(
    request_id: str, sequence: int, text: str, index: int | None
):
    payload = encode_chunk(TextDelta("t", text))
    made = chunk_frame(chunk_opening(request_id), sequence, encode_event(payload, index=index))
    chunk = {"type": "text-delta", "id": "t", "delta": text}
    assert json.loads(made) == {"type": "chunk", "requestId": request_id, "sequence": sequence, "chunk": chunk}
    assert made.endswith(f'"chunk":{payload.decode()}}}')
