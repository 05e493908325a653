from types import SimpleNamespace
from typing import Any

from usechat.integrations.google_adk.session import add_what_is_missing, begins, edit, open_calls, valid
from usechat.turns.chat import Approval

CALL = {"id": "call", "name": "pay", "args": {"amount": 1}}


def event(
    author: str, invocation: str, *, text: str = "", call: Any = None, answer: Any = None, before: Any = None
) -> Any:
    part = SimpleNamespace(
        text=text,
        function_call=SimpleNamespace(**call) if call else None,
        function_response=SimpleNamespace(**answer) if answer else None,
    )
    return SimpleNamespace(
        author=author,
        invocation_id=invocation,
        branch=None,
        content=SimpleNamespace(parts=[part]),
        actions=SimpleNamespace(rewind_before_invocation_id=before),
    )


def test_a_rewind_takes_back_what_it_names_and_all_that_follows() -> None:
    first, second, third = event("user", "1"), event("user", "2"), event("user", "3")
    assert valid([first, second, third, event("user", "4", before="2")]) == [first]
    assert valid([first, event("user", "2", before="gone"), second]) == [first, second]


def test_the_messages_of_the_user_are_counted_and_not_the_answers_to_calls() -> None:
    events = [
        event("user", "1", text="Hello"),
        event("main", "1", call=CALL),
        event("user", "1", answer={"id": "call", "name": "pay"}),
        event("user", "", text="what ADK tells a sub-agent"),
        event("user", "2", text="Hello again"),
        event("user", "2", answer={"id": "question", "name": "adk_request_input"}),
    ]
    assert begins(events) == [0, 4, 5]


def test_a_call_that_was_cut_off_gets_a_result_and_the_text_that_was_seen_stays() -> None:
    events = [event("user", "1", text="Pay"), event("main", "1", call=CALL)]
    assert [call.id for _, call in open_calls(events)] == ["call"]
    text, result = add_what_is_missing(events, {"author": "main", "text": ["This is ", "the beginning"]})
    assert text == {
        "invocationId": "1",
        "author": "main",
        "content": {"role": "model", "parts": [{"text": "This is the beginning"}]},
    }
    [part] = result["content"]["parts"]
    assert (part["functionResponse"]["id"], list(part["functionResponse"]["response"])) == ("call", ["error"])
    seen = [*events, event("main", "1", text="This is the beginning")]
    assert len(list(add_what_is_missing(seen, {"author": "main", "text": ["This is ", "the beginning"]}))) == 1
    answered = [*events, event("main", "1", answer={"id": "call", "name": "pay"})]
    assert list(add_what_is_missing(answered, {})) == []


def test_an_edit_changes_the_call_and_the_question_about_it() -> None:
    asked = {"id": "question", "name": "adk_request_confirmation", "args": {"originalFunctionCall": dict(CALL)}}
    events = [event("main", "1", call=dict(CALL)), event("main", "1", call=asked)]
    approval = Approval("question", "call", "pay", {"amount": 1}, approved=True)
    assert edit(events, [approval]) is False
    edited = Approval("question", "call", "pay", {"amount": 1}, approved=True, extra={"input": {"amount": 2}})
    assert edit(events, [edited]) is True
    call, question = [one.content.parts[0].function_call for one in events]
    assert (call.args, question.args["originalFunctionCall"]["args"]) == ({"amount": 2}, {"amount": 2})
