"""What the guides tell somebody to do works as they tell it."""

import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from support.hang import HANG_SECONDS
from support.loopback import STEP, USECHAT, ask, free_port, parts, running, serving, text_part, until

GUIDES: Final = Path(__file__).parents[2] / "docs" / "guides"
BLOCK: Final = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
FILE: Final = re.compile(r"# (\S+\.\w+)\n")


def test_the_quick_start_of_open_harness_works_word_by_word(tmp_path: Path) -> None:
    guide = (GUIDES / "open-harness.md").read_text(encoding="utf-8").partition("## In an app of your own")[0]
    commands: list[str] = []
    for language, block in BLOCK.findall(guide):
        if named := FILE.match(block):
            (tmp_path / named[1]).write_text(block, encoding="utf-8")
        elif language == "sh":
            commands.append(block.strip())
    install, serve, curl = commands
    assert install == "pip install 'usechat[cli,flows]'"

    # Another port, since the one of the guide may be taken here.
    port = free_port()
    assert serve.split()[0] == "usechat"
    with running([*USECHAT, *serve.split()[1:]], tmp_path, USECHAT_PORT=str(port)) as process:
        assert f"http://127.0.0.1:{port}/api/chat" in process.first_line()
        asked = shlex.split(curl.replace("8000", str(port)))
        answers: list[str] = []
        until(lambda: bool(answers.append(call(asked)) or answers[-1]), process)
    assert [(part["type"], part.get("text")) for part in parts(answers[-1]) if part["type"] != "step-start"] == [
        ("reasoning", "Somebody wants a story."),
        ("text", "Once there was a cat."),
        ("text", "Too short: it has 5 words."),
    ]


def call(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, check=False).stdout


