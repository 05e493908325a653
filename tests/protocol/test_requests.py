import json
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from usechat.errors import RequestError
from usechat.protocol.messages import UIMessage
from usechat.protocol.requests import ChatRequest, Limits, decode_request

JSON = dict[str, Any]

USER: JSON = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "Hello"}]}
ASSISTANT: JSON = {"id": "a1", "role": "assistant", "parts": [{"type": "text", "text": "Hi", "state": "done"}]}


def body(*messages: Any, **fields: Any) -> bytes:
    return json.dumps({"id": "chat", "messages": messages, **fields}).encode()


def refusal(sent: bytes, limits: Limits | None = None) -> tuple[int, str]:
    with pytest.raises(RequestError) as caught:
        _ = decode_request(sent, limits or Limits()).messages
    return caught.value.status, str(caught.value)


def as_json(messages: list[UIMessage]) -> list[JSON]:
    return json.loads(msgspec.json.encode(messages))


def test_a_request_has_what_the_client_sent():
    request = decode_request(
        body(USER, ASSISTANT, USER, trigger="regenerate-message", messageId="a1", session="s", tags=["x", None])
    )
    assert (request.id, request.trigger, request.message_id) == ("chat", "regenerate-message", "a1")
    assert (request.extra, request.only_last) == ({"session": "s", "tags": ["x", None]}, False)
    assert request.messages == [UIMessage(**USER), UIMessage(**ASSISTANT), UIMessage(**USER)]
    assert request.messages is request.messages
    assert request.last is request.messages[-1]


def test_what_the_client_left_out_or_sent_as_null_has_its_default():
    expected = ChatRequest(
        id="chat",
        last=UIMessage(**USER),
        older=[],
        trigger="submit-message",
        message_id=None,
        extra={},
        only_last=False,
    )
    assert decode_request(body(USER)) == expected
    assert decode_request(body(USER, trigger=None, messageId=None)) == expected


def test_a_client_may_send_its_last_message_alone():
    request = decode_request(json.dumps({"id": "chat", "message": USER}).encode())
    assert (request.only_last, request.messages, request.extra) == (True, [UIMessage(**USER)], {})


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"role": "user", "content": "Hello"}, UIMessage("", "user", [{"type": "text", "text": "Hello"}])),
        (
            {"id": "m", "role": "system", "content": "", "parts": None},
            UIMessage("m", "system", [{"type": "text", "text": ""}]),
        ),
        (
            {"id": None, "role": "assistant", "content": "Hi", "createdAt": "now"},
            UIMessage("", "assistant", [{"type": "text", "text": "Hi"}]),
        ),
        ({**USER, "content": "left over from v4"}, UIMessage(**USER)),
    ],
)
def test_the_old_content_form_is_one_text_part(message: JSON, expected: UIMessage):
    assert decode_request(body(message)).messages == [expected]


def test_a_request_that_names_no_chat_may_be_one_of_a_new_chat():
    unnamed = msgspec.json.encode({"messages": [{"role": "user", "content": "Hello"}]})
    asked = decode_request(unnamed, new_id=lambda: "new")
    assert (asked.id, asked.messages[-1].parts) == ("new", [{"type": "text", "text": "Hello"}])
    with pytest.raises(RequestError, match=r"id is missing\."):
        decode_request(unnamed)


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([USER], "Hello"),
        ([{**USER, "parts": [{"type": kind, "text": kind[0]} for kind in ("text", "reasoning", "text")]}], "tt"),
        ([{"role": "user", "content": "first"}, USER, ASSISTANT], "Hello"),
        ([ASSISTANT], ""),
    ],
)
def test_the_text_of_a_request_is_the_text_of_its_last_user_message(messages: list[JSON], text: str):
    assert decode_request(body(*messages)).text == text


def test_older_messages_are_checked_when_they_are_read_and_not_before():
    request = decode_request(body({"role": "nobody"}, USER))
    assert (request.last, request.text) == (UIMessage(**USER), "Hello")
    for _ in range(2):
        with pytest.raises(RequestError, match=r"^messages\[0\]\.id is missing\.$"):
            _ = request.messages


@pytest.mark.parametrize("metadata", [None, {"createdAt": 1}, 0, ["x"]])
def test_metadata_is_kept_also_when_it_is_null(metadata: Any):
    messages = [{**USER, "metadata": metadata}]
    assert as_json(decode_request(body(*messages)).messages) == messages


