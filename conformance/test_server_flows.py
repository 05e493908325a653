"""Open Harness flows on the pages of every client, served by the transport."""

from typing import Any, Final

import pytest

from agents import SECRET
from pages import Message, Visit
from same_json import strict

pytest_plugins = ["served"]

STEP: Final[Message] = {"type": "step-start"}


@pytest.fixture(autouse=True)
def _flow(visit: Visit) -> None:
    visit.endpoint = "flow"


def text(said: str, state: str = "done") -> Message:
    return {"type": "text", "text": said, "state": state}


def shown(parts: list[Message]) -> list[Message]:
    """The parts without data and ids."""
    return [
        {name: value for name, value in part.items() if name not in ("id", "toolCallId")}
        for part in parts
        if not part["type"].startswith("data-")
    ]


def search(query: str, **fields: Any) -> Message:
    return {"type": "tool-search", "input": {"query": query}, **fields}


def research(query: str) -> list[Message]:
    return [
        STEP,
        {"type": "reasoning", "text": "Let me see.", "state": "done"},
        search(query, state="output-available", output=["tides"]),
        STEP,
        search("moon", state="output-error", errorText="no moon"),
    ]


def data(parts: list[Message], name: str) -> list[Any]:
    return [part["data"] for part in parts if part["type"] == f"data-{name}"]


def test_a_page_shows_thinking_tools_text_and_a_step_for_each_node(visit: Visit):
    view = visit.page().send("go").settle()
    assert view.status == "ready"
    assert shown(view.answer) == [
        *research("go"),
        STEP,
        text("The sea rises."),
        STEP,
        text("In short: The sea rises."),
    ]
    assert data(view.answer, "flow-status") == [{"status": "complete", "flowName": "research"}]
    assert [(node["nodeId"], node["status"]) for node in data(view.answer, "node")] == [
        ("researcher", "complete"),
        ("asker", "skipped"),
        ("summarizer", "complete"),
    ]
    assert [output["nodeId"] for output in data(view.answer, "node-output")] == ["researcher", "summarizer"]
    calls = [part["toolCallId"] for part in view.answer if "toolCallId" in part]
    assert len(set(calls)) == 2
    assert view.messages[-1]["metadata"]["numTurns"] == 2
    assert strict(visit.kept()) == strict(view.messages)


def test_a_flow_that_fails_shows_a_friendly_error_and_what_it_did(visit: Visit):
    view = visit.page().send("fail").settle()
    assert (view.status, view.error) == ("error", "Something went wrong, and the run could not be finished.")
    assert shown(view.answer) == [*research("fail"), STEP]
    assert data(view.answer, "agent-error")[0]["message"] == "Something went wrong while the agent was working."
    assert data(view.answer, "flow-status") == [{"status": "failed", "flowName": "research"}]
    assert SECRET not in repr(view)


def test_a_stop_ends_the_flow_and_the_next_message_runs_it_anew(visit: Visit):
    page = visit.page().send(f"hold {visit.chat}").until("The sea rises.")
    page.stop().settle()
    assert visit.stop() == 204
    assert data(visit.kept()[-1]["parts"], "flow-status") == [{"status": "running", "flowName": "research"}]
    view = page.send("go").settle()
    assert view.status == "ready"
    assert shown(view.answer)[-1] == text("In short: The sea rises.")


def test_a_page_that_comes_back_sees_the_whole_run(visit: Visit):
    page = visit.page().send(f"hold {visit.chat}").until("The sea rises.")
    page.cut()
    tab = visit.page(visit.kept()).resume().until("The sea rises.")
    visit.let_go()
    view = tab.settle()
    assert view.status == "ready"
    assert shown(view.answer)[-1] == text("In short: The sea rises.")
    assert strict(visit.kept()) == strict(view.messages)


def test_a_paused_flow_goes_on_with_the_next_message(visit: Visit):
    page = visit.page()
    asked = page.send("ask").settle()
    assert asked.status == "ready"
    assert shown(asked.answer)[-1] == text("Which sea?")
    assert data(asked.answer, "flow-status") == [{"status": "paused", "flowName": "research"}]
    view = page.send("Baltic").settle()
    assert view.status == "ready"
    assert shown(view.answer) == [STEP, text("The Baltic."), STEP, text("In short: The sea rises.")]
    assert data(view.answer, "flow-status") == [{"status": "complete", "flowName": "research"}]


def test_regenerating_runs_the_flow_anew(visit: Visit):
    page = visit.page()
    page.send("ask").settle()
    view = page.regenerate().settle()
    assert (view.status, shown(view.answer)[-1]) == ("ready", text("Which sea?"))
    assert len(view.messages) == 2
