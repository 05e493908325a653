"""Two users, and what one of them gets to see or do of the other's chats, in whatever way the chat is named."""

import json
import threading
from collections import defaultdict
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
from usechat.server.auth import BearerTokens
from usechat.stores import Outcome
from usechat.turns import TurnLimits
from usechat.turns.chat import Chat
from usechat.turns.settings import ChatSettings

JSON = dict[str, Any]

NOT_FOUND = "There is no such chat."
NOT_SIGNED_IN = "You are not signed in."
TOKENS = {"token-of-ada": "ada", "token-of-bob": "bob"}

CHAT_IDS = [
    "chat",
    "a/b",
    "a/stream",
    "../../etc/passwd",
    "..",
    "%2e%2e%2f",
    "%00",
    "{}",
    "*",
    "' OR '1'='1",
    "сhat with a cyrillic letter",
    "e\u0301",
    "\u202egnp.exe",
    "\u2028",
    " ",
    "x" * 512,
]
LIKE = {"chat": ["CHAT", "сhat", "chat ", "chat\u200b", "chat/", "./chat", "%63hat"], "e\u0301": ["é"]}


class House:
    """A server whose agent waits in the middle of its answer until it is let go."""

    def __init__(self) -> None:
        self.gates: defaultdict[str, threading.Event] = defaultdict(threading.Event)
        self.asked: list[tuple[str | None, str]] = []
        self.ended = threading.Semaphore(0)
        self.app = create_app(
            self.agent,
            authenticate=BearerTokens(TOKENS),
            settings=ChatSettings(turn=TurnLimits(linger=None), on_end=self.on_end),
        )
        self.http = httpx.Client(timeout=HANG_SECONDS, trust_env=False)

    def agent(self, chat: Chat) -> Iterator[str]:
        self.asked.append((chat.user, chat.id))
        yield "One, "
        self.gates[chat.id].wait(HANG_SECONDS)
        yield "two."

    async def on_end(self, _outcome: Outcome, _message: UIMessage) -> None:
        self.ended.release()

    @contextmanager
    def asking(self, chat: str, name: str) -> Generator[Iterator[str], None, None]:
        content = message("Hello", chat)
        with self.http.stream("POST", "/api/chat", json=content, headers=signed_in(name)) as response:
            assert response.status_code == 200
            lines = response.iter_lines()
            read_until(lines, "One, ")
            yield lines
        # A stream ends before the server has kept its message.
        assert self.ended.acquire(timeout=HANG_SECONDS)

    def try_all_routes(self, chat: str, headers: dict[str, str]) -> list[tuple[int, str]]:
        path = f"/api/chat/{in_a_path(chat)}"
        tries = [
            self.http.post("/api/chat", json=message("Let me in", chat), headers=headers),
            self.http.get(f"{path}/stream", headers=headers),
            self.http.post(f"{path}/stop", headers=headers),
            self.http.get(f"{path}/messages", headers=headers),
        ]
        return [(answer.status_code, answer.text) for answer in tries]

    def try_all_frames(self, chat: str, headers: dict[str, str]) -> list[JSON]:
        fields = {"id": chat, "headers": headers, "body": {}}
        send = {
            "type": "send",
            "requestId": "send",
            "trigger": "submit-message",
            **message("Let me in", chat),
            **fields,
        }
        with connect(f"{self.http.base_url}/api/chat/ws".replace("http", "ws", 1), proxy=None) as socket:
            answers: list[JSON] = []
            for frame in (send, {"type": "resume", "requestId": "resume", **fields}):
                socket.send(json.dumps(frame))
                answers.append(json.loads(socket.recv(HANG_SECONDS)))
            socket.send(json.dumps({"type": "abort", "requestId": "send"}))
        return answers

    def kept(self, chat: str, name: str) -> list[JSON]:
        answer = self.http.get(f"/api/chat/{in_a_path(chat)}/messages", headers=signed_in(name))
        return [part for kept in answer.json() for part in kept["parts"]]


def signed_in(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer token-of-{name}"}


def in_a_path(chat: str) -> str:
    return "".join(f"%{byte:02x}" for byte in chat.encode())


@pytest.fixture(scope="module")
def house() -> Generator[House, None, None]:
    made = House()
    with serving(made.app) as url, made.http:
        made.http.base_url = url
        yield made


@pytest.mark.parametrize("chat", CHAT_IDS)
def test_a_chat_of_somebody_else_is_not_there_whatever_its_id_looks_like(house: House, chat: str) -> None:
    stranger = [(401, NOT_SIGNED_IN)] * 4
    with house.asking(chat, "ada") as lines:
        assert house.try_all_routes(chat, signed_in("bob")) == [
            (404, NOT_FOUND),
            (204, ""),
            (204, ""),
            (200, "[]"),
        ]
        assert house.try_all_routes(chat, {}) == stranger
        assert house.try_all_frames(chat, signed_in("bob")) == [
            {"type": "error", "requestId": "send", "errorText": NOT_FOUND},
            {"type": "no-active", "requestId": "resume"},
        ]
        assert [frame["errorText"] for frame in house.try_all_frames(chat, {})] == [NOT_SIGNED_IN] * 2
        house.gates[chat].set()
        assert last_two("\n".join(lines)) == FINISHED
    assert house.kept(chat, "ada") == [{"type": "text", "text": "Hello"}, STEP, text_part("One, two.")]
    assert [user for user, asked in house.asked if asked == chat] == ["ada"]


@pytest.mark.parametrize("chat", LIKE)
def test_an_id_that_only_looks_like_another_is_another(house: House, chat: str) -> None:
    house.gates[chat].set()
    with house.asking(chat, "ada") as lines:
        assert last_two("\n".join(lines)) == FINISHED
    for other in LIKE[chat]:
        answer = house.http.get(f"/api/chat/{in_a_path(other)}/messages", headers=signed_in("ada"))
        assert (answer.status_code, answer.text) == (200, "[]")
