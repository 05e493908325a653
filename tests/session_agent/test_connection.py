"""The contract of a SessionAgent's socket before anybody prompts."""

import asyncio
import json
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

from support.session_clients import BEARER, Client, brief, joined, nothing_left
from usechat.session_agent import SessionAgent, SessionSettings

pytestmark = pytest.mark.anyio


async def refused(agent: SessionAgent, path: str, headers: dict[str, str]) -> tuple[int, dict[str, Any]]:
    with pytest.raises(InvalidStatus) as caught:
        async with connect(f"{agent.url}{path}", additional_headers=headers):
            pass
    response = caught.value.response
    assert response.headers["content-type"] == "application/json"
    return response.status_code, json.loads(response.body or b"")


UNAUTHORIZED = (401, {"error": "Missing or invalid authentication", "code": "UNAUTHORIZED"})
NO_ROLE = (400, {"error": "Missing or invalid role parameter", "code": "VALIDATION_ERROR"})


@pytest.mark.parametrize(
    ("path", "headers", "answer"),
    [
        ("/api/sessions/s1/ws?role=client", {}, UNAUTHORIZED),
        ("/api/sessions/s1/ws?role=client&token=anybody", {}, UNAUTHORIZED),
        ("/api/sessions/s1/ws?role=client", {"Authorization": "Basic anybody"}, UNAUTHORIZED),
        ("/api/sessions/s1/ws?role=client", {"Authorization": "Bearer other"}, UNAUTHORIZED),
        ("/api/sessions/s1/ws", BEARER, NO_ROLE),
        ("/api/sessions/s1/ws?role=runner", BEARER, NO_ROLE),
        ("/api/sessions/s1/ws?role=client&role=runner", BEARER, NO_ROLE),
        ("/api/sessions/a/b/ws?role=client", BEARER, (404, {"error": "Route not found", "code": "NOT_FOUND"})),
    ],
)
async def test_who_may_not_connect_gets_a_json_answer(
    path: str, headers: dict[str, str], answer: tuple[int, dict[str, Any]]
) -> None:
    async with SessionAgent(token=BEARER["Authorization"].split()[1]).serving() as agent:
        assert await refused(agent, path, headers) == answer
        assert agent.sockets == []


async def test_any_token_may_connect_where_none_is_named_and_its_hash_is_the_user() -> None:
    async with SessionAgent().serving() as agent:
        url = f"{agent.url}/api/sessions/s1/ws?role=client"
        protocols = [Subprotocol("agent-ops"), Subprotocol("bearer.other")]
        async with (
            connect(url, additional_headers=BEARER) as one,
            connect(url, additional_headers=BEARER) as same,
            connect(url, subprotocols=protocols) as other,
        ):
            inits = [json.loads(await connection.recv()) for connection in (one, same, other)]
            assert other.subprotocol is None
        assert [init["data"]["connectedClients"] for init in inits] == [1, 2, 3]
        assert [len(init["data"]["connectedUsers"]) for init in inits] == [1, 1, 2]


async def test_a_socket_is_greeted_with_init_and_everybody_hears_who_came() -> None:
    ana = {"id": "ana", "name": "ana", "email": "ana@example.com"}
    bo = {"id": "bo", "name": "bo", "email": "bo@example.com"}
    async with SessionAgent().serving() as agent, joined(agent, "ana", "orchestrator:ana:1/2") as first:
        init, came, audit = first.heard
        assert init["session"] == {
            "id": "orchestrator:ana:1/2",
            "status": "running",
            "workspace": "demo",
            "title": "Demo",
            "messages": [],
        }
        models = init["data"].pop("availableModels")
        assert [list(provider) for provider in models] == [["provider", "models"]]
        assert init["data"] == {
            "sandboxRunning": True,
            "runnerConnected": True,
            "runnerBusy": False,
            "promptsQueued": 0,
            "connectedClients": 1,
            "connectedUsers": [ana],
            "auditLog": [],
        }
        details = {"name": "ana", "email": "ana@example.com"}
        assert came == {"type": "user.joined", "userId": "ana", "userDetails": details, "connectedUsers": [ana]}
        created = audit["entry"].pop("createdAt")
        assert (created[10], created[19], created[23:]) == ("T", ".", "Z")
        assert audit["entry"] == {"eventType": "user.joined", "summary": "ana joined", "actorId": "ana"}

        async with joined(agent, "bo", "orchestrator:ana:1/2") as second:
            assert second.heard[0]["data"]["connectedUsers"] == [ana, bo]
            assert [entry["summary"] for entry in second.heard[0]["data"]["auditLog"]] == ["ana joined"]
            [came, _] = await first.until("audit user.joined")
            assert came["connectedUsers"] == [ana, bo]
        [left, _] = await first.until("audit user.left")
        assert (left["type"], left["userId"], left["connectedUsers"]) == ("user.left", "bo", [ana])