CALL: JSON = {"type": "tool-search", "toolCallId": "c1"}
DYNAMIC: JSON = {"type": "dynamic-tool", "toolName": "search", "toolCallId": "c1"}
PROVIDER = {"openai": {"itemId": "x"}}
ACCEPTED: list[JSON] = [
    {"type": "text", "text": "", "state": "streaming", "providerMetadata": PROVIDER, "citations": [{"source": {}}]},
    {"type": "reasoning", "id": "r", "text": "hm", "state": "done", "providerMetadata": PROVIDER},
    {"type": "file", "mediaType": "image/png", "url": "data:,x", "filename": "x.png", "providerReference": {"a": "b"}},
    {"type": "reasoning-file", "mediaType": "image/png", "url": "data:,x", "providerMetadata": PROVIDER},
    {"type": "custom", "kind": "openai.compaction", "providerMetadata": PROVIDER},
    {"type": "steering-message", "id": "s", "parts": [{"type": "text", "text": "stop"}]},
    {"type": "source-url", "sourceId": "s", "url": "https://x", "title": "X"},
    {"type": "source-document", "sourceId": "s", "mediaType": "text/plain", "title": "X", "filename": "x.txt"},
    {"type": "step-start"},
    {"type": "data-weather", "id": "d", "data": {"t": None}},
    {"type": "data-weather"},
    {**CALL, "state": "input-streaming", "inputEncoding": "json"},
    {**CALL, "state": "input-streaming", "input": {"q": "par"}, "rawInput": '{"q": "par'},
    {**CALL, "state": "input-available", "input": {"q": "x"}, "title": "Search", "toolMetadata": {"a": 1}},
    {**CALL, "state": "approval-requested", "input": {}, "approval": {"id": "p", "signature": "s"}},
    {**CALL, "state": "approval-responded", "input": {}, "approval": {"id": "p", "approved": False, "reason": "no"}},
    {**CALL, "state": "output-available", "input": {}, "output": None, "preliminary": True, "providerExecuted": False},
    {**CALL, "state": "output-available", "input": {}},
    {**CALL, "state": "output-available", "input": {}, "output": 1, "approval": {"id": "p", "approved": True}},
    {**CALL, "state": "output-error", "errorText": "boom", "callProviderMetadata": PROVIDER},
    {**CALL, "state": "output-error", "rawInput": "{", "errorText": "", "resultProviderMetadata": PROVIDER},
    {**CALL, "state": "output-denied", "input": {}, "approval": {"id": "p", "approved": False, "isAutomatic": True}},
    {**CALL, "state": "output-denied", "input": {}, "approval": {"id": "p"}},
    {**CALL, "state": "output-denied", "input": {}},
    {**DYNAMIC, "state": "output-available", "input": [], "output": "x", "dynamic": False},
    {"type": "text", "text": "x", "state": None, "providerMetadata": None, "unknown": [1]},
    {**CALL, "state": "output-available", "approval": None, "title": None, "preliminary": None},
    {"type": "text-of-tomorrow", "what": {"ever": 1}},
    {"type": ""},
]


@pytest.mark.parametrize("part", ACCEPTED, ids=lambda part: f"{part['type']} {part.get('state', '')}")
def test_a_part_that_a_client_may_send_is_kept_to_the_last_field(part: JSON):
    messages = [{"id": "a", "role": "assistant", "parts": [part]}, {"id": "u", "role": "user", "parts": [part]}]
    assert as_json(decode_request(body(*messages)).messages) == messages


def test_an_id_may_have_512_characters_and_that_of_a_message_none():
    long = "ä" * 512
    messages = [{**USER, "id": ""}, {**USER, "id": long}]
    request = decode_request(body(*messages, id=long, messageId=""))
    assert (request.id, request.message_id, as_json(request.messages)) == (long, "", messages)


def test_an_assistant_message_may_have_no_parts():
    assert decode_request(body({"id": "a", "role": "assistant", "parts": []})).messages == [
        UIMessage("a", "assistant", [])
    ]


