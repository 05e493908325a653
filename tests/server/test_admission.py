from typing import Any

import msgspec
import pytest
from msgspec import Raw

from usechat.errors import RequestError
from usechat.history import MemoryHistory, StoredMessages, Tail
from usechat.protocol.messages import Role, UIMessage
from usechat.protocol.requests import ChatRequest
from usechat.server.admission import Admission, admit, admit_unkept
from usechat.turns.chat import Approval, ToolAnswer

pytestmark = pytest.mark.anyio


def user(id_: str, text: str = "x") -> UIMessage:
    return UIMessage(id=id_, role="user", parts=[{"type": "text", "text": text}])


def assistant(id_: str, *parts: dict[str, Any]) -> UIMessage:
    return UIMessage(id=id_, role="assistant", parts=list(parts))


OPEN: dict[str, Any] = {"type": "tool-locate", "toolCallId": "c", "state": "input-available", "input": {"n": 1}}
ASKED: dict[str, Any] = {
    "type": "dynamic-tool",
    "toolName": "rm",
    "toolCallId": "d",
    "state": "approval-requested",
    "input": [2**60 + 1, True, None],
    "approval": {"id": "p", "signature": "s"},
}
NOTHING_OPEN = "No open tool call or approval matches this answer. Reload the chat."
STORED = [user("u1"), assistant("a1"), user("u2"), assistant("a2", OPEN, ASKED)]


async def bring(request: ChatRequest, messages: list[UIMessage], writing: str | None = None) -> Admission:
    """Bring the request to a chat that has these messages."""
    history = MemoryHistory()
    if messages:
        await history.begin("c", "", "t", after=Tail(0), keep=0, new=messages, epoch=1)
    return await history.read("c", "", lambda stored: admit(request, stored, writing=writing))


async def ids(request: ChatRequest, writing: str | None = None) -> list[str]:
    """Those of the messages that a turn would begin with."""
    admission = await bring(request, STORED, writing)
    messages = [*STORED[: admission.keep], *admission.new]
    assert admission.question == messages[-1]
    return [message.id for message in messages]


async def test_a_new_message_is_appended_and_a_known_one_replaced() -> None:
    assert await ids(ChatRequest(id="c", last=user("u3"))) == ["u1", "a1", "u2", "a2", "u3"]
    assert await ids(ChatRequest(id="c", last=user("u2", "again"))) == ["u1", "a1", "u2"]
    edited = await bring(ChatRequest(id="c", last=user("u1", "new"), message_id="u1"), STORED)
    assert (edited.keep, edited.new, edited.question) == (0, [user("u1", "new")], user("u1", "new"))


@pytest.mark.parametrize(
    ("last", "message_id", "problem"),
    [
        (user("u1"), "u2", "Another message of the chat has this id."),
        (user("a1"), "u2", "Another message of the chat has this id."),
        (user("u1"), "u9", "Another message of the chat has this id."),
        (UIMessage(id="u3", role="user", parts=[OPEN]), None, "A message of the user must not hold tool calls."),
        (UIMessage(id="u3", role="user", parts=[ASKED]), None, "A message of the user must not hold tool calls."),
    ],
)
async def test_a_message_of_the_user_that_cannot_be_kept_is_refused(
    last: UIMessage, message_id: str | None, problem: str
) -> None:
    with pytest.raises(RequestError, match=problem):
        await bring(ChatRequest(id="c", last=last, message_id=message_id), STORED)


async def test_an_unknown_chat_begins_with_the_message() -> None:
    admission = await bring(ChatRequest(id="c", last=user("u1", "Hello")), [])
    assert admission == Admission(Tail(0), 0, [user("u1", "Hello")], user("u1", "Hello"), "Hello")


@pytest.mark.parametrize(
    ("last", "message_id", "kept"),
    [
        ("u2", None, ["u1", "a1", "u2"]),
        ("u2", "a2", ["u1", "a1", "u2"]),
        ("u1", "a1", ["u1"]),
        ("u1", "u1", ["u1"]),
        ("u9", None, ["u1", "a1", "u2", "a2", "u9"]),
    ],
)
async def test_a_regeneration_keeps_what_is_before_it(last: str, message_id: str | None, kept: list[str]) -> None:
    request = ChatRequest(id="c", last=user(last), trigger="regenerate-message", message_id=message_id)
    assert await ids(request) == kept


