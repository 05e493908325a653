from collections.abc import Iterator

import pytest

from support.postgres import Postgres
from support.redis_server import RedisServer


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
