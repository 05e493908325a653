"""Runs `usechat serve`: finds the target, makes its app and serves it, alone, with workers or with reloads."""

import importlib
import inspect
import os
import re
import socket
import sys
import traceback
from collections.abc import Mapping
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any, Final, cast

import typer
from starlette.applications import Starlette
from starlette.types import ASGIApp
from uvicorn.supervisors import ChangeReload

from usechat.cli.listening import Server, configure, listen, serve
from usechat.cli.options import ServeError, database_name, read_switches, use_database
from usechat.cli.serve import ServeSettings
from usechat.cli.workers import run_workers
from usechat.database import Database
from usechat.extras import missing
from usechat.integrations import EXTRAS, find_agent
from usechat.integrations.open_harness.agent import ChatRuns, OpenHarnessAgent, Runtime, RuntimeMaker
from usechat.integrations.open_harness.translator import TransportOptions, read_options
from usechat.server.app import create_app, how_to_connect
from usechat.server.origins import LOOPBACK_HOSTS
from usechat.server.startup import check_path

__all__ = ["run"]

_FOR_AGENTS: Final = ("path", "client", "store", "lease", "history", "cors", "allowed_hosts", "grace")
_FOR_FLOWS: Final = ("nodes", "runs", "concurrency", "option")
_OURS: Final = (str(Path(__file__).parents[1]), str(Path(importlib.__file__).parent), "<frozen importlib")
_NAME: Final = re.compile(r"(\w+(?:\.\w+)*):(\w+(?:\.\w+)*)")


def run(settings: ServeSettings) -> None:
    """Print where the target is served, and serve it until a signal comes.

    Raises:
        ServeError: The target cannot be served.
    """
    sys.path.insert(0, os.getcwd())
    target = _load_target(settings)
    is_agent = find_agent(target) is not None
    _check_workers(settings, is_agent=is_agent)
    try:
        if settings.root_path:
            check_path(settings.root_path)
    except ValueError:
        raise ServeError(f"{settings.root_path!r} is not a --root-path such as /agent.") from None
    app = _make_app(target, settings)
    if is_agent and settings.history != "client":
        _try(settings.history, "chats")
    if settings.runs:
        _try(settings.runs, "runs")
    listener = listen(settings)
    typer.echo(_banner(settings, f"http://{settings.netloc}:{listener.getsockname()[1]}", is_agent=is_agent))
    if settings.reload:
        _serve_and_reload(settings, listener)
    elif settings.workers > 1:
        # An app of your own has its own grace.
        run_workers(settings.workers, partial(_work, settings), listener, settings.grace if is_agent else None)
    else:
        serve(app, listener, settings.log_format, root_path=settings.root_path)


def _check_workers(settings: ServeSettings, *, is_agent: bool) -> None:
    if settings.workers == 1:
        return
    if settings.reload:
        raise ServeError("--reload is for one process. Leave out --workers.")
    if not is_agent:
        # An app decides itself where it stores turns and chats.
        return
    settings.check_store()
    if settings.history != "client" and database_name(settings.history) == "memory":
        raise ServeError("Several workers need a shared history: --history sqlite:///FILE, or a PostgreSQL.")


def _try(url: str, what: str) -> None:
    use_database(
        url, lambda database: database.run(lambda _: None), f"The {what} cannot be kept in {database_name(url)}"
    )


def _banner(settings: ServeSettings, url: str, *, is_agent: bool) -> str:
    if not is_agent:
        return f"usechat serves {settings.target} at {url}\n"
    proxies = f", and clients of {', '.join(settings.allowed_hosts)}" if settings.allowed_hosts else ""
    is_kept = settings.history != "client"
    kept = f"kept in {database_name(settings.history)}" if is_kept else "not kept: pages send all of their messages"
    runs = f"Runs are kept in {database_name(settings.runs)}.\n" if settings.runs else ""
    return (
        f"usechat serves {settings.target} at {url}{settings.path}\n\n"
        f"  {url}/ is a page to talk to it.\n\n"
        f"{how_to_connect(f'{url}{settings.path}')}\n"
        f"Chats are {kept}.\n{runs}"
        f"Nobody has to sign in, so only this computer can connect{proxies}.\n{settings.cors_hint}"
    )


def _serve_and_reload(settings: ServeSettings, listener: socket.socket) -> None:
    options = {"factory": True, "reload": True, "root_path": settings.root_path}
    config = configure(partial(_make_again, settings), settings.log_format, **options)
    # uvicorn sets this only for an app that is given by its name.
    config.reload_dirs = [Path.cwd()]
    ChangeReload(config, target=Server(config).run, sockets=[listener]).run()


def _work(settings: ServeSettings, listener: socket.socket) -> None:
    sys.path.insert(0, os.getcwd())
    serve(_make_again(settings), listener, settings.log_format, root_path=settings.root_path)


def _make_again(settings: ServeSettings) -> ASGIApp:
    try:
        return _make_app(_load_target(settings), settings)
    except ServeError as error:
        # The supervisor starts this process again, after a change or a pause.
        sys.exit(str(error))


