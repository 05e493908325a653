"""The transport that `usechat react` prints, with the real clients and hooks, on a wire that is cut."""

import random
import subprocess
from pathlib import Path
from typing import Final

import pytest

from pages import Browser, Kit, Server, View, Visit, without_reasoning_id
from promises import PINNED
from same_json import strict
from soak import SEED, draws

pytest_plugins = ["served"]

ROOT: Final = Path(__file__).parents[1]
SOURCE: Final = ROOT / "src" / "usechat" / "kit" / "usechat.ts"
TSC: Final = ROOT / "browser" / "node_modules" / ".bin" / "tsc"
# The chat class of each client, and `useChat` of releases of @ai-sdk/react, without or with a chat of the page's own.
READERS: Final = [
    *((client, None, False) for client in PINNED),
    ("5.0.277", "2.0.280", False),
    ("6.0.326", "3.0.323", False),
    ("6.0.326", "3.0.323", True),
    ("7.0.169", "4.0.140", False),
    ("7.0.169", "4.0.167", False),
    ("7.0.169", "4.0.167", True),
]


@pytest.fixture(scope="session")
def kit(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of the transport as a module that Node can load."""
    out = tmp_path_factory.mktemp("kit")
    options = ["--noCheck", "--target", "es2022", "--module", "esnext", "--outDir", str(out)]
    subprocess.run([str(TSC), str(SOURCE), *options, "--ignoreConfig"], check=True)  # noqa: S603
    return (out / "usechat.js").rename(out / "usechat.mjs").as_uri()


def shown(view: View) -> object:
    """What must be the same whether the connection was cut or not."""
    parts = [without_reasoning_id(part) for part in view.answer]
    return strict([view.status, view.error, parts, view.messages[-1].get("metadata"), view.data, view.tool_calls])


@pytest.mark.parametrize(("visit", "hook", "own_chat"), READERS, indirect=["visit"])
def test_a_page_does_not_see_that_its_connection_was_cut(visit: Visit, hook: str | None, own_chat: bool, kit: str):
    first = visit.chat

    def page(cuts: list[int], number: int = -1):
        visit.chat = f"{first}-{number}"
        return visit.page(hook=hook, own_chat=own_chat, kit=Kit(kit, cuts)).send("unhurried")

    draw = random.Random(f"{SEED} {visit.client} {hook} {own_chat}")  # noqa: S311
    whole = page([]).settle()
    assert (whole.status, whole.error, whole.statuses) == ("ready", None, [("POST", 200)])
    cuts = [[draw.randrange(40_000) if draw.random() < 0.5 else draw.randrange(8_000) for _ in range(draw.randint(1, 4))] for _ in range(draws(15, 14))]
    pages = [page(some, number) for number, some in enumerate(cuts)]
    for number, (tab, some) in enumerate(zip(pages, cuts, strict=True)):
        view = tab.settle()
        visit.chat = f"{first}-{number}"
        assert shown(view) == shown(whole), (SEED, some)
        assert strict(visit.kept()) == strict(view.messages)
