"""One Chromium, the tabs in it, and the apps that Vite builds for them."""

import json
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from node import Node
from support.hang import HANG_SECONDS

__all__ = ["HERE", "SCREENSHOTS", "Chromium", "Seen", "Tab"]

HERE = Path(__file__).parent
SCREENSHOTS = HERE / "screenshots"


class Seen(msgspec.Struct):
    """What a tab had in its console that is an error or a warning, and its answered requests with their status."""

    problems: list[str]
    requests: list[tuple[str, str, int]]


class Chromium(Node):
    """A Node process with a Chromium in which any number of tabs are open."""

    def __init__(self) -> None:
        super().__init__(str(HERE / "driver.mjs"))

    def serve(self, root: Path, port: int, proxy: dict[str, Any] | None = None) -> None:
        """Build the app in a folder with Vite, and serve it, with this `server.proxy`, until the Chromium is closed."""
        self.ask("serve", root=str(root), port=port, proxy=proxy or {})

    def open(self, url: str, *, beside: "Tab | None" = None, **options: Any) -> "Tab":
        """Open a tab that shares its storage with another, or has its own and these options of a Playwright context."""
        given = options if beside is None else {"beside": beside.number}
        tab = Tab(self, self.ask("open", options=given))
        tab.goto(url)
        return tab

    @contextmanager
    def opened(self, url: str, *, beside: "Tab | None" = None, **options: Any) -> Generator["Tab", None, None]:
        """The same, for a while."""
        tab = self.open(url, beside=beside, **options)
        try:
            yield tab
        finally:
            tab.close()


class Tab:
    """One tab, with nothing of another's. Selectors are Playwright's; each call waits until it can be done."""

    def __init__(self, chromium: Chromium, number: int) -> None:
        self._chromium = chromium
        self.number = number

    def goto(self, url: str) -> None:
        self._call("goto", url)

    def fill(self, selector: str, text: str) -> None:
        self._call("fill", selector, text)

    def click(self, selector: str) -> None:
        self._call("click", selector)

    def press(self, selector: str, key: str) -> None:
        self._call("press", selector, key)

    def wait_for(self, selector: str) -> str:
        """Wait until it can be seen, and give its text."""
        self._call("waitForSelector", selector)
        return self._call("innerText", selector)

    def look_like(self, scheme: str, width: int) -> None:
        """Be in a light or a dark world, so wide, and without motion."""
        self._call("emulateMedia", {"colorScheme": scheme, "reducedMotion": "reduce"})
        self._call("setViewportSize", {"width": width, "height": 900})

    def wait_for_attached(self, selector: str) -> None:
        """Wait until it is there, seen or not."""
        self._call("waitForSelector", selector, {"state": "attached"})

    def wait_for_hidden(self, selector: str) -> None:
        """Wait until it cannot be seen."""
        self._call("waitForSelector", selector, {"state": "hidden"})

    def wait_for_request(self, line: str) -> None:
        """Wait until a request with this method and the beginning of this address was answered."""
        deadline = time.monotonic() + HANG_SECONDS
        while not any(f"{method} {url}".startswith(line) for method, url, _ in self.look().requests):
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def attach(self, selector: str, file: Path) -> None:
        self._call("setInputFiles", selector, str(file))

    def drop(self, selector: str, name: str, content: str) -> bool:
        """Drop a file on an element, and tell whether the browser would open it in place of the page."""
        self._call("waitForSelector", selector)
        given = json.dumps([selector, name, content])
        return self.run(f"""(() => {{
          const [selector, name, content] = {given};
          const dataTransfer = new DataTransfer();
          const type = name.endsWith(".txt") ? "text/plain" : "";
          dataTransfer.items.add(new File([content], name, {{ type }}));
          const drop = new DragEvent("drop", {{ dataTransfer, bubbles: true, cancelable: true }});
          return document.querySelector(selector).dispatchEvent(drop);
        }})()""")

    def download(self, selector: str, path: Path) -> Path:
        """Click, and save the file that comes of it."""
        self._chromium.ask("download", tab=self.number, selector=selector, path=str(path))
        return path

    def select(self, selector: str, option: str) -> None:
        self._call("selectOption", selector, option)

    def screenshot(self, name: str, folder: Path = SCREENSHOTS) -> None:
        """Keep a picture of what can be seen now, for whoever looks at the run later."""
        self._call("screenshot", {"path": str(folder / f"{name}.png"), "animations": "disabled"})

    def run(self, script: str) -> Any:
        """Run JavaScript in the page, and give its value."""
        return self._call("evaluate", script)

    def reload(self) -> None:
        self._call("reload")

    def forget_cookies(self) -> None:
        self._chromium.ask("forget", tab=self.number)

    def look(self) -> Seen:
        return msgspec.convert(self._chromium.ask("look", tab=self.number), Seen)

    def close(self) -> None:
        self._chromium.ask("close", tab=self.number)

    def _call(self, method: str, *arguments: Any) -> Any:
        return self._chromium.ask("call", tab=self.number, method=method, args=arguments)
