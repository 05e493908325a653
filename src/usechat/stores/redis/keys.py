"""The names of keys and channels: no id of a user or a chat is in them, but the hash that only our secret gives."""

import hashlib
import hmac
from typing import Final, NamedTuple

from usechat.stores import TurnHead

__all__ = ["SECRET_BYTES", "Keys", "TurnKeys"]

SECRET_BYTES: Final = 32
_DIGITS: Final = 32
_SCOPE_DIGITS: Final = 12


class TurnKeys(NamedTuple):
    chat: bytes
    turn: bytes
    """Its hash, and its channel."""
    log: bytes
    readers: bytes
    ended: bytes
    """The turns of the chat that have ended."""
    spent: bytes
    """The ids that were used in the chat."""
    member: bytes
    """What the set of running turns knows it by."""


class Keys:
    """All keys begin with the prefix, and with a hash of the scope: apps with other secrets or scopes do not meet.

    Raises:
        ValueError: the secret is missing or too short.
    """

    def __init__(self, secret: str | None, prefix: str, scope: str) -> None:
        self._secret = (secret or "").encode()
        if len(self._secret) < SECRET_BYTES:
            raise ValueError(
                f"Turns on Redis need a secret of at least {SECRET_BYTES} bytes that all workers share: set "
                "approval_secret, or USECHAT_SECRET for usechat serve."
            )
        self.base = f"{prefix}:{self._digest('scope', scope)[:_SCOPE_DIGITS]}".encode()
        self.running = self.base + b":running"
        self.workers = self.base + b":w:"

    def chat(self, chat: str) -> bytes:
        return self._tagged(self._digest("chat", chat).encode())

    def of(self, head: TurnHead) -> TurnKeys:
        return self._turn(self._digest("chat", head.chat).encode(), head.turn.encode())

    def of_member(self, member: bytes) -> TurnKeys:
        tag, _, turn = member.partition(b":")
        return self._turn(tag, turn)

    def spent_id(self, id_: str) -> bytes:
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
