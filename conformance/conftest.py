from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings

from judge import Judge
from node import Node
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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Name the seed of every failure, also of one that hangs."""
    report = yield
    if report.failed:
        report.sections.append(("Random draws", f"USECHAT_SEED={SEED} draws the same again"))
    return report


@pytest.fixture(scope="session")
def judge() -> Iterator[Judge]:
    judge = Judge()
    yield judge
    judge.close()


@pytest.fixture(scope="session")
def pages_node() -> Iterator[Node]:
    """The process of all pages, since to load the clients takes it seconds."""
    node = Node("browser.mjs")
    yield node
    node.close()
