from collections.abc import Iterator

import pytest

from judge import Judge


@pytest.fixture(scope="session")
def judge() -> Iterator[Judge]:
    judge = Judge()
    yield judge
    judge.close()