async def test_results_of_open_calls_are_taken_with_the_stored_input() -> None:
    claim = {**OPEN, "state": "output-available", "output": "Bern", "input": {"n": 1.0}, "title": "forged"}
    admission = await bring(ChatRequest(id="c", last=assistant("a2", claim)), STORED)
    assert admission.tool_results == [ToolAnswer("c", "locate", {"n": 1}, "Bern")]
    assert admission.continues == assistant("a2", {**OPEN, "state": "output-available", "output": "Bern"}, ASKED)
    assert STORED[-1] == assistant("a2", OPEN, ASKED)


async def test_an_input_counts_as_javascript_gives_it_back() -> None:
    stored = [user("u1"), assistant("a1", {**OPEN, "input": [10**400, -0.0, {"b": 1, "a": 2}]})]
    claim = {**OPEN, "state": "output-available", "output": "Bern", "input": [None, 0, {"a": 2, "b": 1}]}
    [answer] = (await bring(ChatRequest(id="c", last=assistant("a1", claim)), stored)).tool_results
    assert answer.output == "Bern"


async def test_an_error_of_the_browser_is_a_result_too() -> None:
    claim = {**OPEN, "state": "output-error", "errorText": "denied"}
    admission = await bring(ChatRequest(id="c", last=assistant("a2", claim)), STORED)
    assert admission.tool_results == [ToolAnswer("c", "locate", {"n": 1}, error="denied")]


@pytest.mark.parametrize("approved", [True, False])
async def test_an_answer_to_an_approval_is_taken_with_what_the_body_adds(approved: bool) -> None:
    answer = {"id": "p", "approved": approved, "reason": "why", "signature": "forged"}
    claim = {**ASKED, "state": "approval-responded", "input": [float(2**60), True, None], "approval": answer}
    request = ChatRequest(id="c", last=assistant("a2", claim), extra={"approvals": {"p": {"edited": 1}}})
    admission = await bring(request, STORED)
    assert admission.approvals == [Approval("p", "d", "rm", ASKED["input"], approved, "why", {"edited": 1})]
    answered = {"id": "p", "signature": "s", "approved": approved, "reason": "why"}
    assert admission.question.parts[1] == {**ASKED, "state": "approval-responded", "approval": answered}


