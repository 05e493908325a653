"""Several processes that serve one socket: they are started again when they die, and end together."""

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

# Its types say nothing.
_forget_gauges: Final[Callable[[int | None], None]] = cast(Any, shared_metrics).mark_process_dead
# A worker that dies again and again is started more and more seldom.
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 10.0
_MOMENT: Final = 0.02
# One that has lived for so long was started well.
_WELL: Final = 10.0
_WAKES: Final = 64
# A worker ends itself in so many seconds after its grace, or after a second signal. One that does not is killed.
_LAST_SECONDS: Final = 10.0
_HURRIED_SECONDS: Final = 4.0


def run_workers(count: int, work: Work, listener: socket.socket, grace: float | None) -> None:
    """Run so many processes of `work` until a signal comes, which ends all of them, and wait for their ends.

    They have `grace` seconds and a few more for that; None if only they know how long, or until a second signal.
    They share a folder for what they count, so that whichever of them is asked for metrics tells those of all.
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
            # One that is ignored is so for a reason, such as nohup.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._on_signal)
        for _ in range(self._count):
            if not self._is_ending:
                self._start()
        while self._processes:
            left = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
            ready = wait([*(process.sentinel for process in self._processes), self._wake_read], left)
            if self._wake_read in ready:
                # Else it would wake us again and again until the last worker has ended.
                os.read(self._wake_read, _WAKES)
            elif not ready:
                self._deadline = None
                _log.error("workers that do not end are killed")
                self._tell(signal.SIGKILL)
            over = [process for process in self._processes if not process.is_alive()]
            if ready and self._wake_read not in ready and not over:
                # One that has begun to end takes a moment, or longer on a busy machine.
                wait([self._wake_read], _MOMENT)
            for process in over:
                self._ended(process)

    def _start(self) -> None:
        process = self._context.Process(target=_run, args=(self._work, self._listener))
        process.start()
        self._processes[process] = time.monotonic()
        if self._is_ending and process.pid is not None:
            # The signal came while the process was started, which nobody could tell yet.
            os.kill(process.pid, signal.SIGTERM)

    def _ended(self, process: SpawnProcess) -> None:
        lived = time.monotonic() - self._processes.pop(process)
        process.join()
        _forget_gauges(process.pid)
        if self._is_ending:
            return
        self._pause = _FIRST_PAUSE if lived >= _WELL else min(2 * self._pause, _LONGEST_PAUSE)
        _log.error("worker %d ended by itself (%s) and is started again", process.pid, process.exitcode)
        # A signal ends the pause as well.
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
        # Whichever it was: Python makes an exception of SIGINT, which may get lost in a process that still imports.
        self._tell(signal.SIGTERM)

    def _tell(self, number: signal.Signals) -> None:
        for process in self._processes:
            if process.pid is not None and process.is_alive():
                os.kill(process.pid, number)


def _run(work: Work, listener: socket.socket) -> None:
    # The keys that interrupt a terminal reach the parent alone, which tells us once.
    os.setpgrp()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    work(listener)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
