"""What the log of a server says at its start and after a turn, under the servers that people run."""

import sys
from pathlib import Path

import httpx
import pytest

from support.hang import HANG_SECONDS
from support.loopback import ask, free_port, running, until
from usechat.server.startup import count_processes

CREATE_APP = """\
from usechat import create_app

async def agent(chat):
    yield "Hello."

app = create_app(agent{options})
"""

ENDPOINT = """\
from fastapi import FastAPI
from starlette.applications import Starlette
from usechat import ChatEndpoint

async def agent(chat):
    yield "Hello."

app = FastAPI()
app.include_router(ChatEndpoint(agent).router())
silent = Starlette(routes=ChatEndpoint(agent).routes())
"""

SCRIPT = """\
import uvicorn

if __name__ == "__main__":
    uvicorn.run("main:app", port={port}, workers=2)
"""

IN_MEMORY = "INFO:     chats are kept in memory, turns in memory\n"
CHATS_APART = (
    "2 processes serve this app, and each keeps its own chats in memory, so a chat has another history in each; "
    'pass history="sqlite:///chats.db" and store="redis://HOST", or run one process'
)
TURNS_APART = (
    "2 processes serve this app, and none can resume or stop the turns of another; "
    'pass store="redis://HOST", or run one process'
)


def uvicorn(target: str, port: int, *options: str) -> list[str]:
    return [sys.executable, "-m", "uvicorn", target, "--port", str(port), *options]


@pytest.mark.parametrize(
    ("program", "target"),
    [(CREATE_APP.format(options=""), "main:app"), (ENDPOINT, "main:app"), (ENDPOINT, "main:silent")],
)
def test_under_plain_uvicorn_the_log_says_where_chats_are_kept_and_has_a_line_for_each_turn(
    tmp_path: Path, program: str, target: str
) -> None:
    (tmp_path / "main.py").write_text(program)
    port = free_port()
    with running(uvicorn(target, port), tmp_path) as process:
        until(lambda: "Uvicorn running" in process.errors(), process)
        assert ask(f"http://127.0.0.1:{port}/api/chat").status_code == 200
        until(lambda: "INFO:     turn=" in process.errors(), process)
        said = process.errors()
    assert said.count(IN_MEMORY) == 1
    assert " chat=chat outcome=done " in said
    assert "processes serve this app" not in said


def test_the_log_of_an_app_that_has_set_it_up_is_left_alone(tmp_path: Path) -> None:
    setup = "import logging\nlogging.basicConfig(format='mine: %(message)s', level='INFO')\n"
    (tmp_path / "main.py").write_text(f"{setup}{CREATE_APP.format(options='')}")
    port = free_port()
    with running(uvicorn("main:app", port), tmp_path) as process:
        until(lambda: "Uvicorn running" in process.errors(), process)
        ask(f"http://127.0.0.1:{port}/api/chat")
        until(lambda: "turn=" in process.errors(), process)
        said = process.errors()
    assert said.count("mine: chats are kept in memory, turns in memory\n") == 1
    assert IN_MEMORY not in said


@pytest.mark.parametrize(
    ("options", "kept", "warning"),
    [
        ("", "chats are kept in memory, turns in memory", CHATS_APART),
        (', history="sqlite://"', "chats are kept in memory, turns in memory", CHATS_APART),
        (', history="sqlite:///chats.db"', "chats are kept in chats.db, turns in memory", TURNS_APART),
        (', history="client"', "chats are kept by the pages, turns in memory", TURNS_APART),
    ],
)
def test_processes_that_keep_an_app_apart_are_warned_of(tmp_path: Path, options: str, kept: str, warning: str) -> None:
    (tmp_path / "main.py").write_text(CREATE_APP.format(options=options))
    with running(uvicorn("main:app", free_port(), "--workers", "2"), tmp_path) as process:
        until(lambda: process.errors().count(f"WARNING:  {warning}\n") == 2, process)
        assert f"INFO:     {kept}\n" in process.errors()


def test_it_is_seen_in_a_script_that_runs_uvicorn(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(CREATE_APP.format(options=""))
    (tmp_path / "run.py").write_text(SCRIPT.format(port=free_port()))
    with running([sys.executable, "run.py"], tmp_path) as process:
        until(lambda: process.errors().count(CHATS_APART) == 2, process)


def test_it_is_seen_under_granian(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(CREATE_APP.format(options=""))
    command = [sys.executable, "-m", "granian", "--interface", "asgi", "--port", str(free_port()), "--workers", "2"]
    with running([*command, "main:app"], tmp_path) as process:
        until(lambda: process.errors().count(CHATS_APART) == 2, process)


def test_an_app_that_reloads_has_one_process(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(CREATE_APP.format(options=""))
    port = free_port()
    with running(uvicorn("main:app", port, "--reload"), tmp_path, WEB_CONCURRENCY="2") as process:
        until(lambda: "Application startup complete" in process.errors(), process)
        assert httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=HANG_SECONDS).text == "ok\n"
        assert IN_MEMORY in process.errors()
        assert "processes serve this app" not in process.errors()


@pytest.mark.parametrize(
    ("command", "environ", "count"),
    [
        ("/bin/gunicorn main:app -w 4", {}, 4),
        ("/bin/gunicorn main:app -w4", {}, 4),
        ("/bin/gunicorn main:app --workers=3", {"WEB_CONCURRENCY": "9"}, 3),
        ("/bin/gunicorn main:app", {"WEB_CONCURRENCY": "5"}, 5),
        ("/bin/gunicorn main:app", {"GUNICORN_CMD_ARGS": "--workers 6 -b :1"}, 6),
        ("/lib/hypercorn/__main__.py main:app --workers 2", {}, 2),
        ("/bin/granian main:app", {"GRANIAN_WORKERS": "2"}, 2),
        ("/bin/usechat serve main:app", {"USECHAT_WORKERS": "2"}, 2),
        ("/bin/gunicorn main:app --workers", {}, 1),
        ("/bin/gunicorn main:app --workers many", {}, 1),
        ("run.py --workers 4", {"WEB_CONCURRENCY": "5"}, 1),
        ("", {}, 1),
    ],
)
def test_a_server_that_is_started_with_workers_is_known_by_its_command(
    command: str, environ: dict[str, str], count: int
) -> None:
    assert count_processes(command.split() or [""], environ) == count
