"""`usechat serve flow.yaml --nodes module`."""

import signal
import socket
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from typer.testing import CliRunner

from support.hang import HANG_SECONDS
from support.loopback import USECHAT, ask, parts, read_until, running, text_part
from usechat.cli.app import app

FLOW: Final = """\
name: one
nodes:
  - id: a
    type: talk
    input: {message: "{{ flow.input.message }}"}
edges: []
"""
SERVED: Final = ("flow.yaml", "--nodes", "flow_nodes")
NODES: Final = """\
async def talk(context, value):
    context.emit({"type": "agent:text", "content": "You said: " + value["message"]})

nodes = {"talk": talk}
others = {"other": talk}
number = 1
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "flow.yaml").write_text(FLOW)
    (tmp_path / "flow_nodes.py").write_text(NODES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "flow_nodes", raising=False)
    return tmp_path


def refused(*arguments: str) -> str:
    # What is not refused ends at the port.
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = CliRunner().invoke(app, ["serve", *arguments, "--port", str(taken.getsockname()[1])])
    assert (result.exit_code, result.stdout) == (2, "")
    return result.stderr


def test_a_flow_is_served_at_the_path_of_a_chat(folder: Path) -> None:
    with running([*USECHAT, "serve", "flow.yaml", "--nodes", "flow_nodes", "--port", "0"], folder) as process:
        url = process.first_line().split()[-1]
        said = parts(ask(url, "hello").text)
    assert said == [{"type": "step-start"}, {"type": "text", "text": "You said: hello", "state": "done"}]


STEPS: Final = """\
name: steps
nodes:
  - {id: first, type: note, input: {}}
  - {id: asks, type: ask, input: {message: "{{ flow.input.message }}"}}
  - {id: other, type: other, input: {}}
edges:
  - {from: first, to: asks}
"""
STEPS_NODES: Final = """\
import asyncio
from pathlib import Path

begun = asyncio.Event()


def note_down(context):
    with Path("ran").open("a+") as ran:
        ran.seek(0)
        known = ran.read().split()
        ran.write(context.node_id + "\\n")
    return context.node_id in known


async def note(context, value):
    note_down(context)


async def ask(context, value):
    if not note_down(context):
        # Without concurrency the other node would never begin.
        await begun.wait()
        context.emit({"type": "agent:thinking", "content": "Let me see, then."})
        context.emit({"type": "agent:text", "content": value["message"] + "?"})
        await asyncio.Event().wait()
    context.emit({"type": "agent:text", "content": f"So {value['message']} and {context.resume_message}."})


async def other(context, value):
    begun.set()


nodes = {"note": note, "ask": ask, "other": other}
"""


def post(url: str, message_id: str, text: str, **options: Any) -> AbstractContextManager[httpx.Response]:
    body = {"id": "c", "message": {"id": message_id, "role": "user", "parts": [{"type": "text", "text": text}]}}
    return httpx.stream("POST", url, json=body, timeout=HANG_SECONDS, **options)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_chat_goes_on_with_its_run_after_the_server_was_started_again(folder: Path, how: signal.Signals) -> None:
    (folder / "flow.yaml").write_text(STEPS)
    (folder / "flow_nodes.py").write_text(STEPS_NODES)
    options = ["--runs", "sqlite:///runs.db", "--concurrency", "2", "--option", "send_reasoning=false"]
    command = [*USECHAT, "serve", *SERVED, *options, "--grace", "0", "--port", "0"]
    with running(command, folder) as process:
        url = process.first_line().split()[-1]
        with post(url, "u1", "one") as response:
            assert "Let me see, then." not in read_until(response.iter_lines(), "one?")
            process.send(how)
            assert process.wait()[0] == (-how if how == signal.SIGKILL else 0), process.errors()
    # A server that was not killed has closed the database.
    assert how == signal.SIGKILL or not (folder / "runs.db-wal").exists()
    with running(command, folder) as process:
        url = process.first_line().split()[-1]
        with post(url, "u2", "two") as response:
            said = [part.get("text") for part in parts(response.read().decode()) if part["type"] == "text"]
    # Nobody was asked, so the message answers nothing.
    assert said == ["So one and None."]
    # The node that was done is not done again.
    assert (folder / "ran").read_text().split() == ["first", "asks", "asks"]


APP: Final = """\
import asyncio

