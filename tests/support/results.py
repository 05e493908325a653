"""The results of a pytest run as lines of JSON, for tests/run.py, which reads them while the tests run."""

import json
from pathlib import Path
from typing import Any

import pytest

__all__ = ["Results"]


class Results:
    """A plugin of the process that was started, which hears of the tests of all of its workers.

    It writes `{"tests": 12}` once, and for each test `{"test": "tests/…::test_…", "outcome": "passed"}`, with `text`
    where it failed. A test that fails, and again while it is torn down, comes twice.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8", buffering=1)
        self._has_counted = False

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        # Each worker has collected the same ones.
        if not self._has_counted:
            self._has_counted = True
            self._write(tests=len(ids))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(test=report.nodeid, outcome="failed", text=report.longreprtext)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            sections = (f"\n--- {title} ---\n{content}" for title, content in report.sections)
            text = f"{report.longreprtext}{''.join(sections)}"
            self._write(test=report.nodeid, outcome="failed", text=text)
        elif report.when == "call" or report.skipped:
            self._write(test=report.nodeid, outcome=report.outcome)

    def _write(self, **fields: Any) -> None:
        self._file.write(json.dumps(fields) + "\n")
