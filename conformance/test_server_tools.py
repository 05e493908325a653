"""Calls that wait for the page: tools that run in the browser, and approvals, on every client that has them."""

from typing import Any, Final

import pytest

from pages import Message, Visit
from promises import PINNED, release_of
from same_json import strict

pytest_plugins = ["served"]

TOOLS: Final = "lastAssistantMessageIsCompleteWithToolCalls"
APPROVALS: Final = "lastAssistantMessageIsCompleteWithApprovalResponses"
STEP: Final[Message] = {"type": "step-start"}

with_approvals = pytest.mark.parametrize("visit", [c for c in PINNED if release_of(c).major >= 6], indirect=True)
with_failed_tools = pytest.mark.parametrize("visit", [c for c in PINNED if c != "5.0.0"], indirect=True)


def text(text: str) -> Message:
    return {"type": "text", "text": text, "state": "done"}


def location(call_id: str = "call-1", **fields: Any) -> Message:
    return {"type": "tool-location", "toolCallId": call_id, "input": {"precise": True}, **fields}


def deletion(**fields: Any) -> Message:
    return {"type": "tool-delete", "toolCallId": "call-1", "input": {"file": "a.txt"}, **fields}


def test_the_browser_runs_a_tool_and_the_same_message_goes_on(visit: Visit):
    page = visit.page(resubmits=TOOLS)
    asked = page.send("browser tool").settle()
    assert asked.answer == [STEP, text("Where are you?"), location(state="input-available")]
    assert (asked.status, len(asked.requests), asked.tool_calls) == ("ready", 1, ["call-1"])
    assert strict(visit.kept()) == strict(asked.messages)

    view = page.answer_tool("call-1", output={"city": "Paris"}).settle()
    assert view.answer == [
        STEP,
        text("Where are you?"),
        location(state="output-available", output={"city": "Paris"}),
        STEP,
        text("You are in {'city': 'Paris'}."),
    ]
    assert [message["id"] for message in view.messages] == [message["id"] for message in asked.messages]
    assert (view.status, view.statuses) == ("ready", [("POST", 200), ("POST", 200)])
    assert strict(visit.kept()) == strict(view.messages)

    turn = visit.seen()[-1]
    assert turn["continues"] == view.messages[-1]["id"]
    assert turn["tool_results"] == [
        {
            "call_id": "call-1",
            "tool": "location",
            "input": {"precise": True},
            "output": {"city": "Paris"},
            "error": None,
        }
    ]


@with_failed_tools
def test_a_tool_may_fail_in_the_browser(visit: Visit):
    page = visit.page(resubmits=TOOLS)
    page.send("browser tool").settle()
    view = page.answer_tool("call-1", state="output-error", errorText="the dark").settle()

    assert view.answer == [
        STEP,
        text("Where are you?"),
        location(state="output-error", errorText="the dark"),
        STEP,
        text("You are in the dark."),
    ]
    assert (view.status, len(view.requests)) == ("ready", 2)
    assert strict(visit.kept()) == strict(view.messages)


def test_two_tools_are_answered_together(visit: Visit):
    page = visit.page(resubmits=TOOLS)
    page.send("two browser tools").settle()
    waiting = page.answer_tool("call-1", output="Paris").settle()
    assert (waiting.status, len(waiting.requests)) == ("ready", 1)

    view = page.answer_tool("call-2", output="France").settle()
    assert view.answer == [
        STEP,
        text("Where are you?"),
        location(state="output-available", output="Paris"),
        location("call-2", state="output-available", output="France"),
        STEP,
        text("You are in Paris, France."),
    ]
    assert (view.status, len(view.requests)) == ("ready", 2)
    assert strict(visit.kept()) == strict(view.messages)


def test_an_answer_counts_although_javascript_has_other_numbers(visit: Visit):
    page = visit.page(resubmits=TOOLS)
    page.send("odd numbers").settle()
    view = page.answer_tool("call-1", output="Paris").settle()

    assert (view.status, view.error, len(view.requests)) == ("ready", None, 2)
    assert view.answer[-1] == text("You are in Paris.")


@with_approvals
@pytest.mark.parametrize(
    ("approved", "end", "last"),
    [
        (True, {"state": "output-available", "output": "deleted"}, "It is gone."),
        (False, {"state": "output-denied"}, "It stays: Not now."),
    ],
)
def test_the_user_approves_or_denies_a_call(visit: Visit, approved: bool, end: dict[str, Any], last: str):
    page = visit.page(resubmits=APPROVALS)
    asked = page.send("approval").settle()
    assert asked.answer == [
        STEP,
        text("May I?"),
        deletion(state="approval-requested", approval={"id": "approval-1"}),
    ]
    assert (asked.status, len(asked.requests)) == ("ready", 1)
    assert strict(visit.kept()) == strict(asked.messages)

    view = page.answer_approval("approval-1", approved=approved, reason="Not now.").settle()
    answer = {"id": "approval-1", "approved": approved, "reason": "Not now."}
    assert view.answer == [STEP, text("May I?"), deletion(approval=answer, **end), STEP, text(last)]
    assert [message["id"] for message in view.messages] == [message["id"] for message in asked.messages]
    assert (view.status, view.statuses) == ("ready", [("POST", 200), ("POST", 200)])
    assert strict(visit.kept()) == strict(view.messages)

    turn = visit.seen()[-1]
    assert turn["continues"] == view.messages[-1]["id"]
    assert turn["approvals"] == [
        {
            "id": "approval-1",
            "call_id": "call-1",
            "tool": "delete",
            "input": {"file": "a.txt"},
            "approved": approved,
            "reason": "Not now.",
            "extra": None,
        }
    ]


@with_approvals
def test_a_page_goes_on_after_an_approval_that_nobody_answered(visit: Visit):
    page = visit.page(resubmits=APPROVALS)
    page.send("approval").settle()
    view = page.send("hello").settle()

    assert view.answer == [STEP, text("Answer 2 to hello.")]
    assert (view.status, view.statuses) == ("ready", [("POST", 200), ("POST", 200)])
    assert strict(visit.kept()) == strict(view.messages)
