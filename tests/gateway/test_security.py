"""What strangers and bad requests get from the gateway, and what of them reaches a session."""

import json
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import product
from typing import Any, Final
from urllib.parse import quote

import httpx
import pytest
from starlette.requests import HTTPConnection
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from support.gateways import Gateway, serving_gateway, statements, until_chunk
from support.loopback import message, parts, text_part
from support.mutations import Request
from support.tokens import PUBLIC, RSA, STRANGER, auth, claims, part, signed, with_hmac
from support.wires import Answer, Wire
from usechat.database import Database
from usechat.gateway.directory import SessionDirectory
from usechat.gateway.settings import SWITCH, GatewaySettings
from usechat.server.auth import JwtKeys

pytestmark = pytest.mark.anyio

JSON = dict[str, Any]

ROUTES: Final = (
    ("POST", "chat"),
    ("GET", "chat/c/stream"),
    ("POST", "chat/c/stop"),
    ("POST", "answer"),
    ("GET", "channels"),
)
NOW: Final = int(time.time())
RSA_PEM: Final = PUBLIC["RS256"]
assert isinstance(RSA_PEM, bytes)


def rs256(**changed: Any) -> str:
    return signed(claims(**{"sub": "ana", **changed}), RSA, "RS256")


def error(response: httpx.Response) -> tuple[int, str, str]:
    """The status, the code and the sentence of a refusal, which nobody may store."""
    assert response.headers["cache-control"] == "no-store"
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert body.keys() == {"error", "code"}
    assert 0 < len(body["error"]) < 200
    assert body["error"].isprintable()
    return response.status_code, body["code"], body["error"]


UNAUTHORIZED: Final = (401, "UNAUTHORIZED", "Missing or invalid authentication.")
NO_SESSION: Final = (404, "NOT_FOUND", "There is no session with this id.")
NO_ROUTE: Final = (404, "NOT_FOUND", "There is nothing here.")

FORGED: Final = {
    "alg none": f"{part({'alg': 'none'})}.{part(claims(sub='ana'))}.",
    "alg none with a signature": f"{part({'alg': 'none'})}.{part(claims(sub='ana'))}.{part(b'x')}",
    "HS256 with the RSA key": with_hmac({"alg": "HS256"}, claims(sub="ana"), RSA_PEM),
    "a wrong key": signed(claims(sub="ana"), STRANGER),
    "expired": rs256(exp=NOW - 60),
    "not yet valid": rs256(nbf=NOW + 86_400),
    "another audience": rs256(aud="other"),
    "another issuer": rs256(iss="https://evil.example"),
    "no sub": rs256(sub=None),
    "no exp": rs256(exp=None),
    "no user of the directory": rs256(sub="stranger"),
    "a user with a line break": rs256(sub="ana\n"),
    "a token that nobody made": "0" * 64,
    "a user's id": "ana",
    "two dots": "..",
}


async def test_a_token_that_is_not_good_lets_nobody_in():
    async with serving_gateway(jwt=auth(JwtKeys.static("RS256", RSA_PEM))) as gateway:
        revoked, expired = await gateway.directory.add_token("ana", 60), await gateway.directory.add_token("ana", -1)
        await gateway.directory.revoke(revoked)
        good = (await gateway.headers("ana"))["authorization"]
        headers: list[list[tuple[str, str]]] = [
            [],
            *([("authorization", f"Bearer {token}")] for token in (*FORGED.values(), revoked, expired)),
            [("authorization", good), ("authorization", good)],
            [("authorization", good), ("authorization", "Bearer x")],
            [("authorization", good.replace("Bearer", "Basic"))],
            [("cookie", good)],
        ]
        for sent, (method, rest) in product(headers, ROUTES):
            url = gateway.path(rest)
            response = await gateway.http.request(method, url, headers=sent, json=message("Hello"))
            assert error(response) == UNAUTHORIZED, sent
            assert response.headers["www-authenticate"] == "Bearer"
        # Neither do they in the address.
        token = good.split()[1]
        response = await gateway.http.get(gateway.path(f"channels?token={token}&access_token={token}"))
        assert error(response) == UNAUTHORIZED
        assert gateway.agent.addresses == []
        for authorization in (good, good.replace("Bearer", "bearer"), f"Bearer {rs256()}"):
            response = await gateway.http.get(gateway.path("channels"), headers={"authorization": authorization})
            assert response.status_code == 200
        assert set(gateway.agent.addresses) == {"/api/sessions/s1/ws?role=client&userId=ana"}


