"""Whatever goes wrong with a session or a client: every stream ends legally, and nothing is left of it."""

import asyncio
import random
import signal
import tracemalloc
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager
from types import FrameType
from typing import Any, Literal, TypeAlias

import httpx
import msgspec
import pytest

import usechat.integrations.agent_ops.following as driver
from support.fast_loop import hurrying, put_forward, run_fast
from support.gateways import Gateway, serving_gateway, until_chunk
from support.hang import HANG_SECONDS
from support.loopback import message, parts
from support.session_clients import joined, no_more_tasks
from support.soak import SEED, draws
from usechat.gateway.settings import GatewaySettings
from usechat.protocol.verdict import judge, recorded_events
from usechat.session_agent import FAULTS, Fault, SessionSettings, Socket

pytestmark = pytest.mark.anyio

How: TypeAlias = Literal["reads", "leaves", "stops", "never reads"]

# Short, so that what is given up is given up soon.
SETTINGS = GatewaySettings(enabled=True, idle=0.3, total=1.5, keep_alive=0.1, patience=0.3, behind=64 * 1024)
# What is to end in another way does not end so.
PATIENT = GatewaySettings(enabled=True, idle=60.0, total=None)
PROMPTS = (
    *("Hello", "tools", "late-tool", "long 40", "v2 long 40", "noise", "lost", "child", "hang", "flood 4", "flood 20"),
    *(name for name in FAULTS if name != "flood"),
)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """So is what takes minutes or an hour by default."""
    monkeypatch.setattr(driver, "_PING_SECONDS", 0.1)
    monkeypatch.setattr(driver, "_CATCH_UP", 0.3)
    monkeypatch.setattr(driver, "_WITHDRAWS", 1.0)
    monkeypatch.setattr(driver, "_IS_HEARD", 0.5)


@pytest.fixture(autouse=True)
def own_signals() -> Generator[None]:
    """Servers that overlap do not put back the handlers that they found."""
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in previous.items():
        signal.signal(number, handler)


@asynccontextmanager
async def left_clean(
    settings: GatewaySettings = SETTINGS, *, count: int = 1, **options: Any
) -> AsyncGenerator[list[Gateway]]:
    """Gateways of which, while they still run, no socket and no task is left of those that were needed."""
    async with AsyncExitStack() as stack:
        gateways = [
            await stack.enter_async_context(serving_gateway(settings, grace=None, **options)) for _ in range(count)
        ]
        for gateway in gateways:
            # The server is up then, with all of its own tasks.
            assert await gateway.metric("adapter_ws_open") == 0
        before = asyncio.all_tasks()
        yield gateways
        for gateway in gateways:
            await unused(gateway)
            await gateway.http.aclose()
            # A session that did not hear an abort goes on by itself.
            await gateway.agent.session("s1").aclose()
        await no_more_tasks(before)


async def unused(gateway: Gateway) -> None:
    """Wait until no socket is open, as either side counts them; that of bob is not the gateway's."""
    agent = gateway.agent
    async with asyncio.timeout(HANG_SECONDS):
        await agent.until(lambda: all(socket.user.id == "bob" for socket in agent.sockets))
        while await gateway.metric("adapter_ws_open"):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


class Client(msgspec.Struct):
    """Somebody who asks, and reads all of the answer, or so many chunks, or nothing of it."""

    prompt: str
    how: How
    chunks: int

    async def ask(self, gateway: Gateway, chat: str) -> None:
        url, headers = gateway.path("chat"), await gateway.headers("ana")
        async with gateway.http.stream("POST", url, json=message(self.prompt, chat), headers=headers) as response:
            assert response.status_code == 200, await response.aread()
            if self.how == "never reads":
                await unused(gateway)
            else:
                await self._read(response, gateway, chat)

    async def _read(self, response: httpx.Response, gateway: Gateway, chat: str) -> None:
        read, stops = bytearray(), self.how == "stops"
        async for piece in response.aiter_bytes():
            read += piece
            enough = read.count(b"data: ") >= self.chunks
            if enough and self.how == "leaves":
                return
            if enough and stops:
                stops = False
                assert (await gateway.post(f"chat/{chat}/stop")).status_code == 204
        assert judge(recorded_events(bytes(read)), "portable").violation is None, read[-1000:]
        assert read.endswith(b"data: [DONE]\n\n")


