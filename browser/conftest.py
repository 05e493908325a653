from collections.abc import Iterator

import pytest

from chromium import Chromium


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    chromium = Chromium()
    yield chromium
    chromium.close()
