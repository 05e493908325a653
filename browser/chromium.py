"""One Chromium, the tabs in it, and the apps that Vite builds for them."""

from pathlib import Path
from typing import Any

import msgspec

from node import Node

__all__ = ["HERE", "Chromium", "Seen", "Tab"]

HERE = Path(__file__).parent


class Seen(msgspec.Struct):
    """What a tab had in its console that is an error or a warning, and its answered requests with their status."""

    problems: list[str]
    requests: list[tuple[str, str, int]]


class Chromium(Node):
    """A Node process with a Chromium in which any number of tabs are open."""

    def __init__(self) -> None:
        super().__init__(str(HERE / "driver.mjs"))

    def serve(self, root: Path, port: int) -> None:
        """Build the app in a folder with Vite, and serve it until the Chromium is closed."""
        self.ask("serve", root=str(root), port=port)

    def open(self, url: str) -> "Tab":
        tab = Tab(self, self.ask("open"))
        tab.goto(url)
        return tab


class Tab:
    """One tab, with nothing of another's. Selectors are Playwright's; each call waits until it can be done."""

    def __init__(self, chromium: Chromium, number: int) -> None:
        self._chromium = chromium
        self._number = number

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

    def look(self) -> Seen:
        return msgspec.convert(self._chromium.ask("look", tab=self._number), Seen)

    def close(self) -> None:
        self._chromium.ask("close", tab=self._number)

    def _call(self, method: str, *arguments: Any) -> Any:
        return self._chromium.ask("call", tab=self._number, method=method, args=arguments)
