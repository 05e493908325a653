"""Scripts: every recorded log is played frame for frame."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from support.hang import HANG_SECONDS
from support.session_clients import BEARER, Client, joined, nothing_left
from usechat.session_agent import Script, SessionAgent, read_script

pytestmark = pytest.mark.anyio

LOGS = Path(__file__).parents[1] / "golden" / "agent_ops"
SOCKET_LOGS = sorted(LOGS.glob("ws_*.events.jsonl"))
V2_LOGS = sorted(LOGS.glob("v2_*.events.jsonl"))


def named(log: Path) -> str:
    return log.name.removesuffix(".events.jsonl")


def script(log: Path) -> Script:
    return read_script(log.read_text("utf-8"))


def lines(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text("utf-8").splitlines()]


def test_there_are_logs_to_play() -> None:
    assert (len(SOCKET_LOGS) >= 11, len(V2_LOGS) >= 13) == (True, True)


@pytest.mark.parametrize("log", SOCKET_LOGS, ids=named)
async def test_a_log_of_a_socket_is_played_frame_for_frame(log: Path) -> None:
    before = asyncio.all_tasks()
    async with SessionAgent(script=script(log)).serving() as agent:
        url = f"{agent.url}/api/sessions/sess-1/ws?role=client"
        for _ in range(2):
            async with asyncio.timeout(HANG_SECONDS), connect(url, additional_headers=BEARER) as connection:
                client = Client(connection)
                for line in lines(log):
                    if line["dir"] == "send":
                        # Nothing goes on before the message that is due.
                        await client.send("never-heard-of")
                        await client.send("ping")
                        assert await client.next() == {"type": "pong"}
                        await client.send(line["frame"]["type"], **line["frame"], more=True)
                    elif line["dir"] == "recv":
                        assert await client.next() == line["frame"]
                await client.send("ping")
                assert await client.next() == {"type": "pong"}
        sent = [line["frame"]["type"] for line in lines(log) if line["dir"] == "send"]
        assert [len(agent.received(kind)) for kind in sent] == [2 * sent.count(kind) for kind in sent]
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize("log", V2_LOGS, ids=named)
async def test_bare_frames_are_the_answer_to_every_prompt(log: Path) -> None:
    async with SessionAgent(script=script(log)).serving() as agent, joined(agent) as client:
        for _ in range(2):
            await client.prompt("whatever")
            await client.until("user: whatever", "audit user.prompt")
            assert [await client.next() for _ in lines(log)] == lines(log)


async def test_a_client_may_leave_in_the_middle_of_a_script() -> None:
    async with SessionAgent(script=script(LOGS / "ws_04_aborted.events.jsonl")).serving() as agent:
        before = asyncio.all_tasks()
        async with joined(agent):
            assert len(agent.sockets) == 1
        await nothing_left(agent, before)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "A script has either frames with their `dir` or bare frames."),
        ('{"dir": "note", "text": "x"}', "A script has either frames with their `dir` or bare frames."),
        ('{"type": "a"}\n\n{"dir": "recv", "frame": {"type": "b"}}', "A script has either frames with their `dir` or"),
        ('{"type": "a"}\n{"type": ', "Line 2 is neither a frame nor a frame with its `dir`."),
        ('{"dir": "sent", "frame": {"type": "b"}}', "Line 1 is neither a frame nor a frame with its `dir`."),
        ('{"dir": "recv", "frame": {}}', "Line 1 is neither a frame nor a frame with its `dir`."),
        ("[]", "Line 1 is neither a frame nor a frame with its `dir`."),
    ],
)
def test_a_script_that_cannot_be_read_is_told_by_its_line(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_script(text)
