"""The options of the commands, the files and databases that options name, and how a command refuses its work.

The commands need only the `cli` extra. They import the packages of other extras when they run, inside `refusing`.
"""

import asyncio
import ipaddress
import json
import sys
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import contextmanager
from functools import wraps
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NoReturn, TypeAlias, TypeVar
from urllib.parse import urlsplit

import typer
from msgspec import NODEFAULT, Struct, field
from msgspec.structs import FieldInfo, fields
from typer import Option
from typer.models import OptionInfo

from usechat.errors import DatabaseBusyError, UsechatError
from usechat.extras import missing
from usechat.protocol.clients import ClientName
from usechat.stores.urls import LEASE

if TYPE_CHECKING:
    # Its packages are an extra.
    from usechat.database import Database

__all__ = [
    "Directory",
    "ListenSettings",
    "LogFormat",
    "Port",
    "ServeError",
    "ServerSettings",
    "check_seconds",
    "command_of",
    "database_name",
    "is_loopback",
    "read_file",
    "read_switches",
    "refuse",
    "refusing",
    "use_database",
]

LogFormat: TypeAlias = Literal["text", "json"]
_S = TypeVar("_S", bound=Struct)
_T = TypeVar("_T")

_DAY: Final = 86_400


class ServeError(UsechatError):
    """A command cannot do its work; the text says why, for the person who typed it."""


def refuse(sentence: str) -> NoReturn:
    typer.echo(sentence, err=True)
    raise typer.Exit(2)


@contextmanager
def refusing(command: str, extra: str) -> Generator[None]:
    """Exit with 2 and one sentence if a package of the extra is missing, or if usechat raises an error of its own."""
    try:
        yield
    except ModuleNotFoundError as error:
        refuse(missing(command, error, extra))
    except UsechatError as error:
        refuse(str(error))


def command_of(settings: type[_S]) -> Callable[[Callable[[_S], None]], Callable[..., None]]:
    """Turn a function of these settings into a command. Each field is an option, which `USECHAT_<NAME>` sets, too."""

    def decorate(function: Callable[[_S], None]) -> Callable[..., None]:
        @wraps(function)
        def run(**given: Any) -> None:
            function(settings(**given))

        # typer reads the options off the signature.
        vars(run)["__signature__"] = Signature([_parameter(info) for info in fields(settings)])
        return run

    return decorate


def _parameter(info: FieldInfo) -> Parameter:
    for option in info.type.__metadata__:
        if isinstance(option, OptionInfo):
            option.envvar = f"USECHAT_{info.name.upper()}"
    if info.required:
        default = Parameter.empty
    else:
        default = info.default if info.default_factory is NODEFAULT else info.default_factory()
    return Parameter(info.name, Parameter.KEYWORD_ONLY, default=default, annotation=info.type)


def is_loopback(host: str) -> bool:
    """Whether connections to this host stay on this computer."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_seconds(seconds: float) -> float:
    """Refuse more than a day, and `inf` and `nan`, which `float` accepts and no timer does."""
    if not seconds <= _DAY:
        raise typer.BadParameter(f"{seconds:g} is not a number of seconds up to a day ({_DAY}).")
    return seconds


Port: TypeAlias = Annotated[
    int, Option(envvar="USECHAT_PORT", min=0, max=65535, help="The port to listen on. 0 picks a free one.")
]
Directory: TypeAlias = Annotated[
    str,
    Option(
        envvar="USECHAT_DIRECTORY",
        metavar="URL",
        help="The database, such as sqlite:///sessions.db or postgresql://host/sessions.",
    ),
]


class ListenSettings(Struct, frozen=True, kw_only=True):
    """Where to listen."""

    host: Annotated[str, Option(help="The address to listen on.")] = "127.0.0.1"
    port: Port = 8000

    @property
    def local(self) -> bool:
        """Whether only this computer can connect."""
        return is_loopback(self.host)

    @property
    def netloc(self) -> str:
        """The host in a URL that works on this computer."""
        if self.host in ("", "0.0.0.0", "::"):  # noqa: S104
            return "localhost"
        return f"[{self.host}]" if ":" in self.host else self.host


class ServerSettings(ListenSettings, frozen=True, kw_only=True):
    """What `usechat serve` and `usechat gateway` share."""

    client: Annotated[ClientName, Option(help="The AI SDK versions that the streams must work with.")] = "portable"
    cors: Annotated[
        list[str], Option(help="An origin whose pages may call, such as http://localhost:3000. Repeat it for more.")
    ] = field(default_factory=list[str])
    grace: Annotated[
        float,
        Option(min=0, callback=check_seconds, help="Seconds that running turns get when the server stops."),
    ] = 10.0
    store: Annotated[
        str,
        Option(metavar="URL", help="The store of running turns: memory, or the URL of a Redis for all workers."),
    ] = "memory"
    lease: Annotated[
        float,
        Option(
            min=1,
            callback=check_seconds,
            help="Seconds without a sign of life after which other workers end the turns of a worker.",
        ),
    ] = LEASE
    workers: Annotated[int, Option(min=1, max=256, help="The number of worker processes. Several need --store.")] = 1
    log_format: Annotated[LogFormat, Option(help="Log lines of text, or one JSON object per line.")] = "text"

    def check_store(self) -> None:
        """Check that several workers share a store.

        Raises:
            ServeError: They do not.
        """
        if self.workers > 1 and self.store == "memory":
            raise ServeError("Several workers need a shared store: --store redis://HOST.")

    @property
    def cors_hint(self) -> str:
        """The line of the banner about --cors."""
        return "" if self.cors else "Pages of another origin need --cors, such as --cors http://localhost:3000.\n"


def read_switches(given: Iterable[str]) -> dict[str, Any]:
    """Read options of a framework, such as `name=true` or `name=["a"]`. A value that is not JSON is a string.

    Raises:
        ValueError: An option has no value.
    """
    return dict(map(_read_switch, given))


def _read_switch(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    if not value:
        raise ValueError(f"The option {text!r:.60} must have the form name=true or name=false.")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def read_file(file: str) -> bytes:
    """The content of a file, or of stdin for `-`. Exits with 2 if the file cannot be read."""
    if file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        refuse(f"{file} cannot be read: {error.strerror}.")


def database_name(url: str) -> str:
    """The database of a URL, without the passwords that the URL may hold."""
    parts = urlsplit(url)
    name = parts.path.removeprefix("/")
    if parts.scheme.startswith("sqlite"):
        return name or "memory"
    return f"{name} on {parts.hostname or 'localhost'}"


def use_database(url: str, work: Callable[["Database"], Awaitable[_T]], problem: str) -> _T:
    """Open the database of this URL, do the work, and close it.

    Raises:
        ServeError: The URL is wrong, or the database cannot be used, which is the `problem`.
    """
    from sqlalchemy.exc import SQLAlchemyError

    from usechat.database import Database

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
