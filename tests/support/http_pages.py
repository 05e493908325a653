"""A page that talks to a chat by HTTP, and what it reads."""

import json
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from support.hang import HANG_SECONDS

JSON = dict[str, Any]
LAST = ("finish", "abort", "error")


def user(message_id: str, text: str) -> JSON:
    return {"id": message_id, "role": "user", "parts": [{"type": "text", "text": text}]}


def events(lines: Iterable[str]) -> Iterator[JSON]:
    """The chunks of a stream, without its last line."""
    return (json.loads(line[6:]) for line in lines if line.startswith("data: {"))


def to_end(lines: Iterator[str]) -> list[JSON]:
    """The chunks up to the one that ends the message; the response may still be open."""
    read: list[JSON] = []
    for chunk in events(lines):
        read.append(chunk)
        if chunk["type"] in LAST:
            return read
    raise AssertionError(f"The stream has no end: {read}")


class Page:
    """One chat of a server, as a page sees it."""

    def __init__(self, http: httpx.Client, chat: str = "chat") -> None:
        self.http = http
        self.path = f"/api/chat/{chat}"
        self._chat = chat

    @contextmanager
    def posting(self, last: JSON, **fields: Any) -> Generator[Iterator[str], None, None]:
        body = {"id": self._chat, "messages": [last], **fields}
        with self.http.stream("POST", "/api/chat", json=body) as response:
            assert (response.status_code, response.reason_phrase) == (200, "OK"), response.read()
            yield response.iter_lines()

    def messages(self) -> list[JSON]:
        response = self.http.get(f"{self.path}/messages")
        assert response.status_code == 200, response.text
        return response.json()

    def stop(self) -> int:
        return self.http.post(f"{self.path}/stop").status_code


@contextmanager
def client(url: str) -> Generator[httpx.Client, None, None]:
    with httpx.Client(base_url=url, timeout=HANG_SECONDS, trust_env=False) as http:
        yield http


def metric(text: str, name: str) -> float:
    [value] = [line.split()[-1] for line in text.splitlines() if line.startswith(f"{name} ")]
    return float(value)
