from collections.abc import Iterator

import pytest

from judge import Judge
from node import Node


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
