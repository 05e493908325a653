"""What a client saw end is in the history: for this process, the next turn, and another process."""

import asyncio
import contextlib
import copy
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx
import msgspec
import pytest

from support import forking_server
from support.fast_loop import hurrying, run_fast
from support.hang import HANG_SECONDS
from support.http_pages import JSON, Page, client, events, metric, to_end, user
from support.locks import postgres_locked, sqlite_bodies, sqlite_locked
from support.loopback import STEP, read_until, serving, serving_here, text_part
from support.postgres import Postgres
from support.soak import draws
from usechat.database import Database
from usechat.events import AgentEvent, ToolCall, ToolResult
from usechat.history import History
from usechat.server.app import create_app
from usechat.turns.chat import Chat

TURNS = draws(10)
KILLS = draws(4, 20)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/chats.db"
    server: Postgres = request.getfixturevalue("postgres")
    return server.create_tables()


class Recorder:
    """An agent that does what it is told, and the histories that it was given."""

    def __init__(self) -> None:
        self.given: list[list[JSON]] = []

    async def agent(self, chat: Chat) -> AsyncGenerator[AgentEvent, None]:
        self.given.append(msgspec.to_builtins(await chat.history()))
        for approval in chat.approvals:
            yield ToolResult(approval.call_id, "deleted")
        match chat.text:
            case "stop":
                yield "I begin"
                await asyncio.Event().wait()
            case "fail":
                yield "I begin"
                raise ValueError
            case "delete" if not chat.approvals:
                yield ToolCall(f"call-{len(self.given)}", "rm", {"file": "a"})
                chat.write.approval_request(f"call-{len(self.given)}", approval_id=f"p-{len(self.given)}")
            case text:
                yield "You said "
                yield f"{text}."


@contextmanager
def recording(url: str) -> Generator[tuple[Recorder, Page], None, None]:
    recorder = Recorder()
    with serving(create_app(recorder.agent, history=url)) as address, client(address) as http:
        yield recorder, Page(http)


def assistant(chunks: list[JSON], *parts: JSON) -> JSON:
    return {"id": chunks[0]["messageId"], "role": "assistant", "parts": [STEP, *parts]}


def test_an_answer_is_whole_for_the_next_request_as_soon_as_its_end_was_read(url: str) -> None:
    with recording(url) as (recorder, page):
        expected: list[JSON] = []
        for number in range(TURNS):
            expected.append(user(f"u{number}", f"turn {number}"))
            with page.posting(expected[-1]) as lines:
                read = to_end(lines)
                assert recorder.given[-1] == expected
                expected.append(assistant(read, text_part(f"You said turn {number}.")))
                assert page.messages() == expected
                assert read[-1] == {"type": "finish", "finishReason": "stop"}


def test_what_was_said_is_kept_as_soon_as_the_abort_of_a_stop_was_read(url: str) -> None:
    with recording(url) as (recorder, page), ThreadPoolExecutor() as pool:
        expected: list[JSON] = []
        for number in range(TURNS):
            expected.append(user(f"u{number}", "stop"))
            with page.posting(expected[-1]) as lines:
                first = list(events(read_until(lines, "I begin").splitlines()))
                stopping = pool.submit(page.stop)
                rest = to_end(lines)
                kept = page.messages()
            assert (rest[-1], stopping.result(HANG_SECONDS)) == ({"type": "abort"}, 204)
            assert recorder.given[-1] == expected
            expected.append(assistant(first, text_part("I begin")))
            assert kept == expected


def test_what_was_said_is_kept_as_soon_as_the_error_of_an_agent_was_read(url: str) -> None:
    with recording(url) as (recorder, page):
        expected: list[JSON] = []
        for number in range(TURNS):
            expected.append(user(f"u{number}", "fail"))
            with page.posting(expected[-1]) as lines:
                read = to_end(lines)
                kept = page.messages()
            assert recorder.given[-1] == expected
            expected.append(assistant(read, text_part("I begin")))
            assert (kept, read[-1]["type"]) == (expected, "error")


