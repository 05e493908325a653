import gc
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from support.postgres import Postgres
from support.redis_server import RedisServer
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


def pytest_collection_finish() -> None:
    # The frameworks that tests import have a million objects, which each collection would look at.
    gc.collect()
    gc.freeze()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    server = Postgres()
    yield server
    server.close()


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """A Redis that forgets when it ends; whoever breaks one starts one of their own."""
    server = RedisServer()
    yield server
    server.close()
