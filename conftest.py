"""What all tests share: how random ones draw, and where their results go."""

import gc
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from support.results import Results
from support.soak import SEED, SOAK, draws

# The first draw on a new machine builds tables, and any draw may meet a busy one: no test is at fault then.
settings.register_profile(
    "usechat",
    max_examples=draws(50, 2),
    deadline=None,
    derandomize=not SOAK,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("usechat")


def pytest_configure(config: pytest.Config) -> None:
    # Taken out of the environment, so that neither xdist's workers nor the tests write there, too.
    if path := os.environ.pop("USECHAT_RESULTS", None):
        config.pluginmanager.register(Results(Path(path)))


def pytest_collection_finish() -> None:
    # The frameworks that tests import have a million objects, which each collection would look at.
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        report.sections.append(("Seed", f"USECHAT_SEED={SEED}"))
    return report


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
