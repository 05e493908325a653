"""The gateway inside other apps, below other paths, and for the pages of other sites."""

import asyncio
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Receive, Scope, Send

from support.gateways import SETTINGS, Gateway, serving_gateway, until_chunk
from support.loopback import last_two, message, parts, text_part
from usechat.gateway.gateway import sessions_gateway

pytestmark = pytest.mark.anyio

CHANNELS: Final = '{"channels":[{"channelType":"web","channelId":"default"}]}'
PAGE: Final = "https://chat.example"


def in_starlette(app: Starlette) -> ASGIApp:
    return Starlette(routes=[Mount("/a/b", app)])


def in_fastapi(app: Starlette) -> ASGIApp:
    outer = FastAPI()
    outer.mount("/a/b", app)
    return outer


def in_both(app: Starlette) -> ASGIApp:
    outer = FastAPI()
    outer.mount("/a", Starlette(routes=[Mount("/b", app)]))
    return outer


def at_the_root(app: Starlette) -> ASGIApp:
    outer = FastAPI()
    outer.mount("/", app)
    return outer


def with_root_path(app: ASGIApp, root_path: str, *, is_sent: bool) -> ASGIApp:
    """The app behind a proxy that takes the root path away; a server may put it back, as the ASGI standard asks."""

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "root_path": root_path}
            if is_sent:
                scope |= {"path": root_path + scope["path"], "raw_path": root_path.encode() + scope["raw_path"]}
        await app(scope, receive, send)

    return served


def without_raw_path(app: ASGIApp) -> ASGIApp:
    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "raw_path": None}, receive, send)

    return served


PLACES: Final[dict[str, tuple[Callable[[Starlette], ASGIApp], str]]] = {
    "Starlette": (in_starlette, "/a/b"),
    "FastAPI": (in_fastapi, "/a/b"),
    "both": (in_both, "/a/b"),
    "the root of FastAPI": (at_the_root, ""),
    "a root path": (lambda app: with_root_path(app, "/r", is_sent=True), ""),
    "a root path that is not sent": (lambda app: with_root_path(app, "/r", is_sent=False), ""),
    "Starlette with a root path": (lambda app: with_root_path(in_starlette(app), "/r", is_sent=True), "/a/b"),
    "FastAPI with a root path": (lambda app: with_root_path(in_fastapi(app), "/r", is_sent=True), "/a/b"),
    # Where the session's id could be taken for a part of what goes before it.
    "a root path as the sessions' own": (lambda app: with_root_path(app, "/api/sessions", is_sent=True), ""),
}


@pytest.mark.parametrize("place", PLACES)
async def test_it_is_served_wherever_it_is_mounted(place: str):
    mount, prefix = PLACES[place]
    async with serving_gateway(mount=mount) as gateway:
        gateway.url += prefix
        await check_routes(gateway)


async def check_routes(gateway: Gateway) -> None:
    assert (await gateway.get("channels")).text == CHANNELS
    for name in ("api/sessions/s1", "/api/sessions", "s1/chat"):
        await gateway.directory.add_session(name, "ana")
        assert (await gateway.get("channels", session=name)).text == CHANNELS
        assert gateway.agent.addresses[-1].startswith(f"/api/sessions/{quote(name, safe='')}/ws?")
    assert text_part("You said: Hello") in await gateway.parts("Hello")
    async with gateway.asking("hang") as stream:
        await until_chunk(stream, type="text-delta")
        assert (await gateway.post("chat/c/stop")).status_code == 204
        await until_chunk(stream, type="abort")
    for rest in ("", "x/channels", "chat/c"):
        response = await gateway.get(rest)
        assert (response.status_code, response.json()["code"]) == (404, "NOT_FOUND")
    assert (await gateway.get("channels", session="missing")).json()["error"] == "There is no session with this id."
    assert (await gateway.http.get(f"{gateway.url}/healthz")).text == "ok\n"


async def test_a_server_that_does_not_tell_the_path_as_it_was_sent_serves_ids_without_slashes():
    async with serving_gateway(mount=without_raw_path) as gateway:
        for name in ("a/b", "a:b %é"):
            await gateway.directory.add_session(name, "ana")
        answers = [await gateway.get("channels", session=name) for name in ("s1", "a:b %é", "a/b")]
        assert [answer.status_code for answer in answers] == [200, 200, 404]


