"""Options that several commands have."""

from typing import Annotated, Final, TypeAlias

import typer

from usechat.cli import settings
from usechat.protocol.clients import ClientName

__all__ = ["Client", "Cors", "Directory", "Grace", "Host", "LogFormat", "Port", "check_seconds"]

_DAY: Final = 86_400


def check_seconds(seconds: float) -> float:
    """Refuse more than a day, and what is no number: `float` takes `inf` and `nan`, of which no timer can be made."""
    if not seconds <= _DAY:
        raise typer.BadParameter(f"{seconds:g} is not a number of seconds up to a day, which has {_DAY}.")
    return seconds


Host: TypeAlias = Annotated[str, typer.Option(envvar="USECHAT_HOST", help="The address to listen on.")]
Port: TypeAlias = Annotated[
    int, typer.Option(envvar="USECHAT_PORT", min=0, max=65535, help="The port; 0 takes any that is free.")
]
Client: TypeAlias = Annotated[
    ClientName, typer.Option(envvar="USECHAT_CLIENT", help="The clients that must understand the streams.")
]
Cors: TypeAlias = Annotated[
    list[str], typer.Option(envvar="USECHAT_CORS", help="An origin whose pages may call; repeat it for more.")
]
Grace: TypeAlias = Annotated[
    float,
    typer.Option(
        envvar="USECHAT_GRACE",
        min=0,
        callback=check_seconds,
        help="Seconds for running turns when the server is stopped.",
    ),
]
LogFormat: TypeAlias = Annotated[
    settings.LogFormat, typer.Option(envvar="USECHAT_LOG_FORMAT", help="Lines of text, or a JSON object a line.")
]
Directory: TypeAlias = Annotated[
    str,
    typer.Option(
        envvar="USECHAT_DIRECTORY",
        metavar="URL",
        help="The database, such as sqlite:///sessions.db or postgresql://host/sessions.",
    ),
]
