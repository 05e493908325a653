"""The processes that evaluate expressions: started when needed, kept for the next one, killed over a bad one."""

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

_MOST: Final = 4
_LONGEST: Final = 20.0
_LIBRARY: Final = Path(str(expression_worker.import_jsonata().__file__)).parents[1]
# Without the paths and the start-up files of the environment: the process needs the standard library and JSONata.
_COMMAND: Final = (sys.executable, "-I", "-S", str(expression_worker.__file__), str(_LIBRARY))


class WorkerError(Exception):
    """There is no answer; the text says why, and what was asked stands before it."""


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
        """Give the answer, or None if the process ended over it; to be called in a thread."""
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
    """A few workers for all runs of this process, of any thread and event loop."""

    def __init__(self, most: int = _MOST, longest: float = _LONGEST) -> None:
        self._most = most
        self._longest = longest
        self.forget()

    @property
    def alive(self) -> list[Worker]:
        return list(self._all)

    def forget(self) -> None:
        """Begin anew, in a process that was forked and has none of the threads and children of its parent."""
        for worker in getattr(self, "_all", ()):
            worker.let_go()
            worker.process.returncode = 0
        self._threads = Threads(self._most)
        self._lock = threading.Lock()
        self._all: set[Worker] = set()
        self._idle: list[Worker] = []

    def end(self) -> None:
        with self._lock:
            ending, self._idle, self._all = self._all, [], set()
        for worker in ending:
            worker.end()

    async def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Have an expression evaluated, by the next worker that is free.

        Raises:
            WorkerError: it took too long, or needed too much.
        """
        body = msgspec.json.encode(request)
        if len(body) > LARGEST:
            raise WorkerError(f"reads more than {LARGEST >> 20} MB.")
        taken: list[Worker] = []
        try:
            async with asyncio.timeout(self._longest):
                answer = await self._threads.run(self._ask, body, taken)
        except TimeoutError as error:
            raise WorkerError(f"did not end within {self._longest:g} s.") from error
        except (OSError, RuntimeError) as error:
            raise WorkerError("could not be evaluated: this machine has no process left for it.") from error
        finally:
            # Nobody waits for it any more, or it has given its answer and is not there.
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
            # Somebody else has ended it.
            self._all.discard(worker)
            worker.end()


WORKERS: Final = Workers()
"""For all flows of this process."""

atexit.register(WORKERS.end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=WORKERS.forget)
