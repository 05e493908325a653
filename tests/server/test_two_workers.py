"""Two apps on one Redis and one database, as two workers of one chat."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.hang import HANG_SECONDS
from support.loopback import serving_here
from support.redis_server import SECRET, RedisServer
from usechat import Chat, ChatSettings, ToolCall, ToolResult, create_app
from usechat.integrations import AnyAgent
from usechat.protocol.messages import UIMessage
from usechat.stores import Outcome
from usechat.turns.settings import Conflict, OnEnd

pytestmark = pytest.mark.anyio


@pytest.fixture
def server() -> Iterator[RedisServer]:
    server = RedisServer()
    yield server
    server.close()


async def agent(chat: Chat) -> AsyncIterator[str]:
    yield "Hello. "
    if chat.text == "stay":
        await asyncio.sleep(3600)


class Two:
    def __init__(self, clients: tuple[httpx.AsyncClient, httpx.AsyncClient]) -> None:
        self.a, self.b = clients

    def post(self, client: httpx.AsyncClient, text: str) -> Any:
        message = {"id": text, "role": "user", "parts": [{"type": "text", "text": text}]}
        return client.stream("POST", "/api/chat", json={"id": "1", "message": message})


@asynccontextmanager
async def two(
    server: RedisServer,
    folder: Path,
    conflict: Conflict = "replace",
    *,
    served: AnyAgent = agent,
    history: str | None = None,
    lease: float = 15.0,
    on_end: OnEnd | None = None,
) -> AsyncGenerator[Two, None]:
    apps = [
        create_app(
            served,
            store=server.url,
            lease=lease,
            approval_secret=SECRET,
            history=history or f"sqlite:///{folder}/chats.db",
            settings=ChatSettings(conflict=conflict, on_end=on_end),
            grace=None,
        )
        for _ in range(2)
    ]
    async with serving_here(apps[0]) as a, serving_here(apps[1]) as b:
        bases = [f"http://127.0.0.1:{port}" for port in (a, b)]
        async with (
            httpx.AsyncClient(base_url=bases[0], timeout=HANG_SECONDS) as first,
            httpx.AsyncClient(base_url=bases[1], timeout=HANG_SECONDS) as second,
        ):
            yield Two((first, second))


async def types(lines: AsyncIterator[str]) -> list[str]:
    return [json.loads(line[6:])["type"] async for line in lines if line.startswith("data: {")]


async def said(lines: AsyncIterator[str]) -> None:
    async for line in lines:
        if "Hello" in line:
            return


async def metric(client: httpx.AsyncClient, name: str) -> float:
    lines = (await client.get("/metrics")).text.splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(f"{name} "))


async def orphaned(workers: Two) -> float:
    return sum([await metric(client, "usechat_turns_orphaned_total") for client in (workers.a, workers.b)])


@pytest.mark.parametrize(("conflict", "status", "end"), [("replace", 200, "abort"), ("reject", 409, None)])
async def test_a_second_message_on_the_other_worker_meets_the_turn_of_the_first(
    server: RedisServer, tmp_path: Path, conflict: Conflict, status: int, end: str | None
) -> None:
    async with two(server, tmp_path, conflict) as workers, workers.post(workers.a, "stay") as here:
        lines = here.aiter_lines()
        await said(lines)
        async with workers.post(workers.b, "next") as there:
            assert there.status_code == status
            await there.aread()
        if end is None:
            await workers.a.post("/api/chat/1/stop")
        assert (await types(lines))[-1] == "abort"


async def test_while_redis_is_away_new_turns_get_503_and_readyz_says_so(
    server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # There is no other turn whose owner would have to give it back.
    for module in ("worker", "store"):
        monkeypatch.setattr(f"usechat.stores.redis.{module}.GIVEN_BACK", 0.1)
    async with two(server, tmp_path) as workers:
        assert (await workers.a.get("/readyz")).text == "ok\n"
        server.kill()

        async def refused() -> tuple[int, str]:
            async with workers.post(workers.a, "hello") as response:
                return response.status_code, response.headers["retry-after"]

        ready, refusal = await asyncio.gather(workers.a.get("/readyz"), refused())
        assert (ready.status_code, ready.text) == (503, "the store of turns does not answer\n")
        assert refusal == (503, "5")
        assert await metric(workers.a, "usechat_store_errors_total") > 0
        server.start()
        async with asyncio.timeout(HANG_SECONDS):
            while (await workers.a.get("/readyz")).status_code != 200:
                pass
        async with workers.post(workers.a, "hello") as answered:
            assert (await types(answered.aiter_lines()))[-1] == "finish"


def test_an_app_whose_workers_would_not_see_each_others_chats_says_so(caplog: pytest.LogCaptureFixture) -> None:
    create_app(agent, store="redis://localhost", approval_secret="s" * 32)
    assert [record.getMessage() for record in caplog.records] == [
        "turns are shared, but chats are kept in memory, which other workers do not see: give a history"
    ]


@pytest.mark.parametrize("history", ["client", None])
async def test_an_approval_that_is_answered_on_both_workers_is_carried_out_by_one_which_nobody_stops(
    server: RedisServer, tmp_path: Path, history: str | None
) -> None:
    refused = asyncio.Event()

    async def cleaner(chat: Chat) -> AsyncIterator[str | ToolCall | ToolResult]:
        if not chat.approvals:
            yield ToolCall("call", "rm", {"file": "a"})
            chat.write.approval_request("call", approval_id="p")
        for approval in chat.approvals:
            yield "Deleting. "
            await refused.wait()
            yield ToolResult(approval.call_id, "deleted")

    async with two(server, tmp_path, served=cleaner, history=history) as workers:
        question = {"id": "u", "role": "user", "parts": [{"type": "text", "text": "Clean up."}]}
        asked = await workers.a.post("/api/chat", json={"id": "1", "messages": [question]})
        chunks = [json.loads(line[6:]) for line in asked.text.splitlines() if line.startswith("data: {")]
        ids = {name: value for chunk in chunks for name, value in chunk.items() if name in ("messageId", "approvalId")}
        approval = {"id": ids["approvalId"], "approved": True}
        call: dict[str, Any] = {"type": "tool-rm", "toolCallId": "call", "input": {"file": "a"}}
        call |= {"state": "approval-responded", "approval": approval}
        answer = {"id": ids["messageId"], "role": "assistant", "parts": [{"type": "step-start"}, call]}
        answers = [
            asyncio.create_task(client.post("/api/chat", json={"id": "1", "messages": [question, answer]}))
            for client in (workers.a, workers.b) * 3
        ]
        async with asyncio.timeout(HANG_SECONDS):
            while len(waiting := [task for task in answers if not task.done()]) > 1:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        refused.set()
        responses = await asyncio.gather(*answers)
        ends = [response.text.split("data: ")[-2].strip() for response in responses if response.is_success]
        assert ends == ['{"type":"finish","finishReason":"stop"}']
        assert [response.status_code for response in responses].count(409) == 5


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_an_answer_that_was_stored_stays_as_it_is_when_redis_comes_back_from_the_middle_of_its_turn(
    server: RedisServer, tmp_path: Path, *, is_deleted: bool
) -> None:
    goes_on, ends, seen = asyncio.Event(), list[str](), list[Any]()

    async def slow(chat: Chat) -> AsyncIterator[str]:
        seen.append(chat.state)
        yield "Hello. "
        await goes_on.wait()
        chat.state = {"turns": len(seen)}
        yield "That is all."

    async def on_end(outcome: Outcome, message: UIMessage) -> None:
        ends.append(outcome)

    async with two(server, tmp_path, served=slow, lease=2.0, on_end=on_end) as workers:
        with server.client() as client:
            async with workers.post(workers.a, "go") as here:
                lines = here.aiter_lines()
                await said(lines)
                # As a replica has it that did not get the rest, or a disk.
                kept = [(key, client.pttl(key), client.dump(key)) for key in client.keys("*")]
                goes_on.set()
                assert (await types(lines))[-1] == "finish"
            if is_deleted:
                assert (await workers.a.delete("/api/chat/1")).status_code == 204
            client.flushall()
            for key, life, value in kept:
                client.restore(key, max(0, life), value)
        async with asyncio.timeout(HANG_SECONDS):
            # Until somebody has ended it again, which is seen from outside only.
            while await orphaned(workers) == 0:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert (await workers.a.post("/api/chat/1/stop")).status_code == 204
        for client in (workers.a, workers.b):
            messages = (await client.get("/api/chat/1/messages")).json()
            texts = [message["parts"][-1]["text"] for message in messages]
            assert texts == ([] if is_deleted else ["go", "Hello. That is all."])
        assert ends == ["done"]
        for client in (workers.b, workers.a):
            async with workers.post(client, f"again {len(seen)}") as again:
                assert (await types(again.aiter_lines()))[-1] == "finish"
        assert seen == [None, None if is_deleted else {"turns": 1}, {"turns": 2}]
