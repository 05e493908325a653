import pytest
from starlette.requests import HTTPConnection
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Origin, Subprotocol

from support.sockets import JSON, error, listing, opening, serving, texts
from usechat.errors import DatabaseBusyError
from usechat.server.auth import BearerTokens

pytestmark = pytest.mark.anyio

SECRET = "the password is swordfish"  # noqa: S105
TOKENS = BearerTokens({"token-of-ada": "ada", "token-of-bob": "bob"})


@pytest.mark.parametrize(
    "options",
    [
        {"subprotocols": [Subprotocol("usechat"), Subprotocol("bearer.token-of-ada")]},
        {"additional_headers": {"authorization": "Bearer token-of-ada"}},
    ],
)
async def test_the_user_of_the_handshake_is_the_user_of_every_frame(options: JSON):
    async with serving(authenticate=TOKENS) as house, opening(house, **options) as page:
        await page.send("r1", "hello", headers={"authorization": "Bearer token-of-bob"})
        assert texts(await page.all("r1")) == ["You said hello."]
        assert [chat.user for chat in house.chats] == ["ada"]


async def test_a_cookie_of_the_handshake_tells_the_user():
    async def by_cookie(connection: HTTPConnection) -> str | None:
        return connection.cookies.get("user")

    async with serving(authenticate=by_cookie) as house:
        async with opening(house, additional_headers={"cookie": "user=ada"}) as page:
            await page.send("r1", "hello")
            await page.all("r1")
        async with opening(house) as page:
            await page.send("r1", "hello", headers={"cookie": "user=ada"})
            assert await page.only("r1") == error("r1", "You are not signed in.")
        assert [chat.user for chat in house.chats] == ["ada"]


async def test_without_a_user_at_the_handshake_each_frame_brings_its_own():
    async with serving(authenticate=TOKENS) as house, opening(house) as page:
        for name in ("ada", "bob"):
            await page.send(name, "hello", chat=name, headers={"Authorization": f"Bearer token-of-{name}"})
            await page.all(name)
        assert [chat.user for chat in house.chats] == ["ada", "bob"]


async def test_a_frame_without_a_user_gets_an_error():
    async with serving(authenticate=TOKENS) as house, opening(house) as page:
        await page.send("r1", "hello")
        await page.send("r2", "hello", headers={"authorization": "Bearer wrong"})
        await page.resume("r3")
        for name in ("r1", "r2", "r3"):
            assert await page.only(name) == error(name, "You are not signed in.")
        assert house.chats == []


async def test_a_frame_cannot_claim_what_a_proxy_would_vouch_for():
    async def by_proxy(connection: HTTPConnection) -> str | None:
        return connection.headers.get("x-forwarded-user")

    async with serving(authenticate=by_proxy) as house, opening(house) as page:
        await page.send("r1", "hello", headers={"x-forwarded-user": "ada"})
        assert await page.only("r1") == error("r1", "You are not signed in.")


async def test_the_chat_of_somebody_else_is_not_there():
    async with serving(authenticate=TOKENS) as house, opening(house) as page:
        ada, bob = ({"authorization": f"Bearer token-of-{name}"} for name in ("ada", "bob"))
        await page.send("r1", "hold", headers=ada)
        await page.until_text("r1", "two, ")
        await page.send("r2", "hello", headers=bob)
        assert await page.only("r2") == error("r2", "There is no such chat.")
        await page.resume("r3", headers=bob)
        assert await page.only("r3") == {"type": "no-active", "requestId": "r3"}
        house.gate("chat").release()
        assert texts(await page.all("r1")) == ["three."]


async def test_the_text_of_an_exception_stays_in_the_log(caplog: pytest.LogCaptureFixture):
    async def fail(connection: HTTPConnection) -> str | None:
        if "authorization" in connection.headers:
            raise ValueError(SECRET)
        return None

    async with serving(authenticate=fail) as house, opening(house) as page:
        await page.send("r1", "hello", headers={"authorization": "x"})
        frame = await page.only("r1")
    [record] = [record for record in caplog.records if record.name == "usechat"]
    error_id = record.getMessage().rpartition(" ")[2]
    assert frame == error("r1", f"Something went wrong. (Error {error_id})")


async def test_a_busy_database_asks_for_another_try():
    async def wait(connection: HTTPConnection) -> str | None:
        if "authorization" in connection.headers:
            raise DatabaseBusyError
        return None

    async with serving(authenticate=wait) as house, opening(house) as page:
        await page.send("r1", "hello", headers={"authorization": "x"})
        assert await page.only("r1") == error("r1", "The server is busy. Try again in a moment.")


async def test_only_pages_of_this_host_or_a_listed_one_may_connect():
    async with serving(sockets=listing) as house:
        own = house.url.removeprefix("ws://").partition("/")[0]
        for origin in (f"http://{own}", "https://chat.example"):
            async with opening(house, origin=Origin(origin)) as page:
                await page.resume("r1")
                await page.only("r1")
        for origin in ("https://evil.example", "null", "http://127.0.0.1:1"):
            with pytest.raises(InvalidStatus) as caught:
                await connect(house.url, origin=Origin(origin))
            assert caught.value.response.status_code == 403


@pytest.mark.parametrize(
    ("offered", "taken"),
    [([], None), (["usechat"], "usechat"), (["bearer.abc", "b", "a"], "b"), (["bearer.abc"], None)],
)
async def test_a_subprotocol_that_is_no_token_is_taken(offered: list[str], taken: str | None):
    names = [Subprotocol(name) for name in offered]
    async with serving() as house, opening(house, subprotocols=names or None) as page:
        assert page.connection.subprotocol == taken
