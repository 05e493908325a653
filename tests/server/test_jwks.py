import json
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import anyio
import jwt
import pytest
from anyio import to_thread

from support.hang import HANG_SECONDS
from support.tokens import ED, ED_KEYS, JSON, OCT, SHARED_KEY, STRANGER, auth, bearer, claims, jwk, signed
from usechat.errors import RequestError
from usechat.server.auth import JwksUrl, JwtAuth

pytestmark = pytest.mark.anyio


class Provider:
    """An identity provider on a loopback port, in a thread of its own."""

    def __init__(self) -> None:
        self.answer: Callable[[], tuple[int, Iterable[str]]] = lambda: (404, "")
        self.requests = 0
        self.url = ""

    def publish(self, *keys: JSON) -> None:
        self.answer = lambda: (200, [json.dumps({"keys": keys})])


@contextmanager
def providing() -> Generator[Provider]:
    provider = Provider()

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            provider.requests += 1
            status, body = provider.answer()
            self.send_response(status)
            self.send_header("location", f"{provider.url}/elsewhere")
            self.end_headers()
            for piece in body:
                self.wfile.write(piece.encode())

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        provider.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield provider
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def provider() -> Generator[Provider]:
    with providing() as made:
        yield made


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


K1 = signed(claims(), kid="k1")
K2 = signed(claims(sub="bob"), STRANGER, kid="k2")


async def status(authenticate: JwtAuth, token: str) -> tuple[int, str, int | None]:
    with pytest.raises(RequestError) as caught:
        await authenticate(bearer(token))
    return caught.value.status, str(caught.value), caught.value.retry_after


UNAVAILABLE = (503, "Your sign-in cannot be checked now. Try again in a moment.", 15)


async def test_published_keys_are_fetched_once_and_kept(provider: Provider):
    provider.publish(jwk(ED, kid="k1"))
    authenticate = auth(JwksUrl(provider.url))
    users: list[str | None] = []

    async def ask() -> None:
        users.append(await authenticate(bearer(K1)))

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(ask)
    assert (users, provider.requests) == (["ada"] * 20, 1)


async def test_an_unknown_key_has_them_fetched_again_once_a_minute(provider: Provider):
    clock = Clock()
    authenticate = auth(JwksUrl(provider.url, clock=clock))
    provider.publish(jwk(ED, kid="k1"))
    assert [await authenticate(bearer(token)) for token in (K1, K2, K2)] == ["ada", None, None]
    assert provider.requests == 1

    clock.now += 60
    assert [await authenticate(bearer(token)) for token in (K2, K2, K1)] == [None, None, "ada"]
    assert provider.requests == 2

    provider.publish(jwk(ED, kid="k1"), jwk(STRANGER, kid="k2"))
    clock.now += 60
    assert [await authenticate(bearer(token)) for token in (K1, K2, K2)] == ["ada", "bob", "bob"]
    assert provider.requests == 3


async def test_a_withdrawn_key_is_forgotten_after_the_lifetime(provider: Provider):
    clock = Clock()
    authenticate = auth(JwksUrl(provider.url, clock=clock))
    provider.publish(jwk(ED, kid="k1"))
    assert await authenticate(bearer(K1)) == "ada"
    provider.publish(jwk(STRANGER, kid="k2"))
    clock.now += 299
    assert await authenticate(bearer(K1)) == "ada"
    clock.now += 2
    assert await authenticate(bearer(K1)) is None


async def test_keys_outlive_a_provider_that_is_away_for_less_than_an_hour(provider: Provider):
    clock = Clock()
    authenticate = auth(JwksUrl(provider.url, clock=clock))
    provider.publish(jwk(ED, kid="k1"))
    assert await authenticate(bearer(K1)) == "ada"
    provider.answer = lambda: (500, "down")
    clock.now += 3600
    assert [await authenticate(bearer(K1)), await authenticate(bearer(K1))] == ["ada", "ada"]
    assert provider.requests == 2
    clock.now += 1
    assert await status(authenticate, K1) == UNAVAILABLE
    assert provider.requests == 2