async def test_another_path():
    async with serving_gateway(path="/v1/agents") as gateway:
        for path, status in (("/v1/agents", 200), ("/api/sessions", 404), ("/v1", 404)):
            url, headers = f"{gateway.url}{path}/s1/channels", await gateway.headers("ana")
            assert (await gateway.http.get(url, headers=headers)).status_code == status


@pytest.mark.parametrize("path", ["", "/", "sessions", "/a/", "/{id}", "/a b"])
def test_what_is_no_path_is_refused(path: str):
    with pytest.raises(ValueError, match="is not a path such as"):
        sessions_gateway(upstream="ws://localhost", directory="sqlite://", path=path)


@pytest.mark.parametrize("upstream", ["", "http://localhost", "localhost:8787"])
def test_what_is_no_upstream_is_refused(upstream: str):
    with pytest.raises(ValueError, match="is not the address of an upstream"):
        sessions_gateway(upstream=upstream, directory="sqlite://")


async def test_it_needs_no_lifespan():
    """As when it is mounted, or in a test that does not enter its client; there each request has a loop of its own."""
    async with serving_gateway() as gateway:
        app = sessions_gateway(upstream=gateway.agent.url, directory=gateway.directory, settings=SETTINGS)
        headers = await gateway.headers("ana")

        def use() -> list[Any]:
            client = TestClient(app, headers=headers)
            return [
                client.get("/api/sessions/s1/channels"),
                *(client.post("/api/sessions/s1/chat", json=message("Hello")) for _ in range(3)),
                client.post("/api/sessions/s1/chat/chat/stop"),
                client.get("/api/sessions/s1/chat/chat/stream"),
                client.get("/api/sessions/missing/channels"),
                client.get("/readyz"),
            ]

        answers = await asyncio.to_thread(use)
        assert [answer.status_code for answer in answers] == [200, 200, 200, 200, 204, 204, 404, 200]
        for answer in answers[1:4]:
            assert text_part("You said: Hello") in parts(answer.text)
            assert last_two(answer.text)[1] == "[DONE]"
        await gateway.agent.until(lambda: not gateway.agent.sockets)


def preflight(origin: str = PAGE, method: str = "POST") -> dict[str, str]:
    wanted = "authorization,content-type"
    return {
        "origin": origin,
        "access-control-request-method": method,
        "access-control-request-headers": wanted,
    }


@pytest.mark.parametrize("cors", [PAGE, [PAGE, "http://localhost:3000"]])
async def test_pages_of_the_origins_that_are_named_may_call(cors: Any):
    async with serving_gateway(cors=cors) as gateway:
        url = gateway.path("chat")
        asked = await gateway.http.options(url, headers=preflight())
        assert asked.status_code == 200
        assert asked.headers["access-control-allow-origin"] == PAGE
        assert "POST" in asked.headers["access-control-allow-methods"]
        assert "authorization" in asked.headers["access-control-allow-headers"]
        assert "access-control-allow-credentials" not in asked.headers
        ana = {**await gateway.headers("ana"), "origin": PAGE}
        answer = await gateway.http.post(url, json=message("Hello"), headers=ana)
        assert text_part("You said: Hello") in parts(answer.text)
        # The page can read why it was refused, too.
        refused = await gateway.http.post(url, json=message("Hello"), headers={"origin": PAGE})
        for response, status in ((answer, 200), (refused, 401)):
            assert (response.status_code, response.headers["access-control-allow-origin"]) == (status, PAGE)
            assert "x-usechat-turn" in response.headers["access-control-expose-headers"]


async def test_pages_of_other_origins_may_not():
    async with serving_gateway(cors=PAGE) as gateway:
        for origin in ("https://evil.example", "http://chat.example", "https://chat.example:444", "null"):
            asked = await gateway.http.options(gateway.path("chat"), headers=preflight(origin))
            assert (asked.status_code, "access-control-allow-origin" in asked.headers) == (400, False)
    async with serving_gateway() as gateway:
        asked = await gateway.http.options(gateway.path("chat"), headers=preflight())
        assert (asked.status_code, "access-control-allow-origin" in asked.headers) == (405, False)
        assert asked.json()["code"] == "METHOD_NOT_ALLOWED"
        answer = await gateway.http.get(
            gateway.path("channels"), headers={**await gateway.headers("ana"), "origin": PAGE}
        )
        assert "access-control-allow-origin" not in answer.headers


def test_what_is_no_origin_is_refused():
    with pytest.raises(ValueError, match="is not an origin"):
        sessions_gateway(upstream="ws://localhost", directory="sqlite://", cors="chat.example")
