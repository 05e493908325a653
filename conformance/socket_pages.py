"""Pages in Node whose chats share one WebSocket, and what they show."""

import secrets
from typing import Any, Self

import msgspec

from node import Node
from pages import Message, Resubmits, Server, without_reasoning_id

__all__ = ["Chat", "Page", "View"]


class View(msgspec.Struct):
    """What a chat shows, and how many sockets its page has opened."""

    status: str
    error: str | None
    messages: list[Message]
    sockets: int

    @property
    def answer(self) -> list[Message]:
        return [without_reasoning_id(part) for part in self.messages[-1]["parts"]]


class Page:
    """A page with one transport, and any number of chats that share it."""

    def __init__(self, node: Node, server: Server, path: str, **options: Any) -> None:
        self._node = node
        self._server = server
        self._path = path
        self._number: int = node.ask("page", url=f"http://127.0.0.1:{server.port}{path}/ws", **options)

    def chat(
        self, chat: str | None = None, messages: list[Message] | None = None, resubmits: Resubmits | None = None
    ) -> "Chat":
        opened = Chat(self._node, self._server, self._number, self._path, chat or secrets.token_hex(8))
        opened.ask("open", messages=messages or [], resubmits=resubmits)
        return opened

    def catch_up(self) -> None:
        """Wait until the server has answered a frame that was sent after all others."""
        self.chat().send("hello").until("Answer 1 to hello.")

    def cut(self) -> None:
        self._node.ask("cut", page=self._number)

    def close(self) -> None:
        self._node.ask("close", page=self._number)


class Chat:
    """One chat of a page; what it is told to do it begins at once."""

    def __init__(self, node: Node, server: Server, page: int, path: str, chat: str) -> None:
        self.id = chat
        self._node = node
        self._server = server
        self._page = page
        self._path = path

    def ask(self, op: str, **request: Any) -> Any:
        return self._node.ask(op, page=self._page, chat=self.id, **request)

    def act(self, method: str, *arguments: Any) -> Self:
        self.ask("act", method=method, args=arguments)
        return self

    def send(self, text: str) -> Self:
        return self.act("sendMessage", {"text": text})

    def until(self, seen: str) -> Self:
        self.ask("until", seen=seen)
        return self

    def let_go(self, times: int = 1) -> Self:
        for _ in range(times):
            self._server.let_go(self.id)
        return self

    def look(self) -> View:
        return msgspec.convert(self.ask("look"), View)

    def settle(self) -> View:
        self.ask("settle")
        return self.look()

    def kept(self, token: str | None = None) -> list[Message]:
        return self._server.messages(self._path, self.id, token)

    def ends(self) -> list[str]:
        """How the turns of the last message ended."""
        return self._server.ends(self.look().messages[-1]["id"])