async def test_a_session_gets_the_token_of_the_user_or_that_of_the_gateway_alone():
    for token in (None, "of-the-gateway"):
        async with serving_gateway(GatewaySettings(enabled=True, upstream_token=token)) as gateway:
            own = (await gateway.headers("ana"))["authorization"]
            await gateway.ask("Hello")
            await gateway.get("channels")
            await gateway.post("answer", json={"questionId": "q", "answer": True})
            assert gateway.agent.authorizations == [own if token is None else f"Bearer {token}"] * 3


async def test_the_orchestrator_and_the_workflow_of_another_owner_are_not_there():
    async with serving_gateway() as gateway:
        for name, kind in (("orchestrator:ana:6f1c", "orchestrator"), ("workflow:ana", "workflow")):
            kinds: Any = kind
            await gateway.directory.add_session(name, "ana", kind=kinds, visibility="org_joinable")
            for method, rest in ROUTES:
                url, headers = gateway.path(rest, name), await gateway.headers("bob")
                response = await gateway.http.request(method, url, headers=headers, json=message("Hello"))
                assert error(response) == NO_SESSION
            assert gateway.agent.addresses == []
            assert text_part("You said: Hello") in await gateway.parts("Hello", session=name)
            assert gateway.agent.addresses.pop() == f"/api/sessions/{quote(name, safe='')}/ws?role=client&userId=ana"


class Stranger:
    """Sends paths to the gateway as they are, which no HTTP client would."""

    def __init__(self, wire: Wire, authorization: str) -> None:
        self._authorization = authorization
        self._wire = wire

    async def ask(self, method: str, path: str, body: bytes = b"", *, length: int | None = None) -> Answer:
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: {self._authorization}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body) if length is None else length}\r\n\r\n"
        )
        answer = await self._wire.ask(Request(method, head.encode() + body))
        assert answer is not None
        return answer


@asynccontextmanager
async def stranger_to(gateway: Gateway) -> AsyncGenerator[Stranger]:
    wire = Wire(int(gateway.url.rpartition(":")[2]))
    yield Stranger(wire, (await gateway.headers("ana"))["authorization"])
    await wire.close()


# Ids that somebody may have: data, whatever they look like.
ODD_IDS: Final = (
    "a/b",
    "../s1",
    "...",
    "s1/../s2",
    "/",
    "s1/chat",
    "s1/chat/c/stop",
    "orchestrator:ana:6f1c",
    "%2e%2e%2f",
    "%",
    "%00",
    "a?role=runner&x",
    "a#b",
    "a;b=c",
    " ",
    "é\u2028😀",
    "' OR 1=1 --",
    "x" * 512,
)
# Those that nobody can have.
IMPOSSIBLE: Final = (
    "a\nb",
    "s1\n",
    "a\r\nx: y",
    "\x00",
    "s1\x00",
    "\x7f",
    "\x9f",
    "x" * 513,
    "x" * 10_000,
    "/.." * 3_000,
)


async def test_the_id_of_a_session_is_data():
    async with serving_gateway() as gateway, stranger_to(gateway) as stranger:
        for name in (*ODD_IDS, *IMPOSSIBLE, "", ".", ".."):
            for (method, rest), sent in product(ROUTES, {quote(name, safe=""), quote(name)}):
                answer = await stranger.ask(
                    method, f"/api/sessions/{sent}/{rest}", json.dumps(message("Hello")).encode()
                )
                assert (answer.status, json.loads(answer.body)["code"]) == (404, "NOT_FOUND"), (name, answer)
        assert gateway.agent.addresses == []
        for name in ODD_IDS:
            await gateway.directory.add_session(name, "ana")
        for name in ODD_IDS:
            await stranger.ask("GET", f"/api/sessions/{quote(name, safe='')}/channels")
            assert gateway.agent.addresses == [f"/api/sessions/{quote(name, safe='')}/ws?role=client&userId=ana"]
            gateway.agent.addresses.clear()
            # It is escaped once, not twice.
            answer = await stranger.ask("GET", f"/api/sessions/{quote(quote(name, safe=''), safe='')}/channels")
            assert answer.status == (200 if quote(name, safe="") == name else 404)
            gateway.agent.addresses.clear()


