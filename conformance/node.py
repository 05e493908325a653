"""A Node process that is asked on its stdin and answers on its stdout, one JSON a line."""

import json
import subprocess
from pathlib import Path
from typing import Any

__all__ = ["HERE", "Node"]

HERE = Path(__file__).parent


class Node:
    """A Node process in which any number of pages are open."""

    def __init__(self, script: str) -> None:
        self._process = subprocess.Popen(  # noqa: S603
            ["node", script],  # noqa: S607
            cwd=HERE,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    def ask(self, op: str, **request: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"op": op, **request}) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        assert "error" not in answer, answer["error"]
        return answer.get("value")

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()
