"""Keys, the tokens that they sign, and the connections that bring them."""

import base64
import hashlib
import hmac
import json
import time
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1
from cryptography.hazmat.primitives.asymmetric.ec import generate_private_key as new_ec_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key as new_rsa_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from jwt.algorithms import OKPAlgorithm
from starlette.requests import HTTPConnection

from usechat.server.auth import JwksUrl, JwtAlgorithm, JwtAuth, JwtKeys

JSON = dict[str, Any]

SHARED_KEY = "correct-horse-battery-staple-1234"
RSA = new_rsa_key(65537, 2048)
EC = new_ec_key(SECP256R1())
ED = Ed25519PrivateKey.generate()
STRANGER = Ed25519PrivateKey.generate()
PRIVATE: dict[JwtAlgorithm, Any] = {"HS256": SHARED_KEY, "RS256": RSA, "ES256": EC, "EdDSA": ED}


def public_pem(key: Any) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def private_pem(key: Any) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


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


def jwk(key: Ed25519PrivateKey, **fields: Any) -> JSON:
    return {**OKPAlgorithm.to_jwk(key.public_key(), as_dict=True), **fields}


OCT: JSON = {"kty": "oct", "k": part(SHARED_KEY.encode()), "kid": "shared", "alg": "HS256"}
