"""The examples of the guides run with the real packages of their frameworks."""

import re
import subprocess
from pathlib import Path
from typing import Final

from environments import HERE, Environment, chosen

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


def examples() -> list[tuple[Environment, str]]:
    guides = [(one, GUIDES / f"{one.name}.md") for one in chosen()]
    texts = [(one, guide.read_text("utf-8")) for one, guide in guides if guide.exists()]
    return [(one, found[1]) for one, text in texts if (found := APP.search(text)) and "\nagent = " in found[1]]


def test_the_example_of_a_guide_asks_for_an_approval(tmp_path: Path) -> None:
    for environment, program in examples():
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
