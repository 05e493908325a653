import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import jwt
import pytest
from anyio import to_thread
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1
from cryptography.hazmat.primitives.asymmetric.ec import generate_private_key as new_ec_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key as new_rsa_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import OKPAlgorithm
from starlette.requests import HTTPConnection

from usechat.errors import RequestError
from usechat.server.auth import BearerTokens, JwksUrl, JwtAlgorithm, JwtAuth, JwtKeys, authenticated, bearer_token

pytestmark = pytest.mark.anyio

JSON = dict[str, Any]

SHARED_KEY = "correct-horse-battery-staple-1234"
RSA = new_rsa_key(65537, 2048)
EC = new_ec_key(SECP256R1())
ED = Ed25519PrivateKey.generate()
STRANGER = Ed25519PrivateKey.generate()
PRIVATE: dict[JwtAlgorithm, Any] = {"HS256": SHARED_KEY, "RS256": RSA, "ES256": EC, "EdDSA": ED}


def public_pem(key: Any) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


PUBLIC: dict[JwtAlgorithm, str | bytes] = {
    "HS256": SHARED_KEY,
    "RS256": public_pem(RSA),
    "ES256": public_pem(EC),
    "EdDSA": public_pem(ED),
}


def connection(*headers: tuple[str, str], kind: str = "http") -> HTTPConnection:
    return HTTPConnection({"type": kind, "headers": [(name.encode(), value.encode()) for name, value in headers]})


def bearer(token: str) -> HTTPConnection:
    return connection(("authorization", f"Bearer {token}"))


def claims(**changed: Any) -> JSON:
    now = int(time.time())
    whole: JSON = {"sub": "ada", "aud": "chat", "iss": "https://id.example", "exp": now + 600, **changed}
    return {name: value for name, value in whole.items() if value is not None}


def signed(payload: JSON, key: Any = ED, algorithm: str = "EdDSA", **headers: Any) -> str:
    return jwt.encode(payload, key, algorithm, headers)


def part(value: JSON | bytes) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def with_hmac(header: JSON, payload: JSON, secret: bytes) -> str:
    body = f"{part(header)}.{part(payload)}"
    return f"{body}.{part(hmac.digest(secret, body.encode(), hashlib.sha256))}"


def auth(keys: JwtKeys | JwksUrl) -> JwtAuth:
    return JwtAuth(keys, audience="chat", issuer="https://id.example")


ED_KEYS = JwtKeys.static("EdDSA", public_pem(ED))


async def test_a_plain_and_an_async_function_may_tell_the_user():
    async def later(_: HTTPConnection) -> str | None:
        return "ada"

    assert await authenticated(later, connection()) == "ada"
    assert await authenticated(lambda _: "ada", connection()) == "ada"
    assert await authenticated(lambda _: None, connection()) is None


async def test_an_empty_id_is_nobody():
    async def later(_: HTTPConnection) -> str | None:
        return ""

    assert await authenticated(later, connection()) is None
    assert await authenticated(lambda _: "", connection()) is None


@pytest.mark.parametrize("value", ["Bearer abc", "bearer abc", "BEARER   abc"])
def test_the_header_has_a_token_whatever_the_case_of_its_scheme(value: str):
    assert bearer_token(connection(("authorization", value))) == "abc"


@pytest.mark.parametrize(
    "value",
    [
        *("", "abc", "Bearer", "Bearer ", "Bearerabc", "Basic abc", "Bearer a b", "Bearer a,b", "Bearer \xe4"),
        *("Bearer ==", "Bearer a===", "Bearer\tabc", f"Bearer {'a' * 16_385}"),
    ],
)
def test_a_malformed_header_has_no_token(value: str):
    assert bearer_token(connection(("authorization", value))) is None


def test_two_headers_have_no_token():
    assert bearer_token(connection(("authorization", "Bearer a"), ("authorization", "Bearer a"))) is None


@pytest.mark.parametrize(
    ("offered", "token"),
    [
        (["bearer.a.b-c"], "a.b-c"),
        (["usechat, bearer.abc"], "abc"),
        (["usechat", "bearer.abc"], "abc"),
        (["usechat"], None),
        (["bearer."], None),
        (["bearer.a, bearer.b"], None),
        (["Bearer.a"], None),
    ],
)
def test_a_websocket_may_bring_its_token_as_a_subprotocol(offered: list[str], token: str | None):
    headers = [("sec-websocket-protocol", value) for value in offered]
    assert bearer_token(connection(*headers, kind="websocket")) == token
    assert bearer_token(connection(*headers, kind="http")) is None


