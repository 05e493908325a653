"""What the page of every client shows, and what the server keeps, when an agent answers, fails or is asked again."""

from typing import Any, Final

import pytest

from agents import SECRET
from backend import ANN, BOB, BODY_LIMIT
from pages import Message, Server, Visit, without_reasoning_id
from promises import PROMISES, V7
from same_json import strict
from usechat.protocol.clients import ClientName

pytest_plugins = ["served"]

STEP: Final[Message] = {"type": "step-start"}
EVERYTHING: Final[list[Message]] = [
    STEP,
    {"type": "reasoning", "text": "Let me see.", "state": "done"},
    {"type": "text", "text": "I look it up.", "state": "done"},
    {
        "type": "tool-weather",
        "toolCallId": "call-1",
        "state": "output-available",
        "input": {"city": "Paris"},
        "output": {"degrees": 21.5},
    },
    STEP,
    {
        "type": "tool-traffic",
        "toolCallId": "call-2",
        "state": "output-error",
        "input": {"road": "A4"},
        "errorText": "The road is closed.",
    },
    {"type": "source-url", "sourceId": "source-1", "url": "https://example.com/a", "title": "A"},
    {
        "type": "source-document",
        "sourceId": "source-2",
        "mediaType": "application/pdf",
        "title": "Report",
        "filename": "report.pdf",
    },
    {"type": "file", "mediaType": "text/plain", "url": "data:text/plain;base64,aGk="},
    {"type": "data-progress", "id": "p", "data": {"done": 2}},
    STEP,
    {"type": "text", "text": "It is warm.", "state": "done"},
]
FAILED: Final[list[Message]] = [
    STEP,
    {"type": "reasoning", "text": "Let me see.", "state": "done"},
    {"type": "text", "text": "It begins well, ", "state": "done"},
    {
        "type": "tool-weather",
        "toolCallId": "call-1",
        "state": "output-error",
        "input": {"city": "Paris"},
        "errorText": "The call was cut off by an error.",
    },
    # With the failed call in its last step, a page would post again.
    STEP,
]


def said(text: str) -> list[Message]:
    return [STEP, {"type": "text", "text": text, "state": "done"}]


def texts(messages: list[Message]) -> list[str]:
    return ["".join(part.get("text", "") for part in message["parts"]) for message in messages]


def test_a_text_arrives_and_is_kept(visit: Visit):
    view = visit.page().send("hello").settle()

    question, answer = view.messages
    assert question == {"id": question["id"], "role": "user", "parts": [{"type": "text", "text": "hello"}]}
    assert answer == {"id": answer["id"], "role": "assistant", "parts": said("Answer 1 to hello.")}
    assert (view.status, view.error, view.statuses) == ("ready", None, [("POST", 200)])
    assert strict(visit.kept()) == strict(view.messages)
    assert visit.server.ends(answer["id"]) == ["done"]


def test_whatever_an_agent_can_say_arrives_and_is_kept(visit: Visit):
    view = visit.page().send("everything").settle()

    assert [without_reasoning_id(part) for part in view.answer] == EVERYTHING
    assert view.messages[-1]["metadata"] == {"model": "m-1", "tokens": 12}
    assert view.data == [
        {"type": "data-progress", "id": "p", "data": {"done": 1}},
        {"type": "data-progress", "id": "p", "data": {"done": 2}},
        {"type": "data-toast", "data": "Saved.", "transient": True},
    ]
    assert view.tool_calls == ["call-1", "call-2"]
    assert (view.status, view.error, view.statuses) == ("ready", None, [("POST", 200)])
    assert strict(visit.kept()) == strict(view.messages)


@pytest.mark.parametrize(
    ("visit", "profile"),
    [(client, profile) for profile, clients in PROMISES.items() for client in clients if profile != "portable"],
    indirect=["visit"],
)
def test_every_profile_is_served_to_the_clients_that_it_promises(visit: Visit, profile: ClientName):
    visit.profile = profile
    view = visit.page().send("everything").settle()

    assert [without_reasoning_id(part) for part in view.answer] == EVERYTHING
    assert (view.status, view.error) == ("ready", None)
    assert strict(visit.kept()) == strict(view.messages)


def test_a_page_goes_on_after_an_answer(visit: Visit):
    page = visit.page()
    page.send("one").settle()
    view = page.send("two").settle()

    assert texts(view.messages) == ["one", "Answer 1 to one.", "two", "Answer 2 to two."]
    assert visit.seen()[-1]["messages"] == ["one", "Answer 1 to one.", "two"]
    assert strict(visit.kept()) == strict(view.messages)


def test_a_failing_agent_ends_the_turn_with_a_masked_error(visit: Visit):
    view = visit.page().send("failure").settle()

    assert view.status == "error"
    assert view.error is not None
    assert view.error.startswith("Something went wrong. (Error ")
    assert [without_reasoning_id(part) for part in view.answer] == FAILED
    assert view.statuses == [("POST", 200)]
    assert strict(visit.kept()) == strict(view.messages)
    assert visit.server.ends(view.messages[-1]["id"]) == ["error"]


