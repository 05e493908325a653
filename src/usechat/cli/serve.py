"""`usechat serve`: serve an agent, a flow or an app."""

from typing import Annotated

from msgspec import field
from typer import Argument, Option

from usechat.cli.options import ServerSettings, command_of, refusing
from usechat.integrations.open_harness.translator import SWITCHES

__all__ = ["ServeSettings", "serve"]


class ServeSettings(ServerSettings, frozen=True, kw_only=True):
    """What to serve and how.

    Apps take host, port, root path, workers, reload and log format, and nothing else. `nodes`, `runs`, `concurrency`
    and `option` are for flows.
    """

    target: Annotated[
        str, Argument(help="What to serve: module:agent, flow.yaml, or module:app for an ASGI app of your own.")
    ]
    nodes: Annotated[str, Option(help="The module whose `nodes` are the node types of the flow.")] = ""
    runs: Annotated[str, Option(help="The database of a flow's runs. With it, they survive a restart.")] = ""
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
        Option(help="The database of the chats. sqlite:// keeps them in memory, client leaves them to the pages."),
    ] = "sqlite:///usechat.db"
    path: Annotated[str, Option(help="The path of the chat.")] = "/api/chat"
    root_path: Annotated[
        str, Option(metavar="PREFIX", help="The prefix that a proxy strips from request paths, such as /agent.")
    ] = ""
    allowed_hosts: Annotated[
        list[str], Option(help="A host name that a proxy uses for this server. Repeat it for more.")
    ] = field(default_factory=list[str])


@command_of(ServeSettings)
def serve(settings: ServeSettings) -> None:
    """Serve an agent to useChat(). USECHAT_<NAME> in the environment sets an option."""
    with refusing("usechat serve", "server"):
        from usechat.cli.launch import run

        run(settings)