class Run:
    """What one seed draws: who asks for what and how they read, what goes wrong, and whether they have to wait."""

    def __init__(self, seed: str) -> None:
        rng = random.Random(seed)  # noqa: S311
        hows: tuple[How, ...] = ("reads", "leaves", "stops", "never reads")
        self.clients = [
            Client(rng.choice(PROMPTS), rng.choice(hows), rng.randint(1, 12)) for _ in range(rng.randint(1, 3))
        ]
        self.faults = [Fault(rng.choice(FAULTS), after=rng.randint(1, 30))] if rng.random() < 0.6 else []
        self.waits = rng.random() < 0.5

    @property
    def dies(self) -> bool:
        return "die" in [*(client.prompt for client in self.clients), *(fault.name for fault in self.faults)]

    async def play(self, gateway: Gateway) -> None:
        if not self.waits:
            await self._ask(gateway)
            return
        async with joined(gateway.agent, "bob") as bob:
            await bob.prompt("long 40")
            await bob.until("+ 0 ")
            asking = asyncio.create_task(self._ask(gateway))
            if not self.dies:
                # Whatever ana's clients do, and whatever is done to them, his turn goes on to its end.
                told = await bob.briefs("turn_complete")
                assert f"updated: {''.join(f'{number} ' for number in range(40))} | finish end_turn" in told
            await asking

    async def _ask(self, gateway: Gateway) -> None:
        gateway.agent.faults = list(self.faults)
        await asyncio.gather(*(client.ask(gateway, f"c{number}") for number, client in enumerate(self.clients)))


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("part", range(draws(3, 14)))
async def test_every_stream_ends_and_nothing_is_left(part: int) -> None:
    async def play(gateway: Gateway, seed: str) -> None:
        run = Run(seed)
        try:
            async with asyncio.timeout(HANG_SECONDS):
                await run.play(gateway)
        except BaseException as error:
            error.add_note(f"the run of the seed {seed}: {vars(run)}")
            raise

    async with left_clean(count=5, agent=SessionSettings(pace=0.001)) as gateways:
        await asyncio.gather(*(play(gateway, f"{SEED}-{part}-{number}") for number, gateway in enumerate(gateways)))


@pytest.mark.parametrize(
    ("fault", "shown"),
    [
        *((fault, '"errorText":"Stream interrupted"') for fault in ("drop", "close", "die")),
        *((fault, '"delta":"After."') for fault in ("duplicate", "garbage")),
    ],
)
async def test_a_turn_in_which_something_goes_wrong_says_so(fault: str, shown: str) -> None:
    async with left_clean(PATIENT) as [gateway]:
        body = await gateway.ask(fault)
        assert next(part for part in parts(body) if part["type"] == "text")["text"].startswith("Before. ")
        assert shown in body


