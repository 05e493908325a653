"""The processes that evaluate expressions: started when needed, kept for the next one, killed over a bad one.

A worker is idle, asked, or ended. `Workers.ask` runs in any event loop, and `_ask` in one of `size` threads, which
takes an idle worker or starts one, writes the request and reads the answer. Then one of these happens:

- The answer comes in time: the worker is idle again.
- The worker ends by itself, over its limit of processor time or memory: the thread finds its pipe closed.
- `timeout` passes, or the caller is cancelled: `ask` kills the worker, upon which the thread finds its pipe closed.

`_lock` guards `_all`, `_idle` and the `taken` of each call. `taken` holds the worker while it is asked, for `ask` to
kill. The thread, after it has the answer, and `ask`, when it gives up, both look at `_all` and `taken` under the lock:
so an idle worker is never killed, and a killed one never idle. A thread that finds its worker gone from `_all` ends it.
"""

import asyncio
import atexit
import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final, cast

import msgspec

from usechat.flows import expression_worker
from usechat.flows.expression_worker import CPU_SECONDS, LARGEST, MEMORY, read_frame, write_frame
from usechat.turns.threads import Threads

__all__ = ["WORKERS", "Worker", "WorkerError", "Workers"]

_SIZE: Final = 4
_TIMEOUT_SECONDS: Final = 20.0
_LIBRARY: Final = Path(str(expression_worker.import_jsonata().__file__)).parents[1]
# Without the paths and the start-up files of the environment: the process needs the standard library and JSONata.
_COMMAND: Final = (sys.executable, "-I", "-S", str(expression_worker.__file__), str(_LIBRARY))


class WorkerError(Exception):
    """There is no answer; the text says why, as the end of a sentence about the expression."""


class Worker:
    """One process. It ends by itself when its input is closed, and so when this process is gone."""

    def __init__(self) -> None:
        # A group of its own: a Ctrl-C in the terminal is for the server, which may still want to finish a run.
        self.process = subprocess.Popen(  # noqa: S603
            _COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, process_group=0
        )
        self._requests = cast("IO[bytes]", self.process.stdin)
        self._answers = cast("IO[bytes]", self.process.stdout)

    def ask(self, request: bytes) -> bytes | None:
        """Give the answer, or None if the process ended over it. This waits, so call it in a thread."""
        with suppress(OSError, ValueError):
            write_frame(self._requests, request)
            return read_frame(self._answers)
        return None

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.let_go()

    def let_go(self) -> None:
        """Close the pipes, so that the process ends as soon as it has nothing to do."""
        for pipe in (self._requests, self._answers):
            # What was not written yet is written while closing, and nobody may be there to read it.
            with suppress(OSError):
                pipe.close()


class Workers:
    """Up to `size` workers for all runs of this process, of any thread and event loop."""

    def __init__(self, size: int = _SIZE, timeout: float = _TIMEOUT_SECONDS) -> None:
        self._size = size
        self._timeout = timeout
        self._all: set[Worker] = set()
        self.forget()

    @property
    def alive(self) -> list[Worker]:
        with self._lock:
            return list(self._all)

    def forget(self) -> None:
        """Begin anew, in a process that was forked and has none of the threads and children of its parent."""
        for worker in self._all:
            worker.let_go()
            worker.process.returncode = 0
        self._threads = Threads(self._size)
        self._lock = threading.Lock()
        self._all = set()
        self._idle: list[Worker] = []

    def end(self) -> None:
        with self._lock:
            ending, self._idle, self._all = self._all, [], set()
        for worker in ending:
            worker.end()

    async def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Let the next free worker evaluate an expression.

        Raises:
            WorkerError: it took too long, or needed too much.
        """
        body = msgspec.json.encode(request)
        if len(body) > LARGEST:
            raise WorkerError(f"reads more than {LARGEST >> 20} MB.")
        taken: list[Worker] = []
        try:
            async with asyncio.timeout(self._timeout):
                answer = await self._threads.run(self._ask, body, taken)
        except TimeoutError as error:
            raise WorkerError(f"did not end within {self._timeout:g} s.") from error
        except (OSError, RuntimeError) as error:
            raise WorkerError("could not be evaluated: this machine has no process left for it.") from error
        finally:
            # Empty if the worker has given its answer.
            with self._lock:
                for worker in taken:
                    self._all.discard(worker)
                    worker.process.kill()
        if answer is None:
            raise WorkerError(f"took longer than {CPU_SECONDS:g} s, or needed more than {MEMORY >> 20} MB.")
        return msgspec.json.decode(answer)

    def _ask(self, body: bytes, taken: list[Worker]) -> bytes | None:
        worker = self._take() or Worker()
        with self._lock:
            self._all.add(worker)
            taken.append(worker)
        answer = worker.ask(body)
        with self._lock:
            if answer is not None and worker in self._all:
                self._idle.append(worker)
                taken.clear()
                return answer
            self._all.discard(worker)
        worker.end()
        return None

    def _take(self) -> Worker | None:
        while True:
            with self._lock:
                worker = self._idle.pop() if self._idle else None
                if worker is None or worker.process.poll() is None:
                    return worker
                # Something outside of this process has ended it.
                self._all.discard(worker)
            worker.end()


WORKERS: Final = Workers()

atexit.register(WORKERS.end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=WORKERS.forget)
