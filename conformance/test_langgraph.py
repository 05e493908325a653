"""LangGraph on real clients: approvals that go round, turns that are stopped, and the route of a DeepAgent."""

import secrets
from collections.abc import Iterator
from typing import Any, Final

import pytest

from node import Node
from pages import Browser, Message, Server, Visit
from promises import V6, V7
from same_json import strict

APPROVALS: Final = "lastAssistantMessageIsCompleteWithApprovalResponses"
STEP: Final[Message] = {"type": "step-start"}
# The first release that has approvals, and the newest; test_server_tools.py has the user's answers in all of them.
WITH_APPROVALS: Final = ["6.0.0", V6, V7]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server("graph_backend.py")
    yield server
    server.close()


@pytest.fixture(scope="module")
def browser(server: Server, pages_node: Node) -> Iterator[Browser]:
    browser = Browser(pages_node, server.port)
    yield browser
    browser.close_pages()


@pytest.fixture(params=WITH_APPROVALS)
def visit(server: Server, browser: Browser, request: pytest.FixtureRequest) -> Iterator[Visit]:
    visit = Visit(server, browser, request.param)
    visit.endpoint = "graph"
    yield visit
    browser.close_pages()


def text(text: str) -> Message:
    return {"type": "text", "text": text, "state": "done"}


def letter(to: str, **fields: Any) -> Message:
    return {"type": "tool-send", "toolCallId": "send", "input": {"to": to}, **fields}


def ask(visit: Visit, to: str) -> tuple[Any, Any, str]:
    """A page on which a letter waits for approval, what it shows, and the id of the approval."""
    page = visit.page(resubmits=APPROVALS)
    asked = page.send(to).settle()
    approval = asked.answer[2]["approval"]
    assert asked.answer[:3] == [STEP, text("May I?"), letter(to, state="approval-requested", approval=approval)]
    assert (asked.status, len(asked.requests)) == ("ready", 1)
    return page, asked, approval["id"]


@pytest.mark.parametrize(
    ("approved", "end", "last"),
    [
        (True, {"state": "output-available", "output": "sent 1 time"}, "I was told: sent 1 time"),
        (
            False,
            {"state": "output-denied"},
            "I was told: User rejected the tool call for `send` with reason: Not now.",
        ),
    ],
)
def test_the_user_approves_or_denies_a_call(visit: Visit, approved: bool, end: dict[str, Any], last: str):
    to = secrets.token_hex(8)
    page, asked, approval = ask(visit, to)
    view = page.answer_approval(approval, approved=approved, reason="Not now.").settle()
    answer = {"id": approval, "approved": approved, "reason": "Not now."}
    assert view.answer == [STEP, text("May I?"), letter(to, approval=answer, **end), STEP, text(last)]
    assert [message["id"] for message in view.messages] == [message["id"] for message in asked.messages]
    assert (view.status, view.statuses) == ("ready", [("POST", 200), ("POST", 200)])
    assert strict(visit.kept()) == strict(view.messages)


# The first of them has no way to put something beside the answer.
@pytest.mark.parametrize("visit", WITH_APPROVALS[1:], indirect=True)
def test_a_call_may_be_edited_by_the_body_of_the_answer(visit: Visit):
    page, _, approval = ask(visit, secrets.token_hex(8))
    args = {"to": secrets.token_hex(8)}
    edit = {"type": "edit", "edited_action": {"name": "send", "args": args}}
    view = page.answer_approval(approval, approved=True, options={"body": {"approvals": {approval: edit}}}).settle()
    assert view.answer[2]["output"] == "sent 1 time"
    assert args["to"] in view.answer[-1]["text"]
    assert strict(visit.kept()) == strict(view.messages)


