"""The gateway to Agent Ops sessions, from the chat classes and `useChat` of the real clients to a session's socket."""

from collections.abc import Iterator
from typing import Final

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from msgspec.structs import replace

from agreement import in_common, message_of
from node import Node
from pages import Browser, Message, Page, View
from promises import PINNED, V7, release_of
from session_pages import House, SessionVisit, serving_house, serving_two_houses
from support.gateways import SETTINGS
from support.goldens import Case, cases, mapped
from support.redis_server import RedisServer
from usechat.protocol.chunks import Error
from usechat.protocol.clients import ClientName
from usechat.session_agent import read_script

NEWEST: Final = list({release_of(client).major: client for client in PINNED}.values())
# The release of @ai-sdk/react that `useChat` is taken of; with the others it is the chat class alone.
HOOKS: Final = {V7: "4.0.167"}
STEP: Final[Message] = {"type": "step-start"}
RECORDED: Final = [case for case in cases("agent-ops") if case.name.startswith(("ws_", "v2_"))]


@pytest.fixture(scope="module")
def portal() -> Iterator[BlockingPortal]:
    with start_blocking_portal() as portal:
        yield portal


@pytest.fixture(scope="module")
def browser(pages_node: Node) -> Iterator[Browser]:
    browser = Browser(pages_node)
    yield browser
    browser.close_pages()


@pytest.fixture(scope="module")
def house(portal: BlockingPortal) -> Iterator[House]:
    with serving_house(portal, SETTINGS) as house:
        yield house


@pytest.fixture(scope="module")
def patient_house(portal: BlockingPortal) -> Iterator[House]:
    """Its turns go on without a reader."""
    with serving_house(portal, replace(SETTINGS, linger=None)) as house:
        yield house


@pytest.fixture(scope="module")
def redis_server() -> Iterator[RedisServer]:
    server = RedisServer()
    yield server
    server.close()


@pytest.fixture(params=NEWEST)
def visit(house: House, browser: Browser, request: pytest.FixtureRequest) -> Iterator[SessionVisit]:
    yield SessionVisit(house, browser, request.param, hook=HOOKS.get(request.param))
    browser.close_pages()


def said(text: str, state: str = "done") -> Message:
    return {"type": "text", "text": text, "state": state}


def shown(view: View) -> list[Message]:
    """The answer without the agent's status, which is a part of its own."""
    return [part for part in view.answer if part["type"] != "data-agent-status"]


def texts(view: View) -> list[tuple[str, str]]:
    return [
        (message["role"], "".join(part["text"] for part in message["parts"] if part["type"] == "text"))
        for message in view.messages
    ]


def test_a_page_shows_text_tools_and_status(visit: SessionVisit) -> None:
    page = visit.page()
    view = page.send("tools").settle()
    ran = {"type": "tool-bash", "toolCallId": "prt_1", "state": "output-available", "input": {"command": "ls"}}
    assert shown(view) == [
        *(STEP, said("Let me look."), {**ran, "output": "a.ts\nb.ts\n"}),
        *(STEP, said("Two files: a.ts and b.ts.")),
    ]
    assert (view.status, view.error, view.statuses) == ("ready", None, [("POST", 200)])
    [status] = [part for part in view.answer if part["type"] == "data-agent-status"]
    assert status == {"type": "data-agent-status", "id": "agent-status", "data": {"status": "streaming"}}
    assert list(view.messages[-1]["metadata"]) == ["turnId"]

    assert texts(page.send("Thanks").settle())[-1] == ("assistant", "You said: Thanks")
    assert [received.message["content"] for received in visit.received("prompt")] == ["tools", "Thanks"]


def test_a_tool_that_fails_does_not_end_the_answer(visit: SessionVisit) -> None:
    view = visit.page().send("broken-tool").settle()
    failed = shown(view)[-3]
    assert (failed["type"], failed["state"], failed["errorText"]) == ("tool-read", "output-error", "ENOENT: b")
    assert (view.status, view.error, shown(view)[-1]) == ("ready", None, said(" b is missing."))


@pytest.mark.parametrize(
    ("prompt", "error", "parts"),
    [
        ("fail No such model", "No such model", []),
        ("fail-late Overloaded", "Overloaded", [STEP, said("It begins well.")]),
        ("silent", "The agent gave no answer.", []),
        ("drop", "Stream interrupted", [STEP, said("Before. ")]),
    ],
)
def test_a_failure_is_an_error_of_the_page_that_goes_on_afterwards(
    visit: SessionVisit, prompt: str, error: str, parts: list[Message]
) -> None:
    page = visit.page()
    view = page.send(prompt).settle()
    assert (view.status, view.error, shown(view)) == ("error", error, parts)
    view = page.send("Hello").settle()
    assert (view.status, view.error, texts(view)[-1]) == ("ready", None, ("assistant", "You said: Hello"))


