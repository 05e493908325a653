"""What goes wrong on request."""

import asyncio
import socket
from contextlib import suppress

import pytest
from websockets.exceptions import ConnectionClosed

from support.session_clients import brief, joined, no_more_tasks, nothing_left
from usechat.session_agent import FAULTS, Fault, SessionAgent, read_fault

pytestmark = pytest.mark.anyio

END = ["turn_complete", "status runnerBusy=False", "idle"]
GREETING = ["init", "user.joined", "audit user.joined"]


@pytest.mark.parametrize(("name", "code"), [("drop", 1006), ("close", 1011)])
async def test_a_socket_is_dropped_or_closed_in_the_middle_of_a_turn(name: str, code: int) -> None:
    async with SessionAgent().serving() as agent, joined(agent, "bo") as other:
        before = asyncio.all_tasks()
        async with joined(agent) as client:
            await client.prompt(name)
            assert [brief(frame) for frame in await client.rest()][-1] == "+ Before. "
            assert client.connection.close_code == code
        # The turn goes on for everybody else.
        assert "+ After." in await other.briefs(*END)
        await agent.until(lambda: len(agent.sockets) == 1)
        await no_more_tasks(before)


async def test_a_stalled_socket_answers_pings_and_nothing_else() -> None:
    async with SessionAgent().serving() as agent, joined(agent, "bo") as other, joined(agent) as client:
        await client.prompt("stall")
        await client.until("+ Before. ")
        await other.until(*END)
        await client.send("abort")
        await client.prompt("empty")
        await client.connection.send("not JSON")
        await client.send("ping")
        assert await client.next() == {"type": "pong"}
        assert len(agent.received("abort")) == 1
        assert (await other.turn("empty"))[0] == "thinking"


async def test_a_deaf_socket_answers_nothing_and_is_gone_when_its_client_is() -> None:
    async with SessionAgent().serving() as agent:
        before = asyncio.all_tasks()
        async with joined(agent, close_timeout=0.1) as client:
            await client.prompt("deaf")
            await client.until("+ Before. ")
            await client.send("ping")
            pong = asyncio.ensure_future(await client.connection.ping())
            # What is answered on another socket came later.
            async with joined(agent, "bo") as other:
                await other.send("ping")
                await other.until("pong")
            assert (pong.done(), agent.received("ping", user="ana")) == (False, [])
        pong.cancel()
        await nothing_left(agent, before)


async def test_a_server_with_a_deaf_socket_can_be_left() -> None:
    before = asyncio.all_tasks()
    agent = SessionAgent(faults=[Fault("deaf", after=3)])
    serving = agent.serving()
    await serving.__aenter__()
    async with joined(agent) as client:
        await serving.__aexit__(None, None, None)
        assert await client.rest() == []
    await nothing_left(agent, before)


async def test_a_socket_that_dies_takes_the_whole_agent_with_it() -> None:
    async with SessionAgent().serving() as agent, joined(agent, "bo") as other, joined(agent, "cy", "s2") as third:
        async with joined(agent) as client:
            await client.prompt("die")
            for ended in (client, other, third):
                await ended.rest()
                assert ended.connection.close_code == 1006
        with pytest.raises(ConnectionRefusedError):
            async with joined(agent):
                pass


async def test_frames_are_duplicated() -> None:
    async with SessionAgent().serving() as agent, joined(agent) as client:
        await client.prompt("duplicate")
        await client.until("+ Before. ")
        assert await client.briefs(*END, "idle") == [
            *["+ After."] * 2,
            *["updated: Before. After. | finish end_turn"] * 2,
            *[frame for frame in END for _ in range(2)],
        ]


async def test_garbage_comes_between_the_frames() -> None:
    async with SessionAgent().serving() as agent, joined(agent) as client:
        await client.prompt("garbage")
        await client.until("+ Before. ")
        garbage: list[str | bytes] = []
        while "After" not in str(garbage[-1:]):
            garbage.append(await client.connection.recv())
        assert len(garbage) > 10
        assert {type(frame) for frame in garbage} == {str, bytes}
        assert await client.briefs(*END) == ["updated: Before. After. | finish end_turn", *END]


async def test_a_prompt_floods_its_turn() -> None:
    async with SessionAgent().serving() as agent, joined(agent) as client:
        await client.prompt("flood 2")
        frames = await client.until(*END)
        assert sum(len(frame["content"]) for frame in frames if frame["type"] == "chunk") == 2 * 1024 * 1024
        assert brief(frames[-4]) == "updated: finish end_turn"
        async with joined(agent) as later:
            assert later.heard[0]["session"]["messages"][-1]["content"] == ""


async def test_what_a_slow_client_has_not_read_is_bounded() -> None:
    before = asyncio.all_tasks()
    async with SessionAgent().serving() as agent:
        with socket.socket() as small:
            small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
            small.setblocking(False)
            await asyncio.get_running_loop().sock_connect(small, ("127.0.0.1", agent.port))
            slow = joined(agent, sock=small, max_queue=1, close_timeout=0.1)
            async with slow as client, joined(agent, "bo") as other:
                await client.prompt("flood 64")
                await other.until("streaming")
                # Pings are answered while the turn waits for the socket that does not read.
                silent = 0
                while silent < 20:
                    await other.send("ping")
                    silent = silent + 1 if len(await other.until("pong")) == 1 else 0
                assert sum(len(frame.get("content", "")) for frame in other.heard) < 32 * 1024 * 1024
                await other.send("abort")
                await other.until(*END)
        await agent.until(lambda: not agent.sockets)
    await no_more_tasks(before)


async def test_a_flood_that_belongs_to_no_turn_ends_with_its_socket() -> None:
    async with SessionAgent(faults=[Fault("flood", after=3)]).serving() as agent:
        before = asyncio.all_tasks()
        async with joined(agent, max_queue=16, close_timeout=0.1) as client:
            for _ in range(500):
                assert (await client.next())["messageId"] == "flood"
        await nothing_left(agent, before)


@pytest.mark.parametrize("name", FAULTS)
async def test_a_fault_strikes_each_socket_after_so_many_frames(name: str) -> None:
    agent = SessionAgent(faults=[read_fault(f"{name}:6")])
    async with agent.serving(), joined(agent, close_timeout=0.1) as client:
        with suppress(ConnectionClosed):
            await client.prompt("long 3")
            heard = [brief(await client.next()) for _ in range(3)]
            assert heard == ["user: long 3", "audit user.prompt", "thinking"]
            match name:
                case "drop" | "close" | "die":
                    assert await client.rest() == []
                    assert client.connection.close_code == (1011 if name == "close" else 1006)
                case "stall":
                    await client.send("ping")
                    assert await client.next() == {"type": "pong"}
                case "deaf":
                    await client.send("ping")
                case "flood":
                    assert (await client.next())["messageId"] == "flood"
                case "duplicate":
                    assert await client.briefs("streaming", "streaming") == ["streaming", "streaming"]
                case _:
                    assert await client.connection.recv() == ""


@pytest.mark.parametrize("text", ["", "melt", "drop:x", "drop:0", "drop:-1", ":3"])
def test_a_fault_that_is_not_known_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="must be one of drop, close, stall, deaf, flood, die, duplicate, garbage"):
        read_fault(text)


def test_a_fault_strikes_after_the_first_frame_if_no_number_is_given() -> None:
    assert (read_fault("drop"), read_fault("stall:7")) == (Fault("drop", 1), Fault("stall", 7))
