"""`usechat sessions`: the users, sessions and tokens of the session directory."""

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias, TypeVar

import typer

from usechat.cli.options import Directory, ServeError, database_name, refuse, refusing, use_database
from usechat.gateway.access import Kind, Role, Visibility

if TYPE_CHECKING:
    # The server's packages are an extra.
    from sqlalchemy import URL

    from usechat.database import Database
    from usechat.gateway.directory import SessionDirectory

__all__ = ["sessions", "use_directory"]

_T = TypeVar("_T")

_DURATION: Final = re.compile(r"([0-9]{1,9})([smhd])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}

_User: TypeAlias = Annotated[str, typer.Argument(metavar="USER", help="The user's id, as Agent Ops has it.")]
_Session: TypeAlias = Annotated[str, typer.Argument(metavar="SESSION", help="The session's id, as Agent Ops has it.")]
_Owner: TypeAlias = Annotated[str, typer.Option(metavar="USER", help="The user who owns the session.")]
_Kind: TypeAlias = Annotated[Kind, typer.Option(help="Only their owner can use orchestrators and workflows.")]
_Visibility: TypeAlias = Annotated[Visibility, typer.Option(help="What the other users of the directory may do.")]
_Adapter: TypeAlias = Annotated[Literal["on", "off"], typer.Option(help="Whether useChat() may reach the session.")]
_Role: TypeAlias = Annotated[Role, typer.Argument(help="What the user may do: watch, take part, or all.")]
_Expires: TypeAlias = Annotated[
    str, typer.Option(metavar="TIME", help="How long the token is valid, such as 90s, 15m, 12h or 7d.")
]
_Token: TypeAlias = Annotated[str, typer.Argument(metavar="TOKEN", help="The token, as it was printed.")]

sessions = typer.Typer(
    no_args_is_help=True, help="Manage the directory of Agent Ops sessions: who may use which session."
)


@sessions.command()
def init(*, directory: Directory) -> None:
    """Create the tables of the directory, or migrate those of an older version."""
    _use(directory, lambda known: known.create_tables(), creates=True)


@sessions.command()
def add_user(user: _User, *, directory: Directory) -> None:
    """Add a user."""
    _use(directory, lambda known: known.add_user(user))


@sessions.command()
def add_session(
    session: _Session,
    *,
    owner: _Owner,
    kind: _Kind = "session",
    visibility: _Visibility = "private",
    adapter: _Adapter = "on",
    directory: Directory,
) -> None:
    """Add a session and its owner."""
    _use(
        directory,
        lambda known: known.add_session(session, owner, kind=kind, visibility=visibility, adapter=adapter == "on"),
    )


@sessions.command()
def change(
    session: _Session,
    *,
    visibility: Annotated[Visibility | None, typer.Option(help="What the other users may do from now on.")] = None,
    adapter: Annotated[
        Literal["on", "off"] | None, typer.Option(help="Whether useChat() may reach the session from now on.")
    ] = None,
    directory: Directory,
) -> None:
    """Change a session. The change holds from the next request on."""
    if visibility is None and adapter is None:
        refuse("There is nothing to change. Give --visibility or --adapter.")
    is_on = None if adapter is None else adapter == "on"
    _use(directory, lambda known: known.change_session(session, visibility=visibility, adapter=is_on))


@sessions.command()
def grant(session: _Session, user: _User, role: _Role, *, directory: Directory) -> None:
    """Give a user a role in a session. It replaces the role that they had."""
    _use(directory, lambda known: known.grant(session, user, role))


@sessions.command()
def token(user: _User, *, expires: _Expires = "7d", directory: Directory) -> None:
    """Make a token for a user and print it. Only its hash is stored, so it cannot be printed again."""
    lifetime = _read_duration(expires)
    typer.echo(_use(directory, lambda known: known.add_token(user, lifetime)))


@sessions.command()
def revoke(token: _Token, *, directory: Directory) -> None:
    """Revoke a token. The next request with it is refused."""
    _use(directory, lambda known: known.revoke(token))


def _read_duration(text: str) -> float:
    match = _DURATION.fullmatch(text)
    if match is None or not int(match[1]):
        refuse(f"{text!r:.60} is not a duration. Write a number and s, m, h or d, such as 90s, 15m, 12h or 7d.")
    return int(match[1]) * _SECONDS[match[2]]


def _use(url: str, work: Callable[["SessionDirectory"], Awaitable[_T]], *, creates: bool = False) -> _T:
    with refusing("usechat sessions", "server"):
        return use_directory(url, work, creates=creates)


def use_directory(url: str, work: Callable[["SessionDirectory"], Awaitable[_T]], *, creates: bool = False) -> _T:
    """Do the work with the directory of this URL. Unless it `creates` one, the file of SQLite must exist.

    Raises:
        DirectoryError: The directory refuses the work.
        ServeError: The directory cannot be used.
    """
    from sqlalchemy import make_url

    from usechat.gateway.directory import SessionDirectory

    async def use(database: "Database") -> _T:
        _check_file(make_url(url), creates=creates)
        return await work(SessionDirectory(database))

    return use_database(url, use, f"The directory in {database_name(url)} cannot be used")


def _check_file(url: "URL", *, creates: bool) -> None:
    if url.get_backend_name() != "sqlite":
        return
    if url.database in (None, "", ":memory:"):
        raise ServeError(
            "A directory in memory is gone when the command ends. Name a file, such as sqlite:///sessions.db."
        )
    # A mistyped name must not become a new and empty directory.
    if not creates and not Path(url.database).exists():
        raise ServeError(f"There is no file {url.database}. usechat sessions init creates it.")
