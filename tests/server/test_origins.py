from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from support.loopback import serving_here
from usechat.server.origins import cors, host_check, origin_allowed

pytestmark = pytest.mark.anyio


def handshake(*headers: tuple[str, str], scheme: str = "ws") -> HTTPConnection:
    raw = [(name.encode(), value.encode()) for name, value in headers]
    return HTTPConnection({"type": "websocket", "scheme": scheme, "headers": raw})


@pytest.mark.parametrize(
    ("host", "origin", "allowed"),
    [
        ("chat.example", "http://chat.example", True),
        ("chat.example", "https://chat.example", True),
        ("chat.example:443", "https://chat.example", True),
        ("Chat.Example", "https://chat.example:443", True),
        ("localhost:8000", "http://localhost:8000", True),
        ("[::1]:8000", "http://[::1]:8000", True),
        ("localhost:8000", "http://localhost:3000", False),
        ("localhost:8000", "http://localhost", False),
        ("localhost:8000", "http://127.0.0.1:8000", False),
        ("chat.example", "https://evil.example", False),
        ("chat.example", "https://chat.example.evil.example", False),
        ("chat.example", "https://evil.example/chat.example", False),
        ("chat.example", "https://chat.example@evil.example", False),
        ("chat.example", "https://sub.chat.example", False),
        ("chat.example", "null", False),
        ("chat.example", "", False),
        ("chat.example", "chat.example", False),
        ("localhost", "tauri://localhost", False),
        ("", "http://", False),
    ],
)
def test_a_websocket_comes_from_a_page_of_its_own_host(host: str, origin: str, allowed: bool):
    assert origin_allowed(handshake(("host", host), ("origin", origin))) is allowed


@pytest.mark.parametrize(
    ("site", "origin", "allowed"),
    [
        ("same-origin", "https://chat.example", True),
        ("cross-site", "https://chat.example", False),
        ("same-site", "https://chat.example", False),
        ("same-site", "http://localhost:5173", True),
        ("cross-site", "http://localhost:5173", True),
        ("cross-site", None, False),
        ("same-origin", None, True),
        ("none", None, True),
        ("same-origin", "null", False),
    ],
)
def test_what_the_browser_says_of_the_site_goes_before_the_names(site: str, origin: str | None, allowed: bool):
    """As behind a proxy that names the server by its own address."""
    headers = [("host", "127.0.0.1:8000"), ("sec-fetch-site", site)]
    headers += [] if origin is None else [("origin", origin)]
    assert origin_allowed(handshake(*headers), ["http://localhost:5173"]) is allowed
    if site != "same-origin":
        # Also where the names are the same: they may be those of another port, or rewritten.
        headers = [("host", "chat.example"), *headers[1:]]
        assert origin_allowed(handshake(*headers), ["http://localhost:5173"]) is allowed


@pytest.mark.parametrize(
    ("forwarded", "allowed"),
    [("chat.example", True), ("chat.example, inner", True), ("inner, chat.example", False), ("chat.example:81", False)],
)
def test_a_proxy_may_say_which_name_the_page_used(forwarded: str, allowed: bool):
    headers = (("host", "127.0.0.1:8000"), ("origin", "https://chat.example"), ("x-forwarded-host", forwarded))
    assert origin_allowed(handshake(*headers)) is allowed


def test_all_sites_count_only_where_no_cookies_come_by_themselves():
    foreign = handshake(("host", "chat.example"), ("origin", "https://evil.example"), ("sec-fetch-site", "cross-site"))
    assert (origin_allowed(foreign, ["*"]), origin_allowed(foreign, ["*"], any_site=True)) == (False, True)


def test_a_websocket_without_a_page_is_allowed():
    assert origin_allowed(handshake(("host", "chat.example")))


def test_a_websocket_with_two_origins_is_refused():
    own = ("origin", "http://chat.example")
    assert not origin_allowed(handshake(("host", "chat.example"), own, own))


def test_an_insecure_page_does_not_open_a_secure_websocket():
    headers = (("host", "chat.example"), ("origin", "http://chat.example"))
    assert (origin_allowed(handshake(*headers)), origin_allowed(handshake(*headers, scheme="wss"))) == (True, False)


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("https://page.example", True),
        ("http://localhost:3000", True),
        ("tauri://localhost", True),
        ("http://page.example", False),
        ("https://page.example:8443", False),
        ("https://other.example", False),
        ("null", False),
    ],
)
def test_a_websocket_may_come_from_a_listed_origin(origin: str, allowed: bool):
    listed = ["https://page.example", "http://localhost:3000", "tauri://localhost", "null", "*"]
    assert origin_allowed(handshake(("host", "chat.example"), ("origin", origin)), listed) is allowed


async def hello(request: Request) -> Response:
    return PlainTextResponse("hello", headers={"x-vercel-ai-ui-message-stream": "v1"})


async def accept(socket: WebSocket) -> None:
    await socket.accept()
    await socket.close()


