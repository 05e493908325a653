"""What a page of the newest client shows over its `WebSocketChatTransport`, and what the server keeps."""

from collections.abc import Iterator
from typing import Any, Final

import pytest

from backend import ANN, BOB
from node import Node
from pages import Browser, Message, Server, Visit, bearer, without_reasoning_id
from promises import V7
from same_json import strict
from socket_pages import Page

pytest_plugins = ["served"]

CLIENT: Final = V7
STEP: Final[Message] = {"type": "step-start"}


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    node = Node("socket.mjs")
    yield node
    node.close()


@pytest.fixture
def page(node: Node, server: Server) -> Iterator[Page]:
    page = Page(node, server, "/portable/plain")
    yield page
    page.close()


def said(text: str) -> list[Message]:
    return [STEP, {"type": "text", "text": text, "state": "done"}]


def test_a_text_arrives_and_is_kept(page: Page):
    chat = page.chat()
    view = chat.send("hello").settle()
    assert (view.status, view.error, view.answer) == ("ready", None, said("Answer 1 to hello."))
    assert strict(chat.kept()) == strict(view.messages)
    assert chat.ends() == ["done"]


def test_a_page_goes_on_and_regenerates_on_the_same_socket(page: Page):
    chat = page.chat()
    chat.send("one").settle()
    chat.send("two").settle()
    view = chat.act("regenerate").settle()
    assert [message["parts"] for message in view.messages[1::2]] == [
        said("Answer 1 to one."),
        said("Answer 3 to two."),
    ]
    assert strict(chat.kept()) == strict(view.messages)
    assert view.sockets == 1


def test_whatever_an_agent_can_say_is_the_same_as_over_http(page: Page, server: Server, browser: Browser):
    over_http = Visit(server, browser, CLIENT).page().send("everything").settle().messages[-1]
    chat = page.chat()
    view = chat.send("everything").settle()
    assert view.status == "ready"
    assert view.answer == [without_reasoning_id(part) for part in over_http["parts"]]
    assert view.messages[-1]["metadata"] == over_http["metadata"]
    assert strict(chat.kept()) == strict(view.messages)


def test_chats_of_a_page_share_its_socket_at_the_same_time(page: Page):
    chats = [page.chat().send("hold") for _ in range(8)]
    for chat in chats:
        chat.until("One, ")
    for chat in reversed(chats):
        chat.let_go().until("two.")
    views = [chat.settle() for chat in chats]
    assert [(view.status, view.answer, view.sockets) for view in views] == [("ready", said("One, two."), 1)] * 8
    assert [strict(chat.kept()) for chat in chats] == [strict(view.messages) for view in views]


def test_stop_stops_one_chat_and_no_other(page: Page):
    stopped, other = page.chat().send("hold").until("One, "), page.chat().send("hold").until("One, ")
    stopped.act("stop")
    assert stopped.ends() == ["stopped"]
    view = other.let_go().settle()
    assert (view.status, view.answer) == ("ready", said("One, two."))
    assert [part.get("text") for part in stopped.look().answer] == [None, "One, "]
    assert [part.get("text") for part in stopped.kept()[-1]["parts"]] == [None, "One, "]


def test_a_page_goes_on_after_a_stop(page: Page):
    chat = page.chat().send("hold").until("One, ").act("stop")
    chat.settle()
    view = chat.send("hello").settle()
    assert (view.status, view.answer, view.sockets) == ("ready", said("Answer 2 to hello."), 1)


def test_a_failing_agent_fails_one_chat_and_no_other(page: Page):
    failed, other = page.chat().send("failure"), page.chat().send("hello")
    view = failed.settle()
    assert view.status == "error"
    assert view.error is not None
    assert view.error.startswith("Something went wrong. (Error ")
    assert strict(failed.kept()) == strict(view.messages)
    assert other.settle().answer == said("Answer 1 to hello.")


LOST: Final = ("error", "WebSocket chat network connection closed (code 1006).")


@pytest.mark.parametrize(
    ("passed", "shown"), [(0, "hold everywhere"), (1, "First "), (2, "Pa"), (3, "cold"), (4, "Third ")]
)
def test_a_page_that_was_cut_off_ends_with_the_message_of_one_that_never_left(page: Page, passed: int, shown: str):
    whole = page.chat().send("hold everywhere").let_go(5).settle()
    chat = page.chat().send("hold everywhere").let_go(passed).until(shown)
    page.catch_up()
    page.cut()
    lost = chat.settle()
    assert (lost.status, lost.error) == LOST
    chat.act("resumeStream")
    page.catch_up()
    view = chat.let_go(5 - passed).settle()
    assert (view.status, view.sockets, view.answer) == ("ready", 2, whole.answer)
    assert strict(view.messages) == strict(chat.kept())


