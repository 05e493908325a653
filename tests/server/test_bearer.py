import hashlib
import subprocess
import sys

import pytest
from starlette.requests import HTTPConnection

from support.tokens import bearer, connection
from usechat.server.auth import BearerTokens, authenticated, bearer_token

pytestmark = pytest.mark.anyio


async def test_a_plain_and_an_async_function_may_tell_the_user():
    async def later(_: HTTPConnection) -> str | None:
        return "ada"

    assert await authenticated(later, connection()) == "ada"
    assert await authenticated(lambda _: "ada", connection()) == "ada"
    assert await authenticated(lambda _: None, connection()) is None


def test_an_app_with_opaque_tokens_does_not_load_the_package_for_jwts():
    program = """
import sys
import usechat.server.app
from usechat.server.auth import BearerTokens
BearerTokens({"abc": "ada"})
print("jwt" in sys.modules)
"""
    assert subprocess.check_output([sys.executable, "-c", program]) == b"False\n"


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
