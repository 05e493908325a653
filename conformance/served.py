"""Fixtures: the server and the browser of a test run, and a chat of each client between them."""

from collections.abc import Iterator

import pytest

from node import Node
from pages import Browser, Server, Visit
from promises import PINNED


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture(scope="session")
def browser(server: Server, pages_node: Node) -> Iterator[Browser]:
    browser = Browser(pages_node, server.port)
    yield browser
    browser.close_pages()


@pytest.fixture(params=PINNED)
def visit(server: Server, browser: Browser, request: pytest.FixtureRequest) -> Iterator[Visit]:
    yield Visit(server, browser, request.param)
    browser.close_pages()
