from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from judge import Judge
from node import Node
from support.soak import SOAK, draws

# The first draw on a new machine builds tables, and any draw may meet a busy one: no test is at fault then.
settings.register_profile(
    "usechat",
    max_examples=draws(50, 2),
    deadline=None,
    derandomize=not SOAK,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("usechat")


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
