"""`usechat serve flow.yaml --nodes module`."""

import sys
from pathlib import Path
from typing import Final

import pytest
from typer.testing import CliRunner

from loopback import USECHAT, ask, parts, running
from usechat.cli.app import app

FLOW: Final = """\
name: one
nodes:
  - id: a
    type: talk
    input: {message: "{{ flow.input.message }}"}
edges: []
"""
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
    result = CliRunner().invoke(app, ["serve", *arguments])
    assert (result.exit_code, result.stdout) == (2, "")
    return result.stderr


def test_a_flow_is_served_at_the_path_of_a_chat(folder: Path) -> None:
    with running([*USECHAT, "serve", "flow.yaml", "--nodes", "flow_nodes", "--port", "0"], folder) as process:
        url = process.first_line().split()[-1]
        said = parts(ask(url, "hello").text)
    assert said == [{"type": "step-start"}, {"type": "text", "text": "You said: hello", "state": "done"}]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["flow.yaml"], "flow.yaml:4: There is no node type 'talk'."),
        (["flow.yaml", "--nodes", "flow_nodes:others"], "flow.yaml:4: There is no node type 'talk'."),
        (["flow.yaml", "--nodes", "nothing"], "There is no module nothing in this directory"),
        (["flow.yaml", "--nodes", "flow_nodes:none"], "The module flow_nodes has no none."),
        (["flow.yaml", "--nodes", "flow_nodes:number"], "flow_nodes:number is no mapping of node types to functions."),
        (["nothing.yaml"], "nothing.yaml cannot be read: No such file or directory."),
        (["flow_nodes:talk", "--nodes", "flow_nodes"], "--nodes is for flows"),
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