def test_the_header_of_a_websocket_comes_before_its_subprotocol():
    subprotocol = ("sec-websocket-protocol", "bearer.b")
    assert bearer_token(connection(("authorization", "Bearer a"), subprotocol, kind="websocket")) == "a"
    assert bearer_token(connection(("authorization", "Basic a"), subprotocol, kind="websocket")) is None


def test_a_token_belongs_to_its_user_and_to_nobody_else():
    tokens = BearerTokens({"token-of-ada": "ada", "token-of-bob": "bob"})
    assert [tokens(bearer(f"token-of-{name}")) for name in ("ada", "bob", "eve")] == ["ada", "bob", None]
    assert tokens(connection()) is None


def test_only_the_hashes_of_the_tokens_are_kept():
    digest = hashlib.sha256(b"token-of-ada").digest()
    assert vars(BearerTokens({"token-of-ada": "ada"})) == {"_users": {digest: "ada"}}


def test_tokens_may_be_given_by_their_hashes():
    digest = hashlib.sha256(b"token-of-ada").hexdigest()
    for spelled in (digest, digest.upper()):
        tokens = BearerTokens.from_hashes({spelled: "ada"})
        assert (tokens(bearer("token-of-ada")), tokens(bearer(digest))) == ("ada", None)


def test_tokens_that_could_never_be_used_are_refused_without_being_told():
    for make, users, sentence in (
        (BearerTokens, {"": "ada"}, "A token may hold only letters, digits and -._~+/, and up to two = at its end."),
        (BearerTokens, {"s e": "ada"}, "A token may hold only letters, digits and -._~+/, and up to two = at its end."),
        (BearerTokens, {"abc": ""}, "A token must belong to a user whose id is not empty."),
        (BearerTokens.from_hashes, {"abc": "ada"}, "A token's hash must be its SHA-256 in 64 hexadecimal digits."),
        (BearerTokens.from_hashes, {"0" * 64: ""}, "A token must belong to a user whose id is not empty."),
    ):
        with pytest.raises(ValueError, match="token") as caught:
            make(users)
        assert str(caught.value) == sentence


@pytest.mark.parametrize("algorithm", ["HS256", "RS256", "ES256", "EdDSA"])
async def test_a_signed_token_tells_its_subject(algorithm: JwtAlgorithm):
    authenticate = auth(JwtKeys.static(algorithm, PUBLIC[algorithm], kid="k1"))
    for token in (
        signed(claims(), PRIVATE[algorithm], algorithm, kid="k1"),
        signed(claims(aud=["other", "chat"], nbf=int(time.time())), PRIVATE[algorithm], algorithm),
    ):
        assert await authenticate(bearer(token)) == "ada"


async def test_a_websocket_may_bring_a_jwt_as_a_subprotocol():
    handshake = connection(("sec-websocket-protocol", f"usechat, bearer.{signed(claims())}"), kind="websocket")
    assert await auth(ED_KEYS)(handshake) == "ada"


NOW = int(time.time())


@pytest.mark.parametrize(
    "token",
    [
        pytest.param(signed(claims(exp=NOW - 60)), id="expired"),
        pytest.param(signed(claims(exp=None)), id="never expires"),
        pytest.param(signed(claims(exp="soon")), id="expires at no number"),
        pytest.param(signed(claims(nbf=NOW + 600)), id="not yet valid"),
        pytest.param(signed(claims(aud="other")), id="another audience"),
        pytest.param(signed(claims(aud=None)), id="no audience"),
        pytest.param(signed(claims(iss="https://evil.example")), id="another issuer"),
        pytest.param(signed(claims(iss=None)), id="no issuer"),
        pytest.param(signed(claims(sub=None)), id="no subject"),
        pytest.param(signed(claims(sub=7)), id="a subject that is a number"),
        pytest.param(signed(claims(), STRANGER), id="signed by a stranger"),
        pytest.param(signed(claims(), RSA, "RS256"), id="signed by another algorithm"),
        pytest.param(f"{part({'alg': 'none'})}.{part(claims())}.", id="alg none"),
        pytest.param(f"{part({'alg': 'None'})}.{part(claims())}.{part(b'x')}", id="alg None"),
        pytest.param(f"{part({'alg': ''})}.{part(claims())}.", id="alg empty"),
        pytest.param(f"{part({})}.{part(claims())}.", id="no alg"),
        pytest.param(f"{part({'alg': ['EdDSA']})}.{part(claims())}.", id="a list of algs"),
        pytest.param(signed(claims(), crit=["x"], x=1), id="a critical header that nobody knows"),
        pytest.param(f"{part({'alg': 'EdDSA', 'kid': ['k']})}.{part(claims())}.", id="a kid that is a list"),
        pytest.param("a.b.c", id="garbage in three parts"),
        pytest.param("abc", id="garbage"),
        pytest.param("...", id="dots"),
        pytest.param(f"{part({'alg': 'EdDSA'})}.{part(b'[' * 10_000)}.{part(b'x')}", id="a deep payload"),
        pytest.param(f"{part(b'[' * 10_000)}.{part(claims())}.{part(b'x')}", id="a deep header"),
        pytest.param(signed(claims(filler="x" * 100_000)), id="100 KB"),
    ],
)
async def test_a_token_is_refused(token: str):
    assert await auth(ED_KEYS)(bearer(token)) is None


