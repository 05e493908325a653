"""The names of keys and channels, and how long they are kept.

A name has no id of a user or a chat in it, but a hash that only our secret gives.
"""

import hashlib
import hmac
from typing import Final, NamedTuple

from msgspec import Struct

from usechat.stores import TurnHead

__all__ = ["Keys", "Settings", "TurnKeys"]

_SECRET_BYTES: Final = 32
_DIGITS: Final = 32
_SCOPE_DIGITS: Final = 12


class Settings(Struct, kw_only=True):
    """In seconds and bytes; each renewal of a lease also renews the times of its turn."""

    lease: float
    keep: float
    keep_turns: int
    keep_bytes: int
    keep_running: float
    keep_used: float
    most_mirrored: int
    patience: float

    @property
    def lease_us(self) -> int:
        return int(self.lease * 1_000_000)


class TurnKeys(NamedTuple):
    chat: bytes
    turn: bytes
    """Its hash, and its channel."""
    log: bytes
    readers: bytes
    ended: bytes
    """The turns of the chat that have ended."""
    used: bytes
    """The ids that were used in the chat."""
    member: bytes
    """Its name in the list of running turns."""


class Keys:
    """All keys begin with the prefix, and with a hash of the scope: apps with other secrets or scopes do not meet.

    Raises:
        ValueError: the secret is missing or too short.
    """

    def __init__(self, secret: str | None, prefix: str, scope: str) -> None:
        self._secret = (secret or "").encode()
        if len(self._secret) < _SECRET_BYTES:
            raise ValueError(
                f"Turns on Redis need a secret of at least {_SECRET_BYTES} bytes that all workers share: set "
                "approval_secret (secret for sessions_gateway), or USECHAT_SECRET for a usechat command."
            )
        self.base = f"{prefix}:{self._digest('scope', scope)[:_SCOPE_DIGITS]}".encode()
        self.running = self.base + b":running"
        self.workers = self.base + b":w:"
        self.identity = self.base + b":identity"

    def chat(self, chat: str) -> bytes:
        return self._tagged(self._digest("chat", chat).encode())

    def of(self, head: TurnHead) -> TurnKeys:
        return self._turn(self._digest("chat", head.chat).encode(), head.turn.encode())

    def of_member(self, member: bytes) -> TurnKeys:
        tag, _, turn = member.partition(b":")
        return self._turn(tag, turn)

    def used_id(self, id_: str) -> bytes:
        return self._digest("spent", id_).encode()

    def _turn(self, tag: bytes, turn: bytes) -> TurnKeys:
        chat = self._tagged(tag)
        key = chat + b":" + turn
        return TurnKeys(chat, key, key + b":l", key + b":r", chat + b":t", chat + b":s", tag + b":" + turn)

    def _tagged(self, tag: bytes) -> bytes:
        return b"%b:{%b}" % (self.base, tag)

    def _digest(self, kind: str, value: str) -> str:
        digest = hmac.digest(self._secret, f"usechat {kind} {value}".encode(errors="surrogatepass"), hashlib.sha256)
        return digest.hex()[:_DIGITS]