IDENTIFIER = "must be a string of 1 to 512 characters without control characters."
TOOL_CALL_ID = "must be a string of 1 to 8192 characters without control characters."
STATES = (
    "must be one of input-streaming, input-available, approval-requested, approval-responded, output-available, "
    "output-error, output-denied."
)


@pytest.mark.parametrize(
    ("part", "sentence"),
    [
        ("text", " must be an object."),
        ({"text": "x"}, ".type is missing."),
        ({"type": 1}, ".type must be a string."),
        ({"type": "text"}, ".text is missing."),
        ({"type": "text", "text": None}, ".text must be a string."),
        ({"type": "text", "text": "x", "state": 1}, ".state must be a string."),
        ({"type": "text", "text": "x", "citations": {}}, ".citations must be a list."),
        ({"type": "text", "text": "x", "providerMetadata": []}, ".providerMetadata must be an object."),
        ({"type": "reasoning"}, ".text is missing."),
        ({"type": "reasoning", "text": "x", "id": 1}, ".id must be a string."),
        ({"type": "file", "url": "x"}, ".mediaType is missing."),
        ({"type": "file", "mediaType": "x"}, ".url is missing."),
        ({"type": "file", "mediaType": "x", "url": "x", "filename": 1}, ".filename must be a string."),
        (
            {"type": "file", "mediaType": "x", "url": "", "providerReference": 1},
            ".providerReference must be an object.",
        ),
        ({"type": "reasoning-file", "url": "x"}, ".mediaType is missing."),
        ({"type": "reasoning-file", "mediaType": "x"}, ".url is missing."),
        ({"type": "custom"}, ".kind is missing."),
        ({"type": "steering-message", "parts": []}, ".id is missing."),
        ({"type": "steering-message", "id": "s", "parts": "x"}, ".parts must be a list."),
        ({"type": "steering-message", "id": "s", "parts": [{"type": "text"}]}, ".parts[0].text is missing."),
        ({"type": "source-url", "url": "x"}, ".sourceId is missing."),
        ({"type": "source-url", "sourceId": "x"}, ".url is missing."),
        ({"type": "source-url", "sourceId": "x", "url": "x", "title": 1}, ".title must be a string."),
        ({"type": "source-document", "mediaType": "x", "title": "x"}, ".sourceId is missing."),
        ({"type": "source-document", "sourceId": "x", "title": "x"}, ".mediaType is missing."),
        ({"type": "source-document", "sourceId": "x", "mediaType": "x"}, ".title is missing."),
        ({"type": "data-x", "id": 1}, ".id must be a string."),
        ({"type": "tool-invocation", "toolInvocation": {}}, ".toolCallId is missing."),
        ({**CALL, "toolCallId": ""}, f".toolCallId {TOOL_CALL_ID}"),
        ({**CALL, "toolCallId": "c\n"}, f".toolCallId {TOOL_CALL_ID}"),
        ({**CALL, "toolCallId": "c" * 8193}, f".toolCallId {TOOL_CALL_ID}"),
        ({**CALL}, ".state is missing."),
        ({**CALL, "state": "error"}, f".state {STATES}"),
        ({**CALL, "state": ["output-available"]}, f".state {STATES}"),
        ({**CALL, "state": "input-available", "title": 1}, ".title must be a string."),
        ({**CALL, "state": "input-available", "providerExecuted": 1}, ".providerExecuted must be true or false."),
        ({**CALL, "state": "output-available", "preliminary": "yes"}, ".preliminary must be true or false."),
        ({**CALL, "state": "input-available", "callProviderMetadata": 1}, ".callProviderMetadata must be an object."),
        (
            {**CALL, "state": "input-available", "resultProviderMetadata": 1},
            ".resultProviderMetadata must be an object.",
        ),
        ({**CALL, "state": "input-available", "toolMetadata": 1}, ".toolMetadata must be an object."),
        ({**CALL, "state": "approval-requested"}, ".approval is missing."),
        ({**CALL, "state": "approval-requested", "approval": {}}, ".approval.id is missing."),
        ({**CALL, "state": "approval-responded", "approval": {"id": "p"}}, ".approval.approved is missing."),
        (
            {**CALL, "state": "approval-responded", "approval": {"id": "p", "approved": 1}},
            ".approval.approved must be true or false.",
        ),
        ({**CALL, "state": "output-available", "approval": True}, ".approval must be an object."),
        (
            {**CALL, "state": "output-denied", "approval": {"id": "p", "reason": 1}},
            ".approval.reason must be a string.",
        ),
        ({**CALL, "state": "output-error"}, ".errorText is missing."),
        ({**DYNAMIC, "toolName": None, "state": "input-streaming"}, ".toolName must be a string."),
        ({**DYNAMIC, "state": "output-error"}, ".errorText is missing."),
    ],
)
def test_a_wrong_part_is_refused_with_its_path(part: Any, sentence: str):
    message = {"id": "a", "role": "assistant", "parts": [{"type": "step-start"}, part]}
    assert refusal(body(message, USER)) == (400, f"messages[0].parts[1]{sentence}")
    assert refusal(json.dumps({"id": "c", "message": message}).encode()) == (400, f"message.parts[1]{sentence}")


