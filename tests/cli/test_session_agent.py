import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from typer.testing import CliRunner
from websockets.asyncio.client import connect

from support.hang import HANG_SECONDS
from support.loopback import USECHAT, Process, running
from support.session_clients import BEARER, Client, brief
from usechat.cli.app import app
from usechat.session_agent import FAULTS
from usechat.session_agent.prompts import PLAYS, VOCABULARIES

LOGS = Path(__file__).parents[1] / "golden" / "agent_ops"
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "session-agent.md"


OPTIONS = [
    *["--port", "--script", "--token", "--vocabulary", "--pace", "--question-seconds", "--collect-seconds"],
    *["--init-bytes", "--fault"],
]


def refused(*options: str) -> str:
    result = CliRunner().invoke(app, ["session-agent", *options])
    assert result.exit_code == 2
    return result.stderr.strip()


def address(process: Process) -> str:
    found = re.fullmatch(
        r"A session agent for development is at (ws://127\.0\.0\.1:\d+/api/sessions/)\{id\}(/ws\?role=client)\n",
        process.first_line(),
    )
    assert found is not None, process.errors()
    return f"{found[1]}s1{found[2]}"


async def ask(url: str, prompt: str) -> list[str]:
    """What comes after a prompt, until the connection ends."""
    async with asyncio.timeout(HANG_SECONDS), connect(url, additional_headers=BEARER, max_queue=None) as connection:
        client = Client(connection)
        await client.until("audit user.joined")
        await client.prompt(prompt)
        return [brief(frame) for frame in await client.rest()]


def test_the_command_plays_a_script_to_the_client_of_the_guide_until_a_signal_comes(tmp_path: Path) -> None:
    log = LOGS / "ws_01_simple_text.events.jsonl"
    client = re.findall(r"```python\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)[0]
    with running(
        [*USECHAT, "session-agent", "--port", "0", "--script", str(log), "--token", "anybody"], tmp_path
    ) as process:
        port = address(process).split(":")[2].partition("/")[0]
        program = [sys.executable, "-c", client.replace("8787", port)]
        printed = subprocess.run(program, capture_output=True, text=True, timeout=HANG_SECONDS, check=True).stdout
        process.send(signal.SIGTERM)
        assert process.wait() == (0, "")
    lines = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    frames = [line["frame"] for line in lines if line["dir"] == "recv"]
    told = [json.loads(line) for line in printed.splitlines()]
    assert told == frames[: len(told)]
    assert brief(told[-1]) == "turn_complete"


def test_the_process_dies_when_it_is_asked_to(tmp_path: Path) -> None:
    options = ["--port", "0", "--vocabulary", "both", "--pace", "0", "--fault", "duplicate:4"]
    with running([*USECHAT, "session-agent", *options], tmp_path) as process:
        frames = asyncio.run(ask(address(process), "die"))
        assert process.wait() == (1, "")
    assert frames[:4] == ["user: die", *["audit user.prompt"] * 2, "thinking"]
    assert frames[-4:] == [*["v2+ Before. "] * 2, *["+ Before. "] * 2]


def test_options_that_cannot_be_used_are_told_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"dir": "sent"}\n', encoding="utf-8")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    problem = "Line 1 is neither a frame nor a frame with its `dir`."
    assert refused("--script", str(tmp_path / "log.jsonl")) == problem
    assert refused("--script", str(tmp_path / "no-such-file")).endswith(
        "no-such-file cannot be read: No such file or directory."
    )
    assert refused("--script", str(tmp_path / "binary")).endswith("binary is not text.")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert refused("--port", port) == f"The session agent cannot listen at port {port}: Address already in use."
    assert refused("--fault", "melt").startswith("The fault 'melt' must be one of drop, close,")


def test_the_guide_lists_every_prompt_and_every_option() -> None:
    guide = GUIDE.read_text(encoding="utf-8")

    def listed(rows: Sequence[str]) -> list[str]:
        return [word for row in rows for word in re.findall(r"`(--[a-z-]+|[a-z0-9-]+)[^`]*`", row.split("|")[1])]

    rows = [row for row in guide.splitlines() if row.startswith("| `")]
    assert sorted(listed(rows)) == sorted([*PLAYS, *VOCABULARIES, *OPTIONS])


def test_the_options_of_the_guide_are_those_of_the_command() -> None:
    printed = CliRunner().invoke(app, ["session-agent", "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).stdout
    assert set(re.findall(r"--[a-z][a-z-]+", printed)) - {"--help"} == set(OPTIONS)
    assert set(FAULTS) <= set(PLAYS)
