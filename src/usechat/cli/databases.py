"""Opens the databases that options name."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar
from urllib.parse import urlsplit

from sqlalchemy.exc import SQLAlchemyError

from usechat.cli.options import ServeError
from usechat.database import Database
from usechat.errors import DatabaseBusyError

__all__ = ["database_name", "use_database"]

_T = TypeVar("_T")


def database_name(url: str) -> str:
    """The database without the passwords that its URL may hold."""
    parts = urlsplit(url)
    name = parts.path.removeprefix("/")
    if parts.scheme.startswith("sqlite"):
        return name or "memory"
    return f"{name} on {parts.hostname or 'localhost'}"


def use_database(url: str, work: Callable[[Database], Awaitable[_T]], problem: str) -> _T:
    """Do the work with the database of this URL, and close it.

    Raises:
        ServeError: The URL is wrong, or the database cannot be used, which is the `problem`.
    """

    try:
        database = Database(url)
    except (ValueError, ImportError) as error:
        raise ServeError(str(error)) from error

    async def use() -> _T:
        try:
            return await work(database)
        finally:
            await database.aclose()

    try:
        return asyncio.run(use())
    except (SQLAlchemyError, DatabaseBusyError) as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise ServeError(f"{problem}: {cause}.") from error