async def test_an_empty_subject_is_nobody():
    assert await authenticated(auth(ED_KEYS), bearer(signed(claims(sub="")))) is None


async def test_a_tampered_token_is_refused():
    head, payload, signature = signed(claims()).split(".")
    for forged in (
        f"{head}.{part(claims(sub='root'))}.{signature}",
        f"{part({'alg': 'EdDSA', 'kid': 'x'})}.{payload}.{signature}",
        f"{head}.{payload}.{part(b'0' * 64)}",
        f"{head}.{payload}.",
        f"{head}.{payload}",
    ):
        assert await auth(ED_KEYS)(bearer(forged)) is None


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
async def test_a_public_key_is_no_secret_to_sign_with(algorithm: JwtAlgorithm):
    pem = PUBLIC[algorithm]
    assert isinstance(pem, bytes)
    authenticate = auth(JwtKeys.static(algorithm, pem))
    for header in ({"alg": "HS256"}, {"alg": algorithm}, {"alg": "HS256", "kid": "k1"}):
        assert await authenticate(bearer(with_hmac(header, claims(), pem))) is None


@pytest.mark.parametrize("kid", ["k2", "", "../../x", "/etc/passwd", "' OR 1=1 --", "http://evil.example/", "a" * 5000])
async def test_a_key_that_is_not_configured_is_never_found(kid: str):
    authenticate = auth(JwtKeys.static("EdDSA", public_pem(ED), kid="k1"))
    assert await authenticate(bearer(signed(claims(), kid=kid))) is None


async def test_a_key_without_an_id_is_for_every_token():
    assert await auth(ED_KEYS)(bearer(signed(claims(), kid="whatever"))) == "ada"


async def test_the_leeway_goes_both_ways():
    authenticate = JwtAuth(ED_KEYS, audience=["chat"], issuer=["https://id.example"], leeway=120)
    now = int(time.time())
    assert await authenticate(bearer(signed(claims(exp=now - 60)))) == "ada"
    assert await authenticate(bearer(signed(claims(nbf=now + 60)))) == "ada"
    assert await authenticate(bearer(signed(claims(exp=now - 180)))) is None
    assert await authenticate(bearer(signed(claims(nbf=now + 300)))) is None


