"""Who gets in with which token, and who does not."""

import runpy
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.loopback import message
from support.tokens import ED_KEYS, PUBLIC, RSA, STRANGER, auth, bearer, claims, connection, part, signed, with_hmac
from usechat.database import Database
from usechat.errors import RequestError
from usechat.gateway.directory import DirectoryAuth, SessionDirectory
from usechat.server.app import create_app
from usechat.server.auth import Authenticate, JwtKeys, authenticated
from usechat.turns.chat import Chat

pytestmark = pytest.mark.anyio

NOW = int(time.time())
RSA_PEM = PUBLIC["RS256"]
assert isinstance(RSA_PEM, bytes)


@pytest.fixture
async def database() -> AsyncGenerator[Database]:
    database = Database("sqlite://")
    directory = SessionDirectory(database)
    for user in ("ada", "bob"):
        await directory.add_user(user)
    yield database
    await database.aclose()


@pytest.fixture
def directory(database: Database) -> SessionDirectory:
    return SessionDirectory(database)


@pytest.fixture
def authenticate(directory: SessionDirectory) -> Authenticate:
    return DirectoryAuth(directory, auth(JwtKeys.static("RS256", RSA_PEM)))


async def user_of(authenticate: Authenticate, token: str) -> str | None:
    return await authenticated(authenticate, bearer(token))


async def test_both_kinds_of_tokens_tell_their_user(directory: SessionDirectory, authenticate: Authenticate):
    opaque = await directory.add_token("bob", 60)
    assert await user_of(authenticate, opaque) == "bob"
    assert await user_of(authenticate, signed(claims(), RSA, "RS256")) == "ada"
    assert await authenticated(authenticate, connection()) is None
    handshake = connection(("sec-websocket-protocol", f"usechat, bearer.{opaque}"), kind="websocket")
    assert await authenticated(authenticate, handshake) == "bob"


@pytest.mark.parametrize(
    "token",
    [
        pytest.param(f"{part({'alg': 'none'})}.{part(claims())}.", id="alg none"),
        pytest.param(f"{part({'alg': 'none'})}.{part(claims())}.{part(b'x')}", id="alg none with a signature"),
        pytest.param(with_hmac({"alg": "HS256"}, claims(), RSA_PEM), id="HS256 with the RSA key"),
        pytest.param(signed(claims(), STRANGER), id="a wrong key"),
        pytest.param(signed(claims(exp=NOW - 60), RSA, "RS256"), id="expired"),
        pytest.param(signed(claims(nbf=NOW + 600), RSA, "RS256"), id="not yet valid"),
        pytest.param(signed(claims(aud="other"), RSA, "RS256"), id="another audience"),
        pytest.param(signed(claims(iss="https://evil.example"), RSA, "RS256"), id="another issuer"),
        pytest.param(signed(claims(sub="stranger"), RSA, "RS256"), id="no user of the directory"),
        pytest.param(signed(claims(sub=""), RSA, "RS256"), id="no user"),
        pytest.param(signed(claims(sub="ada\n"), RSA, "RS256"), id="a user with a newline"),
        pytest.param(signed(claims(sub="\ud800"), RSA, "RS256"), id="half a character"),
        pytest.param(signed(claims(sub="x" * 10_000), RSA, "RS256"), id="a long user"),
        pytest.param("0" * 64, id="a token that nobody made"),
        pytest.param("ada", id="a user's id"),
        pytest.param("..", id="dots"),
        pytest.param("...", id="more dots"),
    ],
)
async def test_a_token_lets_nobody_in(authenticate: Authenticate, token: str):
    assert await user_of(authenticate, token) is None


async def test_the_hash_of_a_token_is_no_token(database: Database, directory: SessionDirectory):
    await directory.add_token("bob", 60)
    query = "SELECT hash FROM usechat_tokens"
    kept: str = await database.read(lambda connection: connection.exec_driver_sql(query).scalar_one())
    assert await user_of(DirectoryAuth(directory), kept) is None


async def test_without_keys_a_jwt_is_nobodys(directory: SessionDirectory):
    assert await user_of(DirectoryAuth(directory), signed(claims(), RSA, "RS256")) is None


async def test_a_token_of_the_directory_ends_with_its_time(database: Database):
    now = [1000.0]
    directory = SessionDirectory(database, clock=lambda: now[0])
    token = await directory.add_token("bob", 60)
    found: list[str | None] = []
    for moment in (1000.0, 1059.0, 1061.0):
        now[0] = moment
        found.append(await user_of(DirectoryAuth(directory), token))
    assert found == ["bob", "bob", None]


async def test_a_revocation_counts_from_the_next_request_of_a_server(directory: SessionDirectory):
    async def agent(chat: Chat) -> AsyncGenerator[str]:
        yield f"Hello, {chat.user}."

    token = await directory.add_token("bob", 60)
    app = create_app(agent, authenticate=DirectoryAuth(directory, auth(ED_KEYS)))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:

        async def ask(value: str) -> tuple[int, str]:
            answer = await client.post("/api/chat", json=message("Hello"), headers={"Authorization": f"Bearer {value}"})
            return answer.status_code, answer.text

        status, body = await ask(token)
        assert (status, "Hello, bob." in body) == (200, True)
        await directory.revoke(token)
        assert [(await ask(value))[0] for value in (token, signed(claims()))] == [401, 404]


async def test_the_app_of_the_guide_asks_the_directory_who_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    guide = (Path(__file__).parents[2] / "docs/guides/sessions.md").read_text(encoding="utf-8")
    (tmp_path / "app.py").write_text(guide.partition("```python\n")[2].partition("```")[0], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    made = runpy.run_path("app.py")
    directory: SessionDirectory = made["directory"]
    await directory.add_user("bob")
    headers = {"Authorization": f"Bearer {await directory.add_token('bob', 60)}"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(made["app"]), base_url="http://localhost") as client:
        answers = [await client.post("/api/chat", json=message("Hello"), headers=sent) for sent in (headers, {})]
    await made["database"].aclose()
    assert [answer.status_code for answer in answers] == [200, 401]
    assert "Hello, bob." in answers[0].text


async def test_an_orchestrator_of_another_owner_is_not_there(directory: SessionDirectory, authenticate: Authenticate):
    await directory.add_session("orchestrator:ada:6f1c", "ada", kind="orchestrator", visibility="org_joinable")
    ada, bob = signed(claims(), RSA, "RS256"), await directory.add_token("bob", 60)
    for token, found in ((ada, True), (bob, False)):
        user: Any = await user_of(authenticate, token)
        for endpoint in ("chat", "stop", "answer", "stream", "channels"):
            if found:
                await directory.check_access("orchestrator:ada:6f1c", user, endpoint)
            else:
                with pytest.raises(RequestError, match=r"^There is no session with this id\.$"):
                    await directory.check_access("orchestrator:ada:6f1c", user, endpoint)


async def test_a_directory_that_is_away_lets_nobody_in():
    async def agent(_chat: Chat) -> AsyncGenerator[str]:
        yield "Hello."

    # Nobody listens at that port.
    directory = SessionDirectory(Database("postgresql://ada:secret@127.0.0.1:1/sessions"))
    app = create_app(agent, authenticate=DirectoryAuth(directory, auth(ED_KEYS)))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        for token in ("0" * 64, signed(claims())):
            headers = {"Authorization": f"Bearer {token}"}
            answer = await client.post("/api/chat", json=message("Hello"), headers=headers)
            assert (answer.status_code, answer.text) == (503, "The server is busy. Try again in a moment.")
