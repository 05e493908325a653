"""One chat of one client with the agent of one framework."""

import secrets
import time
from collections.abc import Callable
from typing import Any

import httpx

from environments import Environment
from pages import Browser, Message, Page, View
from provider import Asked, Provider
from support.hang import HANG_SECONDS

__all__ = ["STEP", "Served", "Talk", "calls", "shown", "text", "until"]

STEP: Message = {"type": "step-start"}


class Served:
    """A server in the environment of its framework."""

    def __init__(self, port: int, http: httpx.Client) -> None:
        self.port = port
        self.http = http

    def effects(self, least: int = 0) -> list[str]:
        """What the tools have done, as soon as they have done so much."""
        return self.http.get("/effects", params={"least": least}).json()


class Talk:
    """A new chat."""

    def __init__(
        self, client: str, environment: Environment, server: Served, browser: Browser, provider: Provider
    ) -> None:
        self.client = client
        self.environment = environment
        self.server = server
        self.provider = provider
        self.chat = secrets.token_hex(8)
        self._browser = browser
        self._page: Page | None = None

    def page(self, *, server: Served | None = None, endpoint: str = "agent", **options: Any) -> Page:
        port = (server or self.server).port
        page = self._browser.open(self.client, f"/portable/{endpoint}", self.chat, port=port, **options)
        self._page = page
        return page

    def say(self, words: str) -> View:
        """Say something in the chat's page, and wait for the whole answer."""
        return (self._page or self.page()).send(words).settle()

    def stop(self) -> None:
        assert self.server.http.post(f"/portable/agent/{self.chat}/stop").status_code == 204

    def kept(self, endpoint: str = "agent") -> list[Message]:
        return self.server.http.get(f"/portable/{endpoint}/{self.chat}/messages").json()

    @property
    def asked(self) -> list[Asked]:
        """What the provider was asked since the test began."""
        return self.provider.asked

    def heard(self) -> list[tuple[str, str]]:
        """Role and text of each message of the last request, without the system's."""
        return [(one.role, one.text) for one in self.asked[-1].heard if one.role != "system"]


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANG_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def text(words: str) -> Message:
    return {"type": "text", "text": words, "state": "done"}


def shown(view: View) -> list[Message]:
    """The parts of the answer, without what a provider needs of them."""
    return [
        {name: value for name, value in part.items() if name not in ("providerMetadata", "callProviderMetadata")}
        for part in view.answer
    ]


def calls(view: View) -> list[Message]:
    return [part for part in shown(view) if part["type"].startswith("tool-")]
