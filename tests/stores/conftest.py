from collections.abc import Iterator

import pytest

from support.redis_server import PROGRAMS, RedisServer


@pytest.fixture(scope="session", params=PROGRAMS)
def redis_program(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def redis_server(redis_program: str) -> Iterator[RedisServer]:
    server = RedisServer(program=redis_program)
    yield server
    server.close()