async def test_the_id_of_a_chat_is_data():
    async with serving_gateway() as gateway:
        for number, name in enumerate(ODD_IDS):
            escaped = quote(name, safe="")
            async with gateway.asking("hang", chat=name) as stream:
                await until_chunk(stream, type="text-delta")
                for other in ("c", quote(escaped, safe="")):
                    if other != escaped:
                        assert (await gateway.get(f"chat/{other}/stream")).status_code == 204
                        assert (await gateway.post(f"chat/{other}/stop")).status_code == 204
                assert len(gateway.agent.received("abort")) == number
                assert (await gateway.post(f"chat/{escaped}/stop")).status_code == 204
                await until_chunk(stream, type="abort")
            await gateway.agent.until(lambda: not gateway.agent.sockets)
            assert len(gateway.agent.received("abort")) == number + 1
        for name in IMPOSSIBLE:
            response = await gateway.post("chat", json=message("Hello", name))
            assert error(response) == (
                400,
                "VALIDATION_ERROR",
                "id must be a string of 1 to 512 characters without control characters.",
            )
            for method, rest in (("GET", "stream"), ("POST", "stop")):
                url = gateway.path(f"chat/{quote(name, safe='')}/{rest}")
                response = await gateway.http.request(method, url, headers=await gateway.headers("ana"))
                assert error(response)[0] == (404 if "\n" in name else 400)
        assert len(gateway.agent.received("prompt")) == len(ODD_IDS)


async def test_a_channel_is_data():
    async with serving_gateway() as gateway:
        for name in ODD_IDS:
            # A type has no colon, which stands between the two.
            kind = name.replace(":", ".")
            query = f"?channelType={quote(kind, safe='')}&channelId={quote(name, safe='')}"
            async with gateway.asking("Hello", chat=name, query=query) as stream:
                await until_chunk(stream, type="text-delta")
                await until_chunk(stream, type="finish")
            sent = gateway.agent.received("prompt")[-1].message
            assert (sent["channelType"], sent["channelId"]) == (kind, name)
        for field, name in product(("channelType", "channelId"), IMPOSSIBLE):
            response = await gateway.post(f"chat?{field}={quote(name, safe='')}", json=message("Hello"))
            assert error(response) == (
                400,
                "VALIDATION_ERROR",
                f"{field} must be a string of 1 to 512 characters without control characters.",
            )
        response = await gateway.post("chat?channelType=web:default&channelId=x", json=message("Hello"))
        assert error(response) == (400, "VALIDATION_ERROR", "channelType must not have a colon.")
        assert len(gateway.agent.received("prompt")) == len(ODD_IDS)


async def test_the_id_of_a_question_is_data():
    async with serving_gateway() as gateway:
        async with gateway.asking("question Sure?") as stream:
            asked = (await until_chunk(stream, type="data-question"))["data"]["questionId"]
            for name in (*ODD_IDS, *IMPOSSIBLE, "", f"{asked}\n", asked[:-1]):
                response = await gateway.post("answer", json={"questionId": name, "answer": "x" * 1000})
                assert error(response) == (404, "NOT_FOUND", "There is no such question open.")
            bad: list[JSON] = [
                {},
                {"questionId": asked},
                {"questionId": 1, "answer": 1},
                {"questionId": asked, "answer": 1},
            ]
            for body in bad:
                response = await gateway.post("answer", json=body)
                assert error(response)[:2] == (400, "VALIDATION_ERROR")
            assert gateway.agent.received("answer") == []
            assert (await gateway.post("answer", json={"questionId": asked, "answer": "yes"})).status_code == 204
            await until_chunk(stream, type="finish")
        [answer] = gateway.agent.received("answer")
        assert answer.message == {"type": "answer", "questionId": asked, "answer": "yes"}


