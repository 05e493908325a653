"""A Node process that is asked on its stdin and answers on its stdout, one JSON a line."""

import json
import os
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from support.hang import HANG_SECONDS

__all__ = ["HERE", "Node"]

HERE = Path(__file__).parent
# How many characters of the request the message of a failure shows: a stream may be megabytes long.
_TOLD: Final = 500


class Node:
    """A Node process that runs a script of this folder; a `quiet` one's warnings are thrown away.

    A script gives up what hangs after the bound of all tests, and says more about it than can be said here, where it is
    waited for twice as long.
    """

    def __init__(self, script: str, *, quiet: bool = False, bound: float = 2 * HANG_SECONDS) -> None:
        self._script = Path(script).name
        self._bound = bound
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
        asked = json.dumps({"op": op, **fields})
        bound = threading.Timer(self._bound, self._process.kill)
        bound.start()
        try:
            line = self._exchange(asked)
        finally:
            bound.cancel()
        assert line, f"{self._script} has ended or hangs, and did not answer {asked[:_TOLD]}"
        answer = json.loads(line)
        assert "error" not in answer, f"{self._script}: {answer['error']}"
        return answer

    def _exchange(self, asked: str) -> str:
        """The line that answers; none if the process has ended."""
        try:
            self._stdin.write(asked + "\n")
            self._stdin.flush()
        except BrokenPipeError:
            return ""
        return self._stdout.readline()

    def ask(self, op: str, **fields: Any) -> Any:
        """The value of the answer, if it has one."""
        return self.request(op, **fields).get("value")

    def close(self) -> None:
        # One that has ended cannot be given what it was asked last.
        with suppress(BrokenPipeError):
            self._stdin.close()
        self._stdout.close()
        self._process.wait()
