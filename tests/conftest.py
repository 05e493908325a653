import gc
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings

from support.postgres import Postgres
from support.redis_server import RedisServer
from support.soak import SEED, SOAK, draws

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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    # What hypothesis draws, it tells by itself.
    if report.failed and isinstance(item, pytest.Function) and hasattr(item.module, "SEED"):
        report.sections.append(("What it drew", f"USECHAT_SEED={SEED} draws the same again."))
    return report


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
