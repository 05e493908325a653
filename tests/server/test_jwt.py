import json
import time
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key as new_rsa_key
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import OKPAlgorithm, RSAAlgorithm

from support.tokens import (
    ED,
    ED_KEYS,
    JSON,
    OCT,
    PRIVATE,
    PUBLIC,
    RSA,
    SHARED_KEY,
    STRANGER,
    auth,
    bearer,
    claims,
    connection,
    jwk,
    part,
    private_pem,
    public_pem,
    signed,
    with_hmac,
)
from usechat.server.auth import JwtAlgorithm, JwtAuth, JwtKeys, authenticated

pytestmark = pytest.mark.anyio


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
        pytest.param(signed(claims(exp=str(NOW + 600))), id="expires at a text"),
        pytest.param(signed(claims(exp=10**400)), id="expires after the end of time"),
        pytest.param(signed(claims(exp=True)), id="expires at true"),
        pytest.param(signed(claims(nbf="1")), id="valid from a text on"),
        pytest.param(signed(claims(iat=-(10**400))), id="issued before the beginning of time"),
        pytest.param(signed(claims(nbf=NOW + 86_400)), id="not yet valid"),
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
        ("HS256", "x" * 31, "There is no public key or secret that is long enough for HS256."),
        ("HS256", "", "The key is not one for HS256."),
        ("RS256", PUBLIC["ES256"], "The key is not one for RS256."),
        ("RS256", weak, "There is no public key or secret that is long enough for RS256."),
        ("RS256", private_pem(RSA), "There is no public key or secret that is long enough for RS256."),
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


async def test_the_keys_may_come_from_a_file(tmp_path: Path):
    file = tmp_path / "jwks.json"
    other_use = jwk(STRANGER, kid="enc", use="enc")
    file.write_text(json.dumps({"keys": [jwk(ED, kid="k1", use="sig"), other_use, {"kty": "new"}]}))
    authenticate = auth(JwtKeys.from_file(file))
    tokens = [
        signed(claims(), kid="k1"),
        signed(claims(), STRANGER, kid="enc"),
        signed(claims(), SHARED_KEY, "HS256", kid="k1"),
        signed(claims()),
    ]
    assert [await authenticate(bearer(token)) for token in tokens] == ["ada", None, None, "ada"]


@pytest.mark.parametrize("keys", [[OCT], [jwk(ED, kid="k1"), OCT], [{"kty": "oct"}]])
def test_a_file_with_a_secret_is_refused(tmp_path: Path, keys: list[JSON]):
    file = tmp_path / "jwks.json"
    file.write_text(json.dumps({"keys": keys}))
    with pytest.raises(ValueError, match=r"^The key set holds a secret \(oct\), and must hold public keys only\.$"):
        JwtKeys.from_file(file)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"keys": {}}', '{"keys": [7]}', "\xff"])
def test_a_file_that_is_no_key_set_is_refused(tmp_path: Path, content: str):
    file = tmp_path / "jwks.json"
    file.write_text(content, "latin-1")
    with pytest.raises(ValueError, match=r"^This is not a JSON Web Key Set\.$"):
        JwtKeys.from_file(file)


@pytest.mark.parametrize(
    "fields",
    [
        jwk(ED, use="enc"),
        jwk(ED, alg="RS256"),
        jwk(ED, alg=["EdDSA"]),
        jwk(ED, kid=["k1"]),
        OKPAlgorithm.to_jwk(ED, as_dict=True),
        RSAAlgorithm.to_jwk(RSA, as_dict=True),
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
    with pytest.raises(
        ValueError, match=r"^There is no public key or secret that is long enough for ES256, EdDSA, RS256\.$"
    ):
        JwtKeys.from_file(file)
