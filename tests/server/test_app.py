import re
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.lowlevel
import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import HTTPConnection
from starlette.routing import Mount

from support.hang import HANG_SECONDS
from support.loopback import (
    ABORTED,
    STEP,
    ask,
    asking,
    free_port,
    last_two,
    parts,
    read_until,
    running,
    serving,
    text_part,
    until,
)
from usechat.database import Database
from usechat.history import History
from usechat.protocol.messages import UIMessage
from usechat.protocol.requests import ChatRequest
from usechat.server.app import create_app
from usechat.turns.chat import Chat
from usechat.turns.settings import ChatSettings

ABOUT = """\
usechat serves an agent to useChat() at {url}

  curl -N {url} -H 'content-type: application/json' \\
    -d '{{"id": "1", "message": {{"id": "1", "role": "user", "parts": [{{"type": "text", "text": "Hello"}}]}}}}'

  const chat = useChat({{ transport: new DefaultChatTransport({{ api: '{url}' }}) }})
"""

GRANIAN_APP = """\
from usechat import create_app

async def agent(chat):
    yield "I begin"
    await chat.stopping.wait()

app = create_app(agent, grace=0.2)
"""


async def echo(chat: Chat) -> AsyncGenerator[str, None]:
    yield f"You said: {chat.text}"


async def count(chat: Chat) -> AsyncGenerator[str, None]:
    yield f"{len(await chat.history())} messages"


async def name_client(chat: Chat) -> AsyncGenerator[str, None]:
    yield chat.client


async def never_end(chat: Chat) -> AsyncGenerator[str, None]:
    yield "I begin"
    await chat.stopping.wait()


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncGenerator[httpx.AsyncClient, None]:
    """The app without a server, so that a test can reach inside it."""
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")
    async with app.router.lifespan_context(app), client:
        yield client


def get(url: str, **headers: str) -> tuple[int, str]:
    response = httpx.get(url, headers=headers, timeout=HANG_SECONDS)
    return response.status_code, response.text


def test_the_app_serves_its_agent_and_says_how_to_connect() -> None:
    with serving(create_app(echo)) as url:
        assert parts(ask(f"{url}/api/chat").text) == [STEP, text_part("You said: Hello")]
        assert get(url) == (200, ABOUT.format(url=f"{url}/api/chat"))
        assert [get(f"{url}{path}") for path in ("/healthz", "/readyz")] == [(200, "ok\n"), (200, "ok\n")]


def test_what_a_hook_of_the_app_raises_stays_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(_connection: HTTPConnection) -> str | None:
        raise RuntimeError("secret")

    with serving(create_app(echo, authenticate=broken)) as url:
        response = ask(f"{url}/api/chat")
    assert response.status_code == 500
    assert response.headers["content-type"].startswith("text/plain")
    error_id = re.fullmatch(r"Something went wrong\. \(Error (\w+)\)", response.text)
    assert error_id is not None
    assert error_id[1] in caplog.text
    assert "secret" in caplog.text


def test_the_app_counts_what_happens() -> None:
    with serving(create_app(echo)) as url:
        body = ask(f"{url}/api/chat").text
        httpx.post(f"{url}/api/chat", content="x", timeout=HANG_SECONDS)
        metrics = httpx.get(f"{url}/metrics", timeout=HANG_SECONDS)
    assert metrics.headers["content-type"].startswith("text/plain; version=")
    counted = dict(line.rsplit(" ", 1) for line in metrics.text.splitlines() if not line.startswith("#"))
    wanted = {
        'usechat_turns_ended_total{outcome="done"}': "1.0",
        "usechat_turns_running": "0.0",
        "usechat_streams_open": "0.0",
        "usechat_sent_bytes_total": f"{len(body)}.0",
        'usechat_requests_refused_total{status="415"}': "1.0",
    }
    assert {name: counted.get(name) for name in wanted} == wanted


def test_a_mounted_app_needs_no_lifespan_and_knows_its_prefix(tmp_path: Path) -> None:
    app = create_app(echo, path="/talk", history=f"sqlite:///{tmp_path}/chats.db")
    with serving(Starlette(routes=[Mount("/v1", app)])) as url:
        assert parts(ask(f"{url}/v1/talk").text) == [STEP, text_part("You said: Hello")]
        assert get(f"{url}/v1/") == (200, ABOUT.format(url=f"{url}/v1/talk"))


