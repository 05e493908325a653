"""Turns that go on without their page: stopped, left, taken up again, and read in several tabs."""

import json
import secrets
from itertools import takewhile
from typing import Final

import pytest

from pages import Endpoint, Message, Server, Visit, without_reasoning_id
from promises import PINNED, V5, V6, V7, release_of
from same_json import strict

pytest_plugins = ["served"]

APPROVALS: Final = "lastAssistantMessageIsCompleteWithApprovalResponses"
TOOLS: Final = "lastAssistantMessageIsCompleteWithToolCalls"
STEP: Final[Message] = {"type": "step-start"}
HELD: Final[list[Message]] = [
    STEP,
    {"type": "reasoning", "text": "First second.", "state": "done"},
    {"type": "data-progress", "id": "p", "data": 2},
    {
        "type": "tool-weather",
        "toolCallId": "call-1",
        "state": "output-available",
        "input": {"city": "Paris"},
        "output": "warm",
    },
    STEP,
    {"type": "text", "text": "Third fourth.", "state": "done"},
]
# What the page shows when the agent waits for the first, second … time.
SHOWN: Final = ['"assistant"', "First", '"Pa"', '"cold"', "Third"]
# The chat class of each client, then `useChat` of releases of @ai-sdk/react, without or with a chat object of the
# page's own: does an open page that resumes begin the message anew? If not, it adds the replay to what it has.
RESUMING: Final = [
    *((client, None, False, client in (V6, V7)) for client in PINNED),
    (V5, "2.0.280", False, False),
    (V6, "3.0.323", False, False),
    (V6, "3.0.323", True, True),
    (V7, "4.0.140", False, False),
    (V7, "4.0.140", True, True),
    (V7, "4.0.141", False, True),
    (V7, "4.0.167", False, True),
]


def said(text: str, state: str = "done") -> list[Message]:
    return [STEP, {"type": "text", "text": text, "state": state}]


