from collections.abc import Iterator

import pytest

from support.redis_server import PROGRAMS, RedisServer


@pytest.fixture(scope="session", params=PROGRAMS)
def either_server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """A Redis and a Valkey, for what shows that both do the same; what else happens on Valkey is in `make faults`."""
    server = RedisServer(program=request.param)
    yield server
    server.close()
