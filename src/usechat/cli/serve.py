"""`usechat serve`: an agent at an address."""

from typing import Annotated, Literal, NoReturn

import typer

from usechat.protocol.clients import ClientName
from usechat.server.settings import ServeError, ServeSettings

__all__ = ["serve"]


def serve(
    target: Annotated[str, typer.Argument(help="What to serve: module:agent, or module:app for an ASGI app.")],
    *,
    host: Annotated[str, typer.Option(envvar="USECHAT_HOST", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(envvar="USECHAT_PORT", min=0, max=65535, help="0 takes any free one.")] = 8000,
    reload: Annotated[
        bool, typer.Option("--reload", envvar="USECHAT_RELOAD", help="Start again when a file changes.")
    ] = False,
    client: Annotated[
        ClientName, typer.Option(envvar="USECHAT_CLIENT", help="The clients that must understand the streams.")
    ] = "portable",
    store: Annotated[
        Literal["memory"], typer.Option(envvar="USECHAT_STORE", help="Where running turns are kept.")
    ] = "memory",
    history: Annotated[
        str, typer.Option(envvar="USECHAT_HISTORY", help="The database of the chats; sqlite:// is memory.")
    ] = "sqlite:///usechat.db",
    path: Annotated[str, typer.Option(envvar="USECHAT_PATH", help="Where the chat is.")] = "/api/chat",
    cors: Annotated[
        list[str], typer.Option(envvar="USECHAT_CORS", help="An origin whose pages may call; repeat it for more.")
    ] = [],  # noqa: B006
    grace: Annotated[
        float, typer.Option(envvar="USECHAT_GRACE", min=0, help="Seconds that running turns get at the end.")
    ] = 10.0,
) -> None:
    """Serve an agent to useChat(); each option can be set in the environment, as USECHAT_<NAME>."""
    settings = ServeSettings(
        target=target,
        host=host,
        port=port,
        reload=reload,
        path=path,
        client=client,
        store=store,
        history=history,
        cors=tuple(cors),
        grace=grace,
    )
    try:
        from usechat.server.runner import run
    except ModuleNotFoundError as error:
        _refuse(f"usechat serve needs {error.name}. Install it with: pip install 'usechat[server]'")
    try:
        run(settings, typer.echo)
    except ServeError as error:
        _refuse(str(error))


def _refuse(sentence: str) -> NoReturn:
    typer.echo(sentence, err=True)
    raise typer.Exit(2)
