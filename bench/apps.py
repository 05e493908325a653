"""The Python servers of the server benchmark, one in each process: `apps.py <server> <script>` prints its port."""

import asyncio
import importlib
import itertools
import os
import random
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, Final, TypeAlias

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from usechat.protocol.chunks import Chunk, Finish, FinishStep, Start, StartStep, TextDelta, TextEnd, TextStart
from usechat.protocol.frames import encode_frame
from usechat.protocol.sse import DONE
from usechat.server.app import create_app
from usechat.server.responses import STREAM_HEADERS
from usechat.turns.settings import ChatSettings

Script: TypeAlias = Callable[[object], AsyncIterator[str]]

WORDS: Final = ("The ", "tides ", "of ", "the ", "naïve ", "shore ", "turn ", "by ", "noon", ", ", "so ", "wait.\n")
STEADY_CHUNKS: Final = 300
# All clients of a benchmark come from one address.
_SETTINGS: Final = ChatSettings(turns_per_address=2_000)
TEXT: Final = list(itertools.islice(itertools.cycle(WORDS), 2_000))


async def fast(_chat: object) -> AsyncIterator[str]:
    for delta in TEXT:
        yield delta


async def paced(_chat: object) -> AsyncIterator[str]:
    for _ in range(200):
        await asyncio.sleep(0.02)
        # The load client has the same clock.
        yield f"@{time.perf_counter_ns()}@"


async def steady(_chat: object) -> AsyncIterator[str]:
    """Twenty chunks a second, at times that no other turn shares."""
    await asyncio.sleep(random.random() / 20)  # noqa: S311
    for _ in range(STEADY_CHUNKS):
        await asyncio.sleep(0.05)
        yield f"@{time.perf_counter_ns()}@"


async def idle(_chat: object) -> AsyncIterator[str]:
    for delta in TEXT[:10]:
        yield delta
    await asyncio.get_running_loop().create_future()


async def numbers(_chat: object) -> AsyncIterator[str]:
    for number in range(10_000):
        yield f"{number} "
        if number % 100 == 0:
            await asyncio.sleep(0)


SCRIPTS: Final[dict[str, Script]] = {"fast": fast, "paced": paced, "idle": idle, "numbers": numbers, "steady": steady}


def frame(chunk: Chunk) -> bytes:
    return encode_frame(chunk)


OPENING: Final = [frame(chunk) for chunk in (Start("message"), StartStep(), TextStart("text"))]
CLOSING: Final = [frame(chunk) for chunk in (TextEnd("text"), FinishStep(), Finish("stop"))] + [DONE]
READY: Final = [*OPENING, *(frame(TextDelta("text", delta)) for delta in TEXT), *CLOSING]


def starlette(script: Script) -> Starlette:
    """A bare StreamingResponse, with one send for each chunk; those of the fast script are ready bytes."""

    async def ready() -> AsyncIterator[bytes]:
        for event in READY:
            yield event

    async def live() -> AsyncIterator[bytes]:
        for event in OPENING:
            yield event
        async for delta in script(None):
            yield frame(TextDelta("text", delta))
        for event in CLOSING:
            yield event

    async def answer(request: Request) -> Response:
        await request.body()
        return StreamingResponse(ready() if script is fast else live(), headers=STREAM_HEADERS)

    return Starlette(routes=[Route("/api/chat", answer, methods=["POST"])])


def pydantic_ai_adapter(script: Script) -> Starlette:
    """pydantic-ai's adapter from the events of an agent, without the agent; those of the fast script are ready."""
    messages, vercel_ai = _pydantic_ai("messages"), _pydantic_ai("ui.vercel_ai")
    begin = messages.PartStartEvent(index=0, part=messages.TextPart(""))
    end = messages.PartEndEvent(index=0, part=messages.TextPart(""))

    def event(delta: str) -> object:
        return messages.PartDeltaEvent(index=0, delta=messages.TextPartDelta(delta))

    built = [event(delta) for delta in TEXT]

    async def ready() -> AsyncIterator[object]:
        yield begin
        for delta in built:
            yield delta
        yield end

    async def live() -> AsyncIterator[object]:
        yield begin
        async for delta in script(None):
            yield event(delta)
        yield end

    async def answer(request: Request) -> Response:
        run_input = vercel_ai.VercelAIAdapter.build_run_input(await request.body())
        stream = vercel_ai.VercelAIEventStream(run_input, sdk_version=6)
        return stream.streaming_response(stream.transform_stream(ready() if script is fast else live()))

    return Starlette(routes=[Route("/api/chat", answer, methods=["POST"])])


