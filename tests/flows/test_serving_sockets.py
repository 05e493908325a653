import asyncio
import json
import socket
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Origin

from flows.elsewhere import Served, hang, listening, reaches, serving
from support.fast_loop import run_jumping
from support.hang import HANG_SECONDS
from usechat.flows import NodeContext, NodeFunction
from usechat.flows import serving as serving_module

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def client(served: Served, **options: Any) -> AsyncGenerator[ClientConnection, None]:
    async with connect(served.url, **options) as connection:
        yield connection


async def heard(connection: ClientConnection) -> Any:
    return json.loads(await asyncio.wait_for(connection.recv(), HANG_SECONDS))


async def test_the_frames_are_the_envelopes_of_the_original():
    async with serving(hang) as served, client(served) as connection:
        await connection.send('{"type":"command","command":{"type":"run"}}')
        for event in ("flow:start", "node:start", "agent:text"):
            frame = await heard(connection)
            assert (frame["type"], frame["event"]["type"], list(frame)) == ("event", event, ["type", "event"])
        await connection.send(b'{"type":"command","command":{"type":"abort","resumable":true}}')
        assert [(await heard(connection))["event"]["type"] for _ in range(2)] == ["command:received", "flow:paused"]


@pytest.mark.parametrize(
    "frame",
    [
        "{",
        "",
        "null",
        "[" * 100_000,
        b"\xff",
        '{"type":"command"}',
        '{"type":"command","command":{"type":1}}',
        '{"a":1}',
    ],
)
async def test_a_frame_that_is_no_command_is_ignored(frame: str | bytes):
    async with serving(hang) as served, client(served) as connection:
        for _ in range(2):
            await connection.send(frame)
        await connection.send('{"type":"command","command":{"type":"run","input":{}}}')
        assert (await heard(connection))["event"]["type"] == "flow:start"


@pytest.mark.parametrize("command", [{"type": "run", "input": []}, {"type": "dance"}, {"type": "send", "message": "x"}])
async def test_a_command_that_cannot_be_taken_costs_nobody_the_connection(command: dict[str, Any]):
    async with serving(hang) as served, client(served) as connection:
        await connection.send(json.dumps({"type": "command", "command": command}))
        await connection.send('{"type":"command","command":{"type":"run"}}')
        frames = [await heard(connection)]
        while frames[-1].get("event", {}).get("type") != "flow:start":
            frames.append(await heard(connection))
        assert {"type": "refused", "command": command["type"]} in frames


async def test_a_run_is_not_resumed_while_it_runs():
    async with serving(hang) as served, client(served) as connection:
        await connection.send('{"type":"command","command":{"type":"run"}}')
        while (await heard(connection))["event"]["type"] != "agent:text":
            pass
        await connection.send('{"type":"command","command":{"type":"resume"}}')
        assert await heard(connection) == {"type": "refused", "command": "resume"}


async def test_all_sockets_that_name_no_run_hear_and_command_the_same_one():
    async with serving(hang) as served, client(served) as ours, client(served) as others, listening(served.url) as ears:
        await ours.send('{"type":"command","command":{"type":"run"}}')
        kinds = ["flow:start", "node:start", "agent:text"]
        for connection in (ours, others):
            assert [(await heard(connection))["event"]["type"] for _ in kinds] == kinds
        await others.send('{"type":"command","command":{"type":"run"}}')
        assert await heard(others) == {"type": "refused", "command": "run"}
        await others.send('{"type":"command","command":{"type":"abort"}}')
        for connection in (ours, others):
            assert [(await heard(connection))["event"]["type"] for _ in range(2)] == [
                "command:received",
                "flow:aborted",
            ]
        await others.send('{"type":"command","command":{"type":"run"}}')
        assert (await heard(ours))["event"]["type"] == "flow:start"
        assert (ears.events, len(served.runtimes)) == ([], 2)


def named(run: Any, command: dict[str, Any]) -> str:
    return json.dumps({"type": "command", "run": run, "command": command})


async def test_a_run_with_an_id_is_heard_and_commanded_by_those_who_name_it():
    async with serving(hang) as served, client(served) as ours, client(served) as friend, client(served) as stranger:
        await ours.send(named("r", {"type": "run"}))
        for event in ("flow:start", "node:start", "agent:text"):
            frame = await heard(ours)
            assert (frame["run"], frame["event"]["type"]) == ("r", event)
        for command, run in (({"type": "run"}, "r"), ({"type": "abort"}, "another")):
            await friend.send(named(run, command))
            assert await heard(friend) == {"type": "refused", "run": run, "command": command["type"]}
        await friend.send(named("r", {"type": "abort"}))
        for connection in (ours, friend):
            frames = [await heard(connection) for _ in range(2)]
            assert [frame["event"]["type"] for frame in frames] == ["command:received", "flow:aborted"]
        for run in ("", "x" * 65, 7, None):
            await stranger.send(named(run, {"type": "run"}))
        await stranger.send('{"type":"command","command":{"type":"run"}}')
        frame = await heard(stranger)
        assert (frame["event"]["type"], list(frame)) == ("flow:start", ["type", "event"])
        assert len(served.runtimes) == 2


