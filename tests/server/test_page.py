"""The routes of the page, without a browser; browser/test_page.py has the page itself."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from usechat.server.app import create_app
from usechat.server.auth import BearerTokens
from usechat.server.page import PageAgent, PagePrompt, page_routes

pytestmark = pytest.mark.anyio

PROMPTS = ("When is high water?", PagePrompt("Book a boat", "A tool that fails"))
AGENT = PageAgent(
    path="/api/chat",
    name="Tides",
    about="It knows the sea.",
    prompts=PROMPTS,
    answers="/api/answer",
    images=("/charts/",),
)
GOOD = 'data: {"type":"start","messageId":"1"}\n\ndata: {"type":"finish"}\n\n'
BAD = 'data: {"type":"start","messageId":"1"}\n\ndata: {"type":"text-delta","id":"1","delta":"Hello"}\n\n'
ANSWERED = 'data: {"type":"start","messageId":"1"}\n\ndata: {"type":"tool-output-denied","toolCallId":"c"}\n\n'
WAITING = {
    "type": "tool-drop",
    "toolCallId": "c",
    "state": "approval-responded",
    "input": {},
    "approval": {"id": "a", "approved": False},
}


@pytest.fixture
def built(tmp_path: Path) -> Path:
    (tmp_path / "page").mkdir()
    (tmp_path / "index.html").write_text("<!doctype html>", "utf-8")
    (tmp_path / "page" / "index-1.js").write_text("1", "utf-8")
    (tmp_path / "secret.js").write_text("no", "utf-8")
    return tmp_path


def client(app: Starlette) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")


def page(built: Path, **options: Any) -> httpx.AsyncClient:
    return client(Starlette(routes=page_routes([AGENT], built=built, **options)))


async def test_the_page_has_a_policy_and_its_files_do_not_change(built: Path) -> None:
    async with page(built) as http:
        index, script = await http.get("/"), await http.get("/page/index-1.js")
    assert (index.text, index.headers["cache-control"]) == ("<!doctype html>", "no-cache")
    policy = dict(rule.split(" ", 1) for rule in index.headers["content-security-policy"].split("; "))
    assert policy == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "img-src": "'self' data: blob:",
        "media-src": "'self' data: blob:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    assert script.headers["content-type"].startswith("text/javascript")
    assert {response.headers["x-content-type-options"] for response in (index, script)} == {"nosniff"}


@pytest.mark.parametrize("name", ["none.js", "..%2fsecret.js", "%2e%2e%2fsecret.js", "index.html", ".js", "a..js"])
async def test_there_are_no_other_files(built: Path, name: str) -> None:
    async with page(built) as http:
        assert (await http.get(f"/page/{name}")).status_code == 404


async def test_without_a_build_the_page_says_how_to_build_it(tmp_path: Path) -> None:
    routes = page_routes([AGENT], built=tmp_path)
    async with client(Starlette(routes=[Mount("/below", routes=routes), *routes])) as http:
        for prefix in ("", "/below"):
            response = await http.get(f"{prefix}/")
            assert response.status_code == 200
            assert f"http://localhost{prefix}/api/chat\n" in response.text
            assert "`make page`" in response.text


async def test_the_settings_tell_the_agents_relative_to_the_page(built: Path) -> None:
    app = Starlette(routes=[Mount("/below", routes=page_routes([AGENT], built=built))])
    async with client(app) as http:
        settings = (await http.get("/below/page/settings")).json()
    assert settings == {
        "signedIn": True,
        "agents": [
            {
                "path": "./api/chat",
                "name": "Tides",
                "about": "It knows the sea.",
                "prompts": [
                    {"text": "When is high water?", "shows": ""},
                    {"text": "Book a boat", "shows": "A tool that fails"},
                ],
                "client": "portable",
                "keeps": True,
                "lists": True,
                "answers": "./api/answer",
                "socket": None,
                "images": ["./charts/"],
            }
        ],
    }


@pytest.mark.parametrize("path", ["charts/", "/charts", "https://evil.example/", ""])
async def test_images_are_allowed_below_a_path(path: str) -> None:
    with pytest.raises(ValueError, match="must begin and end with a slash"):
        create_app(silent, page=True, page_images=[path])


async def check(http: httpx.AsyncClient, **body: Any) -> Any:
    return (await http.post("/page/check", json=body)).json()


async def test_a_recorded_stream_is_checked(built: Path) -> None:
    async with page(built) as http:
        accepted, refused = await check(http, recording=GOOD), await check(http, recording=BAD)
        alone = await check(http, recording=ANSWERED, client="v6")
        message = {"id": "1", "role": "assistant", "parts": [WAITING]}
        continued = await check(http, recording=ANSWERED, client="v6", continues=message)
    assert accepted == {"level": "accepted", "chunks": 2, "clients": ["5.0.0", "6.0.0", "7.0.0"], "violations": []}
    assert refused["level"] == "refused"
    [violation] = refused["violations"]
    assert (violation["rule"], violation["line"]) == ("part-not-open", 3)
    assert (alone["level"], continued["violations"][0]["level"]) == ("refused", "untidy")


@pytest.mark.parametrize(
    ("body", "status", "sentence"),
    [
        (b'{"recording": ', 400, "The body is not valid JSON."),
        (b"{}", 400, "The body must be an object with a recording."),
        (b'{"recording": "", "continues": 1}', 400, "The message must be an object."),
        (b'{"recording": "%s"}' % (b"x" * 4 * 1024 * 1024), 413, "The body is larger than 4,194,304 bytes."),
    ],
)
async def test_what_is_no_recording_is_refused(built: Path, body: bytes, status: int, sentence: str) -> None:
    async with page(built) as http:
        response = await http.post("/page/check", content=body, headers={"content-type": "application/json"})
    assert (response.status_code, response.text) == (status, sentence)


async def test_who_may_not_chat_has_nothing_checked(built: Path) -> None:
    async with page(built, authenticate=BearerTokens({"sesame": "ada"})) as http:
        refused = await http.post("/page/check", json={"recording": GOOD})
        settings = (await http.get("/page/settings")).json()
        http.headers["authorization"] = "Bearer sesame"
        taken = await check(http, recording=GOOD)
        known = (await http.get("/page/settings")).json()
    assert refused.status_code == 401
    assert (settings["signedIn"], known["signedIn"], taken["level"]) == (False, True, "accepted")


async def silent(_chat: object) -> str:
    return ""


@pytest.mark.parametrize(
    ("options", "keeps", "lists"),
    [
        ({}, True, False),
        ({"lists_all": True}, True, True),
        ({"authenticate": BearerTokens({})}, True, True),
        ({"history": "client", "lists_all": True, "approval_secret": "s" * 32}, False, False),
    ],
)
async def test_an_app_tells_its_page_what_it_keeps(options: dict[str, Any], keeps: bool, lists: bool) -> None:
    async with client(create_app(silent, page=True, client="v6", **options)) as http:
        [agent] = (await http.get("/page/settings")).json()["agents"]
    assert (agent["keeps"], agent["lists"], agent["client"]) == (keeps, lists, "v6")
    assert agent["socket"] == "./api/chat/ws"


async def test_an_app_has_a_page_only_if_it_is_asked_to() -> None:
    async with client(create_app(silent)) as http:
        assert (await http.get("/page/settings")).status_code == 404