def app_behind(middleware: Middleware) -> Starlette:
    routes = [Route("/", hello, methods=["GET", "POST"]), WebSocketRoute("/ws", accept)]
    return Starlette(routes=routes, middleware=[middleware])


def of_cors(response: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if name.startswith("access-control")}


@asynccontextmanager
async def client_of(middleware: Middleware) -> AsyncGenerator[httpx.AsyncClient]:
    async with (
        serving_here(app_behind(middleware)) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client,
    ):
        yield client


PREFLIGHT = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-own",
}
EXPOSED = "x-vercel-ai-ui-message-stream, x-usechat-turn, x-usechat-keep-alive, retry-after"


async def test_a_listed_page_may_post_json_and_read_our_headers():
    async with client_of(cors(["https://Page.example:443"], credentials=True)) as client:
        origin = {"origin": "https://page.example"}
        preflight = await client.options("/", headers={**origin, **PREFLIGHT})
        assert (preflight.status_code, of_cors(preflight)) == (
            200,
            {
                "access-control-allow-origin": "https://page.example",
                "access-control-allow-credentials": "true",
                "access-control-allow-methods": "GET, POST, DELETE",
                "access-control-allow-headers": "authorization,content-type,x-own",
                "access-control-max-age": "600",
            },
        )
        response = await client.post("/", headers=origin)
        assert (response.text, response.headers["vary"], of_cors(response)) == (
            "hello",
            "Origin",
            {
                "access-control-allow-origin": "https://page.example",
                "access-control-allow-credentials": "true",
                "access-control-expose-headers": EXPOSED,
            },
        )


async def test_a_page_that_is_not_listed_is_not_allowed():
    async with client_of(cors(["https://page.example"])) as client:
        for origin in ("https://evil.example", "http://page.example", "https://page.example.evil.example", "null"):
            preflight = await client.options("/", headers={"origin": origin, **PREFLIGHT})
            response = await client.post("/", headers={"origin": origin})
            assert (preflight.status_code, "access-control-allow-origin" in preflight.headers) == (400, False)
            assert "access-control-allow-origin" not in response.headers


async def test_any_page_may_be_allowed_without_credentials():
    async with client_of(cors(["*"])) as client:
        response = await client.post("/", headers={"origin": "https://page.example", "cookie": "a=b"})
        assert of_cors(response) == {
            "access-control-allow-origin": "*",
            "access-control-expose-headers": EXPOSED,
        }


def test_any_page_with_credentials_is_refused():
    with pytest.raises(ValueError, match=r"^CORS with credentials needs a list of origins, not \*\.$"):
        cors(["https://page.example", "*"], credentials=True)


@pytest.mark.parametrize(
    "origin", ["null", "", "page.example", "https://page.example/", "https://*.page.example", "https://pägé.example"]
)
def test_an_origin_that_no_browser_would_send_is_refused(origin: str):
    with pytest.raises(ValueError, match="not an origin") as caught:
        cors([origin])
    sentence = f"{origin!r} is not an origin such as https://chat.example or http://localhost:3000."
    assert str(caught.value) == sentence


async def test_a_loopback_server_answers_only_to_its_own_names():
    async with client_of(host_check()) as client:
        names = ["localhost", "localhost:8000", "LOCALHOST", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:8000"]
        others = ["evil.example", "localhost.evil.example", "evil.example:8000", "127.0.0.1.evil.example", "[::2]"]
        malformed = ["[::1", "::1", "localhost@evil.example", "127.0.0.2"]
        for hosts, status in ((names, 200), (others, 400), (malformed, 400)):
            got = {host: (await client.get("/", headers={"host": host})).status_code for host in hosts}
            assert got == dict.fromkeys(hosts, status)


async def test_a_websocket_needs_one_of_the_names_too():
    async with serving_here(app_behind(host_check())) as port:
        async with connect(f"ws://127.0.0.1:{port}/ws", proxy=None) as socket:
            await socket.wait_closed()
        with pytest.raises(InvalidStatus) as caught:
            await connect("ws://evil.example/ws", host="127.0.0.1", port=port, proxy=None)
        assert caught.value.response.status_code == 400


async def test_other_hosts_can_be_named():
    async with client_of(host_check(["chat.example", "*.chats.example"])) as client:
        hosts = {"chat.example": 200, "a.chats.example": 200, "localhost": 400, "chats.example": 400}
        got = {host: (await client.get("/", headers={"host": host})).status_code for host in hosts}
        assert got == hosts


@pytest.mark.parametrize("host", ["localhost:8000", "http://localhost", "a*b", "::1", ""])
def test_a_host_that_could_never_match_is_refused(host: str):
    with pytest.raises(ValueError, match="not a host") as caught:
        host_check([host])
    sentence = f"{host!r} is not a host such as chat.example, *.example or [::1], without a port."
    assert str(caught.value) == sentence
