"""A fake provider, a server for each framework in its own environment, and pages with real clients."""

import json
import os
import socket
import subprocess
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from environments import FRAMEWORKS, HERE, Environment, chosen
from node import Node
from pages import Browser
from promises import V5, V6, V7
from provider import Provider
from support.hang import HANG_SECONDS
from support.loopback import serving
from talks import Served, Talk

CHOSEN = chosen()
# Tests of what only one framework has need its environment.
collect_ignore = [
    f"test_{name.replace('-', '_')}.py"
    for name in {one.environment for one in FRAMEWORKS.values()} - {one.framework.environment for one in CHOSEN}
]
# By framework, version and row.
_SHOWN: dict[str, dict[str, dict[str, bool]]] = {}
IS_SHORT = not os.environ.get("USECHAT_FRAMEWORKS")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "row(name): the row of the table that a test shows")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what a framework cannot promise, and approvals for clients of 5, which do not know them."""

    def applies(item: pytest.Item) -> bool:
        given = cast("Any", item).callspec.params if hasattr(item, "callspec") else dict[str, Any]()
        rows = {mark.args[0] for mark in item.iter_markers("row")}
        if "environment" not in given:
            return True
        is_old = str(given.get("talk", "")).startswith("5.") and "approvals" in rows
        return not is_old and not rows & given["environment"].left_out

    for item in items:
        # The process that collects the reports of several workers sees no markers.
        rows = [mark.args[0] for mark in item.iter_markers("row")]
        item.user_properties += [("rows", rows), ("framework", _framework(item))]
    left_out = [item for item in items if not applies(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if applies(item)]


def _framework(item: pytest.Item) -> list[str] | None:
    environment = cast("Any", item).callspec.params.get("environment") if hasattr(item, "callspec") else None
    return None if environment is None else [environment.name, environment.version]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note what was shown, in results/, from which the table of docs/reference/frameworks.md is made."""
    told: dict[str, Any] = dict(report.user_properties)
    if report.when == "call" and not IS_SHORT and "PYTEST_XDIST_WORKER" not in os.environ and told.get("framework"):
        name, version = told["framework"]
        shown = _SHOWN.setdefault(name, {}).setdefault(version, {})
        for row in told["rows"]:
            shown[row] = shown.get(row, True) and report.passed


def pytest_sessionfinish() -> None:
    # Only a run of all rows tells, as `make frameworks` is one.
    if os.environ.get("USECHAT_MATRIX") != "write":
        return
    for name, versions in _SHOWN.items():
        text = json.dumps(versions, indent=2, sort_keys=True)
        (HERE / "results" / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")


@pytest.fixture(scope="session")
def provider() -> Iterator[Provider]:
    provider = Provider()
    with serving(provider.app) as url:
        provider.url = url
        yield provider


@pytest.fixture(scope="session")
def pages_node() -> Iterator[Node]:
    node = Node("browser.mjs")
    yield node
    node.close()


@contextmanager
def serve(environment: Environment, provider: Provider, folder: Path) -> Generator[Served]:
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        port: int = listener.getsockname()[1]
        arguments = [environment.framework.app, str(listener.fileno()), f"sqlite:///{folder}/chats.db"]
        process = subprocess.Popen(
            [environment.python, "serve.py", *arguments],
            cwd=HERE,
            stdin=subprocess.PIPE,
            pass_fds=[listener.fileno()],
            env={
                **os.environ,
                "PROVIDER_URL": provider.url,
                "PYTHONPATH": f"{HERE}{os.pathsep}{HERE.parent / 'src'}",
                "HOME": str(folder),
            },
        )
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=HANG_SECONDS) as http:
        # It has imported its framework before a page's clock begins.
        http.get("/effects")
        yield Served(port, http)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(HANG_SECONDS) == 0


@pytest.fixture(scope="module", params=CHOSEN, ids=lambda one: f"{one.name}-{one.version}")
def environment(request: pytest.FixtureRequest) -> Environment:
    return request.param


@pytest.fixture(scope="module")
def folder(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp(environment.name)


@pytest.fixture(scope="module")
def server(environment: Environment, provider: Provider, folder: Path) -> Iterator[Served]:
    with serve(environment, provider, folder) as served:
        yield served


@pytest.fixture(scope="module")
def other_server(environment: Environment, provider: Provider, folder: Path) -> Iterator[Served]:
    """Another process that keeps its chats where the first one does."""
    with serve(environment, provider, folder) as served:
        yield served


@pytest.fixture(params=[V7] if IS_SHORT else [V5, V6, V7])
def talk(
    request: pytest.FixtureRequest, environment: Environment, server: Served, provider: Provider, pages_node: Node
) -> Iterator[Talk]:
    browser = Browser(pages_node, server.port)
    provider.asked.clear()
    yield Talk(request.param, environment, server, browser, provider)
    browser.close_pages()
