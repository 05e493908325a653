"""Databases that somebody else holds."""

import json
import select
import sqlite3
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from support.hang import HANG_SECONDS
from support.http_pages import JSON

_LOCK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=30)
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.read()
connection.execute("ROLLBACK")
"""


@contextmanager
def sqlite_locked(file: Path) -> Generator[None, None, None]:
    """Let another process hold the file's write lock."""
    command = [sys.executable, "-c", _LOCK, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], HANG_SECONDS)[0]
        assert process.stdout.readline() == b"locked\n"
        # The end of its input ends it.
        yield


def sqlite_bodies(file: Path) -> list[JSON]:
    """The messages that the file has, whoever holds it."""
    connection = sqlite3.connect(file)
    try:
        rows = connection.execute("SELECT body FROM usechat_messages ORDER BY chat, position").fetchall()
    finally:
        connection.close()
    return [json.loads(body) for (body,) in rows]


@asynccontextmanager
async def postgres_locked(url: str) -> AsyncGenerator[None]:
    """Hold the table of the messages in a session of our own, so that nobody reads or writes it."""
    engine = create_async_engine(url.replace("postgresql:", "postgresql+asyncpg:"))
    try:
        async with engine.begin() as connection:
            await connection.execute(text("LOCK TABLE usechat_messages"))
            yield
    finally:
        await engine.dispose()
