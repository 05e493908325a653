"""What must not go out: the text of exceptions, requests to addresses that a client names, log lines that it forges."""

import json
import logging
import socket
import sqlite3
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import HTTPConnection
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from support.hang import HANG_SECONDS
from support.loopback import STEP, ask, message, parts, serving, text_part
from usechat import AgentError
from usechat.protocol.messages import UIMessage
from usechat.server.app import create_app
from usechat.stores import Outcome, TurnHead
from usechat.stores.memory import MemoryTurnStore
from usechat.turns.chat import Chat
from usechat.turns.settings import ChatSettings

SECRET = "swordfish"  # noqa: S105
JSON = dict[str, Any]


async def echo(chat: Chat) -> AsyncGenerator[str, None]:
    yield f"You said {chat.text}."


async def look_back(chat: Chat) -> AsyncGenerator[str, None]:
    await chat.history()
    yield f"You said {chat.text}."


async def fail(chat: Chat) -> AsyncGenerator[str, None]:
    yield "One, "
    raise ValueError(SECRET)


def fail_in_a_thread(_chat: Chat) -> Iterator[str]:
    yield "One, "
    raise ValueError(SECRET)


def fail_at_once(_chat: Chat) -> list[str]:
    raise ValueError(SECRET)


async def ask_for_what_is_not_there(chat: Chat) -> AsyncGenerator[str, None]:
    yield "One, "
    chat.write.tool_output(SECRET, "result")


def refuse_to_explain(_error: BaseException) -> str:
    raise ValueError(SECRET)


async def fail_at_the_end(_outcome: Outcome, _message: UIMessage) -> None:
    raise ValueError(SECRET)


def fail_to_recognise(_connection: HTTPConnection) -> str:
    raise ValueError(SECRET)


class BrokenStore(MemoryTurnStore):
    async def live(self, chat: str) -> TurnHead | None:
        raise ConnectionError(SECRET)


def frames_of(url: str) -> str:
    """Everything that a socket receives after it sends a message and asks for the turn of its chat."""
    rest: JSON = {"headers": {}, "body": {}}
    frames = [
        {"type": "send", "requestId": "r1", "trigger": "submit-message", **message("Hello", "socket"), **rest},
        {"type": "resume", "requestId": "r2", "id": "socket", **rest},
    ]
    told: list[str] = []
    with suppress(InvalidStatus), connect(f"{url}/api/chat/ws".replace("http", "ws", 1), proxy=None) as page:
        for frame in frames:
            page.send(json.dumps(frame))
            told.append(str(page.recv(HANG_SECONDS)))
            while json.loads(told[-1])["type"] not in ("end", "error", "no-active"):
                told.append(str(page.recv(HANG_SECONDS)))
    return "".join(told)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: create_app(fail), id="the agent"),
        pytest.param(lambda: create_app(fail_in_a_thread), id="an agent in a thread"),
        pytest.param(lambda: create_app(fail_at_once), id="an agent that is no generator"),
        pytest.param(lambda: create_app(ask_for_what_is_not_there), id="the writer"),
        pytest.param(lambda: create_app(fail, settings=ChatSettings(error_text=refuse_to_explain)), id="error_text"),
        pytest.param(lambda: create_app(echo, settings=ChatSettings(on_end=fail_at_the_end)), id="on_end"),
        pytest.param(lambda: create_app(echo, authenticate=fail_to_recognise), id="authenticate"),
        pytest.param(lambda: create_app(echo, store=BrokenStore()), id="the store"),
    ],
)
def test_the_text_of_an_exception_reaches_no_client(make: Callable[[], Any], caplog: pytest.LogCaptureFixture) -> None:
    with serving(make()) as url:
        wire = "".join(f"{answer}{answer.headers}{answer.text}" for answer in answers_of(url)) + frames_of(url)
    assert SECRET not in wire
    assert SECRET in caplog.text or "500 Internal Server Error" in wire


def answers_of(url: str) -> list[httpx.Response]:
    chat = f"{url}/api/chat/chat"
    return [
        ask(f"{url}/api/chat"),
        httpx.get(f"{chat}/stream", timeout=HANG_SECONDS),
        httpx.post(f"{chat}/stop", timeout=HANG_SECONDS),
        httpx.get(f"{chat}/messages", timeout=HANG_SECONDS),
    ]


