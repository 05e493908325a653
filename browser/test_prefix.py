"""The page behind a proxy that takes a prefix away from the path."""

from collections.abc import Callable

import pytest
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from chromium import Chromium
from page_agent import agent
from page_steps import LAST, WIDE, ask, button, say
from support.loopback import serving
from usechat import create_app

PREFIX = "/tools/chat"


class Proxy:
    """Passes what is below the prefix on without it; all else, and what it hides, is not found."""

    def __init__(self, app: ASGIApp, hidden: str = "/none", missing: Response | None = None) -> None:
        self._app = app
        self._hidden = PREFIX + hidden
        self._missing = missing or HTMLResponse("<h1>404 Not Found</h1>", 404)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope.get("path", f"{PREFIX}/")
        if path.startswith(f"{PREFIX}/") and not path.startswith(self._hidden):
            below = path.removeprefix(PREFIX)
            await self._app({**scope, "path": below, "raw_path": below.encode()}, receive, send)
        else:
            await self._missing(scope, receive, send)


def test_the_page_works_below_a_prefix_that_the_server_does_not_know(chromium: Chromium) -> None:
    app = create_app(agent, page=True, lists_all=True, page_images=["/charts/"])
    with serving(Proxy(app)) as url, chromium.opened(f"{url}{PREFIX}/", **WIDE) as tab:
        assert ask(tab, "Good morning") == "You said: Good morning"
        tab.reload()
        assert tab.wait_for(LAST) == "You said: Good morning"
        tab.wait_for('role=link[name="Good morning"]')
        tab.click(button("Inspector"))
        tab.click(button("WebSocket"))
        assert ask(tab, "Good night") == "You said: Good night"
        assert [line for line in tab.look().requests if not line[1].startswith(f"{url}{PREFIX}/")] == []
        assert tab.look().problems == []


MISSING: list[Callable[[], Response]] = [
    lambda: HTMLResponse("<h1>404 Not Found</h1>", 404),
    lambda: HTMLResponse("<title>Another app</title>"),
    lambda: PlainTextResponse("Not Found", 404),
    lambda: Response(status_code=404),
]


@pytest.mark.parametrize("missing", MISSING)
@pytest.mark.parametrize(("hidden", "place"), [("/api/", "/api/chat"), ("/page/settings", "/page/settings")])
def test_one_sentence_says_that_the_server_was_not_found(
    chromium: Chromium, missing: Callable[[], Response], hidden: str, place: str
) -> None:
    sentence = (
        f"The server was not found at {PREFIX}{place}. "
        "A proxy in front of it must pass on all paths below that of the page."
    )
    app = create_app(agent, page=True, history="client")
    with serving(Proxy(app, hidden, missing())) as url, chromium.opened(f"{url}{PREFIX}/", **WIDE) as tab:
        if hidden == "/api/":
            say(tab, "Good morning")
            assert tab.wait_for("role=alert >> span") == sentence
        else:
            assert tab.wait_for("role=alert") == f"{sentence} Load the page again."
