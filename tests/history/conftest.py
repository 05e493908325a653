from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from usechat.database import Database
from usechat.history import History, MemoryHistory, StateStore


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def history(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[StateStore]:
    if request.param == "memory":
        yield MemoryHistory()
        return
    is_file = request.param == "sqlite"
    url = f"sqlite:///{tmp_path}/chats.db" if is_file else request.getfixturevalue("postgres").create_tables()
    database = Database(url)
    yield History(database)
    await database.aclose()
