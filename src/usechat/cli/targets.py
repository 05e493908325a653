"""What `usechat serve` is told to serve: a name in a module, or a flow."""

import importlib
import re
import traceback
from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any, Final, cast

from usechat.agents.open_harness import ChatRuns, OpenHarnessAgent, Runtime, RuntimeMaker
from usechat.cli.options import read_switches
from usechat.cli.settings import ServeError, ServeSettings
from usechat.database import Database
from usechat.extras import FRAMEWORKS, missing
from usechat.sources.open_harness import TransportOptions, read_options

__all__ = ["load_target"]

_FOR_FLOWS: Final = ("nodes", "runs", "concurrency", "option")
_OURS: Final = (str(Path(__file__).parents[1]), str(Path(importlib.__file__).parent), "<frozen importlib")
_NAME: Final = re.compile(r"(\w+(?:\.\w+)*):(\w+(?:\.\w+)*)")


def load_target(settings: ServeSettings) -> Any:
    """The agent or app that the settings name.

    Raises:
        ServeError: there is none.
    """
    if settings.target.endswith((".yaml", ".yml")):
        return _load_flow(settings)
    default = ServeSettings(target="")
    for name in _FOR_FLOWS:
        if getattr(settings, name) != getattr(default, name):
            raise ServeError(f"--{name} is for flows, and {settings.target} is not the name of a YAML file.")
    return _load(settings.target)


def _load(target: str) -> Any:
    match = _NAME.fullmatch(target)
    if match is None:
        raise ServeError(f"{target!r} is not of the form module:agent.")
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
        if error.name in FRAMEWORKS:
            raise ServeError(missing(f"The module {module}", error, FRAMEWORKS[error.name])) from None
        raise ServeError(_own_traceback(error)) from None
    except (KeyboardInterrupt, SystemExit):
        raise
    # What a module does when it is imported is its author's, and so is the error.
    except BaseException as error:  # noqa: BLE001
        raise ServeError(_own_traceback(error)) from None


def _own_traceback(error: BaseException) -> str:
    """The traceback of a module's error, from the module on."""
    if isinstance(error, SyntaxError):
        # It says itself where it is.
        return "".join(traceback.format_exception_only(error)).rstrip()
    told = traceback.TracebackException.from_exception(error)
    own = (frame for frame in told.stack if not frame.filename.startswith(_OURS))
    told.stack = traceback.StackSummary.from_list(own)
    return "".join(told.format()).rstrip()


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
        # Whether all its node types are there is found out here, not by the first user.
        FlowRuntime(flow, nodes)
    except FlowError as error:
        raise ServeError(str(error)) from error
    except OSError as error:
        raise ServeError(f"{settings.target} cannot be read: {error.strerror}.") from error

    def make(run_id: str | None) -> Runtime:
        return FlowRuntime(flow, nodes, store, run_id=run_id, concurrency=settings.concurrency)

    return _ServedFlow(make, options, store, database)


class _ServedFlow(OpenHarnessAgent):
    """A flow whose database of runs is closed with it."""

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
        raise ServeError(f"{name} is no mapping of node types to functions.")
    return cast("Mapping[str, Any]", found)