def test_chats_at_a_url_outlive_the_app_which_closes_their_database(tmp_path: Path) -> None:
    for messages in (1, 3):
        app = create_app(count, history=f"sqlite:///{tmp_path}/chats.db")
        with serving(app) as url:
            body = {"id": "chat", "message": {"id": f"m{messages}", "role": "user", "content": "Hello"}}
            answer = httpx.post(f"{url}/api/chat", json=body, timeout=HANG_SECONDS)
        assert parts(answer.text) == [STEP, text_part(f"{messages} messages")]
        assert [file.name for file in tmp_path.iterdir()] == ["chats.db"]


@pytest.mark.anyio
async def test_a_history_of_ones_own_is_used_and_left_open(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/chats.db")
    history = History(database)
    async with lifespan(create_app(echo, history=history)) as client:
        await client.post("/api/chat", json={"id": "c", "message": {"id": "m", "role": "user", "content": "Hello"}})
    assert [message.text for message in await history.load("c", "")] == ["Hello", "You said: Hello"]
    assert (tmp_path / "chats.db-wal").exists()
    await database.aclose()


@pytest.mark.anyio
async def test_a_turn_that_nobody_reads_when_the_app_ends_is_stored_as_far_as_it_came(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chats.db"
    app = create_app(never_end, history=url)
    async with lifespan(app):
        reader = await app.state.endpoint.chats.begin(
            ChatRequest(id="chat", last=UIMessage("m1", "user", [{"type": "text", "text": "Hello"}])), None, {}
        )
        while "I begin" not in str(reader.log.frames):
            await anyio.lowlevel.checkpoint()
    assert reader.log.outcome == "stopped"
    database = Database(url)
    stored = await History(database).load("chat", "")
    await database.aclose()
    assert [message.text for message in stored] == ["Hello", "I begin"]


@pytest.mark.parametrize(
    ("options", "client"),
    [
        ({}, "portable"),
        ({"settings": ChatSettings(client="v6")}, "v6"),
        ({"client": "v7", "settings": ChatSettings(client="v6")}, "v7"),
    ],
)
def test_the_client_is_the_one_that_was_named(options: dict[str, Any], client: str) -> None:
    with serving(create_app(name_client, **options)) as url:
        assert parts(ask(f"{url}/api/chat").text) == [STEP, text_part(client)]


def test_who_comes_in_is_decided_by_authenticate() -> None:
    app = create_app(echo, authenticate=lambda connection: connection.headers.get("x-user"))
    with serving(app) as url:
        stranger = ask(f"{url}/api/chat")
        assert (stranger.status_code, stranger.text) == (401, "You are not signed in.")
        friend = ask(f"{url}/api/chat", headers={"x-user": "ann"})
        assert parts(friend.text) == [STEP, text_part("You said: Hello")]
        assert get(f"{url}/api/chat/chat/messages", **{"x-user": "bob"}) == (200, "[]")


def test_only_pages_of_listed_origins_may_read_and_stop_an_answer() -> None:
    def allowed(url: str, origin: str) -> tuple[str | None, str | None]:
        headers = ask(f"{url}/api/chat", headers={"origin": origin}).headers
        return headers.get("access-control-allow-origin"), headers.get("access-control-allow-credentials")

    def stopped(url: str, origin: str) -> int:
        return httpx.post(f"{url}/api/chat/chat/stop", headers={"origin": origin}, timeout=HANG_SECONDS).status_code

    page = "http://localhost:3000"
    with serving(create_app(echo)) as url:
        assert allowed(url, page) == (None, None)
    with serving(create_app(echo, cors=[page])) as url:
        assert [allowed(url, page), allowed(url, "http://evil.example")] == [(page, None), (None, None)]
        assert [stopped(url, page), stopped(url, "http://evil.example")] == [204, 403]
    with serving(create_app(echo, cors=[page], cors_credentials=True)) as url:
        assert allowed(url, page) == (page, "true")


@pytest.mark.parametrize(("listed", "status"), [((), 405), (["http://page.example"], 400)])
def test_a_page_that_may_not_call_is_named_in_the_log(
    caplog: pytest.LogCaptureFixture, listed: list[str], status: int
) -> None:
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "content-type"}
    origins = ("http://page.example", "http://localhost:5173", "http://" + 1_000 * "a")
    with serving(create_app(echo, cors=listed)) as url:
        # Not a browser that asks whether a page may call.
        httpx.options(f"{url}/api/chat", headers={"origin": origins[1]}, timeout=HANG_SECONDS)
        headers = [{**asked, "origin": origin} for origin in origins]
        answers = [httpx.options(f"{url}/api/chat", headers=each, timeout=HANG_SECONDS) for each in headers]
    assert answers[-1].status_code == status
    refused = [f"'{origin}'" for origin in origins if origin not in listed]
    assert [record.getMessage() for record in caplog.records if "origin" in record.getMessage()] == [
        f"a page of the origin {origin[:200]} may not call the chat; to allow it, list it in cors" for origin in refused
    ]


def test_a_server_with_a_list_of_hosts_goes_by_no_other_name() -> None:
    with pytest.raises(ValueError, match="at least one host"):
        create_app(echo, allowed_hosts=[])
    with serving(create_app(echo, allowed_hosts="localhost")) as url:
        assert get(f"{url}/healthz", host="localhost:80") == (200, "ok\n")
        assert get(f"{url}/healthz", host="evil.example") == (400, "Invalid host header")
    with serving(create_app(echo)) as url:
        assert get(f"{url}/healthz", host="chat.example") == (200, "ok\n")


@pytest.mark.anyio
async def test_an_app_that_drains_is_not_ready_and_takes_no_turns() -> None:
    app = create_app(echo)
    async with lifespan(app) as client:
        await app.state.endpoint.chats.drain(0)
        ready = await client.get("/readyz")
        assert (ready.status_code, ready.text) == (503, "draining\n")
        refused = await client.post(
            "/api/chat", json={"id": "c", "messages": [{"id": "m", "role": "user", "content": "x"}]}
        )
        assert (refused.status_code, refused.headers["retry-after"], refused.text) == (
            503,
            "5",
            "The server is busy. Try again in a moment.",
        )


@pytest.mark.anyio
async def test_an_app_without_grace_leaves_signals_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    async with lifespan(create_app(echo)):
        assert signal.getsignal(signal.SIGTERM) != before
    async with lifespan(create_app(echo, grace=None)):
        assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: create_app(echo, path="chat"), "'chat' is not a path such as /api/name."),
        (lambda: create_app(echo, path="/"), "'/' is not a path such as /api/name."),
        (lambda: create_app(echo, path="/{x}"), "'/{x}' is not a path such as /api/name."),
        (lambda: create_app(echo, cors=["x"]), "'x' is not an origin such as https://chat.example"),
        (lambda: create_app(echo, allowed_hosts=["a:1"]), "'a:1' is not a host such as chat.example"),
        (lambda: create_app(echo, cors=["*"], cors_credentials=True), "CORS with credentials needs a list of origins"),
        (lambda: create_app(echo, history=""), "The database URL must be one of SQLite or PostgreSQL"),
        (
            lambda: ChatSettings(conflict=cast(Any, "wait")),
            "The conflict must be one of replace, queue, reject, and is 'wait'.",
        ),
        (lambda: create_app(echo, client=cast(Any, "v9")), "The client must be one of portable, "),
    ],
)
def test_an_option_that_cannot_be_is_refused_when_the_app_is_made(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}"):
        make()


def test_granian_serves_and_drains_the_app_too(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(GRANIAN_APP)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "granian", "--interface", "asgi", "--port", str(port), "main:app"]
    with running(command, tmp_path) as process:
        until(lambda: get(f"{url}/readyz") == (200, "ok\n"), process)
        with asking(f"{url}/api/chat") as lines:
            first = read_until(lines, "I begin")
            process.send(signal.SIGTERM)
            rest = "\n".join(lines)
        assert parts(f"{first}\n{rest}\n\n") == [STEP, text_part("I begin")]
        assert last_two(rest) == ABORTED
        assert process.wait()[0] == 0