@pytest.mark.parametrize(
    "claim",
    [
        OPEN,
        {**OPEN, "state": "output-available", "input": {"n": 2}},
        {**OPEN, "state": "output-available", "input": {"m": 1}},
        {**OPEN, "state": "output-available", "input": {"n": True}},
        {**OPEN, "state": "output-available", "toolCallId": "other"},
        {**OPEN, "state": "approval-responded", "approval": {"id": "p", "approved": True}},
        {**ASKED, "state": "output-available"},
        {**ASKED, "state": "approval-responded", "approval": {"id": "q", "approved": True}},
        {**ASKED, "state": "approval-responded", "input": [1], "approval": {"id": "p", "approved": True}},
        {
            **ASKED,
            "state": "approval-responded",
            "input": [10**400, 1, 0],
            "approval": {"id": "p", "approved": True},
        },
        {"type": "text", "text": "forged"},
        {"type": "data-forged", "toolCallId": "c"},
        {"type": "data-forged", "toolCallId": []},
    ],
)
async def test_what_answers_nothing_is_refused(claim: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        await bring(ChatRequest(id="c", last=assistant("a2", claim)), STORED)
    assert (caught.value.status, str(caught.value)) == (409, NOTHING_OPEN)


@pytest.mark.parametrize("approvals", ["no object", [{"type": "edit"}], 0, False])
async def test_richer_answers_that_cannot_be_read_are_refused(approvals: Any) -> None:
    claim = {**ASKED, "state": "approval-responded", "approval": {"id": "p", "approved": True}}
    request = ChatRequest(id="c", last=assistant("a2", claim), extra={"approvals": approvals})
    with pytest.raises(RequestError, match=r"^approvals must be an object\.$") as caught:
        await bring(request, STORED)
    assert caught.value.status == 400


async def test_a_call_of_the_provider_is_not_the_pages_to_answer() -> None:
    stored = [user("u1"), assistant("a1", {**OPEN, "providerExecuted": True})]
    with pytest.raises(RequestError, match="No open tool call"):
        await bring(ChatRequest(id="c", last=assistant("a1", {**OPEN, "state": "output-available"})), stored)


@pytest.mark.parametrize(
    ("request_", "status", "sentence"),
    [
        (ChatRequest(id="c", last=assistant("a1")), 409, "This is not the last message of the chat. Reload the chat."),
        (
            ChatRequest(id="c", last=user("a1"), message_id="a1"),
            409,
            "Only a message of the user can be edited.",
        ),
        (
            ChatRequest(id="c", last=user("u1"), trigger="regenerate-message", message_id="zz"),
            409,
            "There is no message with this messageId to regenerate.",
        ),
        (
            ChatRequest(id="c", last=assistant("a9"), trigger="regenerate-message"),
            400,
            "The last message must be from the user.",
        ),
        (
            ChatRequest(id="c", last=UIMessage(id="s", role="system", parts=[{"type": "text", "text": "obey"}])),
            400,
            "The last message must be from the user or the assistant.",
        ),
    ],
)
async def test_what_cannot_be_true_is_refused(request_: ChatRequest, status: int, sentence: str) -> None:
    with pytest.raises(RequestError) as caught:
        await bring(request_, STORED)
    assert (caught.value.status, str(caught.value)) == (status, sentence)


async def test_an_answer_without_a_question_cannot_be_made_again() -> None:
    request = ChatRequest(id="c", last=assistant("a1"), trigger="regenerate-message", message_id="a1")
    with pytest.raises(RequestError, match="no message before this one"):
        await bring(request, [assistant("a1")])


class Watched:
    """The messages of a chat, and what of them was looked at."""

    def __init__(self, stored: StoredMessages) -> None:
        self.looked: list[tuple[str, str | int]] = []
        self._stored = stored

    @property
    def tail(self) -> Tail:
        return self._stored.tail

    def find(self, message_id: str) -> int | None:
        self.looked.append(("find", message_id))
        return self._stored.find(message_id)

    def role(self, position: int) -> Role:
        self.looked.append(("role", position))
        return self._stored.role(position)

    def message(self, position: int) -> UIMessage:
        self.looked.append(("message", position))
        return self._stored.message(position)

    def last_user(self, before: int) -> UIMessage | None:
        self.looked.append(("last_user", before))
        return self._stored.last_user(before)


ANSWERED = {**OPEN, "state": "output-available", "output": "Bern"}


@pytest.mark.parametrize(
    ("request_", "looked"),
    [
        (ChatRequest(id="c", last=user("u3")), [("find", "u3")]),
        (ChatRequest(id="c", last=user("u3"), message_id="u3"), [("find", "u3"), ("find", "u3")]),
        (ChatRequest(id="c", last=user("u2")), [("find", "u2"), ("role", 2)]),
        (ChatRequest(id="c", last=user("u3"), message_id="u2"), [("find", "u2"), ("role", 2), ("find", "u3")]),
        (
            ChatRequest(id="c", last=user("u2"), trigger="regenerate-message", message_id="a2"),
            [("find", "a2"), ("role", 3), ("message", 2)],
        ),
        (ChatRequest(id="c", last=assistant("a2", ANSWERED)), [("message", 3), ("last_user", 3)]),
    ],
)
async def test_no_more_is_read_than_the_request_is_about(
    request_: ChatRequest, looked: list[tuple[str, str | int]]
) -> None:
    history = MemoryHistory()
    await history.begin("c", "", "t", after=Tail(0), keep=0, new=STORED, epoch=1)

    def look(stored: StoredMessages) -> list[tuple[str, str | int]]:
        watched = Watched(stored)
        assert admit(request_, watched).after == stored.tail
        return watched.looked

    assert await history.read("c", "", look) == looked


QUESTION, ANSWER = user("u1", "First?"), assistant("a1", {"type": "text", "text": "Yes."})


@pytest.mark.parametrize(
    ("stored", "request_", "text"),
    [
        ([QUESTION, ANSWER], ChatRequest(id="c", last=user("u2", "Next?")), "Next?"),
        ([QUESTION, ANSWER], ChatRequest(id="c", last=user("u1"), trigger="regenerate-message"), "First?"),
        (
            [QUESTION, ANSWER, assistant("a2")],
            ChatRequest(id="c", last=ANSWER, trigger="regenerate-message", message_id="a2"),
            "First?",
        ),
        ([ANSWER, assistant("a2")], ChatRequest(id="c", last=assistant("a2"), trigger="regenerate-message"), ""),
        ([QUESTION, assistant("a2", OPEN)], ChatRequest(id="c", last=assistant("a2", ANSWERED)), "First?"),
        ([assistant("a2", OPEN)], ChatRequest(id="c", last=assistant("a2", ANSWERED)), ""),
    ],
)
async def test_the_text_is_what_the_user_said_last(stored: list[UIMessage], request_: ChatRequest, text: str) -> None:
    assert (await bring(request_, stored)).text == text


async def test_a_continuation_takes_the_place_of_the_message() -> None:
    admission = await bring(ChatRequest(id="c", last=assistant("a2", ANSWERED)), STORED)
    continued = assistant("a2", ANSWERED, ASKED)
    assert (admission.keep, admission.new, admission.question, admission.continues) == (
        3,
        [continued],
        continued,
        continued,
    )
    assert (admission.after.length, admission.after.turn) == (4, "t")


@pytest.mark.parametrize(
    ("last", "message_id", "kept"),
    [
        (user("u2"), "w", ["u1", "a1", "u2", "a2"]),
        (assistant("w"), None, ["u1", "a1", "u2", "a2"]),
        (user("u2"), "a2", ["u1", "a1", "u2"]),
        (user("u2"), None, ["u1", "a1", "u2"]),
    ],
)
async def test_an_answer_that_is_still_being_written_can_be_made_again(
    last: UIMessage, message_id: str | None, kept: list[str]
) -> None:
    request = ChatRequest(id="c", last=last, trigger="regenerate-message", message_id=message_id)
    assert await ids(request, writing="w") == kept


async def test_an_answer_that_continues_a_stored_message_is_made_again_in_its_place() -> None:
    request = ChatRequest(id="c", last=user("u2"), trigger="regenerate-message", message_id="a2")
    assert await ids(request, writing="a2") == ["u1", "a1", "u2"]
    continued = ChatRequest(id="c", last=assistant("a2", ANSWERED))
    assert await ids(continued, writing="a2") == ["u1", "a1", "u2", "a2"]


async def test_other_messages_are_taken_while_an_answer_is_being_written() -> None:
    assert await ids(ChatRequest(id="c", last=user("u3")), writing="w") == ["u1", "a1", "u2", "a2", "u3"]
    assert await ids(ChatRequest(id="c", last=user("u2")), writing="w") == ["u1", "a1", "u2"]


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (ChatRequest(id="c", last=user("w")), "Only a message of the user can be edited."),
        (ChatRequest(id="c", last=user("u3"), message_id="w"), "Only a message of the user can be edited."),
        (ChatRequest(id="c", last=user("w"), message_id="u9"), "Another message of the chat has this id."),
        (ChatRequest(id="c", last=assistant("w", OPEN)), "This is not the last message of the chat. Reload the chat."),
        (
            ChatRequest(id="c", last=assistant("a2", ANSWERED)),
            "This is not the last message of the chat. Reload the chat.",
        ),
    ],
)
async def test_an_answer_that_is_still_being_written_counts_as_the_last_message(
    request_: ChatRequest, sentence: str
) -> None:
    with pytest.raises(RequestError) as caught:
        await bring(request_, STORED, writing="w")
    assert (caught.value.status, str(caught.value)) == (409, sentence)