async def test_nobody_reads_or_stops_the_turn_of_another_user_or_of_another_session():
    async with serving_gateway() as gateway:
        await gateway.headers("bob")
        await gateway.directory.grant("s1", "bob", "owner")
        await gateway.directory.add_session("s2", "ana")
        # What a chat of another session would be called, if ids were put together carelessly.
        await gateway.directory.add_session("s1/c", "ana")
        async with gateway.asking("hang", chat="c") as stream:
            await until_chunk(stream, type="text-delta")
            for user, session, chat in (
                ("bob", "s1", "c"),
                ("ana", "s2", "c"),
                ("ana", "s1/c", "c"),
                ("ana", "s1", "s1%0Ac"),
                ("ana", "s2", "s1%0Ac"),
                ("bob", "s1", "ana%0As1%0Ac"),
            ):
                read = await gateway.get(f"chat/{chat}/stream", user=user, session=session)
                stopped = await gateway.post(f"chat/{chat}/stop", user=user, session=session)
                refused = 404 if "%0A" in chat else 204
                assert (read.status_code, stopped.status_code) == (refused, refused)
            assert gateway.agent.received("abort") == []
            assert (await gateway.post("chat/c/stop?turn=another")).status_code == 204
            assert gateway.agent.received("abort") == []
            assert (await gateway.post("chat/c/stop")).status_code == 204
            await until_chunk(stream, type="abort")
        await gateway.agent.until(lambda: bool(gateway.agent.received("abort")))


METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND")


async def test_while_it_is_off_nothing_is_looked_at():
    asked: list[HTTPConnection] = []
    bad = {"content-type": "text/plain", "content-encoding": "gzip"}
    async with serving_gateway(GatewaySettings(enabled=False), authenticate=asked.append) as gateway:
        with statements() as seen:
            for method, (_, rest) in product(METHODS, (*ROUTES, ("", ""), ("", "nothing"))):
                response = await gateway.http.request(method, gateway.path(rest), content=b"{", headers=bad)
                assert error(response) == NO_ROUTE
            assert (await gateway.http.head(gateway.path("channels"))).status_code == 404
        # Whoever runs it can still see that it lives.
        assert (await gateway.http.get(f"{gateway.url}/healthz")).text == "ok\n"
    assert (asked, seen, gateway.agent.addresses) == ([], [], [])


@pytest.mark.parametrize(
    ("value", "is_on"),
    [("true", True), ("True", True), ("1", True), ("", False), ("false", False), ("0", False), (None, False)],
)
def test_the_environment_switches_it_on(monkeypatch: pytest.MonkeyPatch, value: str | None, is_on: bool):
    monkeypatch.delenv(SWITCH, raising=False)
    if value is not None:
        monkeypatch.setenv(SWITCH, value)
    assert GatewaySettings().is_on is is_on
    assert (GatewaySettings(enabled=True).is_on, GatewaySettings(enabled=False).is_on) == (True, False)


HELLO: Final = json.dumps(message("Hello")).encode()
TYPE: Final = {"content-type": "application/json"}
NOT_FOUND: Final = (404, "NOT_FOUND")
WRONG_METHOD: Final = (405, "METHOD_NOT_ALLOWED")
WRONG_TYPE: Final = (415, "UNSUPPORTED_MEDIA_TYPE")
BAD: Final = (400, "VALIDATION_ERROR")
TOO_LARGE: Final = (413, "PAYLOAD_TOO_LARGE")

BAD_PATHS: Final = {
    "GET /": NOT_FOUND,
    "GET /nothing": NOT_FOUND,
    "GET /api": NOT_FOUND,
    "GET /api/sessions": NOT_FOUND,
    "POST /api/sessions": NOT_FOUND,
    "GET /api/sessions/": NOT_FOUND,
    "GET /healthz/": NOT_FOUND,
    "POST /healthz": WRONG_METHOD,
    "GET /api/sessions/s1": NOT_FOUND,
    "GET /api/sessions/s1/ws": NOT_FOUND,
    "POST /api/sessions/s1/chat/": NOT_FOUND,
    "POST /api/sessions/s1/chat/c": NOT_FOUND,
    "GET /api/sessions/s1/chat/c/messages": NOT_FOUND,
    "GET /api/sessions/api/sessions/s1/channels": NOT_FOUND,
    "GET /api/sessions/s1/chat": WRONG_METHOD,
    "DELETE /api/sessions/s1/chat": WRONG_METHOD,
    "POST /api/sessions/s1/channels": WRONG_METHOD,
    "POST /api/sessions/s1/chat/c/stream": WRONG_METHOD,
    "GET /api/sessions/s1/chat/c/stop": WRONG_METHOD,
    "GET /api/sessions/s1/answer": WRONG_METHOD,
}
BAD_BODIES: Final[list[tuple[bytes, dict[str, str], tuple[int, str]]]] = [
    (b"", {}, WRONG_TYPE),
    (HELLO, {"content-type": "text/plain"}, WRONG_TYPE),
    (HELLO, {**TYPE, "content-encoding": "gzip"}, WRONG_TYPE),
    (b"", TYPE, BAD),
    (b"{", TYPE, BAD),
    (b"\xff\xfe", TYPE, BAD),
    (b"[" * 30_000, TYPE, BAD),
    (b"null", TYPE, BAD),
    (b"[]", TYPE, BAD),
    (b"{}", TYPE, BAD),
]