def test_a_page_regenerates_the_last_answer(visit: Visit):
    page = visit.page()
    page.send("one").settle()
    first = page.send("two").settle()
    view = page.regenerate().settle()

    assert texts(view.messages) == ["one", "Answer 1 to one.", "two", "Answer 3 to two."]
    assert view.messages[:3] == first.messages[:3]
    assert view.messages[3]["id"] != first.messages[3]["id"]
    assert visit.seen()[-1]["trigger"] == "regenerate-message"
    assert visit.seen()[-1]["messages"] == ["one", "Answer 1 to one.", "two"]
    assert (view.status, len(view.requests)) == ("ready", 3)
    assert strict(visit.kept()) == strict(view.messages)


@pytest.mark.parametrize("message", [0, 1])
def test_a_page_regenerates_an_earlier_answer(visit: Visit, message: int):
    page = visit.page()
    page.send("one").settle()
    first = page.send("two").settle()
    view = page.regenerate(first.messages[message]["id"]).settle()

    assert texts(view.messages) == ["one", "Answer 3 to one."]
    assert visit.seen()[-1]["messages"] == ["one"]
    assert strict(visit.kept()) == strict(view.messages)


def test_an_edited_message_takes_the_place_of_everything_after_it(visit: Visit):
    page = visit.page()
    page.send("one").settle()
    first = page.send("two").settle()
    view = page.send("three", message_id=first.messages[0]["id"]).settle()

    assert texts(view.messages) == ["three", "Answer 3 to three."]
    assert view.messages[0]["id"] == first.messages[0]["id"]
    assert visit.seen()[-1]["messages"] == ["three"]
    assert (view.status, len(view.requests)) == ("ready", 3)
    assert strict(visit.kept()) == strict(view.messages)


def test_a_page_that_sends_only_its_last_message_is_served_alike(visit: Visit):
    page = visit.page(last_only=True)
    page.send("one").settle()
    page.send("two").settle()
    view = page.regenerate().settle()

    assert texts(view.messages) == ["one", "Answer 1 to one.", "two", "Answer 3 to two."]
    assert visit.seen()[-1]["messages"] == ["one", "Answer 1 to one.", "two"]
    assert strict(visit.kept()) == strict(view.messages)


def refused(visit: Visit, error: str, status: int, **options: Any) -> None:
    view = visit.page(**options).send("hello").settle()
    assert (view.status, view.error, view.statuses) == ("error", error, [("POST", status)])
    assert texts(view.messages) == ["hello"]


def test_a_page_that_is_not_signed_in_reads_so(visit: Visit):
    visit.endpoint = "users"
    refused(visit, "You are not signed in.", 401)
    refused(visit, "You are not signed in.", 401, token="wrong")  # noqa: S106
    assert visit.seen() == []


def test_a_chat_of_somebody_else_is_not_there(visit: Visit):
    visit.endpoint = "users"
    view = visit.page(token=ANN).send("hello").settle()
    refused(visit, "There is no such chat.", 404, token=BOB)

    assert [turn["user"] for turn in visit.seen()] == ["ann"]
    assert strict(visit.kept(ANN)) == strict(view.messages)


def test_a_second_message_is_rejected_while_an_answer_is_written(visit: Visit):
    visit.endpoint = "reject"
    first = visit.page().send("hold").until("One")
    refused(visit, "An answer is still being written in this chat.", 409)
    visit.let_go()
    view = first.settle()

    assert texts(view.messages) == ["hold", "One, two."]
    assert strict(visit.kept()) == strict(view.messages)


def test_a_second_message_takes_the_place_of_an_answer_that_is_being_written(visit: Visit):
    first = visit.page().send("hold").until("One")
    second = visit.page(visit.kept()).send("hello").settle()
    view = first.settle()

    assert (view.status, view.error, view.answer) == ("ready", None, said("One, "))
    assert (second.status, second.answer) == ("ready", said("Answer 2 to hello."))
    assert strict(visit.kept()) == strict([*view.messages, *second.messages[1:]])
    assert visit.server.ends(view.messages[-1]["id"]) == ["stopped"]


def test_a_message_that_is_too_large_is_refused(visit: Visit):
    visit.endpoint = "small"
    view = visit.page().send("x" * BODY_LIMIT).settle()

    assert (view.status, view.error) == ("error", "The body is larger than 2,000 bytes.")
    assert view.statuses == [("POST", 413)]
    assert visit.seen() == []


@pytest.mark.parametrize("visit", [V7], indirect=True)
def test_a_message_that_is_too_large_by_default_is_refused(visit: Visit):
    view = visit.page().send("x" * (10 * 1024 * 1024)).settle()

    assert (view.status, view.error) == ("error", "The body is larger than 10,485,760 bytes.")
    assert view.statuses == [("POST", 413)]
    assert visit.seen() == []


def test_the_wire_never_carries_the_text_of_an_exception(server: Server):
    question = {"id": "m", "role": "user", "parts": [{"type": "text", "text": "failure"}]}
    wire = server.http.post("/portable/plain", json={"id": "failure", "messages": [question]}).text

    assert SECRET not in wire
    assert "ValueError" not in wire