from usechat import create_app
from usechat.database import Database
from usechat.flows import DatabaseRunStore, FlowRuntime, load_flow
from usechat.transports import OpenHarnessChatTransport

flow = load_flow("flow.yaml")
store = DatabaseRunStore(Database("sqlite:///runs.db"))


def make(run_id):
    async def talk(context, value):
        if context.resume_message is None:
            context.emit({"type": "agent:text", "content": value["message"] + "?"})
            runtime.dispatch({"type": "pause"})
            await asyncio.Event().wait()
        context.emit({"type": "agent:text", "content": f"So {value['message']} and {context.resume_message}."})

    runtime = FlowRuntime(flow, {"talk": talk}, store, run_id=run_id)
    return runtime


transport = OpenHarnessChatTransport(make, store=store)
app = create_app(transport, authenticate=lambda request: request.headers["x-user"], history="client")
"""


def test_paused_chats_of_one_id_go_on_for_their_users_after_the_server_was_killed(folder: Path) -> None:
    (folder / "flow_app.py").write_text(APP)

    def tell(url: str, user: str, *texts: str) -> list[Any]:
        messages = [
            {"id": f"m{number}", "role": "user" if number % 2 == 0 else "assistant", "parts": [text_part(text)]}
            for number, text in enumerate(texts)
        ]
        body, headers = {"id": "c", "messages": messages}, {"x-user": user}
        answer = parts(httpx.post(url, json=body, headers=headers, timeout=HANG_SECONDS).text)
        return [part["text"] for part in answer if part["type"] == "text"]

    with running([*USECHAT, "serve", "flow_app:app", "--port", "0"], folder) as process:
        url = process.first_line().split()[-1] + "/api/chat"
        for user in ("ann", "bob"):
            assert tell(url, user, user) == [f"{user}?"]
        process.send(signal.SIGKILL)
        process.wait()
    with running([*USECHAT, "serve", "flow_app:app", "--port", "0"], folder) as process:
        url = process.first_line().split()[-1] + "/api/chat"
        # Somebody else's chat of that id is a new one.
        assert tell(url, "eve", "x", "y", "eve") == ["eve?"]
        for user in ("bob", "ann"):
            assert tell(url, user, "x", "y", "two") == [f"So {user} and two."]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["flow.yaml"], "flow.yaml:4: There is no node type 'talk'."),
        (["flow.yaml", "--nodes", "flow_nodes:others"], "flow.yaml:4: There is no node type 'talk'."),
        (["flow.yaml", "--nodes", "nothing"], "There is no module nothing in this directory"),
        (["flow.yaml", "--nodes", "flow_nodes:none"], "The module flow_nodes has no none."),
        (
            ["flow.yaml", "--nodes", "flow_nodes:number"],
            "flow_nodes:number is not a dict of node types and their functions.",
        ),
        (["nothing.yaml"], "nothing.yaml cannot be read: No such file or directory."),
        (["flow_nodes:talk", "--nodes", "flow_nodes"], "--nodes is for flows"),
        (["flow_nodes:talk", "--runs", "sqlite://"], "--runs is for flows"),
        (["flow_nodes:talk", "--concurrency", "2"], "--concurrency is for flows"),
        (["flow_nodes:talk", "--option", "send_reasoning=false"], "--option is for flows"),
        ([*SERVED, "--option", "sendAll=true"], "There is no option 'sendAll': the options are send_reasoning,"),
        ([*SERVED, "--option", "send_reasoning"], "The option 'send_reasoning' must have the form name=true"),
        ([*SERVED, "--runs", "runs.db"], "The database URL must be one of SQLite or PostgreSQL"),
        ([*SERVED, "--runs", "sqlite:///no/runs.db"], "The runs cannot be kept in no/runs.db: "),
    ],
)
def test_what_cannot_be_served_is_told_in_a_sentence(arguments: list[str], sentence: str) -> None:
    assert refused(*arguments).startswith(sentence)


def test_a_wrong_flow_is_told_with_its_line(folder: Path) -> None:
    (folder / "flow.yaml").write_text(FLOW.replace("edges: []", "edges:\n  - {from: a, to: b}"))
    assert refused("flow.yaml", "--nodes", "flow_nodes").startswith("flow.yaml:7: ")


@pytest.mark.usefixtures("folder")
def test_without_its_extra_a_flow_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("usechat.flows", "usechat.transports"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert refused("flow.yaml") == "A flow needs yaml. Install it with: pip install 'usechat[flows]'\n"
