"""Approvals that the server does not store: the id of each says, under a signature, what was asked and until when.

The id carries the signature, because every client sends it back; not every client knows the field `signature`.
"""

import base64
import hashlib
import hmac
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Struct

from usechat.errors import RequestError
from usechat.protocol.state import Call
from usechat.protocol.values import canonical
from usechat.server.admission import EXPIRED, NOTHING_OPEN

__all__ = ["ApprovalSigner", "AskedCall", "signed_approval_ids"]

_ANSWERED: Final = "This approval was answered already."

_KEY_BYTES: Final = 32
_MOST_USED: Final = 100_000
_log = logging.getLogger("usechat")


class AskedCall(Struct, frozen=True):
    """The call that an approval is for, and its chat and owner."""

    chat: str
    owner: str
    call_id: str
    tool: str
    input: Any


class ApprovalSigner:
    """Signs approvals, and remembers the last 100,000 that were answered in this process."""

    def __init__(self, secret: str | None, ttl: float, *, now: Callable[[], float] = time.time) -> None:
        """Take the secret that all processes share, and the seconds after which an approval expires.

        Raises:
            ValueError: The secret is too short.
        """
        self._key = _random_key() if secret is None else secret.encode()
        if len(self._key) < _KEY_BYTES:
            raise ValueError(f"The secret that approvals are signed with must have at least {_KEY_BYTES} bytes.")
        self._ttl = ttl
        self._now = now
        self._used = OrderedDict[str, None]()

    def sign(self, approval_id: str, call: AskedCall) -> str:
        """The id for the client."""
        # In milliseconds, so that asking the same again makes another approval.
        expiry = str(int((self._now() + self._ttl) * 1000))
        return f"{approval_id}.{expiry}.{self._signature(approval_id, expiry, call)}"

    def verify(self, signed_id: str, call: AskedCall) -> str:
        """The id that was signed for this call.

        Raises:
            RequestError: It was not signed for this call, has expired, or was used.
        """
        signed, _, signature = signed_id.rpartition(".")
        approval_id, _, expiry = signed.rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._signature(approval_id, expiry, call).encode()):
            raise RequestError(NOTHING_OPEN, status=409)
        if int(expiry) <= self._now() * 1000:
            raise RequestError(EXPIRED, status=409)
        if signature in self._used:
            raise RequestError(_ANSWERED, status=409)
        return approval_id

    def use(self, signed_id: str) -> None:
        """Refuse an id that was verified from now on."""
        self._used[signed_id.rpartition(".")[2]] = None
        if len(self._used) > _MOST_USED:
            self._used.popitem(last=False)

    def _signature(self, approval_id: str, expiry: str, call: AskedCall) -> str:
        asked = [call.chat, call.owner, approval_id, call.call_id, call.tool, expiry, canonical(call.input)]
        digest = hmac.digest(self._key, b"usechat approval " + msgspec.json.encode(asked), hashlib.sha256)
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _random_key() -> bytes:
    _log.warning(
        "approvals are signed with a secret of this process alone: no other process, and none after a restart, will "
        "know them; set approval_secret, or USECHAT_SECRET for usechat serve"
    )
    return secrets.token_bytes(_KEY_BYTES)


def signed_approval_ids(signer: ApprovalSigner, chat: str, owner: str) -> Callable[[str, Call, Any], str]:
    """The `approval_id` of a `MessageWriter` for this user's chat."""

    def sign(approval_id: str, call: Call, shown: Any) -> str:
        return signer.sign(approval_id, AskedCall(chat, owner, call.id, call.name, shown))

    return sign