async def test_a_user_leaves_with_the_last_socket_and_sessions_hear_nothing_of_each_other() -> None:
    async with SessionAgent().serving() as agent, joined(agent, "ana") as watching, joined(agent, "ana", "s2") as other:
        async with joined(agent, "bo"):
            async with joined(agent, "bo"):
                pass
            await agent.until(lambda: len(agent.sockets) == 3)
        assert await watching.briefs("audit user.left") == [
            *["user.joined", "audit user.joined"] * 2,
            "user.left",
            "audit user.left",
        ]
        await other.send("ping")
        assert await other.next() == {"type": "pong"}


async def test_the_transcript_of_init_can_be_many_megabytes() -> None:
    async with SessionAgent(SessionSettings(init_bytes=5_000_000)).serving() as agent, joined(agent) as client:
        assert len(json.dumps(client.heard[0])) > 5_000_000
        await client.turn("tools")
        async with joined(agent) as later:
            messages = later.heard[0]["session"]["messages"]
            assert [(message["role"], message["content"]) for message in messages[-2:]] == [
                ("user", "tools"),
                ("assistant", "Two files: a.ts and b.ts."),
            ]
            assert messages[-1]["parts"][-1] == {"type": "finish", "reason": "end_turn"}


async def test_pings_are_answered_and_what_cannot_be_read_is_told() -> None:
    async with SessionAgent().serving() as agent, joined(agent) as client:
        for message in ("nonsense", '{"type": "ping"', b"\xff", "[" * 100_000):
            await client.connection.send(message)
            assert await client.next() == {"type": "error", "message": "Invalid JSON"}
        for message in ("5", "null", "[]", "{}", '{"type": 7}', '{"type": "never-heard-of"}'):
            await client.connection.send(message)
        await client.send("prompt")
        assert await client.next() == {"type": "error", "message": "Missing content or attachments"}
        await client.send("answer", questionId="q")
        assert await client.next() == {"type": "error", "message": "Missing questionId or answer"}
        await client.send("answer", questionId="q", answer="nobody asked")
        await client.send("revert", messageId="not-there")
        await client.send("ping")
        assert await client.next() == {"type": "pong"}


async def test_the_other_requests_are_answered_to_everybody() -> None:
    async with SessionAgent().serving() as agent, joined(agent) as client, joined(agent, "bo") as other:
        await client.until("audit user.joined")
        for request, answer in (
            ({"type": "diff"}, {"type", "requestId", "data"}),
            ({"type": "review"}, {"type", "requestId", "data", "diffFiles"}),
            ({"type": "command", "command": "undo"}, {"type", "requestId", "command", "result"}),
            ({"type": "command", "command": "fly"}, {"type", "requestId", "command", "error"}),
        ):
            await client.send(request["type"], **request)
            frame = await client.next()
            assert set(frame) == answer
            assert frame["type"].startswith(request["type"])
            assert await other.next() == frame


async def test_what_was_received_is_told_by_type_session_and_user() -> None:
    before = asyncio.all_tasks()
    async with SessionAgent().serving() as agent:
        async with joined(agent) as ana, joined(agent, "bo", "s2") as bo:
            assert [(socket.session, socket.user.id) for socket in agent.sockets] == [("s1", "ana"), ("s2", "bo")]
            await ana.turn("one")
            await bo.turn("two")
            await bo.send("abort")
            await agent.until(lambda: len(agent.received("abort")) == 1)
            assert [received.message["content"] for received in agent.received("prompt")] == ["one", "two"]
            assert [received.user for received in agent.received("prompt", session="s2")] == ["bo"]
            assert [received.session for received in agent.received("prompt", user="ana")] == ["s1"]
            assert agent.received("abort", user="ana") == []
        await nothing_left(agent, asyncio.all_tasks())
    assert asyncio.all_tasks() == before


async def test_a_socket_that_comes_later_sees_the_question_that_is_open() -> None:
    async with SessionAgent().serving() as agent, joined(agent) as client:
        await client.prompt("question Deploy where?")
        asked = (await client.until("question"))[-1]
        url = f"{agent.url}/api/sessions/s1/ws?role=client"
        async with connect(url, additional_headers=BEARER) as connection:
            later = Client(connection)
            assert await later.briefs("audit user.joined") == ["init", "question", "user.joined", "audit user.joined"]
            assert later.heard[1] == {name: asked[name] for name in ("type", "questionId", "text", "options")}
            assert later.heard[0]["data"]["runnerBusy"] is True


async def test_a_server_that_is_left_closes_its_sockets_and_ends_its_turns() -> None:
    before = asyncio.all_tasks()
    agent = SessionAgent(SessionSettings(collect_seconds=60))
    serving = agent.serving()
    await serving.__aenter__()
    async with joined(agent) as client, joined(agent, "bo") as other:
        await client.prompt("hang")
        await client.until("+ I wait")
        await other.prompt("queued")
        await other.prompt("collected", queueMode="collect")
        await other.until("status collectPending=True collectCount=1")
        await serving.__aexit__(None, None, None)
        assert [brief(frame) for frame in await client.rest()][-1] == "status collectPending=True collectCount=1"
        assert client.connection.close_code == 1001
        assert agent.sockets == []
    await nothing_left(agent, before)
