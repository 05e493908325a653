"""What a `ChatEndpoint` is made with, and that it takes what `create_app` takes."""

import inspect
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette

from support.hang import HANG_SECONDS
from support.loopback import STEP, ask, parts, serving, text_part
from usechat.database import Database
from usechat.server.app import create_app
from usechat.server.endpoint import ChatEndpoint
from usechat.turns.chat import Chat

# What is wrong for the type checker is wrong here as well.
any_app: Any = create_app
any_endpoint: Any = ChatEndpoint

SERVER_GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "server.md"


async def echo(chat: Chat) -> AsyncGenerator[str, None]:
    yield f"You said: {chat.text}"


async def name_client(chat: Chat) -> AsyncGenerator[str, None]:
    yield chat.client


async def count(chat: Chat) -> AsyncGenerator[str, None]:
    yield f"{len(await chat.history())} messages"


def starlette_app(endpoint: ChatEndpoint) -> Starlette:
    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None, None]:
        async with endpoint.serve():
            yield

    return Starlette(routes=endpoint.routes(), lifespan=lifespan)


def fastapi_app(endpoint: ChatEndpoint) -> FastAPI:
    app = FastAPI()
    app.include_router(endpoint.router())
    return app


def fastapi_app_that_serves_it_too(endpoint: ChatEndpoint) -> FastAPI:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None, None]:
        async with endpoint.serve():
            yield

    app = FastAPI(lifespan=lifespan)
    app.include_router(endpoint.router())
    return app


@pytest.mark.parametrize("make", [starlette_app, fastapi_app, fastapi_app_that_serves_it_too])
def test_chats_at_a_url_outlive_the_endpoint_which_closes_their_database(
    tmp_path: Path, make: Callable[[ChatEndpoint], Any]
) -> None:
    for messages in (1, 3):
        with serving(make(ChatEndpoint(count, history=f"sqlite:///{tmp_path}/chats.db"))) as url:
            body = {"id": "chat", "message": {"id": f"m{messages}", "role": "user", "content": "Hello"}}
            answer = httpx.post(f"{url}/api/chat", json=body, timeout=HANG_SECONDS)
        assert parts(answer.text) == [STEP, text_part(f"{messages} messages")]
        assert [file.name for file in tmp_path.iterdir()] == ["chats.db"]


def test_an_endpoint_with_a_database_answers_without_a_lifespan(tmp_path: Path) -> None:
    endpoint = ChatEndpoint(echo, history=f"sqlite:///{tmp_path}/chats.db")
    with serving(Starlette(routes=endpoint.routes())) as url:
        assert parts(ask(f"{url}/api/chat").text) == [STEP, text_part("You said: Hello")]


def test_an_endpoint_takes_the_client() -> None:
    with serving(Starlette(routes=ChatEndpoint(name_client, client="v7").routes())) as url:
        assert parts(ask(f"{url}/api/chat").text) == [STEP, text_part("v7")]


@pytest.mark.parametrize("make", [create_app, ChatEndpoint])
@pytest.mark.parametrize(
    ("options", "kind", "sentence"),
    [
        ({"history": 7}, TypeError, 'history must be a database URL, "client" or a HistoryStore, not int.'),
        (
            {"history": Database()},
            TypeError,
            'history must be a database URL, "client" or a HistoryStore, not Database.',
        ),
        ({"history": "y.db"}, ValueError, "The database URL must be one of SQLite or PostgreSQL"),
        (
            {"store": object()},
            TypeError,
            'store must be the URL of a Redis, "memory" or a TurnStore, not object.',
        ),
        ({"store": "file:///x"}, ValueError, "The store of turns must be memory, or the URL of a Redis"),
        (
            {"authenticate": "ada"},
            TypeError,
            "authenticate must be a function that takes the connection, not str.",
        ),
        ({"approval_secret": b"x" * 32}, TypeError, "approval_secret must be a str, not bytes."),
        ({"client": "v9"}, ValueError, "The client must be one of portable, "),
        ({"settings": {}}, TypeError, "settings must be ChatSettings, not dict."),
        ({"limits": 5}, TypeError, "limits must be Limits of usechat.protocol.requests, not int."),
        ({"stream": 5}, TypeError, "stream must be StreamLimits of usechat.server.responses, not int."),
        ({"lease": "15"}, TypeError, "lease must be a number of seconds, not str."),
        ({"lists_all": "no"}, TypeError, "lists_all must be True or False, not str."),
    ],
)
def test_what_an_app_and_an_endpoint_cannot_take_is_refused_when_they_are_made(
    make: Callable[..., object], options: dict[str, Any], kind: type[Exception], sentence: str
) -> None:
    with pytest.raises(kind, match=f"^{re.escape(sentence)}"):
        make(echo, **options)


