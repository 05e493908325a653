"""Runs several processes that serve one socket, restarts those that die, and stops all of them together.

The parent has one thread. It waits for the end of a worker, for a byte in the wake pipe, and for the deadline.

- Running: the parent replaces a worker that ends. It pauses before that: 0.1 s if the worker has lived for 10 s,
  otherwise twice as long as the last time, at most 10 s.
- Ending, after the first signal: every worker gets SIGTERM, and none is replaced. With a known grace the deadline is
  10 s after it; otherwise there is none.
- Hurried, after a second signal: every worker gets SIGTERM again, and the deadline is at most 4 s away.
- At the deadline the parent kills the workers that are left. `run` returns when the last worker has ended.

The signal handler runs in the parent's thread, between any two of its instructions. Python repeats a system call that
a signal interrupts, so the handler writes to the wake pipe, and `run` sees the new deadline. The handler sets
`_is_ending` and `_deadline`; only `_start` and `_ended` change `_processes`.

In a worker the main thread serves. A second thread waits for the end of the parent, also of one that was killed. Then
it sends SIGTERM to its own process, and ends the process 10 s after the grace, whatever the main thread does. Without a
known grace it allows 60 s.
"""

import logging
import math
import multiprocessing
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from types import FrameType
from typing import Any, Final, cast

from prometheus_client import multiprocess as shared_metrics

__all__ = ["Work", "run_workers"]

_log = logging.getLogger("usechat")

Work = Callable[[socket.socket], None]

# prometheus_client does not type it.
_forget_gauges: Final[Callable[[int | None], None]] = cast(Any, shared_metrics).mark_process_dead
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 10.0
_HEALTHY_SECONDS: Final = 10.0
_REAP_PAUSE: Final = 0.02
_WAKE_BYTES: Final = 64
_LAST_SECONDS: Final = 10.0
_HURRIED_SECONDS: Final = 4.0
# The grace of a worker whose parent is gone, if nobody has said another.
_ORPHANED_SECONDS: Final = 60.0


def run_workers(count: int, work: Work, listener: socket.socket, grace: float | None) -> None:
    """Run `count` processes of `work` until a signal comes, and return when all of them have ended.

    After the signal they have `grace` seconds and 10 more. With None they have any time, until a second signal.
    The processes share a folder of metrics, so that each of them can report the metrics of all.
    """
    with tempfile.TemporaryDirectory(prefix="usechat-") as folder:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        _Workers(count, work, listener, grace).run()


class _Workers:
    def __init__(self, count: int, work: Work, listener: socket.socket, grace: float | None) -> None:
        self._count = count
        self._work = work
        self._listener = listener
        self._grace = grace
        self._context = multiprocessing.get_context("spawn")
        self._processes: dict[SpawnProcess, float] = {}
        self._pause = _FIRST_PAUSE
        self._is_ending = False
        self._deadline: float | None = None
        self._wake_read, self._wake_write = os.pipe()

    def run(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # A signal may be ignored for a reason, such as nohup.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._on_signal)
        for _ in range(self._count):
            if not self._is_ending:
                self._start()
        while self._processes:
            left = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
            ready = wait([*(process.sentinel for process in self._processes), self._wake_read], left)
            if self._wake_read in ready:
                # A byte that stays in the pipe would end each wait at once.
                os.read(self._wake_read, _WAKE_BYTES)
            elif not ready:
                self._deadline = None
                _log.error("killing the workers that did not end in time")
                self._signal_all(signal.SIGKILL)
            over = [process for process in self._processes if not process.is_alive()]
            if ready and self._wake_read not in ready and not over:
                # The sentinel of a worker closes a moment before the system reports its end.
                wait([self._wake_read], _REAP_PAUSE)
            for process in over:
                self._ended(process)

    def _start(self) -> None:
        process = self._context.Process(target=_run, args=(self._work, self._listener, self._grace))
        process.start()
        self._processes[process] = time.monotonic()
        if self._is_ending and process.pid is not None:
            # The signal came while the process was being started, so the handler did not know it.
            os.kill(process.pid, signal.SIGTERM)

    def _ended(self, process: SpawnProcess) -> None:
        lived = time.monotonic() - self._processes.pop(process)
        process.join()
        _forget_gauges(process.pid)
        if self._is_ending:
            return
        self._pause = _FIRST_PAUSE if lived >= _HEALTHY_SECONDS else min(2 * self._pause, _LONGEST_PAUSE)
        _log.error("worker %d ended by itself (%s): starting another one", process.pid, process.exitcode)
        # A signal ends the pause.
        wait([self._wake_read], self._pause)
        if not self._is_ending:
            self._start()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._is_ending:
            self._deadline = min(self._deadline or math.inf, now + _HURRIED_SECONDS)
        elif self._grace is not None:
            self._deadline = now + self._grace + _LAST_SECONDS
        self._is_ending = True
        os.write(self._wake_write, b"!")
        # Never SIGINT: Python turns it into an exception, which can get lost in a process that is still importing.
        self._signal_all(signal.SIGTERM)

    def _signal_all(self, number: signal.Signals) -> None:
        for process in self._processes:
            if process.pid is not None and process.is_alive():
                os.kill(process.pid, number)


def _run(work: Work, listener: socket.socket, grace: float | None) -> None:
    # Ctrl-C in a terminal then reaches the parent alone, which passes it on once.
    os.setpgrp()
    threading.Thread(target=_end_with_parent, args=(grace,), daemon=True).start()
    work(listener)


def _end_with_parent(grace: float | None) -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep((_ORPHANED_SECONDS if grace is None else grace) + _LAST_SECONDS)
        os._exit(1)
