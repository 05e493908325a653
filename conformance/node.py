"""A Node process that is asked on its stdin and answers on its stdout, one JSON a line."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from support.hang import HANG_SECONDS

__all__ = ["HERE", "Node"]

HERE = Path(__file__).parent


class Node:
    """A Node process that runs a script of this folder; a `quiet` one's warnings are thrown away."""

    def __init__(self, script: str, *, quiet: bool = False) -> None:
        self._process = subprocess.Popen(  # noqa: S603
            ["node", script],  # noqa: S607
            cwd=HERE,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if quiet else None,
            env={**os.environ, "USECHAT_HANG_SECONDS": str(HANG_SECONDS)},
            text=True,
            encoding="utf-8",
        )
        # As `Popen` has them with these arguments, which its types cannot tell.
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout

    def request(self, op: str, **fields: Any) -> dict[str, Any]:
        """The whole answer, which is no error."""
        self._stdin.write(json.dumps({"op": op, **fields}) + "\n")
        self._stdin.flush()
        answer = json.loads(self._stdout.readline())
        assert "error" not in answer, answer["error"]
        return answer

    def ask(self, op: str, **fields: Any) -> Any:
        """The value of the answer, if it has one."""
        return self.request(op, **fields).get("value")

    def close(self) -> None:
        self._stdin.close()
        self._stdout.close()
        self._process.wait()