MESSAGE_ID = "must be a string of at most 512 characters without control characters."


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ("Hello", " must be an object."),
        ({"role": "user", "parts": USER["parts"]}, ".id is missing."),
        ({**USER, "id": 1}, f".id {MESSAGE_ID}"),
        ({**USER, "id": "x" * 513}, f".id {MESSAGE_ID}"),
        ({**USER, "id": "\x85"}, f".id {MESSAGE_ID}"),
        ({"id": "u", "parts": USER["parts"]}, ".role is missing."),
        ({**USER, "role": "tool"}, ".role must be one of system, user, assistant."),
        ({"id": "u", "role": "user"}, ".parts is missing."),
        ({**USER, "parts": {}}, ".parts must be a list."),
        ({**USER, "parts": []}, ".parts must not be empty."),
        ({"role": "user", "content": [{"type": "text", "text": "x"}]}, ".content must be a string."),
        ({"content": "x"}, ".role is missing."),
        ({"id": 1, "role": "user", "content": "x"}, f".id {MESSAGE_ID}"),
    ],
)
def test_a_wrong_message_is_refused_with_its_path(message: Any, sentence: str):
    assert refusal(body(USER, message)) == (400, f"messages[1]{sentence}")
    assert refusal(body(message, USER)) == (400, f"messages[0]{sentence}")


@pytest.mark.parametrize(
    ("sent", "sentence"),
    [
        (b"[]", "The body must be a JSON object."),
        (b"null", "The body must be a JSON object."),
        (b'{"id":"c"}', "The body must have messages or message, and not both."),
        (body(USER, message=USER), "The body must have messages or message, and not both."),
        (b'{"id":"c","messages":{}}', "messages must be a list."),
        (b'{"id":"c","messages":null}', "messages must be a list."),
        (body(), "messages must not be empty."),
        (json.dumps({"messages": [USER]}).encode(), "id is missing."),
        (body(USER, id=None), f"id {IDENTIFIER}"),
        (body(USER, id=7), f"id {IDENTIFIER}"),
        (body(USER, id=""), f"id {IDENTIFIER}"),
        (body(USER, id="a\r\nb"), f"id {IDENTIFIER}"),
        (body(USER, id="a" * 513), f"id {IDENTIFIER}"),
        (body(USER, trigger="resume"), "trigger must be one of submit-message, regenerate-message."),
        (body(USER, messageId=7), f"messageId {MESSAGE_ID}"),
    ],
)
def test_a_wrong_body_is_refused_with_one_sentence(sent: bytes, sentence: str):
    assert refusal(sent) == (400, sentence)


@pytest.mark.parametrize(
    ("sent", "sentence"),
    [
        (b"", "The body is not valid JSON."),
        (b"hello", "The body is not valid JSON."),
        (body(USER)[:-1], "The body is not valid JSON."),
        (body(USER) + b"}", "The body is not valid JSON."),
        (body(USER, n=float("nan")), "The body is not valid JSON."),
        (b'{"id":"c","message":{"role":"user","content":"\\u12"}}', "The body is not valid JSON."),
        (b'{"id":"c","message":{"role":"user","content":"a\nb"}}', "The body is not valid JSON."),
        (b'{"\xff":1}', "The body is not valid UTF-8."),
        (b'{"id":"c","message":{"role":"user","content":"\xed\xa0\xbd"}}', "message is not valid UTF-8."),
        (b"[" * 40_000, "The body must be a JSON object."),
        (body(USER, n=0)[:-2] + b"1" * 5_000 + b"}", "The body must not hold a number of more than 400 digits."),
        (
            b'{"id":"c","messages":[{"role":"user","content":1e999}]}',
            "messages[0] must not hold a number that is too large.",
        ),
    ],
)
def test_what_is_no_sound_json_is_refused_with_one_sentence(sent: bytes, sentence: str):
    assert refusal(sent) == (400, sentence)