def test_an_approval_can_be_answered_and_its_result_is_kept_as_soon_as_each_end_was_read(url: str) -> None:
    with recording(url) as (recorder, page):
        expected: list[JSON] = []
        for number in range(TURNS // 2):
            expected.append(user(f"u{number}", "delete"))
            with page.posting(expected[-1]) as lines:
                asked = to_end(lines)
                call: JSON = {"type": "tool-rm", "toolCallId": f"call-{2 * number + 1}", "input": {"file": "a"}}
                approval = {"id": f"p-{2 * number + 1}"}
                expected.append(assistant(asked, {**call, "state": "approval-requested", "approval": approval}))
                assert page.messages() == expected
            answered = copy.deepcopy(expected[-1])
            answer = {**approval, "approved": True}
            answered["parts"][-1] |= {"state": "approval-responded", "approval": answer}
            with page.posting(answered) as lines:
                read = to_end(lines)
                kept = page.messages()
            assert recorder.given[-1] == [*expected[:-1], answered]
            done = {**call, "state": "output-available", "approval": answer, "output": "deleted"}
            said = text_part("You said delete.")
            expected[-1] = {**answered, "parts": [STEP, done, STEP, said]}
            assert (kept, read[-1]) == (expected, {"type": "finish", "finishReason": "stop"})


class Servers:
    """Server processes on one database, one at a time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def start(self) -> tuple[int, int]:
        """Start one, and give its process id and its port."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        number, port = self._process.stdout.readline().split()
        return int(number), int(port)


@pytest.fixture
def servers(url: str) -> Generator[Servers, None, None]:
    command = [sys.executable, forking_server.__file__, url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Servers(process)


def post_and_kill(pid: int, port: int, chat: str) -> bytes:
    """Ask, and kill the server as soon as the end of the message was read."""
    body = json.dumps({"id": chat, "messages": [user("u", chat)]}).encode()
    head = (
        f"POST /api/chat HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    read = b""
    with socket.create_connection(("127.0.0.1", port), HANG_SECONDS) as connection:
        connection.sendall(head.encode() + body)
        while b'"type":"finish"' not in read and (some := connection.recv(65536)):
            read += some
        os.kill(pid, signal.SIGKILL)
    return read


def test_an_answer_whose_end_was_read_outlives_the_process_that_gave_it(servers: Servers) -> None:
    chats = [f"chat-{number}" for number in range(KILLS)]
    for chat in chats:
        read = post_and_kill(*servers.start(), chat)
        assert b'{"type":"finish","finishReason":"stop"}' in read
    pid, port = servers.start()
    kept = [
        httpx.get(f"http://127.0.0.1:{port}/api/chat/{chat}/messages", timeout=HANG_SECONDS).json() for chat in chats
    ]
    os.kill(pid, signal.SIGKILL)
    words = [[part["text"] for message in messages for part in message["parts"][-1:]] for messages in kept]
    assert words == [[chat, "".join(f"{chat} {number}, " for number in range(20))] for chat in chats]


class Gated:
    """A server in this loop, whose agent ends when the gate opens."""

    def __init__(self, http: httpx.AsyncClient, gate: asyncio.Event) -> None:
        self.http = http
        self.gate = gate

    @asynccontextmanager
    async def begun(self) -> AsyncGenerator[AsyncIterator[str], None]:
        body = {"id": "chat", "messages": [QUESTION]}
        async with self.http.stream("POST", "/api/chat", json=body) as response:
            lines = response.aiter_lines()
            async for line in lines:
                if "I begin" in line:
                    break
            yield lines

    async def end(self, lines: AsyncIterator[str]) -> float:
        """Let the agent end, and give the seconds until the client knew."""
        began = asyncio.get_running_loop().time()
        self.gate.set()
        last = [line async for line in lines if line.startswith("data: {")][-1]
        assert last == 'data: {"type":"finish","finishReason":"stop"}'
        return asyncio.get_running_loop().time() - began

    async def late(self) -> float:
        return metric((await self.http.get("/metrics")).text, "usechat_answers_late_total")


QUESTION = user("u", "Hello")
ANSWER = [STEP, text_part("I begin and end.")]


@asynccontextmanager
async def gated(url: str) -> AsyncGenerator[Gated, None]:
    gate = asyncio.Event()

    async def agent(chat: Chat) -> AsyncGenerator[str, None]:
        yield "I begin"
        await gate.wait()
        yield " and end."

    async with (
        serving_here(create_app(agent, history=url, grace=None)) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=1000, trust_env=False) as http,
    ):
        yield Gated(http, gate)


async def until_kept(history: History) -> list[JSON]:
    """Wait until the database has the answer, of which the server is not asked."""
    while len(kept := await history.load("chat", "")) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    return msgspec.to_builtins(kept)


def test_an_answer_that_sqlite_cannot_take_ends_after_5_seconds_and_is_written_when_it_can(tmp_path: Path) -> None:
    file = tmp_path / "chats.db"

    async def main() -> None:
        async with gated(f"sqlite:///{file}") as server, server.begun() as lines:
            with contextlib.ExitStack() as stack:
                await asyncio.to_thread(stack.enter_context, sqlite_locked(file))
                with hurrying(4):
                    assert await server.end(lines) >= 5
                shown = (await server.http.get("/api/chat/chat/messages")).json()
                assert [message["parts"] for message in shown] == [QUESTION["parts"], ANSWER]
                assert (sqlite_bodies(file), await server.late()) == ([QUESTION], 1)
            assert await until_kept(History(Database(f"sqlite:///{file}"))) == shown

    run_fast(main())


def test_an_answer_that_postgres_cannot_take_ends_after_5_seconds_and_is_written_when_it_can(
    postgres: Postgres,
) -> None:
    url = postgres.create()

    async def main() -> None:
        async with gated(url) as server, server.begun() as lines:
            async with postgres_locked(url):
                with hurrying(4):
                    assert await server.end(lines) >= 5
                assert await server.late() == 1
            kept = await until_kept(History(Database(url)))
            assert [message["parts"] for message in kept] == [QUESTION["parts"], ANSWER]
            assert (await server.http.get("/api/chat/chat/messages")).json() == kept

    run_fast(main())