async def test_every_refusal_is_json_with_a_code():
    async with serving_gateway() as gateway, stranger_to(gateway) as stranger:
        ana = await gateway.headers("ana")
        for line, expected in BAD_PATHS.items():
            method, path = line.split()
            response = await gateway.http.request(method, gateway.url + path, headers=ana)
            assert error(response)[:2] == expected, line
        for rest, (content, headers, expected) in product(("chat", "answer"), BAD_BODIES):
            response = await gateway.http.post(gateway.path(rest), content=content, headers={**ana, **headers})
            assert error(response)[:2] == expected, (rest, content)
        response = await gateway.http.post(gateway.path("answer"), content=b" " * 70_000, headers={**ana, **TYPE})
        assert error(response)[:2] == TOO_LARGE
        # Whoever tells that it will be large is not waited for.
        answer = await stranger.ask("POST", "/api/sessions/s1/chat", length=41 * 1024 * 1024)
        assert (answer.status, json.loads(answer.body)["code"], answer.headers["cache-control"]) == (
            *TOO_LARGE,
            "no-store",
        )
        assert gateway.agent.addresses == []


async def test_a_websocket_finds_nothing():
    async with serving_gateway() as gateway:
        ana = await gateway.headers("ana")
        statuses: set[int] = set()
        for rest in (
            "",
            "nothing",
            *(f"api/sessions/{session}/{rest}" for session in ("s1", "s2") for _, rest in ROUTES),
        ):
            with pytest.raises(InvalidStatus) as refused:
                async with connect(f"{gateway.url.replace('http', 'ws')}/{rest}", additional_headers=ana, proxy=None):
                    pass
            statuses.add(refused.value.response.status_code)
        assert statuses == {403}


SECRET: Final = "the password is hunter2"  # noqa: S105


async def test_the_text_of_an_exception_is_shown_to_nobody(caplog: pytest.LogCaptureFixture):
    def fail(_connection: HTTPConnection) -> str:
        raise RuntimeError(SECRET)

    async with serving_gateway(authenticate=fail) as gateway:
        for method, rest in ROUTES:
            response = await gateway.http.request(method, gateway.path(rest), json=message("Hello"))
            status, code, sentence = error(response)
            assert (status, code) == (500, "INTERNAL_ERROR")
            assert sentence.startswith("Something went wrong.")
            assert SECRET not in response.text
    assert SECRET in caplog.text


async def test_a_directory_that_is_away_is_told_in_one_sentence():
    away = SessionDirectory(Database("postgresql://ana:hunter2@127.0.0.1:1/sessions"))
    async with serving_gateway(directory=away) as gateway:
        for method, rest in ROUTES:
            url, headers = gateway.path(rest), await gateway.headers("ana")
            response = await gateway.http.request(method, url, headers=headers, json=message("Hello"))
            assert error(response) == (503, "SERVICE_UNAVAILABLE", "The server is busy. Try again in a moment.")
            assert response.headers["retry-after"] == "5"
        assert (await gateway.http.get(f"{gateway.url}/readyz")).status_code == 503
        assert gateway.agent.addresses == []


async def test_an_upstream_that_refuses_is_told_in_one_sentence():
    async with serving_gateway(token="of the service") as gateway:  # noqa: S106
        for method, rest, sent in (("GET", "channels", {}), ("POST", "answer", {"questionId": "q", "answer": True})):
            url, headers = gateway.path(rest), await gateway.headers("ana")
            response = await gateway.http.request(method, url, headers=headers, json=sent)
            assert error(response) == (502, "BAD_GATEWAY", "Connection failed")
        body = await gateway.ask("Hello")
        assert '"errorText":"Connection failed"' in body
        assert parts(body) == []