@pytest.mark.parametrize(
    ("sent", "further"),
    [
        (b'{"id":"c","messages":' + b"[" * 40_000, "The body is not valid JSON."),
        (b'{"x":' * 5_000 + b"1" + b"}" * 5_000, "The body must have messages or message, and not both."),
    ],
)
def test_what_is_nested_too_deeply_is_refused_however_deep_a_python_can_read(sent: bytes, further: str):
    """Python 3.12 and later read deeper than 3.11, and come to what else is wrong."""
    assert refusal(sent) in ((400, "The body is nested too deeply."), (400, further))


def nested(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 else {"x": value}
    return value


def test_each_limit_is_reached_and_not_passed():
    sent = body(
        {**ASSISTANT, "parts": [{"type": "data-x", "data": nested(3)}] * 2},
        USER,
        trigger=None,
        one=nested(6),
        two="\n",
    )
    limits = Limits(body=len(sent), fields=5, messages=2, parts=2, nesting=6, values=35, escapes=1)
    assert len(decode_request(sent, limits).messages) == 2
    assert [
        refusal(sent, msgspec.structs.replace(limits, **{name: getattr(limits, name) - 1}))
        for name in limits.__struct_fields__
    ] == [
        (413, f"The body is larger than {len(sent) - 1} bytes."),
        (400, "The body must not have more than 4 fields."),
        (400, "messages must not hold more than 1 messages."),
        (400, "messages[0].parts must not hold more than 1 parts."),
        (400, "'one' must not be nested deeper than 5 levels."),
        (400, "The body must not hold more than 34 values."),
        (400, "The body must not hold more than 0 escaped characters."),
    ]


def test_nesting_is_limited_in_older_messages_too():
    message = {**ASSISTANT, "metadata": nested(64)}
    assert refusal(body(message, USER)) == (400, "messages[0] must not be nested deeper than 64 levels.")
    assert refusal(body(USER, message)) == (400, "messages[1] must not be nested deeper than 64 levels.")


def test_the_limits_are_those_of_the_documents():
    assert Limits() == Limits(
        body=10_485_760, fields=1_000, messages=1_000, parts=1_000, nesting=64, values=50_000, escapes=1_000_000
    )


def test_a_foreign_field_name_is_quoted_short_and_escaped():
    name = "x\n\u2028ä" * 1_000
    assert refusal(body(USER, **{name: nested(65)})) == (
        400,
        "'" + r"x\n\u2028\xe4" * 10 + "' must not be nested deeper than 64 levels.",
    )


@pytest.mark.parametrize(
    ("escaped", "text"),
    [
        (rb"\ud83d", "\ufffd"),
        (rb"\ude00!", "\ufffd!"),
        (rb"\uD83D\ud83d\uDE00\ude00", "\ufffd😀\ufffd"),
        (rb"\ude00\ud83d", "\ufffd\ufffd"),
        (rb"\ud83d\\ude00", "\ufffd\\ude00"),
        (rb"\ud83d \\ud83d \\\ud83d", "\ufffd \\ud83d \\\ufffd"),
        (rb"\ud83d\u0041\n", "\ufffdA\n"),
    ],
)
def test_half_an_emoji_becomes_a_replacement_character(escaped: bytes, text: str):
    sent = b'{"id":"c","messages":[{"role":"user","content":"%b"},{"role":"user","content":"x"}],"note":"%b"}'
    request = decode_request(sent % (escaped, escaped))
    assert ([message.text for message in request.messages], request.extra) == ([text, "x"], {"note": text})


def test_a_request_can_be_made_without_a_body():
    request = ChatRequest(id="c", last=UIMessage(**USER), older=[Raw(msgspec.json.encode(ASSISTANT))])
    assert (request.messages, request.extra) == ([UIMessage(**ASSISTANT), UIMessage(**USER)], {})
