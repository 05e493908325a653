"""Users' pages in Node, with the real clients, and the server that they talk to."""

import os
import secrets
import socket
import subprocess
import sys
from typing import Any, Final, Literal, Self, TypeAlias

import httpx
import msgspec

from node import HERE, Node
from promises import V5, V6, V7
from support.hang import HANG_SECONDS
from usechat.protocol.clients import ClientName

__all__ = [
    "Browser",
    "Endpoint",
    "Message",
    "Page",
    "ReactTransport",
    "Resubmits",
    "Server",
    "View",
    "Visit",
    "bearer",
    "without_reasoning_id",
]

TESTS: Final = HERE.parent / "tests"
KEEP_REASONING_ID: Final = (V5, V6, V7)

Message: TypeAlias = dict[str, Any]
Endpoint: TypeAlias = Literal[
    "plain", "users", "reject", "brief", "named", "hasty", "lively", "small", "flow", "graph", "elements"
]
Resubmits: TypeAlias = Literal[
    "lastAssistantMessageIsCompleteWithToolCalls", "lastAssistantMessageIsCompleteWithApprovalResponses"
]


class Exchange(msgspec.Struct):
    """One request of a page, and the turn that the answer belongs to."""

    method: str
    path: str
    query: str = ""
    status: int | None = None
    turn: str | None = None


class ReactTransport(msgspec.Struct):
    """The module of `usechat react`, in a page whose wire is cut after so many bytes of its streams, one after another.

    A hook may render in StrictMode, and may resume by itself.
    """

    react: str
    cuts: list[int] = []
    strict: bool = False
    resume: bool = False


class View(msgspec.Struct, rename="camel"):
    """What a page shows, and what it did for it."""

    status: str
    error: str | None
    messages: list[Message]
    requests: list[Exchange]
    data: list[Any]
    tool_calls: list[str]

    @property
    def answer(self) -> list[Message]:
        """The parts of the last message."""
        return self.messages[-1]["parts"]

    @property
    def statuses(self) -> list[tuple[str, int | None]]:
        return [(request.method, request.status) for request in self.requests]


