"""Many streams at once, many one after the other, and much in one of them."""

import asyncio
import gc
import re
import tracemalloc
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest

import usechat.integrations.agent_ops.agent as driver
from support.gateways import SETTINGS, Gateway, serving_gateway, until_chunk
from support.loopback import message
from support.soak import draws
from usechat.integrations.agent_ops.options import SocketLimits
from usechat.protocol.verdict import judge, recorded_events
from usechat.session_agent import Script, SessionSettings
from usechat.stores.memory import MemoryTurnStore

pytestmark = pytest.mark.anyio

# A loop keeps timers that were cancelled until there are many of them.
_OF_REQUESTS = re.compile(
    r"usechat\.(?!session_agent)|websockets|asyncio(?!.*TimerHandle)|uvicorn|starlette|coroutine|generator"
)
WEB, SLACK = "", "?channelType=slack&channelId=C1"


class Answer(msgspec.Struct, frozen=True):
    """What a stream said, and the turns of the session that it showed."""

    text: str
    turn: str


async def answer(gateway: Gateway, text: str, *, chat: str, query: str = WEB, **options: Any) -> Answer:
    response = await gateway.post(f"chat{query}", json=message(text, chat), **options)
    assert response.status_code == 200, response.text
    verdict = judge(recorded_events(response.content), "portable")
    assert verdict.violation is None
    assert response.text.count('"messageMetadata":{"turnId"') == 1
    shown = [part["text"] for part in verdict.message.parts if part["type"] == "text"]
    metadata: Any = verdict.message.metadata
    return Answer("".join(shown), metadata["turnId"])


async def with_others(gateway: Gateway, *users: str) -> None:
    for user in users:
        await gateway.headers(user)
        await gateway.directory.grant("s1", user, "collaborator")


@pytest.mark.parametrize("vocabulary", ["client", "both"])
async def test_equal_prompts_of_one_user_have_a_turn_each(vocabulary: Any) -> None:
    async with serving_gateway(agent=SessionSettings(vocabulary=vocabulary)) as gateway:
        answers = await asyncio.gather(*(answer(gateway, "Hello", chat=f"c{number}") for number in range(20)))
        assert {one.text for one in answers} == {"You said: Hello"}
        assert len({one.turn for one in answers}) == 20


async def test_each_of_a_hundred_streams_to_one_session_has_its_own_turn_and_nobody_elses() -> None:
    """Three users, two channels, texts that are equal and such that are not, and turns that nobody asked for."""
    asked = [
        (user, query, "Hello" if number % 2 else f"Number {number}")
        for number in range(draws(6, 3))
        for user in ("ana", "bob", "eve")
        for query in (WEB, SLACK)
    ]
    async with serving_gateway() as gateway:
        await with_others(gateway, "bob", "eve")
        session, prompts = gateway.agent.session("s1"), len(asked)

        async def interrupt() -> None:
            for count in range(10, prompts, 15):
                await gateway.agent.until(lambda count=count: len(gateway.agent.received("prompt")) >= count)
                session.unsolicited(f"Event {count}", {} if count % 2 else {"channelType": "slack", "channelId": "C1"})

        interrupting = asyncio.create_task(interrupt())
        answers = await asyncio.gather(
            *(
                answer(gateway, text, chat=f"c{number}", user=user, query=query)
                for number, (user, query, text) in enumerate(asked)
            )
        )
        await interrupting
        assert [one.text for one in answers] == [f"You said: {text}" for _, _, text in asked]
        assert len({one.turn for one in answers}) == len(asked)
        assert gateway.agent.received("abort") == []
        await gateway.agent.until(lambda: not gateway.agent.sockets)
        assert await gateway.metric("adapter_ws_open") == 0


