"""Each bound of a request's size, reached by a real server at its default: so much is served, and no more."""

import json
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import httpx
import pytest

from support.hang import HANG_SECONDS
from support.loopback import serving
from usechat.server.app import create_app
from usechat.turns.chat import Chat

TEXT = {"type": "text", "text": "Hello"}
QUESTION: dict[str, Any] = {"id": "m", "role": "user", "parts": [TEXT]}


async def agent(chat: Chat) -> AsyncGenerator[str, None]:
    yield "Hello"


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with serving(create_app(agent, grace=None)) as url, httpx.Client(base_url=url, timeout=HANG_SECONDS) as client:
        yield client


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def padded(size: int) -> bytes:
    """A body of this size."""
    body = json.dumps({"id": "size", "messages": [QUESTION], "x": ""}).encode()
    return body[:-2] + b"x" * (size - len(body)) + body[-2:]


def with_fields(count: int) -> bytes:
    extra = {f"field-{number}": 1 for number in range(count - 2)}
    return json.dumps({"id": "fields", "messages": [QUESTION], **extra}).encode()


def with_messages(count: int) -> bytes:
    return json.dumps({"id": "messages", "messages": [QUESTION] * count}).encode()


def with_parts(count: int) -> bytes:
    return json.dumps({"id": "parts", "messages": [{**QUESTION, "parts": [TEXT] * count}]}).encode()


def with_levels(count: int) -> bytes:
    return json.dumps({"id": "levels", "messages": [QUESTION], "x": nested(count)}).encode()


def with_id(length: int) -> bytes:
    return json.dumps({"id": "x" * length, "messages": [QUESTION]}).encode()


@pytest.mark.parametrize(
    ("make", "most", "status", "sentence"),
    [
        (padded, 10 * 1024 * 1024, 413, "The body is larger than 10,485,760 bytes."),
        (with_fields, 1_000, 400, "The body must not have more than 1,000 fields."),
        (with_messages, 1_000, 400, "messages must not hold more than 1,000 messages."),
        (with_parts, 1_000, 400, "messages[0].parts must not hold more than 1,000 parts."),
        (with_levels, 64, 400, "'x' must not be nested deeper than 64 levels."),
        (with_id, 512, 400, "id must be a string of 1 to 512 characters without control characters."),
    ],
)
def test_so_much_is_served_and_no_more(http: httpx.Client, make: Any, most: int, status: int, sentence: str) -> None:
    headers = {"content-type": "application/json"}
    assert http.post("/api/chat", content=make(most), headers=headers).status_code == 200
    refusal = http.post("/api/chat", content=make(most + 1), headers=headers)
    assert (refusal.status_code, refusal.text) == (status, sentence)


def test_a_path_takes_an_id_of_512_characters_and_no_more(http: httpx.Client) -> None:
    assert http.get(f"/api/chat/{'x' * 512}/stream").status_code == 204
    assert http.get(f"/api/chat/{'x' * 513}/stream").status_code == 400
