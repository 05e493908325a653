"""Runs `usechat serve`: finds the agent, makes its app and hands it to uvicorn."""

import asyncio
import inspect
import os
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from msgspec import structs
from sqlalchemy.exc import SQLAlchemyError
from starlette.applications import Starlette
from starlette.types import ASGIApp
from uvicorn.supervisors import ChangeReload

from usechat.agents.registry import find_agent
from usechat.cli.databases import cause
from usechat.cli.listening import Server, configure, cors_hint, listen, serve
from usechat.cli.settings import ServeError, ServeSettings
from usechat.cli.targets import load_target
from usechat.cli.workers import run_workers
from usechat.database import Database
from usechat.errors import DatabaseBusyError
from usechat.server.app import create_app, how_to_connect
from usechat.server.arguments import check_path
from usechat.server.origins import LOOPBACK_HOSTS

__all__ = ["run"]

_FOR_AGENTS: Final = ("path", "client", "store", "lease", "history", "cors", "allowed_hosts", "grace")


def run(settings: ServeSettings, announce: Callable[[str], None]) -> None:
    """Announce where the target is served, and serve it until a signal comes.

    Raises:
        ServeError: There is nothing to serve, or no way to serve it.
    """
    sys.path.insert(0, os.getcwd())
    _check_workers(settings)
    _check_root_path(settings.root_path)
    app = _make_app(settings)
    if settings.keeps_chats and _is_agent(load_target(settings)):
        asyncio.run(_try(settings.history, f"The chats cannot be kept in {settings.history_name}"))
    if settings.runs:
        asyncio.run(_try(settings.runs, f"The runs cannot be kept in {settings.runs_name}"))
    listener = listen(settings)
    announce(_banner(settings, listener.getsockname()[1]))
    if settings.reload:
        _serve_and_reload(settings, listener)
    elif settings.workers > 1:
        # An app of one's own has its own grace.
        grace = settings.grace if _is_agent(load_target(settings)) else None
        run_workers(settings.workers, partial(_serve_as_worker, settings), listener, grace)
    else:
        serve(app, settings, listener)


def _make_again(settings: ServeSettings) -> ASGIApp:
    try:
        return _make_app(settings)
    except ServeError as error:
        # A change may mend it, for which the supervisor waits.
        sys.exit(str(error))


def _serve_and_reload(settings: ServeSettings, listener: socket.socket) -> None:
    options = {"factory": True, "reload": True, "root_path": settings.root_path}
    config = configure(partial(_make_again, settings), settings.log_format, **options)
    # uvicorn sets this itself only for an app that is given by its name.
    config.reload_dirs = [Path.cwd()]
    ChangeReload(config, target=Server(config).run, sockets=[listener]).run()


def _serve_as_worker(settings: ServeSettings, listener: socket.socket) -> None:
    sys.path.insert(0, os.getcwd())
    serve(_make_again(settings), settings, listener)


def _check_workers(settings: ServeSettings) -> None:
    if settings.workers == 1:
        return
    if settings.reload:
        raise ServeError("--reload is for one process: leave out --workers.")
    if not _is_agent(load_target(settings)):
        # It says itself where its turns are kept.
        return
    if settings.store == "memory":
        raise ServeError("Several workers need a store that they share: --store redis://HOST.")
    if settings.keeps_chats and settings.history_name == "memory":
        raise ServeError("Several workers need chats that they share: --history sqlite:///FILE, or a PostgreSQL.")


def _check_root_path(root_path: str) -> None:
    try:
        if root_path:
            check_path(root_path)
    except ValueError:
        raise ServeError(f"{root_path!r} is not a --root-path such as /agent.") from None


def _make_app(settings: ServeSettings) -> ASGIApp:
    found = load_target(settings)
    if _is_agent(found):
        return _make_agent_app(found, settings)
    if inspect.isclass(found) or not _takes(found, 3):
        raise ServeError(f"{settings.target} is neither an agent, which takes the chat, nor an ASGI app.")
    given, default = structs.asdict(settings), structs.asdict(ServeSettings(target=settings.target))
    changed = [f"--{name.replace('_', '-')}" for name in _FOR_AGENTS if given[name] != default[name]]
    if changed:
        raise ServeError(f"{settings.target} is an app of your own, so set {', '.join(changed)} where you make it.")
    if isinstance(found, Starlette):
        found.state.exit_hard = True
    return found


def _make_agent_app(agent: Any, settings: ServeSettings) -> ASGIApp:
    if not settings.local:
        raise ServeError(
            f"Without authentication an agent is served to this computer only, not at {settings.host}: "
            "serve an app of your own instead, made by create_app(agent, authenticate=...)."
        )
    try:
        app = create_app(
            agent,
            path=settings.path,
            store=settings.store,
            lease=settings.lease,
            history=settings.history,
            # Not an option, since everybody on the computer can see those.
            approval_secret=os.environ.get("USECHAT_SECRET") or None,
            client=settings.client,
            cors=settings.cors,
            allowed_hosts=(*LOOPBACK_HOSTS, settings.netloc, *settings.allowed_hosts),
            grace=0 if settings.reload else settings.grace,
            # Nobody signs in. Without a proxy only this computer can connect.
            lists_all=not settings.allowed_hosts,
            page=True,
        )
    except (TypeError, ValueError, ImportError) as error:
        raise ServeError(str(error)) from error
    app.state.exit_hard = True
    return app


def _is_agent(found: Any) -> bool:
    return find_agent(found) is not None


def _takes(found: Any, arguments: int) -> bool:
    try:
        inspect.signature(found).bind(*[None] * arguments)
    except (TypeError, ValueError):
        return False
    return True


async def _try(url: str, problem: str) -> None:
    database = Database(url)
    try:
        await database.run(lambda _: None)
    except (SQLAlchemyError, DatabaseBusyError) as error:
        raise ServeError(f"{problem}: {cause(error)}.") from error
    finally:
        await database.aclose()


def _banner(settings: ServeSettings, port: int) -> str:
    url = f"http://{settings.netloc}:{port}"
    if not _is_agent(load_target(settings)):
        return f"usechat serves {settings.target} at {url}\n"
    proxies = f", and whoever comes by {', '.join(settings.allowed_hosts)}" if settings.allowed_hosts else ""
    kept = f"kept in {settings.history_name}" if settings.keeps_chats else "not kept: pages send all of their messages"
    runs = f"Runs are kept in {settings.runs_name}.\n" if settings.runs else ""
    return (
        f"usechat serves {settings.target} at {url}{settings.path}\n\n"
        f"  {url}/ is a page to talk to it.\n\n"
        f"{how_to_connect(f'{url}{settings.path}')}\n"
        f"Chats are {kept}.\n{runs}"
        f"Nobody has to sign in, so only this computer can connect{proxies}.\n{cors_hint(settings)}"
    )
