"""The programs of the guides, each in the environment of its framework."""

import os
import re
from pathlib import Path
from typing import Final

from environments import HERE, Environment, chosen
from support.loopback import ask, free_port, parts, running, until

GUIDES: Final = HERE.parent / "docs" / "guides"
APP: Final = re.compile(r"```python\n(# app\.py\n.*?)```", re.DOTALL)
# What the program of each guide answers: the type and the state or the text of each part after the first step.
ANSWERS: Final[dict[str, list[tuple[str, str]]]] = {
    "agent-framework": [("tool-pay", "approval-requested")],
    "strands": [("tool-pay", "approval-requested")],
}
# A guide is about the newest release.
GUIDED: Final = [one for one in chosen() if one.name in ANSWERS and not one.is_oldest]


def test_the_programs_of_the_guides_answer(tmp_path: Path) -> None:
    for environment in GUIDED:
        folder = tmp_path / environment.name
        folder.mkdir()
        assert answer_of(environment, folder) == ANSWERS[environment.name]


def answer_of(environment: Environment, folder: Path) -> list[tuple[str, str]]:
    program = APP.search((GUIDES / f"{environment.name}.md").read_text("utf-8"))
    assert program is not None
    (folder / "app.py").write_text(program[1], "utf-8")
    port = free_port()
    command = [environment.python, "-m", "uvicorn", "app:app", "--port", str(port), "--log-level", "warning"]
    path = f"{HERE.parent / 'src'}{os.pathsep}{folder}"
    with running(command, folder, PYTHONPATH=path) as process:
        answers: list[str] = []
        until(lambda: bool(answers.append(ask(f"http://127.0.0.1:{port}/api/chat").text) or answers[-1]), process)
    [_, *said] = parts(answers[-1])
    return [(part["type"], part.get("text") or part["state"]) for part in said]
