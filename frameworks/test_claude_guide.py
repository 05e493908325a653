"""The example in the guide of the Claude Agent SDK, word by word."""

import json
import os
import re
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from environments import HERE, Environment
from support.hang import HANG_SECONDS
from support.loopback import INSTALLED_USECHAT, free_port
from talks import until

GUIDE = (HERE.parent / "docs/guides/claude-agent.md").read_text("utf-8")


@pytest.fixture
def example(tmp_path: Path) -> Path:
    for program in re.findall(r"```python\n(# (?:\w+)\.py\n.*?)```", GUIDE, re.DOTALL):
        (tmp_path / program.split()[1]).write_text(program, encoding="utf-8")
    return tmp_path


@contextmanager
def started(environment: Environment, folder: Path, app: str, **variables: str) -> Generator[int]:
    port = free_port()
    program = f"import uvicorn; from usechat import create_app; {app}; uvicorn.run(app, port={port}, log_level='error')"
    process = subprocess.Popen([environment.python, "-c", program], cwd=folder, env=environ(folder, **variables))
    try:
        until(lambda: answers(port))
        yield port
    finally:
        process.terminate()
        process.wait(HANG_SECONDS)


def environ(folder: Path, **variables: str) -> dict[str, str]:
    return {**os.environ, "HOME": str(folder), "PYTHONPATH": str(HERE.parent / "src"), **variables}


def answers(port: int) -> bool:
    try:
        httpx.get(f"http://127.0.0.1:{port}/", trust_env=False)
    except httpx.ConnectError:
        return False
    return True


@pytest.mark.only("claude-agent")
def test_the_example_asks_and_pays_and_its_log_is_mapped(environment: Environment, example: Path) -> None:
    with started(environment, example, "from provider import app") as provider:
        to = {"ANTHROPIC_BASE_URL": f"http://127.0.0.1:{provider}", "ANTHROPIC_API_KEY": "none"}
        with started(environment, example, "from app import agent; app = create_app(agent)", **to) as port:
            asked: dict[str, Any] = {"id": "u", "role": "user", "parts": [{"type": "text", "text": "Pay 5"}]}
            url = f"http://127.0.0.1:{port}/api/chat"
            answer = httpx.post(url, json={"id": "c", "message": asked}, trust_env=False, timeout=HANG_SECONDS)
            assert '"type":"tool-approval-request"' in answer.text
            assert '"toolName":"pay"' in answer.text
        command = [environment.python, "record.py", "Hello"]
        recorded = subprocess.run(command, cwd=example, env=environ(example, **to), check=True, capture_output=True)
    (example / "run.jsonl").write_bytes(recorded.stdout)
    command = [INSTALLED_USECHAT, "map", "claude-agent", "run.jsonl", "--output", "message"]
    mapped = subprocess.run(command, cwd=example, check=True, capture_output=True)
    parts = json.loads(mapped.stdout)["parts"]
    # Nobody has allowed the call, and nobody is asked by `query`.
    assert [part["type"] for part in parts] == ["step-start", "tool-pay", "step-start", "text"]
    assert parts[-1]["text"] == "It is paid."
