"""Runs `usechat gateway`: opens the directory, makes the app and hands it to uvicorn."""

from collections.abc import Callable

from starlette.applications import Starlette

from usechat.cli.databases import database_name
from usechat.cli.directory import use_directory
from usechat.cli.listening import cors_hint, listen, serve
from usechat.cli.settings import GatewayCommand, ServeError
from usechat.server.app import how_to_connect
from usechat.server.auth import JwksUrl, JwtAuth, JwtKeys
from usechat.server.sessions.gateway import sessions_gateway
from usechat.server.sessions.settings import SWITCH

__all__ = ["run"]


def run(command: GatewayCommand, announce: Callable[[str], None]) -> None:
    """Announce where the gateway is, and serve it until a signal comes.

    Raises:
        ServeError: There is no way to serve it.
        DirectoryError: The directory cannot be used.
    """
    app = _make_app(command)
    use_directory(command.directory, lambda directory: directory.create_tables(), creates=False)
    listener = listen(command)
    announce(_banner(command, listener.getsockname()[1]))
    serve(app, command, listener)


def _make_app(command: GatewayCommand) -> Starlette:
    try:
        app = sessions_gateway(
            upstream=command.upstream,
            directory=command.directory,
            jwt=_make_jwt(command),
            settings=command.gateway,
            path=command.path,
            cors=command.cors,
            grace=command.grace,
        )
    except (ValueError, ImportError) as error:
        raise ServeError(str(error)) from error
    app.state.exit_hard = True
    return app


def _make_jwt(command: GatewayCommand) -> JwtAuth | None:
    given = command.jwks, command.audience, command.issuer
    if not any(given):
        return None
    if not all(given):
        raise ServeError("--jwks, --audience and --issuer are given together or not at all.")
    return JwtAuth(_find_keys(command.jwks), audience=command.audience, issuer=command.issuer)


def _find_keys(jwks: str) -> JwtKeys | JwksUrl:
    if jwks.startswith(("http://", "https://")):
        return JwksUrl(jwks)
    try:
        return JwtKeys.from_file(jwks)
    except OSError as error:
        raise ServeError(f"{jwks} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise ServeError(f"{jwks}: {error}") from error


def _banner(command: GatewayCommand, port: int) -> str:
    url = f"http://{command.netloc}:{port}{command.path}"
    off = f"The gateway is off and answers 404 to all: {SWITCH}=true switches it on.\n"
    return (
        f"usechat serves the sessions of {command.upstream} at {url}\n\n"
        f"{how_to_connect(f'{url}/SESSION/chat', token=True)}\n"
        f"Who may use which session is in {database_name(command.directory)}: usechat sessions.\n"
        f"{'' if command.gateway.is_on else off}{cors_hint(command)}"
    )