def pydantic_ai_agent(script: Script) -> Starlette:
    """pydantic-ai as it is used: its adapter and its agent, with a model that is the script."""

    async def model(_messages: object, _info: object) -> AsyncIterator[str]:
        async for delta in script(None):
            yield delta

    agent = _pydantic_ai("Agent")(_pydantic_ai("models.function").FunctionModel(stream_function=model))
    dispatch = _pydantic_ai("ui.vercel_ai").VercelAIAdapter.dispatch_request

    async def answer(request: Request) -> Response:
        return await dispatch(request, agent=agent)

    return Starlette(routes=[Route("/api/chat", answer, methods=["POST"])])


FILES_A_SECOND: Final = 500
CONTENT: Final = "The tides of the shore turn by noon.\n" * 60


class DeepAgent:
    """Says the script, and if it `writes`, reports 500 files a second at the same time."""

    def __init__(self, script: Script, *, writes: bool) -> None:
        self._script = script
        self._writes = writes

    async def stream_with_events(self, **_given: object) -> AsyncIterator[dict[str, Any]]:
        told = asyncio.Queue[dict[str, Any]]()
        writing = asyncio.create_task(self._write(told))
        speaking = asyncio.create_task(self._speak(told))
        yield {"type": "step-start", "stepNumber": 1}
        try:
            while (event := await told.get())["type"] != "step-finish":
                yield event
            yield event
        finally:
            writing.cancel()
            speaking.cancel()

    async def _speak(self, told: asyncio.Queue[dict[str, Any]]) -> None:
        async for delta in self._script(None):
            told.put_nowait({"type": "text", "text": delta})
        told.put_nowait({"type": "step-finish", "stepNumber": 1, "toolCalls": []})

    async def _write(self, told: asyncio.Queue[dict[str, Any]]) -> None:
        begin = time.perf_counter()
        for number in itertools.count() if self._writes else ():
            await asyncio.sleep(begin + number / FILES_A_SECOND - time.perf_counter())
            told.put_nowait({"type": "file-written", "path": f"/{number}.md", "content": CONTENT})


def deep_agent(script: Script) -> Starlette:
    return create_app(DeepAgent(script, writes=False), history="client", approval_secret="0" * 32, settings=_SETTINGS)


def deep_agent_files(script: Script) -> Starlette:
    return create_app(DeepAgent(script, writes=True), history="client", approval_secret="0" * 32, settings=_SETTINGS)


def open_harness(script: Script) -> Starlette:
    """A flow of one node, which emits the script as pieces of an agent's text."""
    # The other servers do without what it needs.
    from usechat.flows import FlowRuntime, NodeContext
    from usechat.transports import OpenHarnessChatTransport

    async def speak(context: NodeContext, _value: object) -> None:
        async for delta in script(None):
            context.emit({"type": "agent:text:delta", "content": delta})

    flow: dict[str, Any] = {"name": "bench", "nodes": [{"id": "speaker", "type": "speak", "input": {}}], "edges": []}
    transport = OpenHarnessChatTransport(lambda: FlowRuntime(flow, {"speak": speak}))
    # A history in memory would grow with every turn.
    return create_app(transport, history="client", approval_secret="0" * 32, settings=_SETTINGS)


def on_redis(script: Script) -> Starlette:
    """usechat with its turns on the Redis of `USECHAT_STORE`, and without a history."""
    return create_app(
        script, store=os.environ["USECHAT_STORE"], history="client", approval_secret="0" * 32, settings=_SETTINGS
    )


def _pydantic_ai(name: str) -> Any:
    # It is installed in the benchmark's own environment only, where the type checker does not look.
    if name == "Agent":
        return importlib.import_module("pydantic_ai").Agent
    return importlib.import_module(f"pydantic_ai.{name}")


APPS: Final[dict[str, Callable[[Script], Starlette]]] = {
    "usechat": partial(create_app, settings=_SETTINGS),
    "starlette": starlette,
    "pydantic-ai-adapter": pydantic_ai_adapter,
    "pydantic-ai-agent": pydantic_ai_agent,
    "open-harness": open_harness,
    "deep-agent": deep_agent,
    "deep-agent-files": deep_agent_files,
    "redis": on_redis,
}


def main() -> None:
    server, script = sys.argv[1:]
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(APPS[server](SCRIPTS[script]), http="httptools", log_level="warning", access_log=False)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