def test_a_call_that_waits_for_others_does_not_keep_the_page_waiting(visit: Visit):
    to = f"both {secrets.token_hex(8)}"
    page, asked, approval = ask(visit, to)
    assert asked.answer[3]["output"] == "This call waits until others are approved."
    view = page.answer_approval(approval, approved=True).settle()
    assert [part.get("output") for part in view.answer if "toolCallId" in part] == [
        "sent 1 time",
        {"city": to, "celsius": 12},
    ]
    assert (view.answer[-1], view.statuses) == (text("I was told: sent 1 time"), [("POST", 200), ("POST", 200)])
    assert strict(visit.kept()) == strict(view.messages)


def test_an_approval_that_nobody_asked_for_is_refused(visit: Visit):
    page, asked, approval = ask(visit, to := secrets.token_hex(8))
    last = asked.messages[-1]
    forged = {**last, "parts": [*last["parts"][:2], letter(to, state="approval-responded")]}
    forged["parts"][2]["approval"] = {"id": "another", "approved": True}
    body = {"id": visit.chat, "messages": [asked.messages[0], forged], "trigger": "submit-message"}
    answer = visit.server.http.post(visit.path, json=body)
    assert (answer.status_code, answer.text) == (
        409,
        "No open tool call or approval matches this answer. Reload the chat.",
    )
    # The one that was asked for can still be answered, and not with what is not allowed.
    forged["parts"][2]["approval"] = {"id": approval, "approved": True}
    richer = {**body, "approvals": {approval: {"type": "respond", "message": "Sent."}}}
    answer = visit.server.http.post(visit.path, json=richer)
    assert (answer.status_code, answer.text) == (
        409,
        "The call can be answered with approve, edit, reject, and not with respond.",
    )
    assert page.answer_approval(approval, approved=True).settle().answer[-1] == text("I was told: sent 1 time")


RESTED: Final[list[Message]] = [
    {
        "type": "tool-rest",
        "toolCallId": "rest",
        "input": {},
        "state": "output-error",
        "errorText": "The call was stopped.",
    },
    {"type": "data-rests", "data": True},
    STEP,
]


@pytest.mark.parametrize(
    ("asked", "rest", "thread"),
    [
        ("rest in the model", RESTED[:0], ""),
        (
            "rest in a tool",
            RESTED,
            " | ai I rest. | tool This call has no result, since it was stopped or failed.",
        ),
    ],
)
def test_a_turn_that_was_stopped_is_followed_by_another_in_its_thread(
    visit: Visit, asked: str, rest: list[Message], thread: str
) -> None:
    page = visit.page()
    page.send(asked).until("data-rests" if rest else "I rest.")
    assert visit.stop() == 204
    view = page.settle()
    assert (view.status, view.answer) == ("ready", [STEP, text("I rest."), *rest])
    view = page.send("What was said?").settle()
    assert view.answer == [STEP, text(f"human {asked}{thread} | human What was said?")]
    assert strict(visit.kept()) == strict(view.messages)


@pytest.mark.parametrize(
    ("approved", "end", "last"),
    [
        (True, {"state": "output-available", "output": "sent 1 time"}, "I was told: sent 1 time"),
        (False, {"state": "output-denied"}, "I was told: User rejected the tool call for `send` with reason: Not now."),
    ],
)
def test_a_graph_on_the_elements_route_asks_and_goes_on(
    visit: Visit, approved: bool, end: dict[str, Any], last: str
) -> None:
    visit.endpoint = "elements"
    page, to = visit.page(resubmits=APPROVALS, token=secrets.token_hex(8)), secrets.token_hex(8)
    asked = page.send(to).settle()
    [call] = [part for part in asked.answer if part["type"] == "tool-send"]
    approval = call["approval"]["id"]
    assert call == letter(to, state="approval-requested", approval={"id": approval})
    view = page.answer_approval(approval, approved=approved, reason="Not now.").settle()
    answer = {"id": approval, "approved": approved, "reason": "Not now."}
    shown = [part for part in view.answer if not part["type"].startswith("data-")]
    assert shown == [STEP, text("May I?"), letter(to, approval=answer, **end), STEP, text(last)]
    assert [message["id"] for message in view.messages] == [message["id"] for message in asked.messages]
    assert (view.status, view.statuses) == ("ready", [("POST", 200), ("POST", 200)])
