"""Requests that are nearly right: valid ones with something changed, in their JSON, their bytes or their headers."""

import json
import random
from collections.abc import Sequence
from copy import deepcopy
from typing import Any, Final, NamedTuple, TypeAlias, cast

__all__ = ["Mutator", "Request", "Site"]

JSON: TypeAlias = Any

_JUNK: Final[Sequence[JSON]] = (
    None,
    True,
    0,
    -1,
    1e308,
    2**70,
    "",
    "x" * 600,
    "\x00",
    "\ud800",
    "__proto__",
    "../../etc/passwd",
    [],
    {},
    [None],
    {"type": "text"},
    {"constructor": {"prototype": 1}},
)
_NAMES: Final = ("id", "messages", "message", "trigger", "messageId", "role", "parts", "type", "text", "state", "input")
_METHODS: Final = ("GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "post", "\x01")
_CHATS: Final = ("chat-1", "tool", "%00", "%ff%fe", "..%2f..", "a/b", "%0d%0ax:1", "x" * 513, "%20", "", "ws")
_HEADERS: Final = (
    ("content-type", "text/plain"),
    ("content-type", "application/json; charset=utf-16"),
    ("content-type", ""),
    ("content-encoding", "gzip"),
    ("accept", "\xff\xfe"),
    ("origin", "https://evil.example"),
    ("origin", "null"),
    ("authorization", "Bearer \xe9"),
    ("cookie", "=;=;;"),
    ("last-event-id", "1.9"),
    ("last-event-id", "x" * 4_000),
    ("range", "bytes=0-1"),
    ("expect", "100-continue"),
    ("upgrade", "websocket"),
    ("transfer-encoding", "gzip"),
    ("content-length", "-1"),
    ("content-length", "1e3"),
    ("x" * 300, "y"),
    ("x-usechat", "z" * 9_000),
)
_QUERIES: Final = ("", "?after=", "?after=9.9", "?after=%ff", "?turn=x", "?turn=%00&turn=1", "?&&==", "?channelId=%0a")


class Site(NamedTuple):
    """The paths of a server: those to post to, those that go before the id of a chat, those after it, and others."""

    posts: tuple[str, ...] = ("/api/chat",)
    before: tuple[str, ...] = ("/api/chat/",)
    after: tuple[str, ...] = ("/stream", "/stop", "/messages", "", "/")
    others: tuple[str, ...] = ("/", "/healthz", "/readyz", "/metrics", "/api/chat", "*", "/api/chat/ws")
    headers: tuple[tuple[str, str], ...] = ()


_SITE: Final = Site()


class Request(NamedTuple):
    """A request as the bytes that go over the wire."""

    method: str
    wire: bytes


class Mutator:
    """Draws requests and frames; the same seed draws the same ones."""

    def __init__(self, seed: int, bodies: Sequence[JSON], site: Site = _SITE) -> None:
        self._site = site
        self._random = random.Random(seed)  # noqa: S311
        self._bodies = [json.dumps(body) for body in bodies]
        self._changes = (self._replace, self._replace, self._delete, self._double, self._add, self._swap)
        self._spoils = (self._cut, self._flip, self._insert, self._repeat_a_key, self._wrap)

    def request(self) -> Request:
        """A request to any route, most of them posts."""
        kind, site, choice = self._random.random(), self._site, self._random.choice
        if kind < 0.8:
            return self._http("POST", choice(site.posts), self.body())
        if kind < 0.95:
            path = f"{choice(site.before)}{choice(_CHATS)}{choice(site.after)}{choice(_QUERIES)}"
            return self._http(choice(("GET", "POST", choice(_METHODS))), path, b"")
        return self._http(choice(_METHODS), choice(site.others), self.body())

    def body(self) -> bytes:
        """A valid body with one to three things changed, and seldom with none."""
        value = json.loads(self._random.choice(self._bodies))
        if value.get("id") == "chat":
            # One chat that all of them go to would become long, and slow.
            value["id"] = f"chat-{self._random.randrange(300)}"
        for _ in range(self._random.choice((0, 1, 1, 1, 2, 3))):
            value = self._random.choice(self._changes)(value)
        text = json.dumps(value, ensure_ascii=self._random.random() < 0.5).encode("utf-8", "surrogatepass")
        return self._random.choice(self._spoils)(text) if self._random.random() < 0.25 else text

    def _http(self, method: str, path: str, body: bytes) -> Request:
        headers = {"host": "localhost", "content-type": "application/json", "content-length": str(len(body))}
        headers |= self._site.headers
        if self._random.random() < 0.15:
            name, value = self._random.choice(_HEADERS)
            headers[name] = value
        if self._random.random() < 0.05:
            del headers[self._random.choice(list(headers))]
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return Request(method, f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body)

    def _replace(self, value: JSON) -> JSON:
        holder, key = self._place(value)
        if holder is None:
            return self._junk()
        holder[key] = self._junk()
        return value

    def _delete(self, value: JSON) -> JSON:
        holder, key = self._place(value)
        if holder is not None:
            del holder[key]
        return value

    def _double(self, value: JSON) -> JSON:
        holder, key = self._place(value)
        if isinstance(holder, list):
            items = cast("list[JSON]", holder)
            items.extend([items[key]] * self._random.choice((1, 2, 1_001)))
        return value

    def _add(self, value: JSON) -> JSON:
        holder, _ = self._place(value)
        if isinstance(holder, dict):
            holder[self._random.choice(_NAMES)] = self._junk()
        return value

    def _swap(self, value: JSON) -> JSON:
        one, first = self._place(value)
        other, second = self._place(value)
        if one is not None and other is not None:
            one[first] = json.loads(json.dumps(other[second]))
        return value

    def _junk(self) -> JSON:
        junk = deepcopy(self._random.choice(_JUNK))
        for _ in range(self._random.choice((0, 0, 0, 0, 3, 70))):
            junk = [junk] if self._random.random() < 0.5 else {"x": junk}
        return junk

    def _place(self, value: JSON) -> tuple[Any, Any]:
        """A random place below the value: what holds it, and its key there."""
        holder: Any = None
        key: Any = None
        while isinstance(value, dict | list) and value and (holder is None or self._random.random() < 0.8):
            holder = cast("Any", value)
            key = self._random.choice(list(holder if isinstance(value, dict) else range(len(holder))))
            value = holder[key]
        return holder, key

    def _cut(self, text: bytes) -> bytes:
        return text[: self._random.randrange(len(text) + 1)]

    def _flip(self, text: bytes) -> bytes:
        place = self._random.randrange(len(text) + 1)
        return text[:place] + self._random.randbytes(self._random.choice((1, 1, 4))) + text[place + 1 :]

    def _insert(self, text: bytes) -> bytes:
        place = self._random.randrange(len(text) + 1)
        piece = self._random.choice(
            (b"\xff\xfe", b"\xc0\x80", b"\xed\xa0\x80", b"\\ud800", b"NaN", b"-Infinity", b'"', b"}", b"\x00", b"1e999")
        )
        return text[:place] + piece + text[place:]

    def _repeat_a_key(self, text: bytes) -> bytes:
        name = self._random.choice(_NAMES).encode()
        return b'{"%b":%b,' % (name, json.dumps(self._junk()).encode()) + text[1:]

    def _wrap(self, text: bytes) -> bytes:
        before = self._random.choice((b"\xef\xbb\xbf", b"[" * 5_000, b'{"x":' * 2_000, b"\xff\xfe", b" \n"))
        return before + text + self._random.choice((b"", text, b"]" * 10))