def test_a_continued_message_is_whole_after_a_cut(node: Node, server: Server):
    # Only this profile has a chunk that tells what the user answered.
    page = Page(node, server, "/v7/plain")
    chat = page.chat(resubmits="lastAssistantMessageIsCompleteWithApprovalResponses")
    chat.send("approval and hold").settle()
    chat.act("addToolApprovalResponse", {"id": "approval-1", "approved": True})
    page.catch_up()
    page.cut()
    lost = chat.settle()
    assert (lost.status, lost.error) == LOST
    chat.act("resumeStream")
    page.catch_up()
    view = chat.let_go().settle()
    assert (view.status, view.answer[-1]) == ("ready", said("It is gone.")[-1])
    assert strict(view.messages) == strict(chat.kept())


def test_a_second_page_follows_and_stops_the_turn_of_the_first(page: Page, node: Node, server: Server):
    first = page.chat().send("hold").until("One, ")
    second = Page(node, server, "/portable/plain")
    resumed = second.chat(first.id, first.look().messages[:1]).act("resumeStream").until("One, ")
    resumed.act("stop")
    assert resumed.ends() == ["stopped"]
    view = first.settle()
    assert view.status == "ready"
    assert strict(view.messages) == strict(first.kept())
    second.close()


def test_a_page_that_resumes_again_stops_nothing(page: Page):
    chat = page.chat().send("hold").until("One, ")
    page.cut()
    chat.settle()
    for _ in range(3):
        chat.act("resumeStream")
        page.catch_up()
    view = chat.let_go().settle()
    assert (view.status, view.answer) == ("ready", said("One, two."))
    assert strict(view.messages) == strict(chat.kept())
    assert chat.ends() == ["done"]


def test_there_is_nothing_to_resume_in_a_chat_without_a_turn(page: Page):
    view = page.chat().act("resumeStream").settle()
    assert (view.status, view.error, view.messages) == ("ready", None, [])


def test_a_tool_of_the_browser_goes_round_on_one_socket(page: Page):
    chat = page.chat(resubmits="lastAssistantMessageIsCompleteWithToolCalls")
    chat.send("browser tool").settle()
    chat.act("addToolOutput", {"tool": "location", "toolCallId": "call-1", "output": "Paris"})
    view = chat.until("You are in Paris.").settle()
    assert (view.status, view.sockets, len(view.messages)) == ("ready", 1, 2)
    assert strict(view.messages) == strict(chat.kept())


def test_a_page_that_is_not_signed_in_reads_so(node: Node, server: Server):
    page = Page(node, server, "/portable/users", headers=bearer("wrong"))
    for chat in (page.chat().send("hello"), page.chat().act("resumeStream")):
        view = chat.settle()
        assert (view.status, view.error) == ("error", "You are not signed in.")
    page.close()


@pytest.mark.parametrize(
    "options",
    [
        {"headers": bearer(ANN)},
        {"handshake": bearer(ANN)},
        {"protocols": ["usechat", f"bearer.{ANN}"]},
    ],
)
def test_a_page_signs_in_by_frame_by_header_or_by_subprotocol(node: Node, server: Server, options: dict[str, Any]):
    page = Page(node, server, "/portable/users", **options)
    chat = page.chat()
    view = chat.send("hello").settle()
    assert (view.status, view.error) == ("ready", None)
    assert strict(chat.kept(ANN)) == strict(view.messages)
    page.close()


def test_the_chat_of_somebody_else_is_not_there(node: Node, server: Server):
    ann, bob = (
        Page(node, server, "/portable/users", headers=bearer(ANN)),
        Page(node, server, "/portable/users", headers=bearer(BOB)),
    )
    chat = ann.chat().send("hold").until("One, ")
    view = bob.chat(chat.id).send("hello").settle()
    assert (view.status, view.error) == ("error", "There is no such chat.")
    view = bob.chat(chat.id).act("resumeStream").settle()
    assert (view.status, view.messages) == ("ready", [])
    assert chat.let_go().settle().answer == said("One, two.")
    ann.close()
    bob.close()


def test_a_page_of_another_origin_cannot_connect(node: Node, server: Server):
    page = Page(node, server, "/portable/plain", handshake={"origin": "https://evil.example"})
    view = page.chat().send("hello").settle()
    assert (view.status, view.error) == ("error", "WebSocket chat network connection failed.")


def test_closing_the_page_ends_a_turn_that_does_not_linger(node: Node, server: Server):
    page = Page(node, server, "/portable/hasty")
    chat = page.chat().send("hold").until("One, ")
    page.close()
    chat.settle()
    assert chat.ends() == ["stopped"]
