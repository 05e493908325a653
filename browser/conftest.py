from collections.abc import Iterator

import pytest

from chromium import Chromium, Tab
from page_agent import agent
from page_steps import WIDE
from support.loopback import serving
from usechat import create_app
from usechat.server.page import BUILT


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    chromium = Chromium()
    yield chromium
    chromium.close()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    assert (BUILT / "index.html").is_file(), "The page is not built: make page"
    with serving(create_app(agent, page=True, lists_all=True)) as url:
        yield url


@pytest.fixture(scope="module")
def only_tab(chromium: Chromium, url: str) -> Iterator[Tab]:
    """The tab of all tests that need none of their own, since to open one takes a second."""
    with chromium.opened(url, **WIDE) as tab:
        yield tab


@pytest.fixture
def tab(only_tab: Tab, url: str) -> Iterator[Tab]:
    """A tab with a new chat, whose console has nothing to complain about in the end."""
    only_tab.goto(url)
    yield only_tab
    assert only_tab.look().problems == []
