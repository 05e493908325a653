"""What happens at the same instant is counted, and what is no agent is refused at once."""

import asyncio
import threading
import warnings
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, cast

import httpx
import pytest

from support.hang import HANG_SECONDS
from support.http_pages import JSON, Page, client, to_end, user
from support.loopback import STEP, USECHAT, read_until, running, serving, serving_here, text_part
from usechat.server.app import create_app
from usechat.server.auth import BearerTokens
from usechat.turns.chat import Chat
from usechat.turns.settings import ChatSettings, Conflict

with warnings.catch_warnings():
    # It would rather have the next httpx, which we need not have.
    warnings.simplefilter("ignore")
    from starlette.testclient import TestClient

ANN = {"authorization": "Bearer a"}


class Crowd:
    """An agent that counts how many of it run, and holds all of them at its gate."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.running = self.most = 0

    async def agent(self, chat: Chat) -> AsyncGenerator[str, None]:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            yield f"You said {chat.text}"
            await self.gate.wait()
        finally:
            self.running -= 1


@asynccontextmanager
async def crowded(settings: ChatSettings, **options: Any) -> AsyncGenerator[tuple[Crowd, httpx.AsyncClient]]:
    crowd = Crowd()
    limits = httpx.Limits(max_connections=None)
    async with (
        asyncio.timeout(HANG_SECONDS),
        serving_here(create_app(crowd.agent, settings=settings, grace=None, **options)) as port,
        httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", timeout=HANG_SECONDS, headers=ANN, limits=limits
        ) as http,
    ):
        try:
            yield crowd, http
        finally:
            crowd.gate.set()


async def post(http: httpx.AsyncClient, chat: str, number: int = 0) -> tuple[int, str]:
    """Ask and leave at once; the status, and what was said instead of an answer."""
    body = {"id": chat, "messages": [user(f"u{number}", f"{number}")]}
    async with http.stream("POST", "/api/chat", json=body) as response:
        text = "" if response.status_code == 200 else (await response.aread()).decode()
        return response.status_code, text


@pytest.mark.anyio
async def test_of_50_turns_at_the_same_instant_16_run() -> None:
    refused = (429, "Too many answers are being written for you at once.")
    tokens = BearerTokens({"a": "ann"})
    async with crowded(ChatSettings(), authenticate=tokens) as (crowd, http):
        for _ in range(2):
            answers = Counter(await asyncio.gather(*(post(http, f"chat-{number}") for number in range(50))))
            assert answers == {(200, ""): 16, refused: 34}
            assert (crowd.running, crowd.most) == (16, 16)
            stops = await asyncio.gather(*(http.post(f"/api/chat/chat-{number}/stop") for number in range(50)))
            assert {stop.status_code for stop in stops} == {204}
            assert crowd.running == 0


@pytest.mark.anyio
async def test_where_nobody_signs_in_turns_are_counted_by_the_address_that_they_come_from() -> None:
    many = (429, "Too many answers are being written for you at once.")
    elsewhere = httpx.AsyncHTTPTransport(local_address="127.0.0.2", limits=httpx.Limits(max_connections=None))
    async with crowded(ChatSettings(turns_per_address=16)) as (crowd, http):
        for _ in range(2):
            answers = Counter(await asyncio.gather(*(post(http, f"chat-{number}") for number in range(50))))
            assert answers == {(200, ""): 16, many: 34}
            async with httpx.AsyncClient(transport=elsewhere, base_url=http.base_url, timeout=HANG_SECONDS) as other:
                assert await post(other, "another") == (200, "")
            assert crowd.running == 17
            for chat in [*(f"chat-{number}" for number in range(50)), "another"]:
                assert (await http.post(f"/api/chat/{chat}/stop")).status_code == 204
            assert crowd.running == 0


WAITS = (429, "Too many messages wait in this chat.")
WRITES = (409, "An answer is still being written in this chat.")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("conflict", "answers"),
    [
        ("replace", {(200, ""): 16, WAITS: 4}),
        ("queue", {(200, ""): 16, WAITS: 4}),
        ("reject", {(200, ""): 1, WRITES: 15, WAITS: 4}),
    ],
)
async def test_of_20_messages_of_one_chat_at_the_same_instant_those_that_were_taken_are_kept_once(
    conflict: Conflict, answers: dict[tuple[int, str], int], tmp_path: Path
) -> None:
    history = f"sqlite:///{tmp_path}/chats.db"
    async with crowded(ChatSettings(conflict=conflict), history=history) as (crowd, http):
        if conflict == "queue":
            # Each waits for the one before.
            crowd.gate.set()
        given = await asyncio.gather(*(post(http, "chat", number) for number in range(20)))
        assert Counter(given) == answers
        crowd.gate.set()
        await http.post("/api/chat/chat/stop")
        kept = (await http.get("/api/chat/chat/messages")).json()
        taken = [f"u{number}" for number, (status, _) in enumerate(given) if status == 200]
        assert sorted(message["id"] for message in kept if message["role"] == "user") == sorted(taken)
        assert crowd.most == 1


async def echo(chat: Chat) -> AsyncGenerator[str, None]:
    yield f"You said {len(await chat.history())}: {chat.text}"


@pytest.mark.parametrize("history", [None, "sqlite://", "sqlite:///{}/chats.db"])
def test_a_test_client_without_a_lifespan_can_ask_several_times(history: str | None, tmp_path: Path) -> None:
    app = create_app(echo, history=None if history is None else history.format(tmp_path))
    # It is a client of httpx, but its types say httpx2.
    http = cast("httpx.Client", cast("Any", TestClient)(app))
    for number in range(3):
        response = http.post("/api/chat", json={"id": "chat", "messages": [user(f"u{number}", "Hello")]})
        assert (response.status_code, f"You said {2 * number + 1}: Hello" in response.text) == (200, True)
        assert http.get("/api/chat/chat/stream").status_code == 204
        assert http.post("/api/chat/chat/stop").status_code == 204
    kept = http.get("/api/chat/chat/messages").json()
    assert [message["role"] for message in kept] == ["user", "assistant"] * 3


class Class:
    def __init__(self, chat: Chat) -> None:
        pass


def no_parameters() -> str:
    return "Hello"


@pytest.mark.parametrize(
    ("thing", "name"),
    [(object(), "object"), (3, "int"), (Class, "Class"), (no_parameters, "function"), (None, "NoneType")],
)
def test_what_is_no_agent_is_refused_at_once(thing: Any, name: str) -> None:
    with pytest.raises(TypeError) as raised:
        create_app(thing)
    assert str(raised.value) == (
        f"{name} is not an agent: give a function that takes the chat and yields text, a runtime, a compiled graph of "
        "LangGraph, an object with stream_with_events(messages, state, thread_id, abort), or one with run(chat) and "
        "translator(chat)."
    )


THINGS = """\
thing = object()

