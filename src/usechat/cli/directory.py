"""Opens the session directory for a command."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from sqlalchemy import make_url
from sqlalchemy.exc import SQLAlchemyError

from usechat.cli.databases import cause, database_name
from usechat.database import Database
from usechat.errors import DatabaseBusyError
from usechat.server.sessions.directory import DirectoryError, SessionDirectory

__all__ = ["use_directory"]

_T = TypeVar("_T")


def use_directory(url: str, work: Callable[[SessionDirectory], Awaitable[_T]], *, creates: bool) -> _T:
    """Do the work with the directory of this URL; unless it `creates` one, the file of SQLite must be there.

    Raises:
        DirectoryError: There is no directory, or the work cannot be done.
    """
    try:
        database = Database(url)
    except (ValueError, ImportError) as error:
        raise DirectoryError(str(error)) from error
    _check_file(url, creates=creates)
    return asyncio.run(_use(database, database_name(url), work))


async def _use(database: Database, name: str, work: Callable[[SessionDirectory], Awaitable[_T]]) -> _T:
    try:
        return await work(SessionDirectory(database))
    except (SQLAlchemyError, DatabaseBusyError) as error:
        raise DirectoryError(f"The directory in {name} cannot be used: {cause(error)}.") from error
    finally:
        await database.aclose()


def _check_file(url: str, *, creates: bool) -> None:
    """A name that was mistyped must not become a new and empty directory."""
    parts = make_url(url)
    if parts.get_backend_name() != "sqlite":
        return
    if parts.database in (None, "", ":memory:"):
        raise DirectoryError(
            "A directory in memory is gone when the command ends: name a file, as sqlite:///sessions.db."
        )
    if not creates and not Path(parts.database).exists():
        raise DirectoryError(f"There is no file {parts.database}: usechat sessions init makes it.")
