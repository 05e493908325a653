"""The component of the guide to Agent Ops works against a gateway, in a fresh Vite app and a real browser."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from anyio.from_thread import start_blocking_portal

from chromium import HERE, Chromium
from session_pages import serving_house
from support.gateways import SETTINGS
from support.loopback import free_port

GUIDE: Final = HERE.parent / "docs" / "guides" / "agent-ops-page.md"


def component() -> str:
    block = re.search(r"```tsx\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    return block[1]


def test_the_component_of_the_guide_talks_to_a_session(chromium: Chromium, tmp_path: Path) -> None:
    root = Path(shutil.copytree(HERE / "app", tmp_path / "app"))
    (root / "node_modules").symlink_to(HERE / "node_modules", target_is_directory=True)
    page = f"http://localhost:{free_port()}"
    with start_blocking_portal() as portal, serving_house(portal, SETTINGS, cors=page) as house:
        address, token = f"http://localhost:{house.port}/api/sessions/s1", house.token("ana")
        written = component().replace("http://localhost:8000/api/sessions/s1", address).replace("TOKEN", token)
        assert address in written
        assert token in written
        (root / "src" / "App.tsx").write_text(written, encoding="utf-8")
        checking = subprocess.Popen([HERE / "node_modules" / ".bin" / "tsc", "--project", root], stdout=subprocess.PIPE)
        chromium.serve(root, int(page.rpartition(":")[2]))
        tab = chromium.open(page)

        def ask(text: str) -> None:
            tab.wait_for("output:text-is('ready')")
            tab.fill("input", text)
            tab.press("input", "Enter")

        ask("tools")
        tab.wait_for("text=Two files: a.ts and b.ts.")
        assert tab.wait_for("summary") == "bash: output-available"

        ask("question Where to?")
        assert tab.wait_for("em") == "idle"
        tab.click("fieldset >> text=staging")
        tab.wait_for("text=You answered: staging.")
        assert tab.wait_for("fieldset[disabled]").splitlines()[0] == "Where to?"

        ask("hang")
        tab.wait_for("text=I wait")
        tab.click("text=Stop")
        tab.wait_for("output:text-is('ready')")
        house.until(lambda: bool(house.agent.received("abort")))

        tab.click("text=Again")
        tab.wait_for("output:text-is('streaming')")
        house.until(lambda: bool(house.agent.received("revert")))
        house.release("s1")
        tab.wait_for("text=I wait no more.")
        tab.wait_for("output:text-is('ready')")
        assert tab.look().problems == []

        ask("fail Overloaded")
        assert tab.wait_for("[role=alert]") == "Overloaded"
        tab.fill("input", " ")
        tab.press("input", "Enter")
        tab.wait_for("[role=alert]:text-is('The message has neither text nor files.')")
        tab.close()
        types, _ = checking.communicate()
        assert (checking.returncode, types.decode()) == (0, "")