async def run_and_pause(connection: ClientConnection, run: str) -> None:
    await connection.send(named(run, {"type": "run"}))
    while (await heard(connection))["event"]["type"] != "agent:text":
        pass
    await connection.send(named(run, {"type": "pause"}))
    while (await heard(connection))["event"]["type"] != "flow:paused":
        pass


async def test_a_paused_run_waits_for_whoever_comes_back():
    async with serving(hang) as served:
        async with client(served) as connection:
            await run_and_pause(connection, "r")
        async with client(served) as connection:
            await connection.send(named("r", {"type": "resume"}))
            assert [(await heard(connection))["event"]["type"] for _ in range(2)] == [
                "command:received",
                "flow:resumed",
            ]
            assert len(served.runtimes) == 1
        await reaches(lambda: served.runtimes[0].snapshot().status == "aborted")


async def test_runs_have_a_bound_and_those_that_were_left_paused_give_way(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(serving_module, "_MAX_RUNS", 2)
    async with serving(hang) as served, client(served) as connection:
        async with client(served) as other:
            await run_and_pause(other, "a")
            await connection.send(named("b", {"type": "run"}))
            await connection.send(named("c", {"type": "run"}))
            while (frame := await heard(connection)).get("type") == "event":
                assert frame["run"] == "b"
            assert frame == {"type": "refused", "run": "c", "command": "run"}
        await connection.send(named("c", {"type": "run"}))
        while (frame := await heard(connection))["run"] != "c":
            pass
        assert frame["event"]["type"] == "flow:start"
        await connection.send(named("a", {"type": "resume"}))
        while (frame := await heard(connection))["type"] == "event":
            pass
        assert frame == {"type": "refused", "run": "a", "command": "resume"}


async def test_other_paths_plain_requests_and_pages_are_turned_away():
    async with serving(hang, origins=["https://ops.example"]) as served:
        web = served.url.replace("ws:", "http:")
        async with httpx.AsyncClient() as http:
            assert (await http.get(web)).status_code == 426
            assert (await http.get(web.removesuffix("ws"))).status_code == 404
            assert (await http.get(f"{web}/more")).status_code == 404
        for url, origin, status in (
            (served.url, "https://evil.example", 403),
            (served.url, web.removesuffix("/ws"), 403),
            (f"{served.url}s", None, 404),
        ):
            with pytest.raises(InvalidStatus) as refused:
                await connect(url, origin=None if origin is None else Origin(origin))
            assert refused.value.response.status_code == status
        async with connect(f"{served.url}?x=1", origin=Origin("https://ops.example")) as connection:
            await connection.send('{"type":"command","command":{"type":"run"}}')
            assert (await heard(connection))["event"]["type"] == "flow:start"


@asynccontextmanager
async def stuck(served: Served) -> AsyncGenerator[ClientConnection, None]:
    """A client whose machine takes little more than what the client reads."""
    with socket.socket() as taking:
        taking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        taking.setblocking(False)
        host, port = served.url.removeprefix("ws://").removesuffix("/ws").split(":")
        await asyncio.get_running_loop().sock_connect(taking, (host, int(port)))
        async with client(served, sock=taking, max_queue=1, compression=None, close_timeout=0.1) as connection:
            yield connection


def shouting(megabytes: int) -> NodeFunction:
    async def shout(context: NodeContext, _value: dict[str, Any]) -> None:
        for number in range(megabytes * 16):
            context.emit({"type": "agent:text:delta", "content": f"{number:<65536}"})
            await asyncio.sleep(0)

    return shout


async def test_a_client_that_does_not_read_is_cut_off_and_holds_up_nobody():
    async with serving(shouting(24)) as served, stuck(served) as slow, client(served) as quick:
        await quick.send('{"type":"command","command":{"type":"run"}}')
        events = [json.loads(await quick.recv())["event"]]
        while events[-1]["type"] != "flow:complete":
            events.append(json.loads(await quick.recv())["event"])
        assert events == served.events
        with suppress(ConnectionClosed):
            while True:
                await slow.recv()
        assert slow.close_code == 1006


def test_a_server_ends_although_a_client_takes_nothing():
    async def end() -> None:
        async with AsyncExitStack() as server, AsyncExitStack() as page:
            served = await server.enter_async_context(serving(shouting(6)))
            slow = await page.enter_async_context(stuck(served))
            await slow.send('{"type":"command","command":{"type":"run"}}')
            await reaches(lambda: len(served.events) > 1 and served.events[-1]["type"] == "flow:complete")
            began = asyncio.get_running_loop().time()
            await server.aclose()
            # By a clock that does not go on while there is something to do: not the pings find out, after 40 seconds.
            assert asyncio.get_running_loop().time() - began < 8

    run_jumping(end())
