"""`usechat gateway`: serve the sessions of Agent Ops."""

import os
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from msgspec import field
from typer import Option

from usechat.cli.options import (
    Directory,
    ServeError,
    ServerSettings,
    check_seconds,
    command_of,
    database_name,
    refuse,
    refusing,
)
from usechat.gateway.settings import SWITCH, GatewaySettings
from usechat.integrations.agent_ops.options import AgentOpsOptions

if TYPE_CHECKING:
    # The server's packages are an extra.
    import socket

    from starlette.applications import Starlette

    from usechat.server.auth import JwtAuth

__all__ = ["gateway"]

_DEFAULT: Final = GatewaySettings()
_VARIABLE: Final = "USECHAT_UPSTREAM_TOKEN"


def _seconds(help: str, *, least: int = 1) -> Any:  # noqa: A002
    return Option(min=least, callback=check_seconds, help=help)


class _Settings(ServerSettings, frozen=True, kw_only=True):
    upstream: Annotated[
        str,
        Option(
            metavar="URL",
            help="Where Agent Ops is, such as ws://localhost:8787. The gateway appends /api/sessions/SESSION/ws.",
        ),
    ]
    directory: Directory
    upstream_token: Annotated[
        str | None,
        Option(
            metavar="TOKEN",
            help="The gateway's own token for the upstream, in place of each user's. Better set in the environment: "
            "everybody on the computer can see the options of a command.",
        ),
    ] = None
    path: Annotated[str, Option(help="The path of the sessions.")] = "/api/sessions"
    idle: Annotated[float, _seconds("Seconds without a frame after which a turn is aborted.")] = _DEFAULT.idle
    keep_alive: Annotated[float, _seconds("Seconds of silence before a stream gets a comment.")] = _DEFAULT.keep_alive
    linger: Annotated[float, _seconds("Seconds that a turn goes on without a reader.", least=0)] = (
        _DEFAULT.linger or 0.0
    )
    patience: Annotated[
        float, _seconds("Seconds that a client far behind may read nothing before its stream is closed.")
    ] = _DEFAULT.patience
    queue: Annotated[float, _seconds("Seconds that a message waits for the one before it in its chat.", least=0)] = (
        _DEFAULT.queue_seconds
    )
    forward: Annotated[
        list[str], Option(metavar="NAME", help="A frame that becomes a data part, such as title. Repeat it for more.")
    ] = field(default_factory=list[str])
    transient_status: Annotated[
        bool, Option("--transient-status", help="Show the agent's status, but do not keep it in the message.")
    ] = _DEFAULT.options.transient_status
    event_names: Annotated[
        bool, Option("--event-names/--no-event-names", help="Whether events have an event: line.")
    ] = _DEFAULT.event_names
    jwks: Annotated[
        str,
        Option(
            metavar="URL_OR_FILE",
            help="The keys of JWTs whose `sub` is a user of the directory. Needs --audience and --issuer.",
        ),
    ] = ""
    audience: Annotated[str, Option(help="The `aud` of JWTs.")] = ""
    issuer: Annotated[str, Option(help="The `iss` of JWTs.")] = ""


@command_of(_Settings)
def gateway(settings: _Settings) -> None:
    """Serve the sessions of Agent Ops to useChat(). All requests get 404 unless ENABLE_AI_SDK_ADAPTER=true.

    USECHAT_<NAME> in the environment sets an option.
    """
    # typer takes a variable that is set to nothing for one that is not set.
    if not (os.environ.get(_VARIABLE, "-") if settings.upstream_token is None else settings.upstream_token):
        refuse(f"The token of --upstream-token or {_VARIABLE} is empty: the upstream would get each user's own.")
    with refusing("usechat gateway", "server"):
        from usechat.cli.listening import listen, serve
        from usechat.cli.sessions import use_directory
        from usechat.cli.workers import run_workers
        from usechat.server.app import how_to_connect

        settings.check_store()
        app = _make_app(settings)
        use_directory(settings.directory, lambda directory: directory.create_tables())
        listener = listen(settings)
        url = f"http://{settings.netloc}:{listener.getsockname()[1]}{settings.path}"
        is_on = _gateway_settings(settings).is_on
        off = "" if is_on else f"The gateway is off and answers 404: {SWITCH}=true switches it on.\n"
        typer.echo(
            f"usechat serves the sessions of {settings.upstream} at {url}\n\n"
            f"{how_to_connect(f'{url}/SESSION/chat', token=True)}\n"
            f"{database_name(settings.directory)} says who may use which session: usechat sessions.\n"
            f"{off}{settings.cors_hint}"
        )
        if settings.workers > 1:
            run_workers(settings.workers, partial(_work, settings), listener, settings.grace)
        else:
            serve(app, listener, settings.log_format)


def _work(settings: _Settings, listener: "socket.socket") -> None:
    from usechat.cli.listening import serve

    serve(_make_app(settings), listener, settings.log_format)


def _make_app(settings: _Settings) -> "Starlette":
    from usechat.gateway.gateway import sessions_gateway

    try:
        app = sessions_gateway(
            upstream=settings.upstream,
            directory=settings.directory,
            jwt=_make_jwt(settings),
            store=settings.store,
            lease=settings.lease,
            # Not an option: everybody on the computer can see the options of a command.
            secret=os.environ.get("USECHAT_SECRET") or None,
            settings=_gateway_settings(settings),
            path=settings.path,
            cors=settings.cors,
            grace=settings.grace,
        )
    except (ValueError, ImportError) as error:
        raise ServeError(str(error)) from error
    app.state.exit_hard = True
    return app


def _gateway_settings(settings: _Settings) -> GatewaySettings:
    return GatewaySettings(
        upstream_token=settings.upstream_token,
        options=AgentOpsOptions(forward=frozenset(settings.forward), transient_status=settings.transient_status),
        client=settings.client,
        event_names=settings.event_names,
        idle=settings.idle,
        keep_alive=settings.keep_alive,
        linger=settings.linger,
        patience=settings.patience,
        queue_seconds=settings.queue,
    )


def _make_jwt(settings: _Settings) -> "JwtAuth | None":
    from usechat.server.auth import JwksUrl, JwtAuth, JwtKeys

    jwks = settings.jwks
    given = jwks, settings.audience, settings.issuer
    if not any(given):
        return None
    if not all(given):
        raise ServeError("Give --jwks, --audience and --issuer together, or none of them.")
    try:
        keys = JwksUrl(jwks) if jwks.startswith(("http://", "https://")) else JwtKeys.from_file(jwks)
    except OSError as error:
        raise ServeError(f"{jwks} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise ServeError(f"{jwks}: {error}") from error
    return JwtAuth(keys, audience=settings.audience, issuer=settings.issuer)
