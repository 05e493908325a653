"""The component of the README works against the Python of the README, in a fresh Vite app and a real browser."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import httpx
import pytest

from chromium import HERE, Chromium, Tab
from support.hang import HANG_SECONDS
from support.loopback import free_port, running, until

README: Final = (HERE.parent / "README.md").read_text(encoding="utf-8")
ANSWER: Final = "p:has-text('assistant:') >> nth=-1"


def first(language: str) -> str:
    block = re.search(rf"```{language}\n(.*?)```", README, re.DOTALL)
    assert block is not None
    return block[1]


def stops(tab: Tab) -> list[str]:
    """The addresses of the chats that the page has stopped."""
    return [
        url.removesuffix("/stop") for method, url, status in tab.look().requests if (method, status) == ("POST", 204)
    ]


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """A fresh app with the component in its place."""
    root = Path(shutil.copytree(HERE / "app", tmp_path / "app"))
    (root / "node_modules").symlink_to(HERE / "node_modules", target_is_directory=True)
    (root / "src" / "App.tsx").write_text(first("tsx"), encoding="utf-8")
    return root


def test_the_component_has_types(app: Path) -> None:
    compiler = HERE / "node_modules" / ".bin" / "tsc"
    checked = subprocess.run([compiler, "--project", app], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout) == (0, "")


def test_the_component_talks_to_the_python(chromium: Chromium, app: Path, tmp_path: Path) -> None:
    # Other ports, since those of the README may be taken here.
    page_port, port = free_port(), free_port()
    api = f"http://localhost:{port}/api/chat"
    component = app / "src" / "App.tsx"
    component.write_text(first("tsx").replace("http://localhost:8000/api/chat", api), encoding="utf-8")
    hello = first("python").replace("http://localhost:5173", f"http://localhost:{page_port}")
    (tmp_path / "hello.py").write_text(hello, encoding="utf-8")
    assert "`uvicorn hello:app`" in README

    command = [sys.executable, "-m", "uvicorn", "hello:app", "--port", str(port)]
    with running(command, tmp_path) as server:
        chromium.serve(app, page_port)
        until(lambda: httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200, server)
        tab = chromium.open(f"http://localhost:{page_port}")

        tab.fill("input", "Hello there")
        tab.press("input", "Enter")
        tab.wait_for("text=You said: Hello there")
        tab.wait_for("output:text-is('ready')")
        assert tab.wait_for("main").splitlines()[0] == "user: Hello there"

        tab.reload()
        tab.wait_for("text=You said: Hello there")
        assert tab.wait_for("main").splitlines()[0] == "user: Hello there"

        tab.fill("input", " ".join(str(number) for number in range(100)))
        tab.press("input", "Enter")
        tab.wait_for("text=You said: 0 1 2")
        tab.reload()
        tab.wait_for("text=You said: 0 1 2")
        tab.wait_for("text=97 98 99 >> nth=1")
        tab.wait_for("output:text-is('ready')")
        said = [line for line in tab.wait_for("main").splitlines() if line.startswith("assistant:")]
        assert [line.strip() for line in said] == [
            "assistant: You said: Hello there",
            f"assistant: You said: {' '.join(str(number) for number in range(100))}",
        ]
        assert tab.look().problems == []

        # At 20 words a second it would take minutes, so that what can be seen now comes while the agent works.
        question = " ".join(str(number) for number in range(9_000))
        tab.fill("input", question)
        tab.click("text=Send")
        tab.wait_for("text=You said: 0 1 2 >> nth=1")
        tab.wait_for("output:text-is('streaming')")
        tab.click("text=Stop")
        tab.wait_for("output:text-is('ready')")
        shown = tab.wait_for(ANSWER)

        until(lambda: bool(stops(tab)), server)
        [chat] = stops(tab)
        with httpx.stream("GET", f"{chat}/stream", timeout=HANG_SECONDS) as running_turn:
            assert running_turn.status_code == 204
        kept = httpx.get(f"{chat}/messages", timeout=HANG_SECONDS).json()[-1]["parts"][-1]["text"]
        assert f"You said: {question}".startswith(kept.strip())
        assert kept.startswith(shown.removeprefix("assistant: ").strip())
        assert tab.look().problems == []

        tab.fill("input", "Once more")
        tab.press("input", "Enter")
        tab.wait_for("text=You said: Once more")
        assert tab.look().problems == []
        tab.fill("input", question)
        tab.click("text=Send")
        tab.wait_for("text=You said: 0 1 2 >> nth=2")

    # The pages of conformance/browser.mjs give the clients this error, too.
    assert tab.wait_for("[role=alert]") == "network error"
    tab.close()
