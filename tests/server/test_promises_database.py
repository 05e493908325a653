"""A database or a hook that hangs: everybody is answered while it hangs, and the server can be ended."""

import asyncio
import signal
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from pathlib import Path

import httpx
import pytest
from starlette.requests import HTTPConnection

from support.fast_loop import hurrying, run_fast
from support.http_pages import user
from support.locks import postgres_locked, sqlite_locked
from support.loopback import USECHAT, answer_status, asking, read_until, running, serving_here, until
from support.postgres import Postgres
from usechat.protocol.messages import UIMessage
from usechat.server.app import create_app
from usechat.server.auth import Authenticate
from usechat.stores import Outcome
from usechat.turns.chat import Chat
from usechat.turns.settings import ChatSettings

# This many seconds of the tests' loop are one of ours.
SPEED = 4
BUSY = (503, "The server is busy. Try again in a moment.", "5")
AGENT = """\
async def agent(chat):
    yield "I begin"
    await chat.stopping.wait()
"""


class Server:
    """A server in this loop."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def post(self, chat: str = "chat", number: int = 0) -> httpx.Response:
        return await self.http.post("/api/chat", json={"id": chat, "messages": [user(f"u{number}", "Hello")]})

    async def get(self, path: str = "/api/chat/chat/messages") -> tuple[int, str]:
        response = await self.http.get(path)
        return response.status_code, response.text

    async def roles(self, chat: str = "chat") -> list[str]:
        return [message["role"] for message in (await self.http.get(f"/api/chat/{chat}/messages")).json()]

    @asynccontextmanager
    async def waiting(self, chat: str) -> AsyncGenerator[list[str]]:
        """A turn that has begun and waits; its chunks are those that come until it ends."""
        body, rest = {"id": chat, "messages": [user("w", "wait")]}, list[str]()
        async with self.http.stream("POST", "/api/chat", json=body) as response:
            lines = response.aiter_lines()
            async for line in lines:
                if "I begin" in line:
                    break
            yield rest
            rest += [line async for line in lines if line.startswith("data: {")]


async def agent(chat: Chat) -> AsyncGenerator[str, None]:
    yield "I begin"
    if chat.text == "wait":
        await chat.stopping.wait()


@asynccontextmanager
async def serving(
    history: str | None = None,
    authenticate: Authenticate | None = None,
    settings: ChatSettings | None = None,
    grace: float | None = None,
) -> AsyncGenerator[Server]:
    app = create_app(
        agent, history=history, authenticate=authenticate, settings=settings or ChatSettings(), grace=grace
    )
    limits = httpx.Limits(max_connections=None)
    async with (
        serving_here(app) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=1000, trust_env=False, limits=limits) as http,
    ):
        yield Server(http)


def refusal(response: httpx.Response) -> tuple[int, str, str | None]:
    return response.status_code, response.text, response.headers.get("retry-after")


@pytest.mark.parametrize("chats", [["chat"] * 16, [f"chat-{number}" for number in range(20)]])
def test_a_sqlite_file_that_somebody_locked_is_read_and_whoever_writes_is_told_while_it_is(
    tmp_path: Path, chats: list[str]
) -> None:
    file = tmp_path / "chats.db"

    async def main() -> None:
        async with serving(f"sqlite:///{file}") as server:
            assert (await server.post()).status_code == 200
            kept = await server.get()
            with ExitStack() as stack:
                await asyncio.to_thread(stack.enter_context, sqlite_locked(file))
                stack.enter_context(hurrying(SPEED))
                posting = asyncio.gather(*(server.post(chat, number) for number, chat in enumerate(chats, 1)))
                assert await server.get() == kept
                assert await server.get("/readyz") == (503, "the database does not answer\n")
                assert await server.get("/healthz") == (200, "ok\n")
                assert Counter(map(refusal, await posting)) == {BUSY: len(chats)}
            assert (await server.post(number=100)).status_code == 200
            assert await server.get("/readyz") == (200, "ok\n")
            assert (await server.roles())[-2:] == ["user", "assistant"]

    run_fast(main())


def locking(postgres: Postgres, url: str) -> AbstractAsyncContextManager[None]:
    return postgres_locked(url)


@asynccontextmanager
async def pausing(postgres: Postgres, url: str) -> AsyncGenerator[None]:
    with postgres.paused():
        yield


@pytest.mark.parametrize(("hang", "ready"), [(locking, 200), (pausing, 503)])
def test_a_postgres_that_hangs_lets_everybody_go(
    postgres: Postgres, hang: Callable[[Postgres, str], AbstractAsyncContextManager[None]], ready: int
) -> None:
    url = postgres.create()

    async def main() -> None:
        async with serving(url) as server, server.waiting("running") as rest, server.waiting("replaced"):
            assert (await server.post()).status_code == 200
            async with hang(postgres, url):
                with hurrying(SPEED):
                    answers = await asyncio.gather(
                        server.http.get("/api/chat/chat/messages"),
                        server.post(),
                        server.post("replaced"),
                        server.http.post("/api/chat/running/stop"),
                        server.get("/readyz"),
                        server.get("/healthz"),
                    )
                got, posted, replaced, stopped, readiness, health = answers
                assert [refusal(got), refusal(posted), refusal(replaced)] == [BUSY] * 3
                assert refusal(stopped) == (204, "", None)
                assert (readiness[0], health) == (ready, (200, "ok\n"))
            assert (await server.post(number=1)).status_code == 200
            assert (await server.roles())[-2:] == ["user", "assistant"]
            await server.http.post("/api/chat/replaced/stop")
        assert rest[-1] == 'data: {"type":"abort"}'

    run_fast(main())


async def hanging(_connection: HTTPConnection) -> str:
    await asyncio.Event().wait()
    return "ann"


@contextmanager
def blocking() -> Generator[Authenticate, None, None]:
    """A hook that blocks its thread until the test is over."""
    over = threading.Event()

    def block(_connection: HTTPConnection) -> str:
        over.wait()
        return "ann"

    yield block
    over.set()


@pytest.mark.parametrize("hook", [nullcontext(hanging), blocking()])
def test_a_hook_that_hangs_is_given_up_and_holds_up_nobody_else(hook: AbstractContextManager[Authenticate]) -> None:
    late = (503, "Checking your sign-in took too long. Try again in a moment.", "5")

    async def main(authenticate: Authenticate) -> None:
        async with serving(authenticate=authenticate) as server:
            # More than the threads that such hooks have.
            posting = asyncio.gather(*(server.post(f"chat-{number}") for number in range(40)))
            assert (await server.get("/healthz"), posting.done()) == ((200, "ok\n"), False)
            with hurrying(SPEED):
                assert Counter(map(refusal, await posting)) == {late: 40}

    with hook as authenticate:
        run_fast(main(authenticate))


@pytest.fixture
def arrived() -> Generator[list[int], None, None]:
    """The signals that the server hands on when it has ended."""
    numbers: list[int] = []
    previous = signal.signal(signal.SIGTERM, lambda number, _: numbers.append(number))
    yield numbers
    signal.signal(signal.SIGTERM, previous)


def test_an_on_end_that_hangs_keeps_neither_the_chat_nor_the_server(arrived: list[int]) -> None:
    ends: list[Outcome] = []

    async def on_end(outcome: Outcome, _message: UIMessage) -> None:
        ends.append(outcome)
        await asyncio.Event().wait()

    async def main() -> None:
        async with serving(settings=ChatSettings(on_end=on_end), grace=1) as server:
            assert [(await server.post(number=number)).status_code for number in range(3)] == [200] * 3
            assert (await server.roles(), ends) == (["user", "assistant"] * 3, ["done"] * 3)
            signal.raise_signal(signal.SIGTERM)
            while not arrived:  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    run_fast(main(), SPEED)


def test_usechat_serve_ends_although_postgres_hangs(postgres: Postgres, tmp_path: Path) -> None:
    (tmp_path / "agents.py").write_text(AGENT)
    command = [*USECHAT, "serve", "agents:agent", "--port", "0", "--history", postgres.create(), "--grace"]
    with (
        running([*command, "1"], tmp_path) as process,
        running([*command, "600"], tmp_path) as hurried,
        ExitStack() as stack,
    ):
        url, other = (each.first_line().split()[-1] for each in (process, hurried))
        lines = stack.enter_context(asking(url))
        others = stack.enter_context(asking(other, chat="other"))
        read_until(lines, "I begin")
        read_until(others, "I begin")
        with postgres.paused():
            for each in (process, hurried):
                each.send(signal.SIGTERM)
            until(lambda: answer_status(other, chat="another") == 503, hurried)
            hurried.send(signal.SIGTERM)
            # Before its grace is over, and both before Postgres goes on.
            hurried.wait()
            process.wait()
