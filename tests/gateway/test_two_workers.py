"""Two gateways on one Redis: a turn of a session that runs at one of them is read, stopped and asked at the other."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec
import pytest

from support.gateways import SETTINGS, Gateway, chunks, two_gateways, until_chunk
from support.hang import HANG_SECONDS
from support.loopback import USECHAT, Process, message, running
from support.redis_server import SECRET, RedisServer
from usechat.database import Database
from usechat.gateway.directory import SessionDirectory
from usechat.gateway.gateway import sessions_gateway
from usechat.session_agent import SessionAgent, SessionSettings

pytestmark = pytest.mark.anyio

LINGERS = msgspec.structs.replace(SETTINGS, linger=None)
QUEUED = {"status": "queued", "position": 1}
INTERRUPTED = {"type": "error", "errorText": "The answer was interrupted."}


def aborts(gateway: Gateway) -> list[str]:
    return [received.user for received in gateway.agent.received("abort")]


async def rest(stream: AsyncIterator[dict[str, Any]]) -> tuple[str, str]:
    """The text of what is left, and the last chunk's type."""
    left = [chunk async for chunk in stream]
    return "".join(chunk.get("delta", "") for chunk in left), left[-1]["type"]


async def test_a_page_that_was_cut_off_resumes_at_the_other_worker(redis_server: RedisServer) -> None:
    async with two_gateways(redis_server, LINGERS) as (a, b):
        async with a.asking("hang") as stream:
            start = await until_chunk(stream, type="start")
            await until_chunk(stream, type="text-delta")
        async with b.following() as stream:
            assert await until_chunk(stream, type="start") == start
            assert (await until_chunk(stream, type="text-delta"))["delta"] == "I wait"
            a.agent.session("s1").release()
            assert await rest(stream) == (" no more.", "finish")
        assert aborts(a) == []
        for gateway in (a, b):
            assert (await gateway.get("chat/c/stream")).status_code == 204


async def test_a_second_tab_at_the_other_worker_keeps_a_turn_that_does_not_linger(redis_server: RedisServer) -> None:
    async with two_gateways(redis_server) as (a, b), AsyncExitStack() as tabs:
        async with a.asking("hang") as first:
            await until_chunk(first, type="text-delta")
            second = await tabs.enter_async_context(b.following())
            await until_chunk(second, type="text-delta")
        third = await tabs.enter_async_context(a.following())
        await until_chunk(third, type="text-delta")
        a.agent.session("s1").release()
        assert await rest(second) == await rest(third) == (" no more.", "finish")
        assert aborts(a) == []


async def test_the_last_reader_that_leaves_at_the_other_worker_aborts_the_turn(redis_server: RedisServer) -> None:
    async with two_gateways(redis_server) as (a, b):
        async with AsyncExitStack() as tab:
            async with a.asking("hang") as first:
                await until_chunk(first, type="text-delta")
                await until_chunk(await tab.enter_async_context(b.following()), type="text-delta")
            assert aborts(a) == []
        await a.agent.until(lambda: aborts(a) == ["ana"])


async def test_a_stop_at_the_other_worker_aborts_the_turn_once(redis_server: RedisServer) -> None:
    async with two_gateways(redis_server) as (a, b), a.asking("hang") as stream:
        await until_chunk(stream, type="text-delta")
        assert (await b.post("chat/c/stop")).status_code == 204
        assert (await rest(stream))[1] == "abort"
        await a.agent.until(lambda: aborts(a) == ["ana"])
        assert (await b.parts("Hello"))[-1]["text"] == "You said: Hello"
        assert aborts(a) == ["ana"]


async def test_a_stop_at_the_other_worker_of_a_prompt_that_waits_aborts_nobody_else(redis_server: RedisServer) -> None:
    async with two_gateways(redis_server) as (a, b):
        await a.headers("bob")
        await a.directory.grant("s1", "bob", "collaborator")
        async with b.asking("hang", user="bob") as bobs, a.asking("Hello") as anas:
            await until_chunk(bobs, type="text-delta")
            await until_chunk(anas, type="data-agent-status", data=QUEUED)
            assert (await b.post("chat/c/stop")).status_code == 204
            assert await rest(anas) == ("", "abort")
            assert aborts(a) == []
            a.agent.session("s1").release()
            assert await rest(bobs) == (" no more.", "finish")
        await a.agent.until(lambda: aborts(a) == ["ana"])


async def test_nobody_names_a_turn_of_another_user_or_session_at_the_other_worker(redis_server: RedisServer) -> None:
    async with two_gateways(redis_server) as (a, b):
        await a.headers("bob")
        await a.directory.grant("s1", "bob", "collaborator")
        await a.directory.add_session("s2", "ana")
        async with a.asking("hang") as stream:
            await until_chunk(stream, type="text-delta")
            for who in ({"user": "bob"}, {"session": "s2"}):
                assert (await b.get("chat/c/stream", **who)).status_code == 204
                assert (await b.post("chat/c/stop", **who)).status_code == 204
            a.agent.session("s1").release()
            assert await rest(stream) == (" no more.", "finish")
        assert aborts(a) == []