@pytest.mark.parametrize(
    ("make", "kind", "sentence"),
    [
        (lambda: any_app(echo, path=7), TypeError, "path must be a str, not int."),
        (lambda: any_app(echo, cors=7), TypeError, "cors must be an origin or a list of origins, not int."),
        (lambda: any_app(echo, cors=[7]), TypeError, "cors must be an origin or a list of origins, not list."),
        (
            lambda: any_app(echo, allowed_hosts=[7]),
            TypeError,
            "allowed_hosts must be a host or a list of hosts, not list.",
        ),
        (lambda: any_app(echo, grace="10"), TypeError, "grace must be a number of seconds or None, not str."),
        (lambda: any_app(echo, page="yes"), TypeError, "page must be True or False, not str."),
        (
            lambda: any_app(echo, cors_credentials="yes"),
            TypeError,
            "cors_credentials must be True or False, not str.",
        ),
        (lambda: any_endpoint(echo, scope=7), TypeError, "scope must be a str, not int."),
        (
            lambda: any_endpoint(echo, origins=7),
            TypeError,
            "origins must be an origin or a list of origins, not int.",
        ),
        (lambda: any_endpoint(echo, origins="x"), ValueError, "'x' is not an origin such as https://chat.example"),
        (lambda: any_endpoint(echo).routes("chat"), ValueError, "'chat' is not a path such as /api/name."),
        (lambda: any_endpoint(echo).router("chat"), ValueError, "'chat' is not a path such as /api/name."),
    ],
)
def test_what_only_one_of_them_takes_is_checked_as_well(
    make: Callable[[], object], kind: type[Exception], sentence: str
) -> None:
    with pytest.raises(kind, match=f"^{re.escape(sentence)}"):
        make()


def test_an_endpoint_takes_one_origin_as_a_string() -> None:
    endpoint = ChatEndpoint(echo, origins="http://page.example")
    with serving(Starlette(routes=endpoint.routes())) as url:
        statuses = [
            httpx.post(f"{url}/api/chat/c/stop", headers={"origin": origin}, timeout=HANG_SECONDS).status_code
            for origin in ("http://page.example", "http://p")
        ]
    assert statuses == [204, 403]


def _table() -> list[list[str]]:
    lines = SERVER_GUIDE.read_text(encoding="utf-8").splitlines()
    first = lines.index("| | `create_app(agent, …)` | `ChatEndpoint(agent, …)` |") + 2
    rows = [line.strip("| ").split(" | ") for line in lines[first : first + 20] if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows]


def test_the_guide_has_a_table_of_what_differs_between_them() -> None:
    taken = [set(inspect.signature(make).parameters) - {"agent"} for make in (create_app, ChatEndpoint)]
    both, rows = _table()[0], _table()[1:]
    assert set(re.findall(r"`(\w+)`", both[0])) == taken[0] & taken[1]
    told = [set(re.findall(r"`(\w+)[`=]", " ".join(row[column] for row in rows))) for column in (1, 2)]
    assert [told[0] & (taken[0] | taken[1]), told[1] & (taken[0] | taken[1])] == [
        taken[0] - taken[1],
        taken[1] - taken[0],
    ]
