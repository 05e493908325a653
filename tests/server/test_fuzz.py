"""Requests that are nearly right: each is served, or refused with one plain sentence, and nothing is left over."""

import asyncio
import json
import socket
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import httpx
import pytest
import uvicorn
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from support.hang import HANG_SECONDS
from support.loopback import all_ended, message
from support.mutations import Mutator, Request
from support.soak import SEED, draws
from support.wires import Answer, Wire
from usechat.events import AgentEvent, ToolCall
from usechat.server.app import create_app
from usechat.turns.chat import Chat

pytestmark = pytest.mark.anyio

REQUESTS: Final = draws(500, 48)
FRAMES: Final = draws(240, 20)
CONNECTIONS: Final = 8


async def agent(chat: Chat) -> AsyncGenerator[AgentEvent, None]:
    if chat.continues is not None:
        yield "Thank you."
    elif chat.text == "tool":
        yield ToolCall("call", "location", {"precise": True})
    elif chat.text == "approval":
        yield ToolCall("call", "delete", {})
        chat.write.approval_request("call", approval_id="approval")
    else:
        yield f"You said {chat.text[:20]!r}."


@asynccontextmanager
async def serving() -> AsyncGenerator[int, None]:
    app = create_app(agent, grace=None)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=5))
        running = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await running


async def valid_bodies(port: int) -> list[dict[str, Any]]:
    """What clients post: a question in all its forms, and the answers to open calls and approvals."""
    question = message("Hello")["messages"][0]
    bodies = [
        message("Hello"),
        {"id": "chat", "trigger": "regenerate-message", "messageId": "m1", "messages": [question]},
        {"id": "chat", "message": {"id": "m2", "role": "user", "content": "old"}, "extra": {"a": [1, {"b": None}]}},
        {"id": "chat", "messages": [{**question, "parts": [{"type": "file", "mediaType": "a/b", "url": "data:,x"}]}]},
    ]
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http:
        for number in range(8):
            kind = ("tool", "approval")[number % 2]
            await http.post("/api/chat", json=message(kind, f"{kind}-{number}"))
            messages = (await http.get(f"/api/chat/{kind}-{number}/messages")).json()
            messages[-1]["parts"][1] |= ANSWERS[kind]
            bodies.append({"id": f"{kind}-{number}", "trigger": "submit-message", "messages": messages})
    return bodies


ANSWERS: Final[dict[str, dict[str, Any]]] = {
    "tool": {"state": "output-available", "output": "Paris"},
    "approval": {"state": "approval-responded", "approval": {"id": "approval", "approved": True}},
}


def check(request: Request, answer: Answer | None) -> None:
    """The request was served, or refused in one short sentence that a page can show."""
    if answer is None:
        return
    assert answer.status < 500, request
    if answer.kind.startswith("text/event-stream"):
        assert answer.body.endswith(b"data: [DONE]\n\n")
        assert b'"type":"error"' not in answer.body, request
    if answer.status >= 400 and request.method != "HEAD":
        text = answer.body.decode()
        assert answer.kind == "text/plain; charset=utf-8", (request, answer)
        assert 0 < len(text) < 200, (request, answer)
        assert text.isprintable(), (request, answer)


async def send_requests(port: int, mutator: Mutator, statuses: Counter[int]) -> None:
    wire = Wire(port)
    try:
        for _ in range(REQUESTS // CONNECTIONS):
            request = mutator.request()
            async with asyncio.timeout(HANG_SECONDS):
                answer = await wire.ask(request)
            check(request, answer)
            statuses[0 if answer is None else answer.status] += 1
    finally:
        await wire.close()


async def test_mutated_requests_are_served_or_refused() -> None:
    statuses: Counter[int] = Counter()
    async with serving() as port:
        bodies = await valid_bodies(port)
        before = asyncio.all_tasks()
        mutators = [Mutator(SEED + number, bodies) for number in range(CONNECTIONS)]
        try:
            await asyncio.gather(*(send_requests(port, mutator, statuses) for mutator in mutators))
        except BaseException as error:
            error.add_note(f"USECHAT_SEED={SEED}")
            raise
        # A fuzzer that is always refused in the same way would find nothing.
        assert {200, 204, 400, 404, 405, 409, 415} <= statuses.keys()
        assert await all_ended(before), asyncio.all_tasks() - before


FRAMES_TO_CHANGE: Final[list[dict[str, Any]]] = [
    {"type": "send", "requestId": "r", "headers": {}, "body": {}, "trigger": "submit-message", **message("Hello")},
    {"type": "send", "requestId": "r", "headers": {"x-a": "b"}, "body": {"a": 1}, **message("Hello", "chat-2")},
    {"type": "resume", "requestId": "r", "id": "chat", "headers": {}, "body": {}, "lastSequence": 3},
    {"type": "resume", "requestId": "r", "id": "chat-2", "headers": {}, "body": {}},
    {"type": "abort", "requestId": "r"},
]

EXPECTED_KINDS: Final = {"chunk", "end", "error", "no-active", "closed with 1003", "closed with 1008"}


async def send_frames(port: int, mutator: Mutator, kinds: Counter[str]) -> None:
    sent = 0
    while sent < FRAMES // CONNECTIONS:
        async with connect(f"ws://127.0.0.1:{port}/api/chat/ws", compression=None) as connection:
            with suppress(ConnectionClosed):
                while sent < FRAMES // CONNECTIONS:
                    sent += 1
                    await send_frame(connection, mutator.body(), kinds)
        kinds[f"closed with {connection.close_code}"] += 1


async def send_frame(connection: ClientConnection, frame: bytes, kinds: Counter[str]) -> None:
    """Send it, and a question whose answer shows that the server is through with it."""
    try:
        await connection.send(frame.decode())
    except UnicodeDecodeError:
        await connection.send(frame)
    probe: dict[str, Any] = {"type": "resume", "requestId": "probe", "id": "nothing", "headers": {}, "body": {}}
    await connection.send(json.dumps(probe))
    while True:
        async with asyncio.timeout(HANG_SECONDS):
            answer = json.loads(await connection.recv())
        if answer == {"type": "no-active", "requestId": "probe"}:
            return
        kinds[answer["type"]] += 1
        if answer["type"] == "error":
            assert not answer["errorText"].startswith("Something went wrong."), frame
            assert 0 < len(answer["errorText"]) < 200, (frame, answer)
            assert answer["errorText"].isprintable(), (frame, answer)


async def test_mutated_frames_are_served_or_refused() -> None:
    kinds: Counter[str] = Counter()
    async with serving() as port:
        await valid_bodies(port)
        before = asyncio.all_tasks()
        mutators = [Mutator(SEED + number, FRAMES_TO_CHANGE) for number in range(CONNECTIONS)]
        try:
            await asyncio.gather(*(send_frames(port, mutator, kinds) for mutator in mutators))
        except BaseException as error:
            error.add_note(f"USECHAT_SEED={SEED}")
            raise
        assert kinds.keys() - {"closed with 1000", "start"} == EXPECTED_KINDS
        assert await all_ended(before), asyncio.all_tasks() - before