def function():
    return "Hello"
"""


def test_usechat_serve_says_what_is_no_agent_and_exits_with_2(tmp_path: Path) -> None:
    (tmp_path / "agents.py").write_text(THINGS)
    command = [*USECHAT, "serve", "--port", "0"]
    with running([*command, "agents:thing"], tmp_path) as one, running([*command, "agents:function"], tmp_path) as two:
        for process, name in ((one, "thing"), (two, "function")):
            assert process.wait() == (2, "")
            assert (
                process.errors()
                == f"agents:{name} is neither an agent, such as a function of the chat, nor an ASGI app.\n"
            )


@pytest.mark.parametrize("conflict", ["replace", "queue", "reject"])
@pytest.mark.parametrize("how", ["left", "stopped"])
def test_an_answer_can_be_written_again_while_the_first_one_lingers(
    conflict: Conflict, how: Literal["left", "stopped"]
) -> None:
    again = threading.Event()
    ends: list[str | None] = []

    async def agent(chat: Chat) -> AsyncGenerator[str, None]:
        yield "I begin"
        if not again.is_set():
            try:
                await chat.stopping.wait()
            finally:
                ends.append(chat.stopped)

    with serving(create_app(agent, settings=ChatSettings(conflict=conflict))) as url, client(url) as http:
        page = Page(http)
        with page.posting(user("u", "Hello")) as lines:
            first = to_start(lines)
        if how == "stopped":
            assert page.stop() == 204
        again.set()
        with page.posting(user("u", "Hello"), trigger="regenerate-message", messageId=first) as lines:
            read = to_end(lines)
        assert read[-1] == {"type": "finish", "finishReason": "stop"}
        answer = {"id": read[0]["messageId"], "role": "assistant", "parts": [STEP, text_part("I begin")]}
        assert page.messages() == [user("u", "Hello"), answer]
        assert ends == ["replaced" if how == "left" else "stopped"]


def to_start(lines: Iterator[str]) -> str:
    """Read the beginning of an answer, and give the id of its message."""
    read = read_until(lines, "I begin")
    return read.partition('"messageId":"')[2].partition('"')[0]


def test_messages_come_in_pages() -> None:
    with serving(create_app(echo)) as url, client(url) as http:
        page = Page(http)
        for number in range(5):
            with page.posting(user(f"u{number}", "Hello")) as lines:
                to_end(lines)

        def read(**query: object) -> list[JSON]:
            response = http.get(f"{page.path}/messages", params={name: str(value) for name, value in query.items()})
            assert response.status_code == 200, response.text
            return response.json()

        whole = page.messages()
        assert [message["role"] for message in whole] == ["user", "assistant"] * 5
        assert read(limit=4) == whole[6:]
        assert read(limit=4, before=whole[6]["id"]) == whole[2:6]
        assert read(limit=4, before=whole[2]["id"]) == whole[:2]
        assert (read(limit=10_000), read(before=whole[5]["id"])) == (whole, whole[:5])
        assert (read(limit=4, before=whole[0]["id"]), read(before="nobody")) == ([], [])
        unknown = [http.get("/api/chat/none/messages", params=query) for query in ({}, {"before": "u0"})]
        assert [(response.status_code, response.text) for response in unknown] == [(200, "[]")] * 2
        wrong = [http.get(f"{page.path}/messages", params={"limit": limit}) for limit in ("0", "10001", "x", "-1")]
        assert [(response.status_code, response.text) for response in wrong] == [
            (400, "limit must be a number from 1 to 10,000.")
        ] * 4