def chunks(sse: str) -> list[Message]:
    lines = [line.removeprefix("data: ") for line in sse.splitlines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def test_stop_cancels_the_agent_and_keeps_what_it_said(visit: Visit):
    page = visit.page().send("hold").until("One")
    message_id = page.look().messages[-1]["id"]
    tab = visit.page(visit.kept()).resume().until("One")
    with visit.server.http.stream("GET", f"{visit.path}/{visit.chat}/stream") as log:
        left = page.stop().settle()
        assert (left.status, left.answer) == ("ready", said("One, ", "streaming"))
        assert "cancelled" not in visit.seen()

        assert visit.stop() == 204
        assert chunks(log.read().decode())[-2:] == [{"type": "finish-step"}, {"type": "abort"}]

    assert visit.seen()[-1] == "cancelled"
    assert visit.server.ends(message_id) == ["stopped"]
    view = tab.settle()
    assert (view.status, view.answer) == ("ready", said("One, "))
    assert strict(visit.kept()) == strict(view.messages)
    assert visit.stop() == 204


def test_a_page_goes_on_after_a_stop(visit: Visit):
    page = visit.page().send("hold").until("One")
    page.stop().settle()
    visit.stop()
    view = page.send("hello").settle()

    assert (view.status, view.answer) == ("ready", said("Answer 2 to hello."))
    assert [message["id"] for message in visit.kept()] == [message["id"] for message in view.messages]


def test_event_names_change_nothing_for_a_page_and_for_one_that_comes_back(visit: Visit):
    visit.endpoint = "named"
    page = visit.page().send("hold").until("One")
    with visit.server.http.stream("GET", f"{visit.path}/{visit.chat}/stream") as replayed:
        visit.let_go()
        names = [line for line in replayed.iter_lines() if line.startswith("event: ")]
    assert (names[0], names[-1]) == ("event: message-start", "event: message-finish")
    view = page.settle()
    assert (view.status, view.answer) == ("ready", said("One, two."))
    assert strict(visit.kept()) == strict(view.messages)


@pytest.mark.parametrize("endpoint", ["plain", "reject"])
@pytest.mark.parametrize("by_id", [True, False])
def test_a_page_stops_and_regenerates_what_the_server_still_writes(visit: Visit, endpoint: Endpoint, by_id: bool):
    visit.endpoint = endpoint
    page = visit.page().send("hold").until("One")
    partial = page.look().messages[-1]["id"]
    page.stop().settle()
    assert "cancelled" not in visit.seen()

    page.regenerate(partial if by_id else None).until("One")
    assert visit.seen()[1:] == ["cancelled", visit.seen()[0] | {"trigger": "regenerate-message"}]
    visit.let_go()
    view = page.settle()
    assert (view.status, view.answer, view.statuses) == ("ready", said("One, two."), [("POST", 200), ("POST", 200)])
    assert strict(visit.kept()) == strict(view.messages)
    assert visit.server.ends(partial) == ["stopped"]


def test_a_stop_for_an_older_turn_leaves_the_newer_one_alone(visit: Visit):
    page = visit.page().send("hold").until("One")
    old = page.look().requests[0].turn
    visit.let_go()
    page.settle()
    page.send("hold").until("One")
    assert visit.stop(old) == 204
    visit.let_go()

    view = page.settle()
    assert view.answer == said("One, two.")
    assert visit.server.ends(view.messages[-1]["id"]) == ["done"]
    assert strict(visit.kept()) == strict(view.messages)


def test_a_stop_for_the_running_turn_stops_it(visit: Visit):
    page = visit.page().send("hold").until("One")
    assert visit.stop(page.look().requests[0].turn) == 204

    view = page.settle()
    assert (view.status, view.answer) == ("ready", said("One, "))
    assert visit.server.ends(view.messages[-1]["id"]) == ["stopped"]
    assert strict(visit.kept()) == strict(view.messages)


def test_a_turn_that_does_not_linger_ends_with_its_last_page(visit: Visit):
    visit.endpoint = "hasty"
    page = visit.page().send("hold").until("One")
    message_id = page.look().messages[-1]["id"]
    page.cut()

    assert visit.server.ends(message_id) == ["stopped"]
    assert visit.seen()[-1] == "cancelled"
    assert visit.kept()[-1]["parts"] == said("One, ")


@pytest.mark.parametrize("cut", range(5))
def test_who_comes_back_ends_with_the_message_of_one_who_never_left(visit: Visit, cut: int):
    page = visit.page().send("hold everywhere")
    visit.let_go(cut)
    message_id = page.until(SHOWN[cut]).look().messages[-1]["id"]
    page.cut()

    loaded = visit.kept()
    assert [message["role"] for message in loaded] == ["user"]
    back = visit.page(loaded).resume().until(SHOWN[cut])
    visit.let_go(5 - cut)

    view = back.settle()
    assert [without_reasoning_id(part) for part in view.answer] == HELD
    assert view.messages[-1]["metadata"] == {"tokens": 12}
    assert (view.status, view.error, view.statuses) == ("ready", None, [("GET", 200)])
    assert view.messages[-1]["id"] == message_id
    assert strict(visit.kept()) == strict(view.messages)
    assert visit.server.ends(message_id) == ["done"]


@pytest.mark.parametrize(("visit", "hook", "own_chat", "anew"), RESUMING, indirect=["visit"])
def test_an_open_page_that_resumes_begins_the_message_anew_or_adds_to_it(
    visit: Visit, hook: str | None, own_chat: bool, anew: bool
):
    page = visit.page(hook=hook, own_chat=own_chat).send("hold everywhere")
    visit.let_go()
    page.until(SHOWN[1]).cut()
    assert page.settle().error == "network error"
    visit.let_go()
    page.resume().until(SHOWN[2])
    visit.let_go(3)

    view = page.settle()
    had: list[Message] = [STEP, {"type": "reasoning", "text": "First ", "state": "streaming"}]
    assert [without_reasoning_id(part) for part in view.answer] == (HELD if anew else [*had, *HELD])
    assert (view.status, view.error, view.statuses) == ("ready", None, [("POST", 200), ("GET", 200)])


def test_two_tabs_read_one_turn(visit: Visit):
    page = visit.page().send("hold everywhere")
    visit.let_go(3)
    page.until(SHOWN[3])
    tab = visit.page(visit.kept()).resume().until(SHOWN[3])
    visit.let_go(2)

    first, second = page.settle(), tab.settle()
    assert [without_reasoning_id(part) for part in first.answer] == HELD
    assert strict(second.messages) == strict(first.messages) == strict(visit.kept())
    assert (first.statuses, second.statuses) == ([("POST", 200)], [("GET", 200)])


def test_there_is_nothing_to_resume(visit: Visit):
    # 5.0.0 shows for ever that it waits.
    ready = "submitted" if visit.client == "5.0.0" else "ready"
    new = visit.page().resume().done()
    assert (new.status, new.error, new.messages, new.statuses) == (ready, None, [], [("GET", 204)])

    view = visit.page().send("hello").settle()
    later = visit.page(visit.kept()).resume().done()
    assert (later.status, later.error, later.statuses) == (ready, None, [("GET", 204)])
    assert later.messages == view.messages


def test_who_comes_back_to_a_message_that_goes_on_sees_all_of_it(visit: Visit):
    page = visit.page(resubmits=TOOLS)
    page.send("browser tool and hold").settle()
    page.answer_tool("call-1", output="here").until("You are").cut()

    loaded = visit.kept()
    back = visit.page(loaded, resubmits=TOOLS).resume().until("You are")
    visit.let_go()

    view = back.settle()
    assert view.answer == [
        STEP,
        {"type": "text", "text": "Where are you?", "state": "done"},
        {
            "type": "tool-location",
            "toolCallId": "call-1",
            "state": "output-available",
            "input": {"precise": True},
            "output": "here",
        },
        *said("You are there."),
    ]
    assert (view.status, view.statuses) == ("ready", [("GET", 200)])
    assert strict(visit.kept()) == strict(view.messages)


@pytest.mark.parametrize("visit", [client for client in PINNED if release_of(client).major >= 6], indirect=True)
def test_who_comes_back_after_an_approval_sees_what_became_of_it(visit: Visit):
    visit.profile = "v6" if release_of(visit.client).major == 6 else "v7"
    page = visit.page(resubmits=APPROVALS)
    page.send("approval and hold").settle()
    page.answer_approval("approval-1", approved=True).until("I ask.").cut()

    loaded = visit.kept()
    back = visit.page(loaded, resubmits=APPROVALS).resume().until("I ask.")
    visit.let_go()

    view = back.settle()
    # No chunk of v6 tells what was answered.
    answer = {"id": "approval-1", "approved": True} if visit.profile == "v7" else {"id": "approval-1"}
    deletion = {"type": "tool-delete", "toolCallId": "call-1", "input": {"file": "a.txt"}, "approval": answer}
    assert view.answer == [
        STEP,
        {"type": "text", "text": "May I?", "state": "done"},
        {**deletion, "state": "output-available", "output": "deleted"},
        {"type": "data-note", "data": "I ask."},
        *said("It is gone."),
    ]
    assert (view.status, view.statuses) == ("ready", [("GET", 200)])


@pytest.mark.parametrize("by_header", [False, True])
def test_a_client_that_counts_reads_on_where_it_was(server: Server, by_header: bool):
    chat = secrets.token_hex(8)
    question = {"id": "q", "role": "user", "parts": [{"type": "text", "text": "hold"}]}
    body = {"id": chat, "messages": [question]}
    with server.http.stream("POST", "/portable/plain", json=body) as log:
        lines = log.iter_lines()
        begun = list(takewhile(lambda line: "One" not in line, lines))
        mark = begun[-1].removeprefix("id: ").removesuffix(".4")
        headers = {"last-event-id": f"{mark}.3"} if by_header else {}
        query = "" if by_header else f"?after={mark}.3"
        with server.http.stream("GET", f"/portable/plain/{chat}/stream{query}", headers=headers) as tab:
            server.let_go(chat)
            read_on = tab.read().decode().split("\n")
        rest = list(lines)
    assert read_on[0] == begun[-1] == f"id: {mark}.4"
    assert read_on[2:-1] == rest


def test_an_index_of_another_turn_is_not_taken_for_one_of_this(server: Server):
    chat = secrets.token_hex(8)
    question = {"id": "q", "role": "user", "parts": [{"type": "text", "text": "hold"}]}
    with server.http.stream("POST", "/portable/plain", json={"id": chat, "messages": [question]}) as log:
        lines = log.iter_lines()
        list(takewhile(lambda line: "One" not in line, lines))
        with server.http.stream("GET", f"/portable/plain/{chat}/stream?after=00000000.3") as tab:
            server.let_go(chat)
            read_on = tab.read().decode()
    assert '{"type":"start"' in read_on
