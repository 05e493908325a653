"""What pages show when a real nginx is on the way: with its defaults, and with gzip.

The agents wait until the page has what they said so far, so that a page for which nginx keeps it back fails.
"""

import secrets
from collections.abc import Iterator
from itertools import takewhile
from typing import Any, Final

import pytest

from nginx import Hop, Nginx, Route
from node import Node
from pages import Browser, Message, Server, Visit
from promises import PINNED, release_of
from same_json import strict
from socket_pages import Page as SocketPage

pytest_plugins = ["served"]

NEWEST: Final = tuple({release_of(client).major: client for client in PINNED}.values())
HOPS: Final[list[Route]] = ["defaults", "gzip"]


@pytest.fixture(scope="session")
def nginx(server: Server) -> Iterator[Nginx]:
    nginx = Nginx(server.port)
    yield nginx
    nginx.close()


@pytest.fixture(scope="session", params=HOPS)
def hop(nginx: Nginx, request: pytest.FixtureRequest) -> Hop:
    return nginx.hops[request.param]


@pytest.fixture(scope="session")
def far_browser(hop: Hop, pages_node: Node) -> Browser:
    return Browser(pages_node, hop.port)


@pytest.fixture(params=NEWEST)
def visit(hop: Hop, far_browser: Browser, request: pytest.FixtureRequest) -> Iterator[Visit]:
    yield Visit(hop, far_browser, request.param)
    far_browser.close_pages()


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    node = Node("socket.mjs")
    yield node
    node.close()


def said(text: str) -> list[Message]:
    return [{"type": "step-start"}, {"type": "text", "text": text, "state": "done"}]


def question(text: str) -> dict[str, Any]:
    message = {"id": "q", "role": "user", "parts": [{"type": "text", "text": text}]}
    return {"id": secrets.token_hex(8), "messages": [message]}


def socket_page(node: Node, hop: Hop) -> SocketPage:
    """A page that says where it is from, as those of a browser do."""
    return SocketPage(node, hop, "/portable/plain", handshake={"origin": f"http://127.0.0.1:{hop.port}"})


@pytest.mark.parametrize(("route", "encoding"), [("defaults", None), ("gzip", "gzip")])
def test_only_the_hop_that_should_compresses(nginx: Nginx, route: Route, encoding: str | None):
    with nginx.hops[route].http.stream("POST", "/portable/plain", json=question("hello")) as answer:
        assert answer.headers.get("content-encoding") == encoding
        assert answer.read().endswith(b"data: [DONE]\n\n")


def test_a_page_shows_at_once_what_an_agent_says(visit: Visit):
    page = visit.page().send("hold everywhere")
    for shown in ('"assistant"', "First", '"Pa"', '"cold"', "Third"):
        page.until(shown)
        visit.let_go()
    view = page.settle()
    assert (view.status, view.error, view.answer[-1]) == ("ready", None, said("Third fourth.")[-1])
    assert strict(visit.kept()) == strict(view.messages)


def test_a_page_that_comes_back_ends_with_the_whole_message(visit: Visit):
    page = visit.page().send("hold").until("One")
    page.cut()
    back = visit.page(visit.kept()).resume().until("One")
    visit.let_go()
    view = back.settle()
    assert (view.status, view.statuses, view.answer) == ("ready", [("GET", 200)], said("One, two."))
    assert strict(visit.kept()) == strict(view.messages)


def test_stop_ends_the_stream_of_a_page(visit: Visit):
    page = visit.page().send("hold").until("One")
    assert visit.stop() == 204
    view = page.settle()
    assert (view.status, view.answer) == ("ready", said("One, "))
    assert visit.seen()[-1] == "cancelled"


def test_the_server_learns_that_a_page_left(visit: Visit):
    visit.endpoint = "hasty"
    page = visit.page().send("hold").until("One")
    message_id = page.look().messages[-1]["id"]
    page.cut()
    assert visit.server.ends(message_id) == ["stopped"]


def test_a_socket_that_was_cut_is_taken_up_again(node: Node, hop: Hop):
    page = socket_page(node, hop)
    chat = page.chat().send("hold").until("One")
    page.cut()
    assert chat.settle().status == "error"
    chat.act("resumeStream")
    page.catch_up()
    view = chat.let_go().settle()
    assert (view.status, view.sockets, view.answer) == ("ready", 2, said("One, two."))
    assert strict(chat.kept()) == strict(view.messages)
    page.close()


def test_a_silent_stream_is_kept_alive_and_goes_on(visit: Visit):
    """How soon the first comment comes by default, tests/server/test_responses.py knows."""
    visit.endpoint = "lively"
    page = visit.page().send("hold").until("One").until_kept_alive()
    tab = visit.page(visit.kept()).resume().until("One").until_kept_alive()
    visit.let_go()
    views = [page.settle(), tab.settle()]
    assert [(view.status, view.error, view.answer) for view in views] == [("ready", None, said("One, two."))] * 2


def test_a_stream_in_which_nothing_was_said_yet_is_kept_alive(hop: Hop):
    silent = question("hold everywhere")
    with hop.http.stream("POST", "/portable/lively", json=silent) as answer:
        before = list(takewhile(lambda line: line != ": keep-alive", answer.iter_lines()))
    assert [line[:14] for line in before if line.startswith("data: ")] == ['data: {"type":']
    assert hop.http.post(f"/portable/lively/{silent['id']}/stop").status_code == 204


def test_a_page_stops_an_answer_behind_nginx_with_its_defaults(nginx: Nginx, server: Server) -> None:
    """It names the server by its own address, and the page's browser says that the page is the server's own."""
    hop, chat = nginx.hops["defaults"], secrets.token_hex(8)
    body = {"id": chat, "messages": [{"id": "u", "role": "user", "parts": [{"type": "text", "text": "hold"}]}]}
    own = {"origin": f"http://chat.example:{hop.port}", "host": f"chat.example:{hop.port}"}
    with hop.http.stream("POST", "/portable/plain", json=body, headers=own) as answer:
        assert answer.status_code == 200
        foreign = hop.http.post(f"/portable/plain/{chat}/stop", headers={**own, "sec-fetch-site": "cross-site"})
        stopped = hop.http.post(f"/portable/plain/{chat}/stop", headers={**own, "sec-fetch-site": "same-origin"})
        assert (foreign.status_code, stopped.status_code) == (403, 204)
        assert '"type":"abort"' in answer.read().decode()
