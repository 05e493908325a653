"""Text of agents that is meant to stop the page, in a real Chromium."""

import json
from typing import Any, Final

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chromium import Chromium, Tab
from hostile_markdown import BEYOND, END, fuzzed
from page_agent import agent
from page_steps import LAST, WIDE, ask, button, say
from support.loopback import serving
from support.soak import SEED, draws
from usechat import create_app

SHOWN: Final = "document.querySelector('article.assistant .plain').textContent"


@pytest.mark.parametrize("name", BEYOND)
def test_text_that_is_too_much_to_parse_is_shown_as_it_is(tab: Tab, name: str) -> None:
    say(tab, f"hostile {name}")
    tab.wait_for(f"{LAST} >> text={END}")
    assert tab.run(SHOWN) == f"{BEYOND[name]}\n\n{END}"


def test_a_chat_with_such_a_text_goes_on_also_after_a_reload(tab: Tab) -> None:
    name = next(iter(BEYOND))
    say(tab, f"hostile {name}")
    tab.wait_for(f"{LAST} >> text={END}")
    tab.reload()
    tab.wait_for(f"{LAST} >> text={END}")
    assert tab.run(SHOWN) == f"{BEYOND[name]}\n\n{END}"
    assert ask(tab, "Good morning") == "You said: Good morning"


@pytest.mark.parametrize("number", range(draws(12, 300)))
def test_whatever_an_agent_writes_the_page_shows_its_end(tab: Tab, number: int) -> None:
    seed = f"{SEED} {number}"
    say(tab, f"hostile {seed}")
    tab.wait_for(f"{LAST} >> text={END}")
    assert tab.run("document.querySelectorAll('.notice').length") == 0, fuzzed(seed)


def test_entities_are_decoded(tab: Tab) -> None:
    assert ask(tab, "Salt &amp; pepper, 5 &lt; 6, &copy;, &nosuch;") == "You said: Salt & pepper, 5 < 6, ©, &nosuch;"


def test_answers_of_the_usual_kind_are_drawn_as_markdown(tab: Tab) -> None:
    ask(tab, "usual")
    assert tab.run("document.querySelectorAll('.plain').length") == 0
    assert tab.run("document.querySelectorAll('article .markdown li').length") == 300
    assert tab.run("document.querySelector('article .markdown pre').textContent.split('\\n').length") == 1_500


def test_a_message_that_cannot_be_drawn_takes_no_other_away(chromium: Chromium, url: str) -> None:
    broken: dict[str, Any] = {"type": "tool-tide", "toolCallId": "t", "state": "unheard-of", "input": {}}
    texts: list[list[dict[str, Any]]] = [
        [{"type": "text", "text": text}] for text in ("First", "Second", "Third", "Fourth")
    ]
    parts = [texts[0], [*texts[1], broken], *texts[2:]]
    roles = ("user", "assistant") * 2
    messages = [{"id": f"m{place}", "role": roles[place], "parts": some} for place, some in enumerate(parts)]
    with chromium.opened(url, **WIDE) as tab:
        ask(tab, "Good morning")
        tab.run(f"""window.fetch = ((known) => (address, init) => String(address).endsWith("/messages")
          ? Promise.resolve(Response.json({json.dumps(messages)})) : known(address, init))(window.fetch)""")
        tab.click(button("New chat"))
        assert tab.wait_for('role=article[name="Assistant"] >> nth=0').splitlines() == [
            "Second",
            "",
            "The page cannot show all of this message.",
        ]
        assert tab.wait_for(LAST) == "Fourth"
        assert tab.run("document.querySelectorAll('article').length") == 4


def test_a_chat_that_cannot_be_drawn_leaves_the_rest_of_the_page(chromium: Chromium, url: str) -> None:
    with chromium.opened(url, **WIDE) as tab:
        ask(tab, "Good morning")
        tab.run("window.kept = window.fetch; window.fetch = () => Promise.resolve(Response.json([null]))")
        tab.click(button("New chat"))
        assert tab.wait_for("role=alert >> span") == "The page cannot show this."
        tab.run("window.fetch = window.kept")
        tab.click(button("New chat"))
        assert ask(tab, "Good night") == "You said: Good night"


async def picture(_request: Request) -> Response:
    drawn = '<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20"/>'
    return Response(drawn, media_type="image/svg+xml")


def test_text_shows_images_of_the_server_only_where_a_file_names_them_or_the_app_allows_them(
    chromium: Chromium,
) -> None:
    app = create_app(agent, page=True, page_images=["/allowed/"])
    app.routes.extend(Route(f"/{folder}/{{name}}", picture) for folder in ("named", "allowed"))
    with serving(app) as url, chromium.opened(url, **WIDE) as tab:
        ask(tab, "images")
        drawn = """Promise.all([...document.querySelectorAll('.markdown img')].map((image) =>
          image.decode().then(() => `${image.alt} ${image.naturalWidth}`)))"""
        assert tab.run(drawn) == ["0 20", "3 20", "5 1"]
        words = "[...document.querySelectorAll('.markdown p')].map((shown) => shown.textContent).filter(Boolean)"
        assert tab.run(words) == ["1 (/named/2.svg)", "2 (/api/chats)", "4 (/allowed/../named/4.svg)"]
        asked = {address.removeprefix(url) for _, address, _ in tab.look().requests}
        assert {address for address in asked if address.endswith(".svg") and "/page/" not in address} == {
            "/named/1.svg",
            "/allowed/3.svg",
        }
        assert "/api/chats" not in asked
        assert tab.look().problems == []
