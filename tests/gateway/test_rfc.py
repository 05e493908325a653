"""The integration list and the manual checklist of the RFC, over real HTTP and a real WebSocket.

What of them is a matter of the client is in `conformance/test_gateway.py` too, with the real clients; how fast the
gateway is, is measured in `bench/`.
"""

import asyncio
import re
from typing import Any

import httpx
import pytest

from support.gateways import Gateway, chunks, serving_gateway, until_chunk
from support.loopback import parts
from usechat.gateway.access import Kind

pytestmark = pytest.mark.anyio


def shown(parts: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    """The parts in short, without the agent's status."""
    return [
        (part["type"], part.get("text") or part.get("output") or part.get("errorText"))
        for part in parts
        if part["type"] not in ("step-start", "data-agent-status")
    ]


def lines(body: str, field: str) -> list[str]:
    """The values of one field of the events."""
    return [line.removeprefix(f"{field}: ") for line in body.splitlines() if line.startswith(f"{field}: ")]


def body(text: str, chat: str, message_id: str) -> dict[str, Any]:
    return {"id": chat, "messages": [{"id": message_id, "role": "user", "parts": [{"type": "text", "text": text}]}]}


async def until_free(gateway: Gateway) -> None:
    """Wait until the gateway has left the session."""
    await gateway.agent.until(lambda: not gateway.agent.sockets)


# The integration list.


async def test_round_trip() -> None:
    async with serving_gateway() as gateway:
        answer = await gateway.ask("Hello there")
        names = [name for name in lines(answer, "event") if not name.startswith("data-")]
        assert (names[0], names[-1], names.count("text-delta")) == ("message-start", "message-finish", 4)
        assert shown(parts(answer)) == [("text", "You said: Hello there")]
        assert lines(answer, "data")[-1] == "[DONE]"
        await until_free(gateway)


@pytest.mark.parametrize(
    "said", [{"content": "Hello"}, {"parts": [{"type": "text", "text": "Hello"}]}, {"id": None, "content": "Hello"}]
)
async def test_the_request_of_the_rfc_needs_no_ids(said: dict[str, Any]) -> None:
    request = {"messages": [{"role": "user", "content": "Before"}, {"role": "user", **said}]}
    async with serving_gateway() as gateway:
        answers = await asyncio.gather(*(gateway.post("chat", json=request) for _ in range(2)))
        assert [shown(parts(answer.text)) for answer in answers] == [[("text", "You said: Hello")]] * 2
        # Each is a chat of its own, so that nothing was taken back.
        assert gateway.agent.received("revert") == []


async def test_abort() -> None:
    async with serving_gateway() as gateway:
        async with gateway.asking("hang") as stream:
            await until_chunk(stream, type="text-delta", delta="I wait")
        await gateway.agent.until(lambda: bool(gateway.agent.received("abort")))
        assert shown(await gateway.parts("Hello", chat="next")) == [("text", "You said: Hello")]
        assert len(gateway.agent.received("abort")) == 1


async def test_auth() -> None:
    async with serving_gateway() as gateway:
        await gateway.headers("vera")
        await gateway.directory.grant("s1", "vera", "viewer")
        given = body("Hello", "c", "m1")
        stranger = await gateway.http.post(gateway.path("chat"), json=given)
        nowhere = await gateway.post("chat", session="s2", json=given)
        viewer = await gateway.post("chat", user="vera", json=given)
        answers = [(answer.status_code, answer.json()["code"]) for answer in (stranger, nowhere, viewer)]
        assert answers == [(401, "UNAUTHORIZED"), (404, "NOT_FOUND"), (404, "NOT_FOUND")]
        assert viewer.json()["error"].replace("s1", "s2") == nowhere.json()["error"]
        assert (await gateway.get("channels", user="vera")).status_code == 200
        assert gateway.agent.received("prompt") == []


async def test_tool_execution() -> None:
    async with serving_gateway() as gateway:
        answer = await gateway.ask("tools")
        assert [name for name in lines(answer, "event") if name.startswith("tool-")] == [
            *("tool-input-start", "tool-input-available", "tool-output-available"),
        ]
        assert shown(parts(answer))[1] == ("tool-bash", "a.ts\nb.ts\n")


@pytest.mark.parametrize("prompt", ["fail Overloaded", "fail-late Overloaded"])
async def test_error_handling(prompt: str) -> None:
    async with serving_gateway() as gateway:
        answer = await gateway.ask(prompt)
        assert lines(answer, "data")[-2:] == ['{"type":"error","errorText":"Overloaded"}', "[DONE]"]
        parts(answer)
        await until_free(gateway)


async def test_long_running_turn() -> None:
    async with serving_gateway() as gateway:
        answer = await gateway.ask("long 1500")
        assert lines(answer, "event").count("text-delta") == 1500
        assert shown(parts(answer)) == [("text", "".join(f"{number} " for number in range(1500)))]


async def test_performance_many_streams_at_once_and_one_after_the_other_leave_nothing() -> None:
    async with serving_gateway() as gateway:
        asked = [f"This is {number}" for number in range(20)]
        answers = await asyncio.gather(*(gateway.parts(text, chat=text) for text in asked))
        assert [shown(answer) for answer in answers] == [[("text", f"You said: {text}")] for text in asked]
        for text in asked:
            assert shown(await gateway.parts(text, chat=f"again {text}")) == [("text", f"You said: {text}")]
        await until_free(gateway)


# The manual checklist.


async def test_the_endpoint_returns_the_content_type_and_the_header() -> None:
    async with serving_gateway() as gateway:
        response = await gateway.post("chat", json=body("Hello", "c", "m1"))
        assert response.headers["content-type"].partition(";")[0] == "text/event-stream"
        assert response.headers["x-vercel-ai-ui-message-stream"] == "v1"


async def test_the_stream_is_one_that_the_client_libraries_read() -> None:
    async with serving_gateway() as gateway:
        for prompt in ("Hello", "tools", "v2 tools", "both tools", "failover", "empty", "noise"):
            answer = await gateway.ask(prompt, chat=prompt)
            parts(answer)
            assert lines(answer, "data")[-2:] == ['{"type":"finish","finishReason":"stop"}', "[DONE]"]


async def test_tool_calls_are_rendered() -> None:
    async with serving_gateway() as gateway:
        assert shown(await gateway.parts("broken-tool")) == [
            *(("text", "First."), ("tool-read", "A"), ("text", " Second.")),
            *(("tool-read", "ENOENT: b"), ("text", " b is missing.")),
        ]


async def test_the_stop_button_aborts_the_turn() -> None:
    async with serving_gateway() as gateway:
        async with gateway.asking("hang") as stream:
            await until_chunk(stream, type="text-delta")
            assert (await gateway.post("chat/c/stop")).status_code == 204
            assert [chunk["type"] async for chunk in stream] == ["text-end", "finish-step", "abort"]
        await gateway.agent.until(lambda: bool(gateway.agent.received("abort")))
        await until_free(gateway)


async def test_error_messages_are_displayed() -> None:
    async with serving_gateway() as gateway:
        texts = [lines(await gateway.ask(prompt, chat=prompt), "data")[-2] for prompt in ("silent", "close", "fail x")]
    assert texts == [
        '{"type":"error","errorText":"The agent gave no answer."}',
        '{"type":"error","errorText":"Stream interrupted"}',
        '{"type":"error","errorText":"x"}',
    ]


async def test_rapid_prompts_do_not_corrupt_anything() -> None:
    """Several at once in one chat, the same text among them, and in other chats and of other users besides."""
    async with serving_gateway() as gateway:
        await gateway.headers("bob")
        await gateway.directory.grant("s1", "bob", "collaborator")
        asked = [
            (text, chat, user) for user in ("ana", "bob") for chat in ("c", "d") for text in ("A", "B", "B", "tools")
        ]

        async def ask(number: int, text: str, chat: str, user: str) -> httpx.Response:
            return await gateway.post("chat", user=user, json=body(text, chat, f"m-{number}"))

        answers = await asyncio.gather(*(ask(number, *one) for number, one in enumerate(asked)))
        for (text, *_), answer in zip(asked, answers, strict=True):
            last = shown(parts(answer.text))[-1][1]
            assert last == ("Two files: a.ts and b.ts." if text == "tools" else f"You said: {text}")
        assert len(gateway.agent.received("prompt")) == len(asked)
        turns = {turn for answer in answers for turn in re.findall(r'"turnId":"(.+?)"', answer.text)}
        assert len(turns) == len(asked)
        assert [gateway.agent.received(kind) for kind in ("abort", "revert")] == [[], []]


@pytest.mark.parametrize(
    ("session", "kind"),
    [
        ("0b7f6c1e-1111-4222-8333-444455556666", "session"),
        ("orchestrator:ana:0b7f6c1e-1111-4222-8333-444455556666", "orchestrator"),
        ("orchestrator:ana", "orchestrator"),
        ("workflow-1", "workflow"),
    ],
)
async def test_sessions_of_every_kind_work_for_their_owner(session: str, kind: Kind) -> None:
    async with serving_gateway() as gateway:
        await gateway.directory.add_session(session, "ana", kind=kind)
        assert shown(await gateway.parts("Hello", session=session)) == [("text", "You said: Hello")]
        assert [received.session for received in gateway.agent.received("prompt")] == [session]
        refused = await gateway.post("chat", user="bob", session=session, json=body("Hello", "c", "m1"))
        assert refused.status_code == 404


async def test_a_hibernated_session_wakes_and_answers() -> None:
    async with serving_gateway() as gateway:
        await gateway.ask("hibernate")
        url, headers = gateway.path("chat"), await gateway.headers("ana")
        given = body("Wake up", "c", "m2")
        async with gateway.http.stream("POST", url, json=given, headers=headers) as response:
            read = [chunk async for chunk in chunks(response)]
        statuses = [chunk["data"]["status"] for chunk in read if chunk["type"] == "data-agent-status"]
        assert (statuses[0], statuses[-1]) == ("queued", "streaming")
        assert "".join(chunk["delta"] for chunk in read if chunk["type"] == "text-delta") == "You said: Wake up"
