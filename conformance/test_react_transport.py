"""The transport that `usechat react` prints, with the real clients and hooks, on a wire that is cut."""

import json
import os
import random
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Final

import pytest

from backend import ANN
from node import HERE
from pages import Page, ReactTransport, View, Visit, without_reasoning_id
from promises import PINNED, V5, V6, V7, release_of
from same_json import strict
from support.hang import HANG_SECONDS
from support.soak import SEED, SOAK, draws

pytest_plugins = ["served"]

SOURCE: Final = HERE.parent / "src" / "usechat" / "react" / "usechat.ts"
TSC: Final = HERE.parent / "browser" / "node_modules" / ".bin" / "tsc"
STRICT: Final[dict[str, Any]] = {
    "strict": True,
    "exactOptionalPropertyTypes": True,
    "noFallthroughCasesInSwitch": True,
    "noImplicitOverride": True,
    "noImplicitReturns": True,
    "noPropertyAccessFromIndexSignature": True,
    "noUncheckedIndexedAccess": True,
    "noUnusedLocals": True,
    "noUnusedParameters": True,
    "erasableSyntaxOnly": True,
    "isolatedModules": True,
    "verbatimModuleSyntax": True,
    "skipLibCheck": True,
    "target": "es2021",
    "lib": ["es2021", "dom"],
    "types": [],
    "module": "esnext",
    "moduleResolution": "bundler",
    "noEmit": True,
}
PAGE: Final = """import type { ChatTransport, UIMessage } from "ai";
import { UsechatTransport } from "./usechat";

type Message = UIMessage<{ tokens: number }>;
const transport = new UsechatTransport<Message>({ api: "/api/chat", headers: async () => ({ a: "x" }), fetch });
export const given: ChatTransport<Message> = transport;
export const tokens = async (): Promise<number | undefined> => (await transport.messages("1"))[0]?.metadata?.tokens;
export const title = async (): Promise<string | undefined> => (await transport.chats()).chats[0]?.title;
"""
TOOLS: Final = "lastAssistantMessageIsCompleteWithToolCalls"
APPROVALS: Final = "lastAssistantMessageIsCompleteWithApprovalResponses"
NEWEST: Final = [V5, V6, V7]
CLIENTS: Final = PINNED if SOAK else NEWEST
# The chat class of each client, and `useChat` of releases of @ai-sdk/react, without or with a chat of the page's own.
READERS: Final = [
    *((client, None, False) for client in CLIENTS),
    (V5, "2.0.280", False),
    (V6, "3.0.323", False),
    (V6, "3.0.323", True),
    (V7, "4.0.140", False),
    (V7, "4.0.167", False),
    (V7, "4.0.167", True),
]