@given(st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S"]), max_size=200))
async def test_garbage_is_nobody(token: str):
    assert await auth(ED_KEYS)(bearer(token)) is None


_VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.lists(st.just("b64"))
_OBJECTS = st.dictionaries(st.sampled_from(["alg", "kid", "crit", "b64", "typ", "exp", "aud", "jwk"]), _VALUES)


@given(_OBJECTS, _OBJECTS, st.binary(max_size=80))
async def test_any_header_with_any_claims_is_nobody_without_a_signature(header: JSON, payload: JSON, signature: bytes):
    for made in (header, {**header, "alg": "EdDSA"}):
        assert await auth(ED_KEYS)(bearer(f"{part(made)}.{part(payload)}.{part(signature)}")) is None


def test_a_key_must_be_one_for_its_algorithm():
    weak = public_pem(new_rsa_key(65537, 1024))  # noqa: S505
    cases: list[tuple[Any, str | bytes, str]] = [
        ("HS256", PUBLIC["RS256"], "The key is not one for HS256."),
        ("HS256", "x" * 31, "There is no key that is long enough for HS256."),
        ("HS256", "", "The key is not one for HS256."),
        ("RS256", PUBLIC["ES256"], "The key is not one for RS256."),
        ("RS256", weak, "There is no key that is long enough for RS256."),
        ("EdDSA", "no key at all", "The key is not one for EdDSA."),
        ("none", "", "The algorithm must be one of ES256, EdDSA, HS256, RS256."),
    ]
    for algorithm, key, sentence in cases:
        with pytest.raises(ValueError, match=r"key|algorithm") as caught:
            JwtKeys.static(algorithm, key)
        assert str(caught.value) == sentence


@pytest.mark.parametrize(("audience", "issuer"), [("", "i"), ("a", ""), ([], "i"), ("a", [])])
def test_an_audience_and_an_issuer_are_needed(audience: str, issuer: str):
    with pytest.raises(ValueError, match=r"^JwtAuth needs an audience and an issuer\.$"):
        JwtAuth(ED_KEYS, audience=audience, issuer=issuer)


def jwk(key: Ed25519PrivateKey, **fields: Any) -> JSON:
    return {**OKPAlgorithm.to_jwk(key.public_key(), as_dict=True), **fields}


OCT: JSON = {"kty": "oct", "k": part(SHARED_KEY.encode()), "kid": "shared", "alg": "HS256"}


async def test_the_keys_may_come_from_a_file(tmp_path: Path):
    file = tmp_path / "jwks.json"
    other_use = jwk(STRANGER, kid="enc", use="enc")
    file.write_text(json.dumps({"keys": [jwk(ED, kid="k1", use="sig"), OCT, other_use, {"kty": "new"}]}))
    authenticate = auth(JwtKeys.from_file(file))
    tokens = [
        signed(claims(), kid="k1"),
        signed(claims(), SHARED_KEY, "HS256", kid="shared"),
        signed(claims(), STRANGER, kid="enc"),
        signed(claims(), SHARED_KEY, "HS256", kid="k1"),
        signed(claims()),
    ]
    assert [await authenticate(bearer(token)) for token in tokens] == ["ada", "ada", None, None, None]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"keys": {}}', '{"keys": [7]}', "\xff"])
def test_a_file_that_is_no_key_set_is_refused(tmp_path: Path, content: str):
    file = tmp_path / "jwks.json"
    file.write_text(content, "latin-1")
    with pytest.raises(ValueError, match=r"^The file is not a JSON Web Key Set\.$"):
        JwtKeys.from_file(file)


@pytest.mark.parametrize(
    "fields",
    [
        jwk(ED, use="enc"),
        jwk(ED, alg="RS256"),
        jwk(ED, alg=["EdDSA"]),
        jwk(ED, kid=["k1"]),
        {"kty": "oct"},
        {"kty": "oct", "k": part(b"short")},
        {"kty": "oct", "k": part(SHARED_KEY.encode()), "alg": "HS512"},
        {"kty": "RSA", "n": 5, "e": None},
        {"kty": "OKP", "crv": "Ed25519", "x": "x"},
        {"kty": "EC", "crv": "P-384"},
        {"kty": 7},
        {},
    ],
)
def test_a_file_without_a_usable_key_is_refused(tmp_path: Path, fields: JSON):
    file = tmp_path / "jwks.json"
    file.write_text(json.dumps({"keys": [fields]}))
    with pytest.raises(ValueError, match=r"^There is no key that is long enough for ES256, EdDSA, HS256, RS256\.$"):
        JwtKeys.from_file(file)


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


async def status(authenticate: JwtAuth, token: str) -> tuple[int, str]:
    with pytest.raises(RequestError) as caught:
        await authenticate(bearer(token))
    return caught.value.status, str(caught.value)


UNAVAILABLE = (503, "Who you are cannot be checked at the moment.")


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
    over = threading.Event()

    def drops() -> Generator[str]:
        while not over.wait(0.01):
            yield " "

    provider.answer = lambda: (200, drops())
    clock = Clock()
    authenticate = auth(JwksUrl(provider.url, timeout=0.1, clock=clock))
    try:
        for _ in range(3):
            with anyio.fail_after(10):
                assert await status(authenticate, K1) == UNAVAILABLE
            clock.now += 15
        assert provider.requests == 1
    finally:
        over.set()


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


def test_only_a_web_address_can_publish_keys():
    with pytest.raises(jwt.PyJWKClientError):
        JwksUrl("file:///etc/passwd")
