from importlib.metadata import version
from typing import Annotated

import typer

from usechat.cli.check import check
from usechat.cli.demo import demo
from usechat.cli.doctor import doctor
from usechat.cli.gateway import gateway
from usechat.cli.map import map_log
from usechat.cli.react import print_types, react
from usechat.cli.replay import replay
from usechat.cli.serve import serve
from usechat.cli.session_agent import session_agent
from usechat.cli.sessions import sessions

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Serve any Python agent to the AI SDK's useChat().",
)
app.command()(check)
app.command()(demo)
app.command()(doctor)
app.command()(gateway)
app.command("map")(map_log)
app.command()(react)
app.command()(replay)
app.command()(serve)
app.command("types")(print_types)
app.add_typer(sessions, name="sessions")
app.command("session-agent")(session_agent)


def _print_version(wanted: bool) -> None:  # noqa: FBT001
    if wanted:
        typer.echo(f"usechat {version('usechat')}")
        raise typer.Exit


@app.callback()
def options(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """The options before the command."""
