from collections.abc import Callable
from itertools import count

import pytest


@pytest.fixture
def new_id() -> Callable[[], str]:
    numbers = count(1)
    return lambda: f"id-{next(numbers)}"