class Server:
    """A test server in a process of its own, on a free port of this machine."""

    def __init__(self, script: str = "backend.py") -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
            self.port: int = listener.getsockname()[1]
            self._process = subprocess.Popen(  # noqa: S603
                [sys.executable, script, str(listener.fileno())],
                cwd=HERE,
                stdin=subprocess.PIPE,
                pass_fds=[listener.fileno()],
                # The model of the graphs is there.
                env={**os.environ, "PYTHONPATH": f"{TESTS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
            )
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", trust_env=False, timeout=HANG_SECONDS)
        # Whatever it says: it has imported all that it serves before a page's clock begins.
        self.http.get("/")

    def messages(self, path: str, chat: str, token: str | None = None) -> list[Message]:
        answer = self.http.get(f"{path}/{chat}/messages", headers=bearer(token))
        assert answer.status_code == 200, answer.text
        return answer.json()

    def seen(self, chat: str) -> list[Any]:
        """What the agents of the chat were given."""
        return self.http.get(f"/seen/{chat}").json()

    def ends(self, message_id: str) -> list[str]:
        """How the turns of a message ended, as soon as one has."""
        return self.http.get(f"/ends/{message_id}").json()

    def let_go(self, chat: str) -> None:
        """Let the agent of the chat, who waits or will wait, go on."""
        self.http.post(f"/go/{chat}")

    def burden(self) -> dict[str, int]:
        return self.http.get("/burden").json()

    def close(self) -> None:
        self.http.close()
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait() == 0


def bearer(token: str | None) -> dict[str, str]:
    return {} if token is None else {"authorization": f"Bearer {token}"}


class Browser:
    """Any number of pages in a Node process of `browser.mjs`, of servers on this port if no other is named."""

    def __init__(self, node: Node, port: int = 0) -> None:
        self.node = node
        self._port = port
        self._open: list[Page] = []

    def open(
        self,
        client: str,
        path: str,
        chat: str,
        *,
        messages: list[Message] | None = None,
        token: str | None = None,
        resubmits: Resubmits | None = None,
        last_only: bool = False,
        hook: str | None = None,
        own_chat: bool = False,
        port: int | None = None,
        react: ReactTransport | None = None,
    ) -> "Page":
        """Open a page of this client; with `hook`, of `useChat` in that release of @ai-sdk/react."""
        number: int = self.node.ask(
            "open",
            client=client,
            port=port or self._port,
            path=path,
            chat=chat,
            messages=messages or [],
            headers=bearer(token),
            resubmits=resubmits,
            lastOnly=last_only,
            hook=hook,
            ownChat=own_chat,
            **(msgspec.structs.asdict(react) if react else {}),
        )
        page = Page(self, number)
        self._open.append(page)
        return page

    def close_pages(self) -> None:
        for page in self._open:
            page.close()
        self._open.clear()


class Page:
    """One tab. What it is told to do it begins at once; `settle` waits until it has done it."""

    def __init__(self, browser: Browser, number: int) -> None:
        self._browser = browser
        self._number = number

    def send(self, text: str, *, message_id: str | None = None, files: list[Message] | None = None) -> Self:
        return self._act("sendMessage", {"text": text, "messageId": message_id, "files": files or []})

    def regenerate(self, message_id: str | None = None) -> Self:
        return self._act("regenerate", {"messageId": message_id})

    def resume(self) -> Self:
        return self._act("resumeStream")

    def stop(self) -> Self:
        return self._act("stop")

    def answer_tool(self, call_id: str, *, tool: str = "location", **answer: Any) -> Self:
        return self._act("addToolOutput", {"tool": tool, "toolCallId": call_id, **answer})

    def answer_approval(self, approval_id: str, **answer: Any) -> Self:
        return self._act("addToolApprovalResponse", {"id": approval_id, **answer})

    def until(self, seen: str) -> Self:
        """Wait until the last message has this somewhere."""
        self._ask("until", seen=seen)
        return self

    def until_kept_alive(self) -> Self:
        """Wait until the stream that is read now has told more than once that the server is there."""
        self._ask("untilKeptAlive")
        return self

    def cut(self) -> Self:
        """Cut the wire, as a train does that goes into a tunnel."""
        self._ask("cut")
        return self

    def ask(self, method: str, *arguments: Any) -> Any:
        """What the page's transport answers."""
        return self._ask("ask", method=method, args=arguments)

    def look(self) -> View:
        return msgspec.convert(self._ask("look"), View)

    def done(self) -> View:
        """Wait for what it was told to do, whatever status it has then."""
        return msgspec.convert(self._ask("done"), View)

    def settle(self) -> View:
        """Wait until it is ready or has failed."""
        return msgspec.convert(self._ask("settle"), View)

    def close(self) -> None:
        self._ask("close")

    def _act(self, method: str, *arguments: Any) -> Self:
        self._ask("act", method=method, args=arguments)
        return self

    def _ask(self, op: str, **request: Any) -> Any:
        return self._browser.node.ask(op, page=self._number, **request)


class Visit:
    """One chat of one client with one endpoint of the server."""

    def __init__(self, server: Server, browser: Browser, client: str) -> None:
        self.server = server
        self.client = client
        self.chat = secrets.token_hex(8)
        # Of all clients only this one is too old for what is sent by default.
        self.profile: ClientName = "v5" if client == "5.0.0" else "portable"
        self.endpoint: Endpoint = "plain"
        self._browser = browser

    @property
    def path(self) -> str:
        return f"/{self.profile}/{self.endpoint}"

    def page(
        self,
        messages: list[Message] | None = None,
        *,
        token: str | None = None,
        resubmits: Resubmits | None = None,
        last_only: bool = False,
        hook: str | None = None,
        own_chat: bool = False,
        react: ReactTransport | None = None,
    ) -> Page:
        """Open the chat in a new tab, with these messages; a `hook` may be given a chat object of the page's own."""
        return self._browser.open(
            self.client,
            self.path,
            self.chat,
            messages=messages,
            token=token,
            resubmits=resubmits,
            last_only=last_only,
            hook=hook,
            own_chat=own_chat,
            react=react,
        )

    def kept(self, token: str | None = None) -> list[Message]:
        """The messages that the server has, with what this client keeps of them."""
        return [known_to(self.client, message) for message in self.server.messages(self.path, self.chat, token)]

    def seen(self) -> list[Any]:
        return self.server.seen(self.chat)

    def let_go(self, times: int = 1) -> None:
        for _ in range(times):
            self.server.let_go(self.chat)

    def stop(self, turn: str | None = None) -> int:
        query = {} if turn is None else {"turn": turn}
        return self.server.http.post(f"{self.path}/{self.chat}/stop", params=query).status_code


def known_to(client: str, message: Message) -> Message:
    """The message as this client builds it."""
    if client in KEEP_REASONING_ID:
        return message
    return {**message, "parts": [without_reasoning_id(part) for part in message["parts"]]}


def without_reasoning_id(part: Message) -> Message:
    return {name: value for name, value in part.items() if part["type"] != "reasoning" or name != "id"}