async def test_a_user_has_128_turns_at_once_each_in_a_session_of_its_own() -> None:
    assert SETTINGS.turns_per_user == 128
    settings = msgspec.structs.replace(SETTINGS, turns_per_user=draws(32, 4))
    sessions = [f"session-{number}" for number in range(settings.turns_per_user)]
    async with serving_gateway(settings) as gateway, AsyncExitStack() as stack:
        for session in sessions:
            await gateway.directory.add_session(session, "ana")
        streams = [await stack.enter_async_context(gateway.asking("hang", session=session)) for session in sessions]
        await asyncio.gather(*(until_chunk(stream, type="text-delta") for stream in streams))
        assert await gateway.metric("adapter_ws_open") == len(sessions)
        assert await gateway.metric("adapter_ws_open_most_of_a_session") == 1
        refused = await gateway.post("chat", json=message("Hello", "c"))
        assert (refused.status_code, refused.json()["code"]) == (429, "TOO_MANY_REQUESTS")
        assert int(refused.headers["retry-after"]) > 0
        await with_others(gateway, "bob")
        assert (await gateway.parts("Hello", user="bob"))[-1]["text"] == "You said: Hello"
        for session in sessions:
            gateway.agent.session(session).release()
        rests = await asyncio.gather(*(rest(stream) for stream in streams))
        assert set(rests) == {" no more."}
        assert (await gateway.parts("Hello"))[-1]["text"] == "You said: Hello"


async def rest(stream: Any) -> str:
    chunks = [chunk async for chunk in stream]
    assert chunks[-1]["type"] == "finish"
    return "".join(chunk["delta"] for chunk in chunks if chunk["type"] == "text-delta")


async def test_sockets_are_bounded_for_a_session_and_in_all() -> None:
    settings = msgspec.structs.replace(SETTINGS, sockets=SocketLimits(per_session=2, in_all=3))

    async def is_refused(gateway: Gateway, session: str) -> None:
        for refused in (
            await gateway.post("chat", json=message("Hello", "refused"), session=session),
            await gateway.post("answer", json={"questionId": "q", "answer": "a"}, session=session),
            await gateway.get("channels", session=session),
        ):
            assert (refused.status_code, refused.json()["code"]) == (503, "SERVICE_UNAVAILABLE")
            assert refused.headers["retry-after"] == "5"

    async with serving_gateway(settings) as gateway:
        for session in ("s2", "s3"):
            await gateway.directory.add_session(session, "ana")
        async with gateway.asking("hang") as stream, gateway.asking("Hello", chat="d") as waiting:
            await until_chunk(stream, type="text-delta")
            await until_chunk(waiting, type="data-agent-status")
            await is_refused(gateway, "s1")
            async with gateway.asking("hang", session="s2") as other:
                await until_chunk(other, type="text-delta")
                await is_refused(gateway, "s3")
                assert await gateway.metric("adapter_ws_open") == 3
                assert await gateway.metric("adapter_ws_open_most_of_a_session") == 2
        await gateway.agent.until(lambda: not gateway.agent.sockets)
        assert await gateway.metric("adapter_ws_open") == 0
        assert await gateway.metric("adapter_ws_open_most_of_a_session") == 0
        assert (await gateway.parts("Hello"))[-1]["text"] == "You said: Hello"


@pytest.mark.parametrize("prompt", ["long 1500", "v2 long 1500", "both long 1500"])
async def test_no_delta_is_lost(prompt: str) -> None:
    async with serving_gateway() as gateway, gateway.asking(prompt) as stream:
        chunks = [chunk async for chunk in stream]
    assert [one["delta"] for one in chunks if one["type"] == "text-delta"] == [f"{number} " for number in range(1500)]
    assert chunks[-1] == {"type": "finish", "finishReason": "stop"}