def test_stop_ends_the_page_and_aborts_the_turn(visit: SessionVisit) -> None:
    page = visit.page().send("hang").until("I wait")
    view = page.stop().settle()
    assert (view.status, view.error, shown(view)) == ("ready", None, [STEP, said("I wait", "streaming")])
    visit.until_received("abort")
    assert texts(page.send("Hello").settle())[-1] == ("assistant", "You said: Hello")
    assert len(visit.received("abort")) == 1


@pytest.mark.parametrize("last_only", [False, True])
def test_regenerate_takes_the_message_back_and_prompts_again(visit: SessionVisit, last_only: bool) -> None:
    page = visit.page(last_only=last_only)
    page.send("One").settle()
    first = page.send("Two").settle()
    view = page.regenerate().settle()
    assert (view.status, view.error) == ("ready", None)
    assert texts(view) == [
        *(("user", "One"), ("assistant", "You said: One")),
        *(("user", "Two"), ("assistant", "You said: Two")),
    ]
    assert view.messages[-1]["metadata"] != first.messages[-1]["metadata"]
    assert [received.message["content"] for received in visit.received("prompt")] == ["One", "Two", "Two"]
    assert len(visit.received("revert")) == 1
    assert len(visit.kept()) == 4


@pytest.mark.parametrize("last_only", [False, True])
def test_an_edited_message_takes_the_place_of_the_old_one(visit: SessionVisit, last_only: bool) -> None:
    page = visit.page(last_only=last_only)
    page.send("One").settle()
    before = page.send("Two").settle()
    view = page.send("Three", message_id=before.messages[0]["id"]).settle()
    assert (view.status, texts(view)) == ("ready", [("user", "Three"), ("assistant", "You said: Three")])
    assert len(visit.received("revert")) == 1
    assert [message["content"] for message in visit.kept()] == ["Three", "You said: Three"]


def test_a_question_is_answered_beside_the_stream(visit: SessionVisit) -> None:
    page = visit.page().send("question Where to?").until('"open"')
    [question] = [part for part in page.look().answer if part["type"] == "data-question"]
    assert (question["data"]["text"], question["data"]["options"]) == ("Where to?", ["staging", "production"])
    answer = {"questionId": question["data"]["questionId"], "answer": "staging"}
    assert visit.post("answer", json=answer) == 204
    view = page.settle()
    assert (view.status, shown(view)[-1]) == ("ready", said("You answered: staging."))
    [question] = [part["data"] for part in view.answer if part["type"] == "data-question"]
    assert (question["state"], question["answer"]) == ("answered", "staging")
    assert visit.post("answer", json=answer) == 404


def test_there_is_nothing_to_resume(visit: SessionVisit) -> None:
    page = visit.page()
    view = page.send("Hello").settle()
    later = visit.page(view.messages).resume().done()
    assert (later.status, later.error, later.statuses) == ("ready", None, [("GET", 204)])
    assert later.messages == view.messages


@pytest.mark.parametrize("client", NEWEST)
def test_a_turn_that_lingers_is_resumed_by_another_page(patient_house: House, browser: Browser, client: str) -> None:
    visit = SessionVisit(patient_house, browser, client)
    page = visit.page().send("hang").until("I wait")
    begun = page.look().messages
    page.cut()
    back = visit.page(begun[:1]).resume().until("I wait")
    patient_house.release(visit.session)
    view = back.settle()
    assert (view.status, view.error, shown(view)) == ("ready", None, [STEP, said("I wait no more.")])
    assert (view.messages[-1]["id"], view.statuses) == (begun[-1]["id"], [("GET", 200)])
    assert visit.received("abort") == []
    browser.close_pages()


