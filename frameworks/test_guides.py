"""The examples of the guides run with the real packages of their frameworks."""

import os
import re
import subprocess
from pathlib import Path
from typing import Final

from environments import HERE, Environment, chosen
from support.loopback import ask, free_port, parts, running, until

GUIDES: Final = HERE.parent / "docs" / "guides"
APP: Final = re.compile(r"```python\n(# app\.py\n.*?)```", re.DOTALL)
# Asks the agent of the example, and prints the types of the chunks.
ASK: Final = """
import asyncio
from app import agent
from usechat.protocol.messages import UIMessage
from usechat.protocol.requests import ChatRequest
from usechat.transports import AgentTransport

async def main():
    question = UIMessage("question", "user", [{"type": "text", "text": "Hello"}])
    async for chunk in await AgentTransport(agent).send_messages(ChatRequest(id="chat", last=question)):
        print(type(chunk).__name__)

asyncio.run(main())
"""


# An agent that waits for an approval needs a chat that keeps its state, so these examples are served.
SERVED: Final = ("agent-framework", "strands")


def examples() -> list[tuple[Environment, str]]:
    guides = [(one, GUIDES / f"{one.name}.md") for one in chosen()]
    texts = [(one, guide.read_text("utf-8")) for one, guide in guides if guide.exists()]
    return [(one, found[1]) for one, text in texts if (found := APP.search(text))]


def test_the_example_of_a_guide_asks_for_an_approval(tmp_path: Path) -> None:
    for environment, program in examples():
        if "\nagent = " not in program or environment.name in SERVED:
            continue
        (tmp_path / "app.py").write_text(program, encoding="utf-8")
        done = subprocess.run(
            [environment.python, "-c", ASK],
            cwd=tmp_path,
            env={"PYTHONPATH": f"{tmp_path}:{HERE.parent / 'src'}"},
            capture_output=True,
            text=True,
            check=True,
        )
        said = done.stdout.split()
        assert ("ToolApprovalRequest" in said, said[-2:]) == (True, ["FinishStep", "Finish"]), environment


def test_the_app_of_a_guide_asks_for_an_approval(tmp_path: Path) -> None:
    for environment, program in examples():
        # A guide is about the newest release.
        if environment.name not in SERVED or environment.is_oldest:
            continue
        (tmp_path / "app.py").write_text(program, encoding="utf-8")
        assert states_of_answer(environment, tmp_path) == [None, "approval-requested"], environment


def states_of_answer(environment: Environment, folder: Path) -> list[str | None]:
    port, answers = free_port(), list[str]()
    command = [environment.python, "-m", "uvicorn", "app:app", "--port", str(port), "--log-level", "warning"]
    with running(command, folder, PYTHONPATH=f"{HERE.parent / 'src'}{os.pathsep}{folder}") as process:
        until(lambda: bool(answers.append(ask(f"http://127.0.0.1:{port}/api/chat").text) or answers[-1]), process)
    return [part.get("state") for part in parts(answers[-1])]