def many_calls(count: int, vocabulary: str) -> Script:
    """A turn with so many calls, of which ten are open at a time, so that each has two updates."""
    calls = [{"callId": f"call-{number}", "toolName": "bash", "status": "running"} for number in range(count)]
    frames: list[dict[str, Any]] = [{"type": "agentStatus", "status": "thinking"}]
    data = {"id": "turn", "role": "assistant", "content": "", "channelType": "web", "channelId": "default"}
    if vocabulary == "v2":
        frames.append({"type": "message.create", "turnId": "turn"})
    else:
        frames.append({"type": "message", "data": {**data, "parts": []}})

    def update(number: int, **fields: Any) -> None:
        calls[number] = {**calls[number], **fields}
        if vocabulary == "v2":
            frames.append({"type": "message.part.tool-update", "turnId": "turn", **calls[number]})
        else:
            seen = [{"type": "tool-call", **call} for call in calls[: number + 1]]
            frames.append({"type": "message.updated", "data": {**data, "parts": seen}})

    for first in range(0, count, 10):
        for number in range(first, min(first + 10, count)):
            update(number, args={"number": number})
        for number in range(first, min(first + 10, count)):
            update(number, status="completed", result=f"Result {number}")
    finish = {"type": "finish", "reason": "end_turn"}
    if vocabulary == "v2":
        frames.append({"type": "message.finalize", "turnId": "turn", "reason": "end_turn"})
    else:
        parts = [{"type": "tool-call", **call} for call in calls]
        frames.append({"type": "message.updated", "data": {**data, "parts": [*parts, finish]}})
    return Script(frames=tuple(frames))


@pytest.mark.parametrize(("vocabulary", "count"), [("v2", 1000), ("client", draws(200, 3))])
async def test_no_update_of_a_tool_is_lost(vocabulary: str, count: int) -> None:
    async with serving_gateway(script=many_calls(count, vocabulary)) as gateway:
        calls = [part for part in await gateway.parts("Hello") if "toolCallId" in part]
    told = [(call["toolCallId"], call["input"], call["output"]) for call in calls]
    assert told == [(f"call-{number}", {"number": number}, f"Result {number}") for number in range(count)]


async def test_an_init_of_many_megabytes_is_read() -> None:
    async with serving_gateway(agent=SessionSettings(init_bytes=5_000_000)) as gateway:
        asked = [gateway.parts("Hello", chat=f"c{number}") for number in range(3)]
        for answered in await asyncio.gather(*asked):
            assert answered[-1]["text"] == "You said: Hello"
        channels = await gateway.get("channels")
        assert channels.json() == {"channels": [{"channelType": "web", "channelId": "default"}]}


def kinds() -> Counter[str]:
    """How many objects there are of each kind that a request needs."""
    gc.collect()
    named = Counter(map(str, map(type, gc.get_objects())))
    return Counter({kind: count for kind, count in named.items() if _OF_REQUESTS.search(kind)})


def held() -> int:
    """The bytes that the gateway and the library of its sockets hold."""
    gc.collect()
    packages = ("agents", "protocol", "server", "sources", "stores", "turns")
    files = [tracemalloc.Filter(inclusive=True, filename_pattern=f"*/usechat/{name}/*") for name in packages]
    files.append(tracemalloc.Filter(inclusive=True, filename_pattern="*/websockets/*"))
    return sum(line.size for line in tracemalloc.take_snapshot().filter_traces(files).statistics("filename"))


async def test_a_thousand_requests_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    # What is kept for a while, by design, would hide what is kept for ever.
    monkeypatch.setattr(MemoryTurnStore.__init__, "__defaults__", (0.0, 0))
    monkeypatch.setattr(driver, "_MOST_ECHOES", 20)
    half = draws(20, 24)
    async with serving_gateway() as gateway:

        async def ask(first: int, count: int) -> None:
            for number in range(first, first + count):
                await gateway.ask("Hello", chat=f"c{number}")
            await gateway.agent.until(lambda: not gateway.agent.sockets)

        await ask(0, 20)
        before = kinds()
        tracemalloc.start()
        try:
            await ask(20, half)
            earlier = held()
            await ask(20 + half, half)
            later = held()
        finally:
            tracemalloc.stop()
        grown = {kind: more for kind, more in (kinds() - before).items() if more >= half}
    assert grown == {}
    # A hundred bytes of each request, beside what comes and goes.
    assert later - earlier < 50_000 + 100 * half