@pytest.mark.parametrize("client", NEWEST)
def test_a_turn_is_resumed_followed_and_stopped_at_another_worker(
    portal: BlockingPortal, redis_server: RedisServer, browser: Browser, client: str
) -> None:
    with serving_two_houses(portal, redis_server, SETTINGS) as (here, there):
        visit = SessionVisit(here, browser, client)
        first = visit.page().send("hang").until("I wait")
        begun = first.look().messages
        second = visit.page(begun[:1], house=there).resume().until("I wait")
        first.cut()
        third = visit.page(begun[:1]).resume().until("I wait")
        here.release(visit.session)
        for page in (second, third):
            view = page.settle()
            assert (view.status, view.error, shown(view)) == ("ready", None, [STEP, said("I wait no more.")])
            assert (view.messages[-1]["id"], view.statuses) == (begun[-1]["id"], [("GET", 200)])
        assert visit.received("abort") == []

        fourth = visit.page().send("hang").until("I wait")
        assert there.post("chat/chat/stop", visit.session, "ana") == 204
        view = fourth.settle()
        assert (view.status, view.error, shown(view)) == ("ready", None, [STEP, said("I wait")])
        visit.until_received("abort")
        assert texts(visit.page(house=there).send("Hello").settle())[-1] == ("assistant", "You said: Hello")
        assert len(visit.received("abort")) == 1
        browser.close_pages()


def test_a_page_that_is_gone_aborts_its_turn(visit: SessionVisit) -> None:
    page = visit.page().send("hang").until("I wait")
    page.cut()
    visit.until_received("abort")
    # Between the two, what is left of the turn may still be told.
    assert len(visit.received("abort")) == 1


def test_rapid_prompts_in_several_chats_get_their_own_answers(visit: SessionVisit) -> None:
    pages = [visit.page(chat=f"chat-{number}").send(f"This is {number}") for number in range(4)]
    assert [texts(page.settle()) for page in pages] == [
        [("user", f"This is {number}"), ("assistant", f"You said: This is {number}")] for number in range(4)
    ]
    for page in pages:
        page.send("tools")
    for page in pages:
        view = page.settle()
        assert (view.status, len(view.messages), shown(view)[-1]) == ("ready", 4, said("Two files: a.ts and b.ts."))


def test_who_may_not_is_told_so(visit: SessionVisit) -> None:
    for token, code in (("a-guess", "UNAUTHORIZED"), (visit.house.token("bob"), "NOT_FOUND")):
        view = visit.page(token=token).send("Hello").settle()
        assert view.status == "error"
        assert f'"code":"{code}"' in (view.error or "")
    assert visit.received("prompt") == []


def prompt_of(case: Case) -> str:
    """What the log sends; a log of bare frames answers whatever is sent."""
    sent = [line["frame"] for line in case.events if line.get("dir") == "send"]
    return next((frame["content"] for frame in sent if frame["type"] == "prompt" and "content" in frame), "Hello")


def shown_of(case: Case) -> list[Message]:
    """What a page gets to see of the log: with its own stop a stream ends, and not with what becomes of it."""
    for index, line in enumerate(case.events):
        if line.get("dir") == "send" and line["frame"]["type"] == "abort":
            return [*case.events[:index], {"type": "status", "data": {"runnerBusy": False, "aborted": True}}]
    return case.events


def take_part(visit: SessionVisit, case: Case, page: Page) -> None:
    """Send what the log sends after its prompt; a log without an end ends when the connection does."""
    if "Stream interrupted" in case.chunks.read_text("utf-8"):
        visit.until_received("prompt")
        visit.house.cut(visit.session)
    for line in case.events:
        match line:
            case {"dir": "send", "frame": {"type": "abort"}}:
                page.until("Once upon")
                assert visit.post("chat/chat/stop") == 204
            case {"dir": "send", "frame": {"type": "answer", "questionId": question, "answer": answer}}:
                page.until('"open"')
                assert visit.post("answer", json={"questionId": question, "answer": answer}) == 204
            case _:
                pass


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: case.name)
def test_the_clients_make_our_message_of_a_recorded_session(
    portal: BlockingPortal, browser: Browser, case: Case
) -> None:
    script = read_script(case.log.read_text("utf-8"))
    # The other releases read the same streams in test_agent_ops.py.
    profiles: dict[ClientName, list[str]] = {"portable": NEWEST, "v5": ["5.0.0"]}
    for profile, clients in profiles.items():
        chunks = mapped("agent-ops", shown_of(case), {}, profile)
        last = chunks[-1]
        end = ("error", last.error_text) if isinstance(last, Error) else ("ready", None)
        with serving_house(portal, replace(SETTINGS, client=profile), script) as house:
            # Each has a session of its own, since the log is played to each of them.
            visits = [SessionVisit(house, browser, client, user="u-1") for client in clients]
            try:
                pages = [visit.page().send(prompt_of(case)) for visit in visits]
                for visit, page in zip(visits, pages, strict=True):
                    take_part(visit, case, page)
                    view = page.settle()
                    assert (view.status, view.error) == end, visit.client
                    expected = {**message_of(chunks), "id": view.messages[-1]["id"]}
                    assert in_common(view.messages[-1]) == in_common(expected), visit.client
            finally:
                browser.close_pages()