async def test_a_provider_that_was_away_is_asked_again_after_15_seconds(provider: Provider):
    clock = Clock()
    authenticate = auth(JwksUrl(provider.url, clock=clock))
    assert await status(authenticate, K1) == UNAVAILABLE
    provider.publish(jwk(ED, kid="k1"))
    clock.now += 14
    assert await status(authenticate, K1) == UNAVAILABLE
    clock.now += 1
    assert await authenticate(bearer(K1)) == "ada"
    assert provider.requests == 2


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (200, ""),
        (200, "<html>"),
        (200, "[]"),
        (200, '{"keys": []}'),
        (200, '{"keys": ["k"]}'),
        (200, '{"keys": [{"kty": "oct"}]}'),
        (200, json.dumps({"keys": [OCT]})),
        (200, '{"keys": [{"kid": ' + "[" * 100_000),
        (302, ""),
        (404, ""),
        (500, json.dumps({"keys": [jwk(ED, kid="k1")]})),
    ],
)
async def test_a_provider_that_gives_no_keys_lets_nobody_in(provider: Provider, code: int, body: str):
    provider.answer = lambda: (code, body)
    assert await status(auth(JwksUrl(provider.url)), K1) == UNAVAILABLE
    assert provider.requests == 1


async def test_a_provider_that_does_not_answer_lets_nobody_in(provider: Provider):
    over = threading.Event()
    provider.answer = lambda: (200 if over.wait() else 500, "")
    try:
        assert await status(auth(JwksUrl(provider.url, timeout=0.1)), K1) == UNAVAILABLE
    finally:
        over.set()


async def test_a_provider_that_drips_is_given_up_and_has_one_thread_at_most(provider: Provider):
    asked, over = threading.Event(), threading.Event()

    def drops() -> Generator[str]:
        asked.set()
        while not over.wait(0.01):
            yield " "

    provider.answer = lambda: (200, drops())
    clock = Clock()
    # Long enough that a busy machine takes no drop for a silence, which would end the download.
    authenticate = auth(JwksUrl(provider.url, timeout=2, clock=clock))
    try:
        for _ in range(3):
            with anyio.fail_after(HANG_SECONDS):
                assert await status(authenticate, K1) == UNAVAILABLE
            clock.now += 15
        await to_thread.run_sync(asked.wait)
        assert provider.requests == 1
    finally:
        over.set()


async def test_a_key_set_without_end_is_read_up_to_a_megabyte(provider: Provider, caplog: pytest.LogCaptureFixture):
    sent: list[str] = []

    def flood() -> Generator[str]:
        for _ in range(200):
            sent.append(" ")
            yield " " * 1024 * 1024

    provider.answer = lambda: (200, flood())
    assert await status(auth(JwksUrl(provider.url, timeout=30)), K1) == UNAVAILABLE
    [record] = [record for record in caplog.records if record.name == "usechat.server.auth"]
    assert "The key set is larger than 1,048,576 bytes." in record.getMessage()
    assert len(sent) < 100


async def test_a_fetch_keeps_only_those_waiting_whose_key_is_not_there(provider: Provider):
    clock = Clock()
    authenticate = auth(JwksUrl(provider.url, clock=clock))
    provider.publish(jwk(ED, kid="k1"))
    assert await authenticate(bearer(K1)) == "ada"

    asked, go_on = threading.Event(), threading.Event()
    both = json.dumps({"keys": [jwk(ED, kid="k1"), jwk(STRANGER, kid="k2")]})

    def slowly() -> tuple[int, Iterable[str]]:
        asked.set()
        go_on.wait()
        return 200, both

    provider.answer = slowly
    clock.now += 301
    users: list[str | None] = []

    async def ask(token: str) -> None:
        users.append(await authenticate(bearer(token)))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask, K1)
        await to_thread.run_sync(asked.wait)
        tasks.start_soon(ask, K2)
        assert await authenticate(bearer(K1)) == "ada"
        assert users == []
        go_on.set()
    assert (sorted(filter(None, users)), provider.requests) == (["ada", "bob"], 2)


async def test_a_published_secret_is_no_key(provider: Provider):
    provider.publish(jwk(ED, kid="k1"), OCT)
    authenticate = auth(JwksUrl(provider.url))
    assert await authenticate(bearer(K1)) == "ada"
    assert await authenticate(bearer(signed(claims(), SHARED_KEY, "HS256", kid="shared"))) is None


async def test_no_url_and_no_key_of_a_token_is_used(provider: Provider):
    provider.publish(jwk(STRANGER, kid="k2"))
    for name in ("jku", "x5u", "kid", "jwk"):
        value = jwk(STRANGER) if name == "jwk" else provider.url
        assert await auth(ED_KEYS)(bearer(jwt.encode(claims(), STRANGER, "EdDSA", {name: value}))) is None
    assert provider.requests == 0


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://id.example/keys", "data:,{}", "id.example", ""])
def test_only_a_web_address_can_publish_keys(url: str):
    with pytest.raises(ValueError, match=r"^Keys are fetched by http or https only\.$"):
        JwksUrl(url)
