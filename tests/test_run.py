"""What `make test` says in the end, of toy checks and toy tests."""

import os
import select
import shlex
import signal
import sys
from pathlib import Path

import pytest

from run import BIN, ROOT, Check, Pool, run
from support.hang import HANG_SECONDS
from support.loopback import running
from support.soak import SEED

TOYS = "tests/support/outcomes.py"


def test_each_failure_is_listed_once_with_the_command_that_repeats_it():
    checks = (Check("good", "true", "do nothing"), Check("bad", "sh -c 'echo why; exit 1'", "mend it"))
    progress = run(checks, (Pool("toys", 1, TOYS),))
    # The check and the test.
    assert progress.passed == 2
    listed = {failure.name: failure for failure in progress.failures}
    tests = [f"{TOYS}::test_that_{outcome}" for outcome in ("fails", "fails_twice", "is_skipped")]
    assert len(progress.failures) == 4
    repeats = {name: failure.command.split(f"{BIN}/")[-1] for name, failure in listed.items()}
    assert repeats == {"bad": "mend it", **{test: f"pytest {shlex.quote(test)}" for test in tests}}
    assert listed["bad"].text == "why\n"
    assert "because it does" in listed[tests[0]].text
    assert f"USECHAT_SEED={SEED}" in listed[tests[0]].text


def test_a_run_without_tests_and_one_that_cannot_begin_are_failures():
    none, broken = Pool("none", 1, "tests/support/soak.py"), Pool("broken", 1, "tests/no_such_folder")
    progress = run((), (none, broken))
    assert progress.passed == 0
    assert sorted(failure.name.split()[0] for failure in progress.failures) == ["broken", "none"]


INTERRUPTED = """
import sys
from run import Check, end_on_signals, run

end_on_signals()
run((Check("hangs", sys.argv[1], ""),), ())
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_run_that_is_interrupted_leaves_nothing_behind(tmp_path: Path, name: str):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    written = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)

    def read() -> bytes:
        assert select.select([written], [], [], HANG_SECONDS)[0]
        return os.read(written, 100)

    hangs = f"sh -c 'exec 3> {fifo}; echo begun >&3; sleep 3600 & wait'"
    with running([sys.executable, "-c", INTERRUPTED, hangs], tmp_path, PYTHONPATH=str(ROOT / "tests")) as process:
        assert read() == b"begun\n"
        process.send(getattr(signal, name))
        # All that could write to it have ended.
        assert read() == b""
        assert process.wait() == (1, "")
    os.close(written)
