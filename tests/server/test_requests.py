import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import anyio
import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from support.hang import HANG_SECONDS
from support.loopback import serving_here
from usechat.errors import RequestError
from usechat.server.requests import check_id, json_body, plain_error

pytestmark = pytest.mark.anyio

LIMIT = 1000


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
    with anyio.fail_after(HANG_SECONDS):
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
    async with serving_here(Bodies(deadline=30).app) as port:
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
    async with serving_here(Bodies(deadline=30).app) as port:
        assert await posted(port, [*headers, "content-length: 2"], b"{}") == expected


@pytest.mark.parametrize("length", [LIMIT + 1, 10**12, 10**18])
async def test_a_body_that_says_that_it_is_too_large_is_refused_before_it_comes(length: int):
    async with serving_here(Bodies(deadline=30).app) as port:
        assert await posted(port, [JSON_TYPE, f"content-length: {length}"], b"") == TOO_LARGE


async def test_a_body_is_refused_as_soon_as_it_has_become_too_large():
    async with (
        serving_here(Bodies(deadline=30).app) as port,
        talking(port, JSON_TYPE, "transfer-encoding: chunked") as (reader, writer),
    ):
        for _ in range(LIMIT // 100 + 1):
            writer.write(b"64\r\n" + b"x" * 100 + b"\r\n")
            await writer.drain()
        assert await answer(reader) == TOO_LARGE


async def test_a_client_that_sends_all_of_a_large_body_can_read_why_it_was_refused():
    async with serving_here(Bodies(deadline=30).app) as port, httpx.AsyncClient(trust_env=False) as client:
        for _ in range(2):
            response = await client.post(f"http://127.0.0.1:{port}/", json="x" * 5_000_000)
            assert (response.status_code, response.text) == TOO_LARGE


async def is_closed(reader: asyncio.StreamReader) -> bool:
    with anyio.fail_after(HANG_SECONDS):
        try:
            return await reader.read() == b""
        except ConnectionResetError:
            return True


async def test_a_body_that_drips_is_given_up_with_its_connection():
    async with (
        serving_here(Bodies(deadline=0.2).app) as port,
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
    async with serving_here(bodies.app) as port:
        async with talking(port, JSON_TYPE, "content-length: 999") as (_, writer):
            writer.write(b"{")
            await writer.drain()
        with anyio.fail_after(HANG_SECONDS):
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