@pytest.mark.parametrize("fault", ["stall", "deaf"])
def test_a_turn_of_a_session_that_falls_silent_says_so(fault: str) -> None:
    async def fall_silent() -> None:
        async with left_clean(PATIENT) as [gateway], gateway.asking(fault) as stream:
            assert (await until_chunk(stream, type="text-delta"))["delta"].startswith("Before. ")
            with hurrying(200):
                assert (await until_chunk(stream, type="error"))["errorText"] == "The agent did not answer in time."

    run_fast(fall_silent())


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("fault", ["stall", "deaf", "flood", "drop", "close"])
def test_a_prompt_that_waits_ends_when_something_goes_wrong(fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # The silence of one that waits is not counted, so that the frames of others, or pings, have to tell.
    total = 3600.0 if fault not in ("stall", "flood") else 60.0
    monkeypatch.setattr(driver, "_PING_SECONDS", 10.0)

    async def wait() -> None:
        settings = msgspec.structs.replace(PATIENT, total=total)
        async with left_clean(settings) as [gateway], joined(gateway.agent, "bob") as bob:
            await bob.prompt("hang")
            await bob.until("+ I wait")
            # Up to the word that it waits.
            gateway.agent.faults = [Fault(fault, after=7)]
            async with gateway.asking("Hello") as stream:
                assert (await until_chunk(stream, type="data-agent-status"))["data"]["status"] == "queued"
                if total == 60.0:
                    put_forward(total)
                with hurrying(200):
                    assert [chunk["type"] async for chunk in stream][-1] == "error"
            assert gateway.agent.received("abort") == []
            gateway.agent.session("s1").release()
            await bob.until("turn_complete")
            await bob.connection.close()

    run_fast(wait())


@pytest.mark.usefixtures("hurried")
async def test_a_prompt_that_is_withdrawn_and_never_echoed_is_soon_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_WITHDRAWS", 3600.0)
    async with left_clean(faults=(Fault("stall", after=3),)) as [gateway], gateway.asking("Hello"):
        await gateway.agent.until(lambda: bool(gateway.agent.received("prompt")))


async def test_a_flood_waits_for_a_client_that_stops_reading_for_a_while() -> None:
    settings = msgspec.structs.replace(SETTINGS, patience=60.0, idle=60.0, total=None, log=128 * 1024 * 1024)
    async with left_clean(settings) as [gateway]:
        url, headers = gateway.path("chat"), await gateway.headers("ana")
        tracemalloc.start()
        async with gateway.http.stream("POST", url, json=message("flood 64", "c"), headers=headers) as response:
            await gateway.agent.until(lambda: bool(gateway.agent.received("prompt")))
            [socket] = gateway.agent.sockets
            # It is full for good once nobody on the way takes anything.
            full = 0
            while full < 20:
                full += not await has_room(socket)
            _, most = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            body = await response.aread()
        assert (body.count(b'"text-delta"'), body.count(b"x" * 16 * 1024)) == (64 * 64, 64 * 64)
        assert body.endswith(b"data: [DONE]\n\n")
    # What the sockets of the system take in was said, and is kept; the rest of what 64 MB would take is not.
    assert most < 40 * 1024 * 1024


async def has_room(socket: Socket) -> bool:
    """Whether it has room within a moment."""
    room = asyncio.create_task(socket.drain())
    await asyncio.sleep(0.01)
    return not room.cancel()


@pytest.mark.usefixtures("hurried")
async def test_a_flood_that_nobody_reads_takes_little_memory_and_is_aborted() -> None:
    async with left_clean(msgspec.structs.replace(SETTINGS, log=128 * 1024 * 1024)) as [gateway]:
        tracemalloc.start()
        await Client("flood 64", "never reads", 0).ask(gateway, "c")
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert [received.user for received in gateway.agent.received("abort")] == ["ana"]
    assert most < 40 * 1024 * 1024


@pytest.fixture
def terminated() -> Generator[list[int]]:
    """The signals that are left over when the server has ended, as it raises them again."""
    numbers: list[int] = []

    def take(number: int, _frame: FrameType | None) -> None:
        numbers.append(number)

    previous = signal.signal(signal.SIGTERM, take)
    yield numbers
    signal.signal(signal.SIGTERM, previous)


async def test_a_gateway_that_is_told_to_end_leaves_what_is_not_its_own(terminated: list[int]) -> None:
    """Of its prompts one waits, and one, whose client has left, waits to be aborted; another user's turn runs."""
    settings = GatewaySettings(enabled=True)
    async with serving_gateway(settings, grace=0.2) as gateway, joined(gateway.agent, "bob") as bob:
        await bob.prompt("hang")
        await bob.until("+ I wait")
        async with gateway.asking("Hello", chat="left") as left:
            await until_chunk(left, type="data-agent-status")
        async with gateway.asking("Hello", chat="waits") as waiting:
            await until_chunk(waiting, type="data-agent-status")
            signal.raise_signal(signal.SIGTERM)
            assert [chunk async for chunk in waiting][-1] == {"type": "abort"}
        await gateway.agent.until(lambda: [socket.user.id for socket in gateway.agent.sockets] == ["bob"])
        assert gateway.agent.received("abort") == []
        gateway.agent.session("s1").release()
        assert "updated: I wait no more. | finish end_turn" in await bob.briefs("turn_complete")
    assert terminated == [signal.SIGTERM]


async def test_a_gateway_that_is_told_to_end_aborts_its_own_turn(terminated: list[int]) -> None:
    before = asyncio.all_tasks()
    async with serving_gateway(GatewaySettings(enabled=True), grace=0.2) as gateway:
        async with gateway.asking("hang") as running, gateway.asking("Hello", chat="d") as waiting:
            await until_chunk(running, type="text-delta")
            await until_chunk(waiting, type="data-agent-status")
            signal.raise_signal(signal.SIGTERM)
            for stream in (running, waiting):
                assert [chunk async for chunk in stream][-1] == {"type": "abort"}
        await gateway.agent.until(lambda: not gateway.agent.sockets)
        assert [received.user for received in gateway.agent.received("abort")] == ["ana"]
    assert terminated == [signal.SIGTERM]
    await no_more_tasks(before)


async def test_a_gateway_that_is_told_to_end_does_not_wait_for_a_session_that_does_not_close(
    terminated: list[int],
) -> None:
    async with serving_gateway(GatewaySettings(enabled=True), grace=0.0) as gateway:
        async with gateway.asking("deaf") as stream:
            await until_chunk(stream, type="text-delta")
            signal.raise_signal(signal.SIGTERM)
            assert [chunk async for chunk in stream][-1] == {"type": "abort"}
        await gateway.agent.until(lambda: not gateway.agent.sockets)
    assert terminated == [signal.SIGTERM]