def _make_app(target: Any, settings: ServeSettings) -> ASGIApp:
    if find_agent(target) is not None:
        app = _make_agent_app(target, settings)
    elif inspect.isclass(target) or not _takes_three(target):
        raise ServeError(f"{settings.target} is neither an agent, such as a function of the chat, nor an ASGI app.")
    elif changed := _changed(settings, _FOR_AGENTS):
        options = ", ".join(f"--{name.replace('_', '-')}" for name in changed)
        raise ServeError(f"{settings.target} is an app of your own, so set {options} where you make it.")
    else:
        app = target
    if isinstance(app, Starlette):
        app.state.exit_hard = True
    return app


def _make_agent_app(agent: Any, settings: ServeSettings) -> Starlette:
    if not settings.local:
        raise ServeError(
            f"Without authentication, only this computer may use an agent, so it cannot listen at {settings.host}. "
            "Serve an app of your own instead, made by create_app(agent, authenticate=...)."
        )
    try:
        return create_app(
            agent,
            path=settings.path,
            store=settings.store,
            lease=settings.lease,
            history=settings.history,
            # Not an option: everybody on the computer can see the options of a command.
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


def _takes_three(target: Any) -> bool:
    """Whether it can be called as an ASGI app, with scope, receive and send."""
    try:
        inspect.signature(target).bind(None, None, None)
    except (TypeError, ValueError):
        return False
    return True


def _changed(settings: ServeSettings, names: tuple[str, ...]) -> list[str]:
    default = ServeSettings(target=settings.target)
    return [name for name in names if getattr(settings, name) != getattr(default, name)]


def _load_target(settings: ServeSettings) -> Any:
    if settings.target.endswith((".yaml", ".yml")):
        return _load_flow(settings)
    if changed := _changed(settings, _FOR_FLOWS):
        raise ServeError(f"--{changed[0]} is for flows, and {settings.target} is not a YAML file.")
    return _load(settings.target)


def _load(target: str) -> Any:
    match = _NAME.fullmatch(target)
    if match is None:
        raise ServeError(f"{target!r} does not have the form module:agent.")
    module, name = match.groups()
    try:
        return attrgetter(name)(_import(module))
    except AttributeError as error:
        raise ServeError(f"The module {module} has no {name}.") from error


def _import(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if f"{module}.".startswith(f"{error.name}."):
            sentence = f"There is no module {module} in this directory or among the installed packages."
            raise ServeError(sentence) from None
        if error.name in EXTRAS:
            raise ServeError(missing(f"The module {module}", error, EXTRAS[error.name])) from None
        raise ServeError(_own_traceback(error)) from None
    except (KeyboardInterrupt, SystemExit):
        raise
    # A module may raise anything when it is imported, and its author needs the traceback.
    except BaseException as error:  # noqa: BLE001
        raise ServeError(_own_traceback(error)) from None


def _own_traceback(error: BaseException) -> str:
    """The traceback without the frames of usechat and importlib."""
    if isinstance(error, SyntaxError):
        # It names its file and line itself.
        return "".join(traceback.format_exception_only(error)).rstrip()
    shown = traceback.TracebackException.from_exception(error)
    own = (frame for frame in shown.stack if not frame.filename.startswith(_OURS))
    shown.stack = traceback.StackSummary.from_list(own)
    return "".join(shown.format()).rstrip()


def _load_flow(settings: ServeSettings) -> Any:
    try:
        from usechat.flows import DatabaseRunStore, FlowError, FlowRuntime, load_flow
    except ModuleNotFoundError as error:
        raise ServeError(missing("A flow", error, "flows")) from error
    nodes = _load_nodes(settings.nodes)
    try:
        options = read_options(read_switches(settings.option))
        database = Database(settings.runs) if settings.runs else None
    except (ValueError, ImportError) as error:
        raise ServeError(str(error)) from error
    store = None if database is None else DatabaseRunStore(database)
    try:
        flow = load_flow(settings.target)
        # So that a missing node type is an error now, and not for the first user.
        FlowRuntime(flow, nodes)
    except FlowError as error:
        raise ServeError(str(error)) from error
    except OSError as error:
        raise ServeError(f"{settings.target} cannot be read: {error.strerror}.") from error

    def make(run_id: str | None) -> Runtime:
        return FlowRuntime(flow, nodes, store, run_id=run_id, concurrency=settings.concurrency)

    return _ServedFlow(make, options, store, database)


class _ServedFlow(OpenHarnessAgent):
    """A flow that closes its database of runs when the server stops."""

    def __init__(
        self, make: RuntimeMaker, options: TransportOptions, store: ChatRuns | None, database: Database | None
    ) -> None:
        super().__init__(make, options, store)
        self._database = database

    async def aclose(self, grace: float) -> None:
        await super().aclose(grace)
        if self._database is not None:
            await self._database.aclose()


def _load_nodes(name: str) -> Mapping[str, Any]:
    if not name:
        return {}
    name = name if ":" in name else f"{name}:nodes"
    found = _load(name)
    if not isinstance(found, Mapping) or not all(map(callable, cast("Mapping[Any, Any]", found).values())):
        raise ServeError(f"{name} is not a dict of node types and their functions.")
    return cast("Mapping[str, Any]", found)
