"""Several processes that serve one socket: they are started again when they die, and end together."""

import logging
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
# One that has lived for so long was started well.
_WELL: Final = 10.0
_WAKES: Final = 64


def run_workers(count: int, work: Work, listener: socket.socket) -> None:
    """Run so many processes of `work` until a signal comes, which all of them get, and wait for their ends.

    They share a folder for what they count, so that whichever of them is asked for metrics tells those of all.
    """
    with tempfile.TemporaryDirectory(prefix="usechat-") as folder:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        _Workers(count, work, listener).run()


class _Workers:
    def __init__(self, count: int, work: Work, listener: socket.socket) -> None:
        self._count = count
        self._work = work
        self._listener = listener
        self._context = multiprocessing.get_context("spawn")
        self._processes: dict[SpawnProcess, float] = {}
        self._pause = _FIRST_PAUSE
        self._signal = 0
        self._wake_read, self._wake_write = os.pipe()

    def run(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        for _ in range(self._count):
            if not self._signal:
                self._start()
        while self._processes:
            if self._wake_read in wait([*(process.sentinel for process in self._processes), self._wake_read]):
                # Else it would wake us again and again until the last worker has ended.
                os.read(self._wake_read, _WAKES)
            for process in [process for process in self._processes if not process.is_alive()]:
                self._ended(process)

    def _start(self) -> None:
        process = self._context.Process(target=_run, args=(self._work, self._listener))
        process.start()
        self._processes[process] = time.monotonic()
        if self._signal and process.pid is not None:
            # It came while the process was started, which nobody could tell yet.
            os.kill(process.pid, self._signal)

    def _ended(self, process: SpawnProcess) -> None:
        lived = time.monotonic() - self._processes.pop(process)
        process.join()
        _forget_gauges(process.pid)
        if self._signal:
            return
        self._pause = _FIRST_PAUSE if lived >= _WELL else min(2 * self._pause, _LONGEST_PAUSE)
        _log.error("worker %d ended by itself (%s) and is started again", process.pid, process.exitcode)
        # A signal ends the pause as well.
        wait([self._wake_read], self._pause)
        if not self._signal:
            self._start()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._signal = number
        os.write(self._wake_write, b"!")
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
