import asyncio
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import anyio
import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp
from starlette.websockets import WebSocket
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from usechat.errors import RequestError
from usechat.server.access import check_id, cors, host_check, json_body, origin_allowed, plain_error

pytestmark = pytest.mark.anyio

LIMIT = 1000
ANSWER_SECONDS = 10


@asynccontextmanager
async def serving(app: ASGIApp) -> AsyncGenerator[int]:
    """Serve the app on a loopback port, as `usechat serve` does it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        config = uvicorn.Config(
            app, http="httptools", ws="websockets-sansio", log_level="critical", timeout_keep_alive=600
        )
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve([listening]))
        yield listening.getsockname()[1]
        server.should_exit = True
        await task


class Bodies:
    """An app that gives back the body that it reads, and remembers who went away."""

    def __init__(self, deadline: float) -> None:
        self.gone = anyio.Event()
        self.app = Starlette(routes=[Route("/", self._answer, methods=["POST"])])
        self._deadline = deadline

    async def _answer(self, request: Request) -> Response:
        try:
            return Response(await json_body(request, limit=LIMIT, deadline=self._deadline))
        except RequestError as error:
            return plain_error(error)
        except ClientDisconnect:
            self.gone.set()
            return Response()


@asynccontextmanager
async def talking(port: int, *headers: str) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write("\r\n".join(["POST / HTTP/1.1", "host: localhost", *headers, "", ""]).encode())
    try:
        yield reader, writer
    finally:
        writer.close()


async def answer(reader: asyncio.StreamReader) -> tuple[int, str]:
    with anyio.fail_after(ANSWER_SECONDS):
        status, *headers = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        fields = dict(header.split(": ", 1) for header in headers if header)
        body = await reader.readexactly(int(fields["content-length"]))
    return int(status.split()[1]), body.decode()


async def posted(port: int, headers: Sequence[str], body: bytes) -> tuple[int, str]:
    async with talking(port, *headers) as (reader, writer):
        writer.write(body)
        return await answer(reader)


JSON_TYPE = "content-type: application/json"
TOO_LARGE = (413, "The body is larger than 1,000 bytes.")
NOT_JSON = (415, "The content type must be application/json.")
COMPRESSED = (415, "The body must not be compressed.")


async def test_a_json_body_is_read_in_whatever_pieces_it_comes():
    async with serving(Bodies(deadline=30).app) as port:
        assert await posted(port, [JSON_TYPE, "content-length: 2"], b"{}") == (200, "{}")
        chunks = b'1\r\n{\r\n4\r\n"a":\r\n2\r\n1}\r\n0\r\n\r\n'
        assert await posted(port, [JSON_TYPE, "transfer-encoding: chunked"], chunks) == (200, '{"a":1}')
        whole = b"x" * LIMIT
        assert await posted(port, [JSON_TYPE, f"content-length: {LIMIT}"], whole) == (200, whole.decode())
        assert await posted(port, [JSON_TYPE, "content-length: 0"], b"") == (200, "")


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (["content-type: application/json"], (200, "{}")),
        (["content-type: application/json; charset=utf-8"], (200, "{}")),
        (["content-type: Application/JSON ;charset=UTF-8"], (200, "{}")),
        (["content-type: application/json", "content-encoding: identity"], (200, "{}")),
        ([], NOT_JSON),
        (["content-type: text/plain"], NOT_JSON),
        (["content-type: application/x-www-form-urlencoded"], NOT_JSON),
        (["content-type: multipart/form-data; boundary=x"], NOT_JSON),
        (["content-type: text/plain; application/json"], NOT_JSON),
        (["content-type: application/jsonp"], NOT_JSON),
        (["content-type: application/json", "content-encoding: gzip"], COMPRESSED),
        (["content-type: application/json", "content-encoding: br"], COMPRESSED),
        (["content-type: application/json", "content-encoding: identity, gzip"], COMPRESSED),
    ],
)
async def test_only_plain_json_is_read(headers: list[str], expected: tuple[int, str]):
    async with serving(Bodies(deadline=30).app) as port:
        assert await posted(port, [*headers, "content-length: 2"], b"{}") == expected


@pytest.mark.parametrize("length", [LIMIT + 1, 10**12, 10**18])
async def test_a_body_that_says_that_it_is_too_large_is_refused_before_it_comes(length: int):
    async with serving(Bodies(deadline=30).app) as port:
        assert await posted(port, [JSON_TYPE, f"content-length: {length}"], b"") == TOO_LARGE


async def test_a_body_is_refused_as_soon_as_it_has_become_too_large():
    async with (
        serving(Bodies(deadline=30).app) as port,
        talking(port, JSON_TYPE, "transfer-encoding: chunked") as (reader, writer),
    ):
        for _ in range(LIMIT // 100 + 1):
            writer.write(b"64\r\n" + b"x" * 100 + b"\r\n")
            await writer.drain()
        assert await answer(reader) == TOO_LARGE


async def test_a_client_that_sends_all_of_a_large_body_can_read_why_it_was_refused():
    async with serving(Bodies(deadline=30).app) as port, httpx.AsyncClient(trust_env=False) as client:
        for _ in range(2):
            response = await client.post(f"http://127.0.0.1:{port}/", json="x" * 5_000_000)
            assert (response.status_code, response.text) == TOO_LARGE


async def is_closed(reader: asyncio.StreamReader) -> bool:
    with anyio.fail_after(ANSWER_SECONDS):
        try:
            return await reader.read() == b""
        except ConnectionResetError:
            return True


async def test_a_body_that_drips_is_given_up_with_its_connection():
    async with (
        serving(Bodies(deadline=0.2).app) as port,
        talking(port, JSON_TYPE, "content-length: 999") as (reader, writer),
    ):
        answering = asyncio.create_task(answer(reader))
        while not answering.done():
            writer.write(b"x")
            await asyncio.wait([answering], timeout=0.01)
        assert await answering == (408, "The body did not arrive within 0.2 seconds.")
        assert await is_closed(reader)


async def test_a_client_that_leaves_in_the_middle_of_its_body_is_noticed():
    bodies = Bodies(deadline=30)
    async with serving(bodies.app) as port:
        async with talking(port, JSON_TYPE, "content-length: 999") as (_, writer):
            writer.write(b"{")
            await writer.drain()
        with anyio.fail_after(ANSWER_SECONDS):
            await bodies.gone.wait()


def test_an_error_is_one_plain_sentence():
    response = plain_error(RequestError("Grüße vergessen.", status=418))
    assert (response.status_code, bytes(response.body).decode()) == (418, "Grüße vergessen.")
    assert dict(response.headers) == {
        "content-length": "18",
        "content-type": "text/plain; charset=utf-8",
        "cache-control": "no-store",
    }


def test_an_error_says_how_to_sign_in_and_when_to_come_back():
    assert plain_error(RequestError("Who?", status=401)).headers["www-authenticate"] == "Bearer"
    assert plain_error(RequestError("Busy.", status=503, retry_after=5)).headers["retry-after"] == "5"
    assert "retry-after" not in plain_error(RequestError("Busy.", status=503)).headers


@pytest.mark.parametrize("value", ["a", "b" * 512, "../../etc/passwd", "ünï 'id' {}", "%2e%2e", "\u2028"])
def test_an_id_is_data(value: str):
    assert check_id(value) == value


@pytest.mark.parametrize("value", ["", "b" * 513, "b" * 10_000, "a\r\nb", "a\x00", "\x1b[31m", "\x7f", "\x85"])
def test_an_id_has_a_length_and_no_control_characters(value: str):
    with pytest.raises(RequestError) as caught:
        check_id(value)
    sentence = "The chat's id must be a string of 1 to 512 characters without control characters."
    assert (caught.value.status, str(caught.value)) == (400, sentence)


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
        serving(app_behind(middleware)) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client,
    ):
        yield client


PREFLIGHT = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-own",
}
EXPOSED = "x-vercel-ai-ui-message-stream, x-usechat-turn, retry-after"


async def test_a_listed_page_may_post_json_and_read_our_headers():
    async with client_of(cors(["https://Page.example:443"], credentials=True)) as client:
        origin = {"origin": "https://page.example"}
        preflight = await client.options("/", headers={**origin, **PREFLIGHT})
        assert (preflight.status_code, of_cors(preflight)) == (
            200,
            {
                "access-control-allow-origin": "https://page.example",
                "access-control-allow-credentials": "true",
                "access-control-allow-methods": "GET, POST",
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
    async with serving(app_behind(host_check())) as port:
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
