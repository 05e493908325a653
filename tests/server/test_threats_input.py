"""Bad input while an answer is being written: a clear answer, and nothing is lost."""

import json
import socket
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from support.hang import HANG_SECONDS
from support.loopback import FINISHED, STEP, last_two, message, read_until, serving, text_part
from usechat.protocol.messages import UIMessage
from usechat.server.app import create_app
from usechat.stores import Outcome
from usechat.turns.chat import Chat
from usechat.turns.settings import ChatSettings

JSON = dict[str, Any]
USER: JSON = {"id": "m2", "role": "user", "parts": [{"type": "text", "text": "And then?"}]}
NOT_LAST = "This is not the last message of the chat. Reload the chat."
ID = "id must be a string of 1 to 512 characters without control characters."


def assistant(*parts: JSON) -> JSON:
    return {"id": "a1", "role": "assistant", "parts": [*parts]}


def call(**fields: Any) -> JSON:
    return {"type": "tool-delete", "toolCallId": "call-1", "input": {}, **fields}


RESULT = call(state="output-available", output="done")
APPROVAL = call(state="approval-responded", approval={"id": "p", "approved": True})

BODIES: list[tuple[str, bytes, int, str]] = [
    ("truncated JSON", b'{"id": "chat", "messages": [{"id": "m2", "ro', 400, "The body is not valid JSON."),
    ("no JSON", b"hello", 400, "The body is not valid JSON."),
    ("nothing", b"", 400, "The body is not valid JSON."),
    ("no UTF-8", b'{"id": "\xff", "message": {}}', 400, "'id' is not valid UTF-8."),
    ("a list", b"[]", 400, "The body must be a JSON object."),
]
REQUESTS: list[tuple[str, JSON, int, str]] = [
    ("an id that is a number", {"id": 7, "messages": [USER]}, 400, ID),
    ("an id of 10,000 characters", {"id": "x" * 10_000, "messages": [USER]}, 400, ID),
    ("messages that are a text", {"id": "chat", "messages": "hello"}, 400, "messages must be a list."),
    ("no messages", {"id": "chat", "messages": []}, 400, "messages must not be empty."),
    ("a message that is a text", {"id": "chat", "messages": ["hello"]}, 400, "messages[0] must be an object."),
    (
        "an unknown trigger",
        {"id": "chat", "messages": [USER], "trigger": "resume-stream"},
        400,
        "trigger must be one of submit-message, regenerate-message.",
    ),
    ("a result of a call that was never made", {"id": "chat", "messages": [assistant(RESULT)]}, 409, NOT_LAST),
    ("an approval that was never asked for", {"id": "chat", "messages": [assistant(APPROVAL)]}, 409, NOT_LAST),
    (
        "a system message",
        {"id": "chat", "messages": [{**USER, "role": "system"}]},
        400,
        "The last message must be from the user or the assistant.",
    ),
    (
        "a message to regenerate that is not there",
        {"id": "chat", "messages": [USER], "trigger": "regenerate-message", "messageId": "none"},
        409,
        "There is no message with this messageId to regenerate.",
    ),
]


class House:
    """A server with one chat, in which an answer is being written."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.asked: list[str] = []
        self.ended = threading.Event()
        self.app = create_app(self.agent, settings=ChatSettings(on_end=self.on_end))
        self.http = httpx.Client(timeout=HANG_SECONDS, trust_env=False)

    def agent(self, chat: Chat) -> Iterator[str]:
        self.asked.append(chat.text)
        yield "One, "
        self.gate.wait(HANG_SECONDS)
        yield "two."

    async def on_end(self, _outcome: Outcome, _message: UIMessage) -> None:
        self.ended.set()

    def post(self, content: bytes) -> tuple[int, str]:
        answer = self.http.post("/api/chat", content=content, headers={"content-type": "application/json"})
        return answer.status_code, answer.text


@contextmanager
def answering() -> Generator[House, None, None]:
    """Give the house while the answer is being written; at the end it must be whole, on the wire and in the history."""
    house = House()
    with serving(house.app) as url, house.http:
        house.http.base_url = url
        with house.http.stream("POST", "/api/chat", json=message("Hello")) as response:
            lines = response.iter_lines()
            read_until(lines, "One, ")
            yield house
            house.gate.set()
            assert last_two("\n".join(lines)) == FINISHED
        # A stream ends before the server has kept its message.
        assert house.ended.wait(HANG_SECONDS)
        kept = house.http.get("/api/chat/chat/messages").json()
    assert [part for one in kept for part in one["parts"]] == [
        {"type": "text", "text": "Hello"},
        STEP,
        text_part("One, two."),
    ]
    assert house.asked == ["Hello"]


@pytest.mark.parametrize(("content", "status", "sentence"), [pytest.param(*bad[1:], id=bad[0]) for bad in BODIES])
def test_a_bad_body_gets_a_clear_answer_and_nothing_is_lost(content: bytes, status: int, sentence: str) -> None:
    with answering() as house:
        assert house.post(content) == (status, sentence)


@pytest.mark.parametrize(("content", "status", "sentence"), [pytest.param(*bad[1:], id=bad[0]) for bad in REQUESTS])
def test_a_bad_request_gets_a_clear_answer_and_nothing_is_lost(content: JSON, status: int, sentence: str) -> None:
    with answering() as house:
        assert house.post(json.dumps(content).encode()) == (status, sentence)


@pytest.mark.parametrize(("content", "sentence"), [pytest.param(bad[1], bad[3], id=bad[0]) for bad in REQUESTS])
def test_a_bad_frame_gets_a_clear_answer_and_nothing_is_lost(content: JSON, sentence: str) -> None:
    with answering() as house:
        with connect(f"{house.http.base_url}/api/chat/ws".replace("http", "ws", 1), proxy=None) as page:
            page.send(json.dumps({"type": "send", "requestId": "r1", "headers": {}, "body": {}, **content}))
            frame = json.loads(page.recv(HANG_SECONDS))
        assert frame == {"type": "error", "requestId": "r1", "errorText": sentence}


def test_a_body_that_stops_half_way_changes_nothing() -> None:
    whole = json.dumps({"id": "chat", "messages": [USER]}).encode()
    head = (
        f"POST /api/chat HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(whole)}\r\n\r\n"
    )
    with answering() as house:
        address = (house.http.base_url.host, house.http.base_url.port or 0)
        for length in (0, 1, len(whole) // 2, len(whole) - 1):
            with socket.create_connection(address, timeout=HANG_SECONDS) as connection:
                connection.sendall(head.encode() + whole[:length])
                connection.shutdown(socket.SHUT_WR)
                # The server hangs up without an answer that could be taken for one to a whole request.
                assert b"200 OK" not in b"".join(iter(lambda: connection.recv(65536), b""))