async def test_a_question_that_one_worker_shows_is_answered_at_the_other(redis_server: RedisServer) -> None:
    async with two_gateways(redis_server) as (a, b), a.asking("question Where to?") as stream:
        asked = await until_chunk(stream, type="data-question")
        answer = {"questionId": asked["data"]["questionId"], "answer": "staging"}
        assert (await b.post("answer", json=answer)).status_code == 204
        answered = await until_chunk(stream, type="data-question")
        assert (answered["data"]["state"], answered["data"]["answer"]) == ("answered", "staging")
        assert await rest(stream) == ("You answered: staging.", "finish")
        assert (await b.post("answer", json=answer)).status_code == 404
        assert [(one.user, one.message["answer"]) for one in a.agent.received("answer")] == [("ana", "staging")]


async def test_a_second_message_at_the_other_worker_waits_for_the_first_and_replaces_nothing(
    redis_server: RedisServer,
) -> None:
    settings = msgspec.structs.replace(SETTINGS, queue_seconds=0.2)
    async with two_gateways(redis_server, settings) as (a, b):
        async with a.asking("hang") as stream:
            await until_chunk(stream, type="text-delta")
            refused = await b.post("chat", json=message("Hello", "c"))
            assert (refused.status_code, refused.json()["code"]) == (409, "CONFLICT")
            a.agent.session("s1").release()
            assert await rest(stream) == (" no more.", "finish")
        assert (await b.parts("Hello"))[-1]["text"] == "You said: Hello"
        assert aborts(a) == []


async def test_redis_gets_no_token(redis_server: RedisServer) -> None:
    async with two_gateways(redis_server) as (a, _), a.asking("hang") as stream:
        await until_chunk(stream, type="text-delta")
        token = (await a.headers("ana"))["authorization"].removeprefix("Bearer ").encode()
        with redis_server.client() as client:
            kept = b"".join(key + client.dump(key) for key in client.keys("*"))
        assert b"I wait" in kept
        assert token not in kept


class Commands(NamedTuple):
    """Two commands that serve one session agent; `a` and `b` are the addresses of their chats."""

    agent: SessionAgent
    http: httpx.AsyncClient
    owner: Process
    a: str
    b: str

    def ask(self, url: str, text: str) -> AbstractAsyncContextManager[httpx.Response]:
        return self.http.stream("POST", url, json=message(text, "c"))


@asynccontextmanager
async def two_commands(redis: RedisServer, folder: Path) -> AsyncGenerator[Commands]:
    redis.empty()
    url = f"sqlite:///{folder}/sessions.db"
    database = Database(url)
    directory = SessionDirectory(database)
    await directory.add_user("ana")
    await directory.add_session("s1", "ana")
    headers = {"authorization": f"Bearer {await directory.add_token('ana', 3600)}"}
    await database.aclose()
    environ = {"USECHAT_SECRET": SECRET, "USECHAT_DIRECTORY": url, "ENABLE_AI_SDK_ADAPTER": "true"}
    async with (
        asyncio.timeout(HANG_SECONDS),
        SessionAgent(SessionSettings(pace=0)).serving() as agent,
        httpx.AsyncClient(timeout=HANG_SECONDS, headers=headers) as http,
    ):
        options = ["--upstream", agent.url, "--store", redis.url, "--lease", "3", "--port", "0"]
        command = [*USECHAT, "gateway", *options]
        with running(command, folder, **environ) as first, running(command, folder, **environ) as second:
            a, b = (f"{process.first_line().split()[-1]}/s1/chat" for process in (first, second))
            yield Commands(agent, http, first, a, b)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_turn_whose_worker_is_gone_ends_with_an_error_and_aborts_nothing(
    redis_server: RedisServer, tmp_path: Path, number: signal.Signals
) -> None:
    async with two_commands(redis_server, tmp_path) as two, two.ask(two.a, "hang") as first:
        cut_off = chunks(first)
        await until_chunk(cut_off, type="text-delta")
        async with two.http.stream("GET", f"{two.b}/c/stream") as second:
            stream = chunks(second)
            await until_chunk(stream, type="text-delta")
            os.kill(two.owner.pid, number)
            assert [chunk async for chunk in stream][-1] == INTERRUPTED
        # The session still works on the prompt, and ana's next one waits for it.
        async with two.ask(two.b, "Hello") as third:
            stream = chunks(third)
            await until_chunk(stream, type="data-agent-status", data=QUEUED)
            two.agent.session("s1").release()
            assert await rest(stream) == ("You said: Hello", "finish")
        assert two.agent.received("abort") == []


async def test_a_worker_that_was_taken_for_dead_aborts_its_own_prompt_when_it_goes_on(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    async with two_commands(redis_server, tmp_path) as two, two.ask(two.a, "hang") as first:
        stream = chunks(first)
        await until_chunk(stream, type="text-delta")
        async with two.http.stream("GET", f"{two.b}/c/stream") as second:
            os.kill(two.owner.pid, signal.SIGSTOP)
            assert [chunk async for chunk in chunks(second)][-1] == INTERRUPTED
        os.kill(two.owner.pid, signal.SIGCONT)
        assert [chunk async for chunk in stream][-1] == INTERRUPTED
        await two.agent.until(lambda: len(two.agent.received("abort")) == 1)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"store": "redis://localhost"}, "Turns on Redis need a secret of at least 32 bytes"),
        ({"store": "file:turns"}, "The store of turns must be memory, or the URL of a Redis"),
        ({"store": "redis://localhost", "secret": SECRET, "lease": 0}, "The lease of turns must be a number"),
    ],
)
def test_what_is_no_store_is_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        sessions_gateway(upstream="ws://localhost", directory="sqlite://", **options)
