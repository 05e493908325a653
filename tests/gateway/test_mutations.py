"""Requests to the gateway that are nearly right: each is served, or refused in JSON, and nothing is left over."""

import asyncio
import json
from collections import Counter
from typing import Any, Final

import pytest

from support.gateways import serving_gateway
from support.hang import HANG_SECONDS
from support.loopback import all_ended, message
from support.mutations import Mutator, Request, Site
from support.soak import SEED, draws
from support.wires import Answer, Wire

pytestmark = pytest.mark.anyio

REQUESTS: Final = draws(320)
CONNECTIONS: Final = 8
PNG: Final = "data:image/png;base64,iVBORw0KGgo="

QUESTION: Final = message("Hello")["messages"][0]
BODIES: Final[list[dict[str, Any]]] = [
    message("Hello"),
    message("tools"),
    {"id": "chat", "messages": [QUESTION, {**QUESTION, "role": "assistant"}, QUESTION], "trigger": "submit-message"},
    {"id": "chat", "trigger": "regenerate-message", "messageId": "m1", "messages": [QUESTION]},
    {"id": "chat", "message": {"id": "m2", "role": "user", "content": "old"}, "extra": {"a": [1, {"b": None}]}},
    {"id": "chat", "messages": [{**QUESTION, "parts": [{"type": "file", "mediaType": "image/png", "url": PNG}]}]},
    {"questionId": "q", "answer": "yes"},
]
SESSIONS: Final = ("s1", "s%2f2", "s1/", "%2e%2e", "..", "missing", "%00", "%ff", "x" * 600, "")
SITE: Final = Site(
    posts=(
        "/api/sessions/s1/chat",
        "/api/sessions/s%2f2/chat",
        "/api/sessions/s%2f2/chat?channelType=slack&channelId=C1",
        "/api/sessions/s1/answer",
    ),
    before=tuple(f"/api/sessions/{session}/chat/" for session in (*("s1", "s%2f2") * 4, *SESSIONS)),
    after=("/stream", "/stop", "/stream", "/stop", "/"),
    others=(
        *("/", "/healthz", "/metrics", "*", "/api/sessions", "/api/sessions/s1/ws"),
        *(f"/api/sessions/{session}/{rest}" for session in SESSIONS for rest in ("chat", "answer", "channels")),
    ),
)


def check(request: Request, answer: Answer | None) -> None:
    """The request was served, or refused in one short sentence that a page can show."""
    if answer is None:
        return
    assert answer.status < 500, request
    if answer.kind.startswith("text/event-stream"):
        assert answer.body.endswith(b"data: [DONE]\n\n")
        assert b'"type":"error"' not in answer.body, (request, answer)
    # What cannot be read as HTTP is refused by the server itself.
    if answer.status >= 400 and request.method != "HEAD" and answer.body != b"Invalid HTTP request received.":
        assert answer.headers["cache-control"] == "no-store"
        refusal = json.loads(answer.body)
        assert refusal.keys() == {"error", "code"}, (request, answer)
        assert 0 < len(refusal["error"]) < 200, (request, answer)
        assert refusal["error"].isprintable(), (request, answer)


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


async def test_mutated_requests_are_served_or_refused():
    statuses: Counter[int] = Counter()
    async with serving_gateway() as gateway:
        await gateway.directory.add_session("s/2", "ana")
        port = int(gateway.url.rpartition(":")[2])
        site = SITE._replace(headers=tuple((await gateway.headers("ana")).items()))
        assert (await gateway.get("channels")).status_code == 200
        await gateway.agent.until(lambda: not gateway.agent.sockets)
        before = asyncio.all_tasks()
        mutators = [Mutator(SEED + number, BODIES, site) for number in range(CONNECTIONS)]
        await asyncio.gather(*(send_requests(port, mutator, statuses) for mutator in mutators))
        # A fuzzer that is always refused in the same way would find nothing.
        assert {200, 204, 400, 401, 404, 405, 415} <= statuses.keys()
        await gateway.agent.until(lambda: not gateway.agent.sockets)
        assert await all_ended(before), asyncio.all_tasks() - before
        assert await gateway.metric("adapter_ws_open") == 0
        assert await gateway.metric("adapter_ws_open_failures_total") == 0