def test_the_apps_of_the_open_harness_guide_are_apps(tmp_path: Path) -> None:
    guide = (GUIDES / "open-harness.md").read_text(encoding="utf-8")
    for _, block in BLOCK.findall(guide):
        if named := FILE.match(block):
            (tmp_path / named[1]).write_text(block, encoding="utf-8")
    apps = [block for _, block in BLOCK.findall(guide) if "create_app" in block]
    assert len(apps) == 3
    for app in apps:
        (tmp_path / "app.py").write_text(f"{app}\nprint([route.path for route in app.routes])\n", encoding="utf-8")
        printed = subprocess.run([sys.executable, "app.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert "'/api/chat'" in printed.stdout


def test_the_quick_start_of_langgraph_works_word_by_word(tmp_path: Path) -> None:
    guide = (GUIDES / "langgraph.md").read_text(encoding="utf-8")
    for _, block in BLOCK.findall(guide):
        if named := FILE.match(block):
            (tmp_path / named[1]).write_text(block, encoding="utf-8")
    install, serve, curl = [block.strip() for language, block in BLOCK.findall(guide) if language == "sh"][:3]
    assert install == "pip install 'usechat[cli,langgraph]' langchain"
    port = free_port()
    with running([*USECHAT, *serve.split()[1:]], tmp_path, USECHAT_PORT=str(port)) as process:
        assert f"http://127.0.0.1:{port}/api/chat" in process.first_line()
        asked = shlex.split(curl.replace("8000", str(port)))
        answers: list[str] = []
        until(lambda: bool(answers.append(call(asked)) or answers[-1]), process)
    [_, said, letter] = parts(answers[-1])
    assert (said["text"], letter["type"], letter["state"]) == ("May I send this?", "tool-send", "approval-requested")
    # The other programs of the guide stand on this one.
    program = "from app import app; from kept import agent; print([route.path for route in app.routes], agent)"
    printed = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=HANG_SECONDS, check=True
    )
    assert "'/api/chat'" in printed.stdout
    assert "LangGraphAgent" in printed.stdout


def test_the_program_of_the_agent_ops_guide_maps_the_turn_of_its_prompt(tmp_path: Path) -> None:
    guide = (GUIDES / "agent-ops.md").read_text(encoding="utf-8")
    [program] = [block for language, block in BLOCK.findall(guide) if language == "python" and "PromptTracker" in block]
    (tmp_path / "program.py").write_text(program, encoding="utf-8")
    chunks_of = runpy.run_path(str(tmp_path / "program.py"))["chunks_of"]
    echo = {"id": "m-1", "role": "user", "content": "Hello", "authorId": "u-1"}
    assert chunks_of({"type": "message", "data": echo}) == []
    assert [chunk.data for chunk in chunks_of({"type": "agentStatus", "status": "thinking"})[1:]] == [
        {"status": "thinking"}
    ]


def test_the_app_of_the_agent_ops_guide_is_an_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = (GUIDES / "agent-ops.md").read_text(encoding="utf-8")
    [program] = [block for _, block in BLOCK.findall(guide) if "sessions_gateway(" in block]
    (tmp_path / "program.py").write_text(program, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    app = runpy.run_path(str(tmp_path / "program.py"))["app"]
    assert [route.path for route in app.routes] == ["/api/sessions", "/healthz", "/readyz", "/metrics"]


def test_the_programs_of_the_deepagent_guide_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = (GUIDES / "deepagent.md").read_text(encoding="utf-8")
    programs = [block for language, block in BLOCK.findall(guide) if language == "python" and "letters" not in block]
    named = FILE.match(programs[0])
    assert named is not None
    (tmp_path / named[1]).write_text(programs[0], encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert len(programs) == 4
    for number, program in enumerate(programs[1:]):
        (tmp_path / "program.py").write_text(program, encoding="utf-8")
        with serving(runpy.run_path(str(tmp_path / "program.py"))["app"]) as url:
            headers = {"x-team": "sea"} if "x-team" in program else {}
            told = parts(ask(f"{url}/api/chat", headers=headers).text)
            assert ask(f"{url}/api/chat").status_code == (401 if headers else 200)
        assert [part["type"] for part in told] == [
            *("step-start", "tool-write_todos", "data-todos-changed", "step-start", "text")
        ], number
        assert told[-1]["text"] == "It is the Moon. "


def test_the_graph_behind_the_route_of_the_deepagent_guide_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guides = [(GUIDES / name).read_text(encoding="utf-8") for name in ("langgraph.md", "deepagent.md")]
    [letters] = [block for _, block in BLOCK.findall(guides[0]) if block.startswith("# letters.py")]
    [program] = [block for _, block in BLOCK.findall(guides[1]) if "from letters import" in block]
    (tmp_path / "letters.py").write_text(letters, encoding="utf-8")
    (tmp_path / "program.py").write_text(program, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with serving(runpy.run_path(str(tmp_path / "program.py"))["app"]) as url:
        told = parts(ask(f"{url}/api/chat", headers={"authorization": "Bearer token-of-ann"}).text)
        refused = ask(f"{url}/api/chat")
    assert [part["state"] for part in told if part["type"] == "tool-send"] == ["approval-requested"]
    assert (refused.status_code, refused.json()) == (401, {"error": "Sign in first."})


def test_the_fastapi_app_of_the_server_guide_knows_its_user(tmp_path: Path) -> None:
    guide = (GUIDES / "server.md").read_text(encoding="utf-8")
    [program] = [block for language, block in BLOCK.findall(guide) if language == "python" and "FastAPI()" in block]
    (tmp_path / "program.py").write_text(program, encoding="utf-8")
    with serving(runpy.run_path(str(tmp_path / "program.py"))["app"]) as url:
        assert ask(f"{url}/api/chat").status_code == 401
        told = parts(ask(f"{url}/api/chat", headers={"authorization": "Bearer a-long-random-token"}).text)
    assert told == [STEP, text_part("Hello, ada.")]


DEEP_AGENT = """\
from deepagents import create_deep_agent
from letters import Rehearsed, send

told = create_deep_agent(model=Rehearsed(), tools=[send]).invoke({"messages": [("user", "Dear Ann")]})
print(told["messages"][-1].content)
"""


def test_the_rehearsed_model_of_the_langgraph_guide_works_in_a_deep_agent(tmp_path: Path) -> None:
    guide = (GUIDES / "langgraph.md").read_text(encoding="utf-8")
    [letters] = [block for _, block in BLOCK.findall(guide) if block.startswith("# letters.py")]
    (tmp_path / "letters.py").write_text(letters, encoding="utf-8")
    printed = subprocess.run(
        [sys.executable, "-c", DEEP_AGENT],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert (printed.stdout, printed.returncode) == ("It went like this: Sent to Ann.\n", 0), printed.stderr
