"""`usechat serve`: an agent at an address."""

from typing import Annotated, Final, TypeAlias

import typer

from usechat.cli.refusal import refuse
from usechat.cli.settings import ServeError, ServeSettings
from usechat.cli.shared_options import Client, Cors, Grace, Host, LogFormat, Port, check_seconds
from usechat.extras import missing
from usechat.sources.open_harness_options import SWITCHES

__all__ = ["serve"]

_DEFAULT: Final = ServeSettings(target="")

_Target: TypeAlias = Annotated[
    str, typer.Argument(help="What to serve: module:agent, flow.yaml, or module:app for an ASGI app of your own.")
]
_Nodes: TypeAlias = Annotated[
    str, typer.Option(envvar="USECHAT_NODES", help="The module whose `nodes` are the node types of the flow.")
]
_Runs: TypeAlias = Annotated[
    str, typer.Option(envvar="USECHAT_RUNS", help="The database of a flow's runs, so that they outlive the server.")
]
_Concurrency: TypeAlias = Annotated[
    int, typer.Option(envvar="USECHAT_CONCURRENCY", min=1, help="How many nodes of a flow may run at the same time.")
]
_Option: TypeAlias = Annotated[
    list[str],
    typer.Option(
        envvar="USECHAT_OPTION",
        help=f"What pages are shown of a flow, as name=true or name=false: {', '.join(SWITCHES)}; repeat it for more.",
    ),
]
_Reload: TypeAlias = Annotated[
    bool, typer.Option("--reload", envvar="USECHAT_RELOAD", help="Start again when a Python file here changes.")
]
_Store: TypeAlias = Annotated[
    str,
    typer.Option(
        envvar="USECHAT_STORE",
        metavar="URL",
        help="Where running turns are kept: memory, or the URL of a Redis that all workers share.",
    ),
]
_Lease: TypeAlias = Annotated[
    float,
    typer.Option(
        envvar="USECHAT_LEASE",
        min=1,
        callback=check_seconds,
        help="Seconds without a sign of life after which a worker's turns are ended by another one.",
    ),
]
_Workers: TypeAlias = Annotated[
    int, typer.Option(envvar="USECHAT_WORKERS", min=1, max=256, help="How many processes serve; needs a --store.")
]
_History: TypeAlias = Annotated[
    str,
    typer.Option(
        envvar="USECHAT_HISTORY",
        help="The database of the chats; sqlite:// keeps them in memory, client leaves them to the pages.",
    ),
]
_Path: TypeAlias = Annotated[str, typer.Option(envvar="USECHAT_PATH", help="The path of the chat.")]
_RootPath: TypeAlias = Annotated[
    str,
    typer.Option(
        envvar="USECHAT_ROOT_PATH",
        metavar="PREFIX",
        help="The prefix that a proxy takes off the paths of its requests, such as /agent.",
    ),
]
_AllowedHosts: TypeAlias = Annotated[
    list[str],
    typer.Option(envvar="USECHAT_ALLOWED_HOSTS", help="A name that a proxy gives this server; repeat it for more."),
]


def serve(
    target: _Target,
    *,
    nodes: _Nodes = _DEFAULT.nodes,
    runs: _Runs = _DEFAULT.runs,
    concurrency: _Concurrency = _DEFAULT.concurrency,
    option: _Option = [],  # noqa: B006
    host: Host = _DEFAULT.host,
    port: Port = _DEFAULT.port,
    reload: _Reload = _DEFAULT.reload,
    client: Client = _DEFAULT.client,
    store: _Store = _DEFAULT.store,
    lease: _Lease = _DEFAULT.lease,
    workers: _Workers = _DEFAULT.workers,
    history: _History = _DEFAULT.history,
    path: _Path = _DEFAULT.path,
    root_path: _RootPath = _DEFAULT.root_path,
    cors: Cors = [],  # noqa: B006
    allowed_hosts: _AllowedHosts = [],  # noqa: B006
    grace: Grace = _DEFAULT.grace,
    log_format: LogFormat = _DEFAULT.log_format,
) -> None:
    """Serve an agent to useChat(); each option can be set in the environment, as USECHAT_<NAME>."""
    settings = ServeSettings(
        target=target,
        nodes=nodes,
        runs=runs,
        concurrency=concurrency,
        option=tuple(option),
        host=host,
        port=port,
        reload=reload,
        path=path,
        root_path=root_path,
        client=client,
        store=store,
        lease=lease,
        workers=workers,
        history=history,
        cors=tuple(cors),
        allowed_hosts=tuple(allowed_hosts),
        grace=grace,
        log_format=log_format,
    )
    try:
        from usechat.cli.launch import run
    except ModuleNotFoundError as error:
        refuse(missing("usechat serve", error, "server"))
    try:
        run(settings, typer.echo)
    except ServeError as error:
        refuse(str(error))
