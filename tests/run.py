"""Runs every check at once, tells how far it is, and ends with one list of failures and one line that counts.

`make test` runs all of them, `make check` those that need no service and no Node, and `make soak` the tests for long.
What a check or a test run prints is in .venv/run/; here it is printed only where it failed.
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import RLock, Thread
from types import FrameType
from typing import Any, Final, NamedTuple

from support.soak import SEED, SOAK

ROOT: Final = Path(__file__).parents[1]
LOGS: Final = ROOT / ".venv" / "run"
BIN: Final = ".venv/bin"
# How often it tells how far it is, in seconds.
TELL: Final = 10


class Check(NamedTuple):
    """A command that exits with 0 if all is well, and what to run where it does not."""

    name: str
    command: str
    remedy: str


class Pool(NamedTuple):
    """Tests that share a pytest run, since they need the same of the programs that each of its workers starts.

    There are more workers than cores, since many tests wait for a process or a socket. Tests that wait for long come
    first, so that nobody waits for them in the end.
    """

    name: str
    workers: int
    tests: str
    # Also as the last step of the run: whether its tests have met every line.
    covers: str = ""


CHECKS: Final = (
    Check("format", f"{BIN}/ruff format --check .", "make format"),
    Check("lint", f"{BIN}/ruff check .", "make format"),
    Check("layers", f"{BIN}/lint-imports --no-cache", f"{BIN}/lint-imports --no-cache"),
    Check("documents", f"{BIN}/python docs/generate.py --check", "make docs"),
    Check("types", "make --no-print-directory types", "make types"),
)

# The core runs apart, since to measure its coverage takes time.
CORE: Final = "tests/events tests/protocol tests/integrations tests/turns/test_plain_turns.py tests/turns/test_pump.py"
WITHOUT_CORE: Final = " ".join(f"--ignore={path}" for path in CORE.split())
POOLS: Final = (
    Pool("core", 2, CORE, covers="src/usechat/protocol/*,src/usechat/events/*"),
    Pool("library", 6, f"tests/stores/test_redis_away.py tests/server/test_promises_database.py tests {WITHOUT_CORE}"),
    Pool("clients", 2, "faults conformance frameworks"),
    # One worker, since each has a Chromium and builds pages of its own.
    Pool("browser", 1, "browser"),
)
QUICK: Final = (Pool("core", 2, "tests/events tests/protocol tests/integrations tests/models"),)


class Failure(NamedTuple):
    name: str
    text: str
    command: str


class Progress:
    """What has passed and what has failed; each job writes only to its own line of it."""

    def __init__(self) -> None:
        self.passed = 0
        self.failures: list[Failure] = []
        self.lines: dict[str, str] = {}

    def fail(self, failure: Failure) -> None:
        say(f"FAILED {failure.name}")
        self.failures.append(failure)


# What runs, each in a process group of its own, so that a signal can end it with all that it has started.
_running: Final[list[subprocess.Popen[bytes]]] = []
# A job holds it while it starts something. The handler of a signal, in the main thread, waits for that; a second signal
# interrupts the handler.
_starting: Final = RLock()


def start(command: str, log: Path, **environ: str) -> subprocess.Popen[bytes]:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output, _starting:
        process = subprocess.Popen(
            shlex.split(command),
            cwd=ROOT,
            env={**os.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        _running.append(process)
    return process


def end_on_signals() -> None:
    """End what runs together with this process, which `make` and a terminal signal alone."""

    def end(_number: int, _frame: FrameType | None) -> None:
        with _starting:
            for process in (each for each in _running if each.returncode is None):
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)
            os._exit(1)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)


def say(text: str) -> None:
    print(text, flush=True)


def run_checks(checks: tuple[Check, ...], progress: Progress) -> None:
    for check in checks:
        progress.lines["checks"] = check.name
        log = LOGS / f"{check.name}.txt"
        if start(check.command, log).wait() == 0:
            progress.passed += 1
        else:
            progress.fail(Failure(check.name, log.read_text("utf-8"), check.remedy))
    progress.lines["checks"] = "done"


class PoolRun:
    """One pytest run, and what it has told so far."""

    def __init__(self, pool: Pool, progress: Progress) -> None:
        self._pool = pool
        self._progress = progress
        self._tests = 0
        self._ended: set[str] = set()
        self._failed: set[str] = set()

    def run(self) -> None:
        pool, log, results = self._pool, LOGS / f"{self._pool.name}.txt", LOGS / f"{self._pool.name}.jsonl"
        results.unlink(missing_ok=True)
        coverage = "--cov --cov-report=" if pool.covers else ""
        command = f"{BIN}/pytest -q --dist worksteal -n {pool.workers} {coverage} {pool.tests}"
        process = start(command, log, USECHAT_RESULTS=str(results))
        told = 0
        while process.poll() is None:
            time.sleep(0.2)
            told = self._read(results, told)
        self._read(results, told)
        passed = len(self._ended - self._failed)
        self._progress.passed += passed
        # Something else went wrong than a test: a worker that died, an option, a warning at the end.
        if process.returncode != 0 and not self._failed:
            self._progress.fail(Failure(f"{pool.name} ({command})", log.read_text("utf-8")[-20_000:], command))
        elif process.returncode == 0 and (passed == 0 or len(self._ended) != self._tests):
            self._progress.fail(Failure(f"{pool.name}: {len(self._ended)} of {self._tests} tests ran", "", command))
        elif pool.covers and not self._failed:
            self._cover()

    def _read(self, results: Path, told: int) -> int:
        """Take the lines that are new, and give how much has been read."""
        if not results.exists():
            return told
        with results.open("rb") as file:
            file.seek(told)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                told += len(line)
                self._take(json.loads(line))
        count = f"{len(self._ended):,} of {self._tests:,}" if self._tests else "collecting"
        self._progress.lines[self._pool.name] = f"{self._pool.name} {count}"
        return told

    def _take(self, line: dict[str, Any]) -> None:
        if "tests" in line:
            self._tests = line["tests"]
            return
        test = line["test"]
        self._ended.add(test)
        # A test that is skipped proves nothing, so that it counts as one that failed.
        if line["outcome"] != "passed" and test not in self._failed:
            self._failed.add(test)
            seed = f"USECHAT_SOAK=1 USECHAT_SEED={SEED} " if SOAK else ""
            text = line.get("text") or line["outcome"]
            self._progress.fail(Failure(test, text, f"{seed}{BIN}/pytest {shlex.quote(test)}"))

    def _cover(self) -> None:
        command = [f"{BIN}/coverage", "report", f"--include={self._pool.covers}", "--fail-under=100"]
        report = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if report.returncode == 0:
            self._progress.passed += 1
        else:
            self._progress.fail(Failure("coverage of the core", report.stdout, "make test"))


def run(checks: tuple[Check, ...], pools: tuple[Pool, ...]) -> Progress:
    progress = Progress()
    jobs = [Thread(target=run_checks, args=(checks, progress))]
    jobs += [Thread(target=PoolRun(pool, progress).run) for pool in pools]
    began = told = time.monotonic()
    for job in jobs:
        job.start()
    while any(job.is_alive() for job in jobs):
        time.sleep(0.1)
        if time.monotonic() - told >= TELL:
            told = time.monotonic()
            say(f"usechat: {told - began:4.0f} s  " + "  ".join(progress.lines.values()))
    say(f"usechat: {time.monotonic() - began:4.0f} s  done")
    return progress


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="what needs no service and no Node")
    options = parser.parse_args()
    end_on_signals()
    say("usechat: format, lint, layers, documents, types and tests, all at once")
    progress = run(CHECKS, QUICK if options.quick else POOLS)
    for failure in progress.failures:
        say(f"\n{'=' * 20} {failure.name} {'=' * 20}\n{failure.text}")
    if progress.failures:
        say("\nusechat: what failed, and what repeats it")
    for failure in progress.failures:
        say(f"  {failure.name}\n    {failure.command}")
    say(f"\n{progress.passed} passed, {len(progress.failures)} failed")
    return 1 if progress.failures else 0


if __name__ == "__main__":
    sys.exit(main())