@pytest.fixture(scope="session")
def react(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of the transport as a module that Node can load."""
    out = tmp_path_factory.mktemp("react")
    options = ["--noCheck", "--ignoreConfig", "--target", "es2022", "--module", "esnext", "--outDir", str(out)]
    subprocess.run([str(TSC), str(SOURCE), *options], check=True)  # noqa: S603
    return (out / "usechat.js").rename(out / "usechat.mjs").as_uri()


def test_it_has_the_types_of_each_release(tmp_path: Path):
    for client in PINNED:
        app = tmp_path / client
        (app / "node_modules").mkdir(parents=True)
        (app / "node_modules" / "ai").symlink_to(HERE / "node_modules" / f"ai-{client}", target_is_directory=True)
        shutil.copy(SOURCE, app)
        (app / "page.ts").write_text(PAGE, encoding="utf-8")
    config = {"compilerOptions": STRICT, "include": ["*/page.ts"]}
    (tmp_path / "tsconfig.json").write_text(json.dumps(config), encoding="utf-8")
    checked = subprocess.run([str(TSC), "--project", str(tmp_path)], capture_output=True, text=True, check=False)  # noqa: S603
    assert (checked.returncode, checked.stdout) == (0, "")


def test_it_is_short():
    lines = SOURCE.read_text(encoding="utf-8").splitlines()
    assert len(lines) < 250
    assert [line for line in lines if len(line) > 120] == []


def test_it_keeps_time(react: str):
    """When it tries again, gives up and stops, on a clock and a network of the test's own."""
    played = subprocess.run(
        ["node", "--test", "react_clock.mjs"],  # noqa: S607
        cwd=HERE,
        env={**os.environ, "TRANSPORT": react},
        capture_output=True,
        text=True,
        check=False,
    )
    assert played.returncode == 0, played.stdout


class Cut:
    """The pages of one reader, each in a chat of its own, and where their wires are cut."""

    def __init__(self, visit: Visit, react: str, hook: str | None = None, own_chat: bool = False) -> None:
        self._visit = visit
        self._options = {"hook": hook, "own_chat": own_chat}
        self._react = react
        self._first = visit.chat
        self._draw = random.Random(f"{SEED} {visit.client} {hook} {own_chat} {visit.endpoint}")  # noqa: S311

    def page(self, number: int, cuts: list[int], **options: Any) -> Page:
        self.visit(number)
        return self._visit.page(react=ReactTransport(self._react, cuts), **self._options, **options)

    def visit(self, number: int) -> Visit:
        """The visit, to the chat with this number."""
        self._visit.chat = f"{self._first}-{number}"
        return self._visit

    def cuts(self, number: int, length: int, most: int = 4) -> list[list[int]]:
        """For so many pages, where their streams, which have about this length, are cut."""
        draw = self._draw
        return [[draw.randrange(length) for _ in range(draw.randint(1, most))] for _ in range(number)]


def length_of(visit: Visit, text: str) -> int:
    question = {"id": "q", "role": "user", "parts": [{"type": "text", "text": text}]}
    body = {"id": f"{visit.chat}-length", "message": question}
    return len(visit.server.http.post(visit.path, json=body).content)


def shown(view: View) -> Any:
    """What must be the same whether the connection was cut or not."""
    parts = [without_reasoning_id(part) for part in view.answer]
    return strict([view.status, view.error, parts, view.messages[-1].get("metadata"), view.tool_calls])


@pytest.mark.parametrize(("visit", "hook", "own_chat"), READERS, indirect=["visit"])
def test_a_page_does_not_see_that_its_connection_was_cut(visit: Visit, hook: str | None, own_chat: bool, react: str):
    length = length_of(visit, "unhurried")
    cut = Cut(visit, react, hook, own_chat)
    whole = cut.page(-1, []).send("unhurried").settle()
    assert (whole.status, whole.error, whole.statuses) == ("ready", None, [("POST", 200)])

    cuts = cut.cuts(draws(3, 70), length)
    pages = [cut.page(number, some).send("unhurried") for number, some in enumerate(cuts)]
    for number, (page, some) in enumerate(zip(pages, cuts, strict=True)):
        view = page.settle()
        assert shown(view) == shown(whole), some
        assert strict(view.data) == strict(whole.data), some
        assert strict(cut.visit(number).kept()) == strict(view.messages)
        assert view.statuses[0] == ("POST", 200)
        assert {*view.statuses[1:]} == {("GET", 200)}


@pytest.mark.parametrize("visit", CLIENTS, indirect=True)
def test_a_page_that_comes_back_does_not_see_that_its_connection_was_cut(visit: Visit, react: str):
    first = visit.page(react=ReactTransport(react)).send("unhurried and hold").until("☃ ☃")
    with visit.server.http.stream("GET", f"{visit.path}/{visit.chat}/stream") as replay:
        length = next(len(piece) for piece in replay.iter_raw())
    chat = visit.chat
    cuts = Cut(visit, react).cuts(draws(3, 70), length + 100, most=2)
    visit.chat = chat
    pages = [visit.page(visit.kept(), react=ReactTransport(react, some)).resume() for some in cuts]
    for page in pages:
        page.until("☃ ☃")
    visit.let_go()
    whole = first.settle()
    for page, some in zip(pages, cuts, strict=True):
        view = page.settle()
        assert (view.status, view.error) == ("ready", None), some
        assert strict(view.messages) == strict(whole.messages) == strict(visit.kept()), some


@pytest.mark.parametrize("visit", CLIENTS, indirect=True)
def test_a_page_gets_the_stored_message_where_the_turn_is_forgotten(visit: Visit, react: str):
    visit.endpoint = "brief"
    length = length_of(visit, "everything")
    cut = Cut(visit, react)
    whole = cut.page(-1, []).send("everything").settle()
    # The first is cut in the word that the stream is over, when the turn is.
    cuts = [[length - len("[DONE]")], [0], *cut.cuts(draws(2, 70), length, most=1)]
    pages = [cut.page(number, some).send("everything") for number, some in enumerate(cuts)]
    for number, (page, some) in enumerate(zip(pages, cuts, strict=True)):
        view = page.settle()
        assert shown(view) == shown(whole), some
        assert strict(cut.visit(number).kept()) == strict(view.messages), some
        forgotten, running = ([("POST", 200), *asked] for asked in ([("GET", 204), ("GET", 200)], [("GET", 200)]))
        # A page may be quicker than the agent.
        assert view.statuses in ([forgotten, running] if number else [forgotten]), some


@pytest.mark.parametrize("visit", NEWEST, indirect=True)
@pytest.mark.parametrize("endpoint", ["plain", "brief"])
@pytest.mark.parametrize("at", [0, 200])
def test_a_message_that_goes_on_is_cut_and_goes_on(visit: Visit, endpoint: Any, at: int, react: str):
    visit.endpoint = endpoint
    page = visit.page(resubmits=TOOLS, react=ReactTransport(react, [10_000, at]))
    page.send("browser tool").settle()
    view = page.answer_tool("call-1", output="Paris").until("You are in Paris.")
    view = page.settle()
    assert (view.status, view.error) == ("ready", None)
    assert [part["type"] for part in view.answer] == ["step-start", "text", "tool-location", "step-start", "text"]
    assert strict(visit.kept()) == strict(view.messages)


@pytest.mark.parametrize("visit", NEWEST[1:], indirect=True)
@pytest.mark.parametrize("endpoint", ["plain", "brief"])
def test_an_answer_to_an_approval_is_cut_and_goes_on(visit: Visit, endpoint: Any, react: str):
    visit.profile = "v6" if release_of(visit.client).major == 6 else "v7"
    visit.endpoint = endpoint
    page = visit.page(resubmits=APPROVALS, react=ReactTransport(react, [10_000, 0]))
    page.send("approval").settle()
    page.answer_approval("approval-1", approved=True).until("It is gone.")
    view = page.settle()
    assert (view.status, view.error) == ("ready", None)
    assert strict(visit.kept()) == strict(view.messages)


@pytest.mark.parametrize("visit", NEWEST, indirect=True)
def test_what_never_got_a_response_is_an_error_and_is_not_sent_again(visit: Visit, react: str):
    view = visit.page(react=ReactTransport(react, [-20])).send("hello").settle()
    assert (view.status, view.statuses) == ("error", [("POST", None)])
    assert len(visit.seen()) == 1


@pytest.mark.parametrize("visit", PINNED, indirect=True)
def test_the_stop_button_stops_the_agent(visit: Visit, react: str):
    page = visit.page(react=ReactTransport(react)).send("hold").until("One")
    before = page.look()
    view = page.stop().settle()
    assert (view.status, view.error) == ("ready", None)

    assert visit.server.ends(before.messages[-1]["id"]) == ["stopped"]
    assert visit.seen()[-1] == "cancelled"
    asked, stopped = page.look().requests
    assert (stopped.method, stopped.path) == ("POST", f"{visit.path}/{visit.chat}/stop")
    assert stopped.query == f"?turn={asked.turn}"


@pytest.mark.parametrize("visit", NEWEST, indirect=True)
def test_the_stop_button_stops_an_answer_that_was_resumed(visit: Visit, react: str):
    first = visit.page(react=ReactTransport(react)).send("hold").until("One")
    page = visit.page(visit.kept(), react=ReactTransport(react)).resume().until("One")
    page.stop().settle()
    view = first.settle()
    assert visit.server.ends(view.messages[-1]["id"]) == ["stopped"]
    assert [(request.method, request.query) for request in page.look().requests] == [
        ("GET", ""),
        ("POST", f"?turn={first.look().requests[0].turn}"),
    ]


@pytest.mark.parametrize(("visit", "hook"), [(V5, "2.0.280"), (V6, "3.0.323"), (V7, "4.0.167")], indirect=["visit"])
@pytest.mark.parametrize("own_chat", [False, True])
def test_strict_mode_resumes_twice_and_stops_nothing(visit: Visit, hook: str, own_chat: bool, react: str):
    first = visit.page(react=ReactTransport(react)).send("hold").until("One")
    resuming = ReactTransport(react, strict=True, resume=True)
    page = visit.page(visit.kept(), hook=hook, own_chat=own_chat, react=resuming).until("One")
    visit.let_go()
    whole, view = first.settle(), page.settle()
    assert (view.status, view.error) == ("ready", None)
    assert strict(view.messages) == strict(whole.messages) == strict(visit.kept())
    assert visit.server.ends(view.messages[-1]["id"]) == ["done"]
    assert "cancelled" not in visit.seen()
    assert {request.method for request in page.look().requests} == {"GET"}


def until_answered(page: Page, requests: int) -> None:
    deadline = time.monotonic() + HANG_SECONDS
    while [*map(bool, (status for _, status in page.look().statuses))] != [True] * requests:
        assert time.monotonic() < deadline, page.look()
        time.sleep(0.01)


@pytest.mark.parametrize("visit", NEWEST, indirect=True)
def test_a_resume_that_a_newer_one_replaces_stops_nothing(visit: Visit, react: str):
    first = visit.page(react=ReactTransport(react)).send("hold everywhere")
    visit.let_go(2)
    first.until('"Pa"')
    page = visit.page(visit.kept(), react=ReactTransport(react)).resume().until('"Pa"')
    page.resume()
    until_answered(page, 2)
    visit.let_go(3)
    whole, view = first.settle(), page.settle()
    assert (whole.status, whole.error, view.status, view.error) == ("ready", None, "ready", None)
    assert visit.server.ends(whole.messages[-1]["id"]) == ["done"]
    assert view.statuses == [("GET", 200), ("GET", 200)]
    # Those of v5 add what is told anew to what they have.
    assert release_of(visit.client).major == 5 or strict(view.messages) == strict(whole.messages)


@pytest.mark.parametrize("visit", NEWEST, indirect=True)
def test_there_is_nothing_to_resume(visit: Visit, react: str):
    view = visit.page(react=ReactTransport(react)).resume().done()
    assert (view.status, view.error, view.messages, view.statuses) == ("ready", None, [], [("GET", 204)])


@pytest.mark.parametrize("visit", NEWEST[-1:], indirect=True)
def test_it_has_the_messages_and_the_chats_of_the_user(visit: Visit, react: str):
    visit.endpoint = "users"
    page = visit.page(token=ANN, react=ReactTransport(react))
    view = page.send("Which tide is it?").settle()

    assert page.ask("messages", visit.chat) == view.messages
    listed = page.ask("chats")["chats"]
    assert [chat["title"] for chat in listed if chat["id"] == visit.chat] == ["Which tide is it?"]
    page.ask("remove", visit.chat)
    assert page.ask("messages", visit.chat) == []
    assert visit.chat not in [chat["id"] for chat in page.ask("chats")["chats"]]
