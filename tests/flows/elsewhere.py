"""Runtimes elsewhere, one that is not ours and one that is, and what it takes to listen to them."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from websockets.asyncio.server import ServerConnection, broadcast, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from flows.play import flow, node
from support.hang import HANG_SECONDS
from support.loopback import free_port
from usechat.flows import Event, FlowRuntime, NodeContext, NodeFunction, RunSnapshot
from usechat.flows.remote import RemoteRuntime
from usechat.flows.serving import serve_runtime
from usechat.turns.chat import Chat

__all__ = [
    "ABORTED",
    "COMPLETE",
    "LOST",
    "NODE",
    "PAUSED",
    "RESUMED",
    "START",
    "TALK",
    "Harness",
    "Listening",
    "Served",
    "converse",
    "hang",
    "listening",
    "original",
    "paired",
    "parrot",
    "reaches",
    "serving",
    "standing",
]

START: Event = {"type": "flow:start", "flowName": "f"}
NODE: Event = {"type": "node:start", "nodeId": "a", "runId": "r"}
COMPLETE: Event = {"type": "flow:complete", "flowName": "f", "status": "complete"}
PAUSED: Event = {"type": "flow:paused"}
RESUMED: Event = {"type": "flow:resumed"}
ABORTED: Event = {"type": "flow:aborted"}
LOST: Event = {"type": "runtime:lost"}
TALK = flow([node("a", "talk", {"prompt": "{{ flow.input.message }}"})])


class Harness:
    """The socket of a runtime that is not ours, and that does what a test says."""

    def __init__(self, port: int) -> None:
        self.url = f"ws://127.0.0.1:{port}/ws"
        self.heard: asyncio.Queue[Any] = asyncio.Queue()
        self.sockets: list[ServerConnection] = []
        self.opened = 0

    async def attend(self, socket: ServerConnection) -> None:
        self.opened += 1
        self.sockets.append(socket)
        try:
            async for frame in socket:
                self.heard.put_nowait(json.loads(frame))
        except ConnectionClosed:
            pass
        finally:
            self.sockets.remove(socket)

    async def say(self, *events: Event) -> None:
        for event in events:
            await self.frame(json.dumps({"type": "event", "event": event}))

    async def frame(self, frame: str | bytes) -> None:
        for socket in tuple(self.sockets):
            # One may be on its way out.
            with suppress(ConnectionClosed):
                await socket.send(frame)

    async def command(self) -> Any:
        frame = await asyncio.wait_for(self.heard.get(), HANG_SECONDS)
        assert frame["type"] == "command"
        return frame["command"]

    def die(self) -> None:
        """Lose the connections as a machine that is switched off does."""
        for socket in tuple(self.sockets):
            socket.transport.abort()


@asynccontextmanager
async def standing(port: int | None = None, *, names_runs: bool = False) -> AsyncGenerator[Harness, None]:
    def tell_of_runs(_connection: ServerConnection, _request: Request, response: Response) -> None:
        if names_runs:
            response.headers["x-usechat-runs"] = "1"

    port = port or free_port()
    harness = Harness(port)
    async with asyncio.timeout(HANG_SECONDS), serve(harness.attend, "127.0.0.1", port, process_response=tell_of_runs):
        yield harness


class Listening:
    """A remote runtime and what it tells."""

    def __init__(self, url: str, **options: Any) -> None:
        self.events: list[Event] = []
        self.runtime = RemoteRuntime(url, **{"first_pause": 0.01, "longest_pause": 0.05, **options})
        self.runtime.on_event(self.events.append)

    @property
    def status(self) -> str:
        return self.runtime.snapshot().status

    async def until(self, event: Event) -> None:
        await reaches(lambda: event in self.events)

    def run(self, value: dict[str, Any] | None = None) -> asyncio.Task[RunSnapshot]:
        return asyncio.create_task(self.runtime.run(value))


@asynccontextmanager
async def listening(url: str, **options: Any) -> AsyncGenerator[Listening, None]:
    listening = Listening(url, **options)
    async with listening.runtime:
        yield listening


@asynccontextmanager
async def paired(**options: Any) -> AsyncGenerator[tuple[Harness, Listening], None]:
    async with standing() as harness, listening(harness.url, **options) as ears:
        yield harness, ears


async def parrot(chat: Chat) -> AsyncGenerator[str, None]:
    yield "You said "
    yield chat.text


async def converse(context: NodeContext, _value: dict[str, Any]) -> list[str]:
    """Repeats what comes into its inbox until it is told to end."""
    context.emit({"type": "agent:start", "sessionId": "s", "prompt": ""})
    heard: list[str] = []
    while (command := await context.inbox.next())["message"] != "end":
        heard.append(command["message"])
        context.emit({"type": "agent:text", "content": command["message"]})
    return heard


async def hang(context: NodeContext, _value: dict[str, Any]) -> None:
    context.emit({"type": "agent:text", "content": "Working"})
    await asyncio.Event().wait()


class Served:
    """The runtimes that a server has made, and what they told."""

    def __init__(self, talk: NodeFunction, played: Mapping[str, Any]) -> None:
        self.url = ""
        self.runtimes: list[FlowRuntime] = []
        self.events: list[Event] = []
        self._talk = talk
        self._flow = played

    def make(self) -> FlowRuntime:
        runtime = FlowRuntime(self._flow, {"talk": self._talk})
        runtime.on_event(self.events.append)
        self.runtimes.append(runtime)
        return runtime


@asynccontextmanager
async def serving(talk: NodeFunction, played: Mapping[str, Any] = TALK, **options: Any) -> AsyncGenerator[Served, None]:
    served = Served(talk, played)
    async with asyncio.timeout(HANG_SECONDS), serve_runtime(served.make, **options) as served.url:
        yield served


@asynccontextmanager
async def original(talk: NodeFunction, *, refuses: bool) -> AsyncGenerator[str, None]:
    """A runtime that knows the command `run`, but no ids: each socket hears each run, and a busy one takes no other."""
    sockets: set[ServerConnection] = set()
    runs: set[asyncio.Task[Any]] = set()

    def tell(event: Event) -> None:
        broadcast(sockets, json.dumps({"type": "event", "event": event}))

    async def attend(socket: ServerConnection) -> None:
        sockets.add(socket)
        try:
            async for frame in socket:
                command = json.loads(frame)["command"]
                if command["type"] == "run" and not runs:
                    runtime = FlowRuntime(TALK, {"talk": talk})
                    runtime.on_event(tell)
                    run = asyncio.create_task(runtime.run(command["input"]))
                    runs.add(run)
                    run.add_done_callback(runs.discard)
                elif refuses:
                    await socket.send(json.dumps({"type": "refused", "command": command["type"]}))
        except ConnectionClosed:
            pass
        finally:
            sockets.discard(socket)

    async with asyncio.timeout(HANG_SECONDS), serve(attend, "127.0.0.1", port := free_port()):
        yield f"ws://127.0.0.1:{port}/ws"


async def reaches(condition: Callable[[], bool]) -> None:
    """Wait until it is so."""
    async with asyncio.timeout(HANG_SECONDS):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