@contextmanager
def canary() -> Generator[tuple[str, Callable[[], bool]], None, None]:
    """An address, and whether anybody came to it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)

        def is_alone() -> bool:
            try:
                listener.accept()[0].close()
            except BlockingIOError:
                return True
            return False

        yield f"http://127.0.0.1:{listener.getsockname()[1]}/x.png", is_alone


def test_no_address_that_a_client_or_an_agent_names_is_fetched() -> None:
    async def pass_on(chat: Chat) -> None:
        named = chat.messages[-1].parts[0]["url"]
        chat.write.file(named, "image/png")
        chat.write.source_url(named)
        chat.write.tool_input("call", "look", {"url": named})
        chat.write.tool_output("call", {"image": named})

    with canary() as (address, is_alone), serving(create_app(pass_on)) as url:
        content = message("Hello")
        content["messages"][0]["parts"] = [{"type": "file", "mediaType": "image/png", "url": address}]
        headers = {"referer": address, "origin": address, "x-forwarded-host": address, "link": f"<{address}>"}
        answer = httpx.post(f"{url}/api/chat", json={**content, "jku": address}, headers=headers, timeout=HANG_SECONDS)
        assert answer.text.count(address) == 4
        kept = httpx.get(f"{url}/api/chat/chat/messages", timeout=HANG_SECONDS)
        assert kept.text.count(address) == 5
        assert is_alone()


FORGED = "x\r\n2026-01-01 ERROR forged\x1b[31m\x85\u2028\u2029\x00"
# The same with what an id may have, so that it comes as far as the agent.
TAKEN = "x ERROR forged \u2028\u2029\u202e"


def test_nothing_that_a_client_says_comes_into_the_log_but_the_id_of_a_chat(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "usechat")
    with serving(create_app(fail)) as url:
        for text in (FORGED, TAKEN):
            content: JSON = message(text, text)
            content["messages"][0]["id"] = text
            for field in ("id", "messageId", "trigger", text):
                httpx.post(f"{url}/api/chat", json={**message("Hello"), field: text}, timeout=HANG_SECONDS)
            httpx.post(f"{url}/api/chat", json=content, timeout=HANG_SECONDS)
            httpx.post(f"{url}/api/chat/x/stop", params={"turn": text}, timeout=HANG_SECONDS)
            httpx.get(f"{url}/api/chat/{in_a_path(text)}/stream", params={"after": text}, timeout=HANG_SECONDS)
            httpx.get(f"{url}/api/chat/{in_a_path(text)}/messages", timeout=HANG_SECONDS)
            with connect(f"{url}/api/chat/ws".replace("http", "ws", 1), proxy=None) as page:
                page.send(json.dumps({"type": text, "requestId": TAKEN, "id": text, "headers": {text: text}}))
                page.recv(HANG_SECONDS)
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("usechat")]
    assert len(lines) >= 2
    assert [line for line in lines if not (line.isascii() and line.isprintable())] == []
    # The line of a turn names the chat, in quotes that it cannot leave.
    named = f" chat={json.dumps(TAKEN)} "
    assert {line.replace(named, " chat=… ").count("forged") for line in lines} == {0}
    assert any(named in line for line in lines)


def test_what_an_agent_says_of_an_error_cannot_look_like_another_line(caplog: pytest.LogCaptureFixture) -> None:
    def quotes(chat: Chat) -> str:
        raise AgentError(f"There is no city {chat.text}.")

    with serving(create_app(quotes)) as url:
        answer = ask(f"{url}/api/chat", FORGED + "x" * 10_000)
    assert "There is no city x" in answer.text
    (line,) = [record.getMessage() for record in caplog.records if "ended its turn" in record.getMessage()]
    assert (line.isascii(), line.isprintable(), len(line) < 600) == (True, True, True)


def in_a_path(chat: str) -> str:
    return "".join(f"%{byte:02x}" for byte in chat.encode())


@pytest.mark.parametrize(
    "change",
    [
        "update usechat_messages set body = 'swordfish'",
        "update usechat_messages set body = ''",
        "update usechat_messages set body = x'80049503000000'",
        """update usechat_messages set body = '{"id": "swordfish", "role": "root", "parts": []}'""",
        """update usechat_messages set body = '{"id": 7, "role": "user", "parts": [{"type": "swordfish"}]}'""",
        """update usechat_messages set body = '{"id": "m", "role": "assistant", "parts": "swordfish"}'""",
        "update usechat_messages set body = '[[[['",
    ],
)
def test_a_chat_that_somebody_broke_in_the_database_tells_nothing_and_leaves_the_others_alone(
    tmp_path: Path, change: str
) -> None:
    file = tmp_path / "chats.db"
    with serving(create_app(echo, history=f"sqlite:///{file}")) as url:
        ask(f"{url}/api/chat")
    with closing(sqlite3.connect(file)) as database, database:
        database.execute(change)
    with serving(create_app(look_back, history=f"sqlite:///{file}")) as url:
        loaded = httpx.get(f"{url}/api/chat/chat/messages", timeout=HANG_SECONDS)
        assert (loaded.status_code, SECRET in loaded.text) == (500, False)
        body = {"id": "chat", "message": {"id": "m2", "role": "user", "content": "Hello"}}
        answer = httpx.post(f"{url}/api/chat", json=body, timeout=HANG_SECONDS)
        assert ('"type":"error"' in answer.text, SECRET in answer.text) == (True, False)
        assert SECRET not in frames_of(url)
        assert parts(ask(f"{url}/api/chat", chat="other").text) == [STEP, text_part("You said Hello.")]