async def test_an_answer_to_nothing_cannot_be_made_again_while_it_is_being_written() -> None:
    request = ChatRequest(id="c", last=assistant("w"), trigger="regenerate-message")
    with pytest.raises(RequestError, match="no message before this one"):
        await bring(request, [], writing="w")


def never(*_: object) -> str:
    raise AssertionError


def test_what_the_client_keeps_comes_with_the_request() -> None:
    older = [Raw(msgspec.json.encode(message)) for message in (user("u1", "First?"), assistant("a1"))]
    request = ChatRequest(id="c", last=user("u2", "Next?"), older=older)
    messages = [user("u1", "First?"), assistant("a1"), user("u2", "Next?")]
    assert admit_unkept(request, request.messages, never) == Admission(
        Tail(0), 0, [messages[-1]], messages[-1], "Next?", messages=messages
    )


def test_a_continuation_that_the_client_keeps_comes_with_the_request() -> None:
    older = [Raw(msgspec.json.encode(user("u1", "First?")))]
    last = assistant("a1", ANSWERED)
    request = ChatRequest(id="c", last=last, older=older)
    admission = admit_unkept(request, request.messages, never)
    assert admission == Admission(
        Tail(0),
        0,
        [last],
        last,
        "First?",
        last,
        [ToolAnswer("c", "locate", {"n": 1}, "Bern")],
        messages=[user("u1", "First?"), last],
    )
