"""`usechat serve`: the command and its options. `launch` does the work."""

from typing import Annotated

from msgspec import field
from typer import Argument, Option

from usechat.cli.options import ServerSettings, command_of, refusing
from usechat.integrations.open_harness.translator import SWITCHES

__all__ = ["ServeSettings", "serve"]


class ServeSettings(ServerSettings, frozen=True, kw_only=True):
    """What to serve and how.

    An app of your own takes only host, port, root path, workers, reload and log format. `nodes`, `runs`, `concurrency`
    and `option` are for flows.
    """

    target: Annotated[
        str, Argument(help="What to serve: module:agent, flow.yaml, or module:app for an ASGI app of your own.")
    ]
    nodes: Annotated[str, Option(help="A flow's node functions: a module with a dict `nodes`, or module:name.")] = ""
    runs: Annotated[str, Option(help="The database URL for a flow's runs, which then survive a restart.")] = ""
    concurrency: Annotated[int, Option(min=1, help="How many nodes of a flow may run at the same time.")] = 1
    option: Annotated[
        list[str],
        Option(
            help=f"What pages see of a flow, as name=true or name=false: {', '.join(SWITCHES)}. Repeat it for more."
        ),
    ] = field(default_factory=list[str])
    reload: Annotated[bool, Option("--reload", help="Restart when a Python file in this directory changes.")] = False
    history: Annotated[
        str,
        Option(help="The URL of the database for chats. sqlite:// is in memory, client leaves chats to the pages."),
    ] = "sqlite:///usechat.db"
    path: Annotated[str, Option(help="The URL path of the chat.")] = "/api/chat"
    root_path: Annotated[
        str, Option(metavar="PREFIX", help="The prefix that a proxy strips from request paths, such as /agent.")
    ] = ""
    allowed_hosts: Annotated[
        list[str], Option(help="A host name under which a proxy serves this server. Repeat it for more.")
    ] = field(default_factory=list[str])


@command_of(ServeSettings)
def serve(settings: ServeSettings) -> None:
    """Serve an agent, a flow or an app to useChat().

    The environment variable USECHAT_<NAME> sets an option.
    """
    with refusing("usechat serve", "server"):
        from usechat.cli.launch import run

        run(settings)
