"""What `make test` says in the end, of toy checks and toy tests."""

import shlex

from run import BIN, Check, Pool, run
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
