"""Clones the last commit into an empty folder, runs `make run` there, and talks to the page that it serves.

Run it with `make fresh-clone`; it installs all packages anew, which takes some minutes.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import IO, Final, NoReturn

HERE: Final = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests"), str(HERE.parent / "conformance")]

from chromium import Chromium  # noqa: E402
from support.loopback import free_port  # noqa: E402

SECONDS: Final = 1200
# What would make it another thing than a fresh shell is: a virtual environment, a make above, the key of a real model.
CHANGING: Final = ("VIRTUAL_ENV", "MAKE", "MFLAGS", "OPENAI_", "ANTHROPIC_", "USECHAT_")


def main() -> None:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "usechat"
        subprocess.run(["git", "clone", "--quiet", HERE.parent, clone], check=True)  # noqa: S607
        environ = {name: value for name, value in os.environ.items() if not name.startswith(CHANGING)}
        environ |= {"USECHAT_PORT": str(free_port())}
        run = subprocess.Popen(
            ["make", "run"],  # noqa: S607
            cwd=clone,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            assert run.stdout is not None
            url = find_url(run.stdout)
            print(f"The page is at {url} after {time.monotonic() - began:.0f} s.")  # noqa: T201
            talk(url)
        finally:
            os.killpg(run.pid, signal.SIGTERM)
            run.wait(60)
    print("It answers.")  # noqa: T201


def find_url(output: IO[str]) -> str:
    """The address that `make run` prints, after what it says on its way there."""
    said: list[str] = []
    for line in output:
        said.append(line)
        if " at http" in line:
            return line.rpartition(" at ")[2].strip()
    raise AssertionError(f"make run ended: {''.join(said)}")


def talk(url: str) -> None:
    """Ask each scripted agent something, as a person would."""
    with closing(Chromium()) as chromium, chromium.opened(url) as tab:
        agents: list[str] = tab.run(
            "fetch('page/settings').then((r) => r.json()).then((s) => s.agents.map((a) => a.name))"
        )
        for agent in agents:
            tab.select('role=combobox[name="Agent"]', agent)
            tab.click('role=group[name="Suggested prompts"] >> role=button >> nth=0')
            tab.wait_for_attached('role=status >> text="The assistant has answered."')
        assert tab.look().problems == []
        assert len(agents) >= 4, agents


def give_up(_number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(f"It took more than {SECONDS} seconds.")


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(SECONDS)
    main()
