"""`usechat gateway`: the sessions of Agent Ops at an address."""

import os
from typing import Annotated, Final, TypeAlias

import typer

from usechat.cli.refusal import refuse
from usechat.cli.settings import GatewayCommand
from usechat.cli.shared_options import Client, Cors, Directory, Grace, Host, LogFormat, Port, check_seconds
from usechat.errors import UsechatError
from usechat.extras import missing
from usechat.server.sessions.settings import GatewaySettings
from usechat.sources.agent_ops_options import AgentOpsOptions

__all__ = ["gateway"]

_COMMAND: Final = GatewayCommand(upstream="", directory="")
_DEFAULT: Final = GatewaySettings()
_VARIABLE: Final = "USECHAT_UPSTREAM_TOKEN"

_Upstream: TypeAlias = Annotated[
    str,
    typer.Option(
        envvar="USECHAT_UPSTREAM",
        metavar="URL",
        help="Where the sessions are, such as ws://localhost:8787; /api/sessions/SESSION/ws comes behind it.",
    ),
]
_UpstreamToken: TypeAlias = Annotated[
    str | None,
    typer.Option(
        envvar=_VARIABLE,
        metavar="TOKEN",
        help="The gateway's own token for the upstream, in place of each user's. Better set in the environment: "
        "everybody on the computer can see the options of a command.",
    ),
]
_Path: TypeAlias = Annotated[str, typer.Option(envvar="USECHAT_PATH", help="The path of the sessions.")]
_Idle: TypeAlias = Annotated[
    float,
    typer.Option(
        envvar="USECHAT_IDLE",
        min=1,
        callback=check_seconds,
        help="Seconds without a frame after which a turn is aborted.",
    ),
]
_KeepAlive: TypeAlias = Annotated[
    float,
    typer.Option(
        envvar="USECHAT_KEEP_ALIVE",
        min=1,
        callback=check_seconds,
        help="Seconds of silence before a stream gets a comment.",
    ),
]
_Linger: TypeAlias = Annotated[
    float,
    typer.Option(
        envvar="USECHAT_LINGER",
        min=0,
        callback=check_seconds,
        help="Seconds for which a turn goes on that nobody reads any more.",
    ),
]
_Patience: TypeAlias = Annotated[
    float,
    typer.Option(
        envvar="USECHAT_PATIENCE",
        min=1,
        callback=check_seconds,
        help="Seconds for which a client that is far behind may take nothing, before its stream is closed.",
    ),
]
_Queue: TypeAlias = Annotated[
    float,
    typer.Option(
        envvar="USECHAT_QUEUE",
        min=0,
        callback=check_seconds,
        help="Seconds for which a message waits for the one before it in its chat.",
    ),
]
_Forward: TypeAlias = Annotated[
    list[str],
    typer.Option(
        envvar="USECHAT_FORWARD", metavar="NAME", help="A frame that becomes a data part, such as title; repeat it."
    ),
]
_TransientStatus: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--transient-status",
        envvar="USECHAT_TRANSIENT_STATUS",
        help="Show the agent's status, and do not keep it in the message.",
    ),
]
_EventNames: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--event-names/--no-event-names", envvar="USECHAT_EVENT_NAMES", help="Whether events have an event: line."
    ),
]
_Jwks: TypeAlias = Annotated[
    str,
    typer.Option(
        envvar="USECHAT_JWKS",
        metavar="URL_OR_FILE",
        help="The keys of JWTs whose `sub` is a user of the directory; needs --audience and --issuer.",
    ),
]
_Audience: TypeAlias = Annotated[str, typer.Option(envvar="USECHAT_AUDIENCE", help="The `aud` of JWTs.")]
_Issuer: TypeAlias = Annotated[str, typer.Option(envvar="USECHAT_ISSUER", help="The `iss` of JWTs.")]


def gateway(
    *,
    upstream: _Upstream,
    directory: Directory,
    upstream_token: _UpstreamToken = None,
    host: Host = _COMMAND.host,
    port: Port = _COMMAND.port,
    path: _Path = _COMMAND.path,
    idle: _Idle = _DEFAULT.idle,
    keep_alive: _KeepAlive = _DEFAULT.keep_alive,
    linger: _Linger = _DEFAULT.linger or 0.0,
    patience: _Patience = _DEFAULT.patience,
    queue: _Queue = _DEFAULT.queue_seconds,
    client: Client = _DEFAULT.client,
    forward: _Forward = [],  # noqa: B006
    transient_status: _TransientStatus = _DEFAULT.options.transient_status,
    event_names: _EventNames = _DEFAULT.event_names,
    jwks: _Jwks = _COMMAND.jwks,
    audience: _Audience = _COMMAND.audience,
    issuer: _Issuer = _COMMAND.issuer,
    cors: Cors = [],  # noqa: B006
    grace: Grace = _COMMAND.grace,
    log_format: LogFormat = _COMMAND.log_format,
) -> None:
    """Serve the sessions of Agent Ops to useChat(). Off, which is 404 for all, unless ENABLE_AI_SDK_ADAPTER=true.

    Each option can be set in the environment, as USECHAT_<NAME>.
    """
    # A variable that is set to nothing counts as none for typer.
    if not (os.environ.get(_VARIABLE, "-") if upstream_token is None else upstream_token):
        refuse(f"The token of --upstream-token, or of {_VARIABLE}, is empty: the upstream would get each user's own.")
    try:
        command = GatewayCommand(
            upstream=upstream,
            directory=directory,
            host=host,
            port=port,
            path=path,
            jwks=jwks,
            audience=audience,
            issuer=issuer,
            cors=tuple(cors),
            grace=grace,
            log_format=log_format,
            gateway=GatewaySettings(
                upstream_token=upstream_token,
                options=AgentOpsOptions(forward=frozenset(forward), transient_status=transient_status),
                client=client,
                event_names=event_names,
                idle=idle,
                keep_alive=keep_alive,
                linger=linger,
                patience=patience,
                queue_seconds=queue,
            ),
        )
    except ValueError as error:
        refuse(str(error))
    try:
        from usechat.cli.launch_gateway import run
    except ModuleNotFoundError as error:
        refuse(missing("usechat gateway", error, "server"))
    try:
        run(command, typer.echo)
    except UsechatError as error:
        refuse(str(error))
