"""What first class means, row by row, for the agent of each framework and the chat classes of real clients."""

import json
from typing import Any

import pytest

from pages import Message
from provider import USED
from talks import STEP, Served, Talk, calls, shown, text, until
from usechat.protocol.clients import ClientName
from usechat.protocol.verdict import judge, recorded_events

APPROVALS = "lastAssistantMessageIsCompleteWithApprovalResponses"
TOOLS = "lastAssistantMessageIsCompleteWithToolCalls"
PNG = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def chunks(talk: Talk, words: str, client: ClientName = "latest") -> list[dict[str, Any]]:
    """The chunks of an answer as they stand on the wire, which is legal."""
    body = {"id": talk.chat, "message": {"id": "u1", "role": "user", "parts": [{"type": "text", "text": words}]}}
    answer = talk.server.http.post(f"/{client}/agent", json=body)
    assert answer.status_code == 200, answer.text
    assert judge(recorded_events(answer.content), client).violation is None
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def weather(number: int, city: str) -> Message:
    return {
        "type": "tool-get_weather",
        "toolCallId": f"call_{number}",
        "state": "output-available",
        "input": {"city": city},
        "output": {"city": city, "celsius": 21},
    }


@pytest.mark.row("text")
def test_text_arrives_once(talk: Talk) -> None:
    view = talk.say("hello")
    assert (view.status, shown(view)) == ("ready", [STEP, text("You said: hello")])


@pytest.mark.row("text")
def test_text_is_shown_while_it_is_made(talk: Talk) -> None:
    page = talk.page()
    page.send("hang").until("This is the beginning")
    talk.stop()
    assert page.settle().status == "ready"


@pytest.mark.row("reasoning")
def test_reasoning_is_a_part_before_the_text(talk: Talk) -> None:
    view = talk.say("think")
    kinds = [(part["type"], part.get("text")) for part in view.answer]
    assert kinds == [("step-start", None), ("reasoning", "Thinking hard."), ("text", "Done.")]


@pytest.mark.row("signatures")
def test_a_signature_reaches_the_provider_again(talk: Talk) -> None:
    talk.say("think")
    talk.say("hello")
    assert any(mark in json.dumps(talk.asked[-1].body) for mark in ("SIGNATURE", "ENCRYPTED"))


@pytest.mark.row("tools")
def test_parallel_calls_keep_apart_and_each_model_call_is_a_step(talk: Talk) -> None:
    view = talk.say("weather Paris Rome")
    assert calls(view) == [weather(1, "Paris"), weather(2, "Rome")]
    assert [part["type"] for part in view.answer].count("step-start") == 2
    last = [part["text"] for part in view.answer if part["type"] == "text"]
    assert last[0] == "Let me look."
    assert last[-1].startswith("The tool said: ")
    assert [one["parts"] for one in talk.kept()] == [one["parts"] for one in view.messages]


@pytest.mark.row("tools")
def test_arguments_are_streamed_and_available_once(talk: Talk) -> None:
    said = chunks(talk, "weather Paris Rome")
    available = [one["toolCallId"] for one in said if one["type"] == "tool-input-available"]
    ends = [one["toolCallId"] for one in said if one["type"] == "tool-output-available"]
    assert (available, sorted(ends)) == (["call_1", "call_2"], ["call_1", "call_2"])
    if "arguments" not in talk.environment.left_out:
        deltas = [one["inputTextDelta"] for one in said if one["type"] == "tool-input-delta"]
        pieces = "".join(
            one["inputTextDelta"] for one in said if one.get("toolCallId") == "call_1" and "inputTextDelta" in one
        )
        assert (len(deltas) >= 2, json.loads(pieces)) == (True, {"city": "Paris"})


@pytest.mark.row("tool errors")
def test_a_tool_that_fails_ends_in_an_error_without_a_traceback(talk: Talk) -> None:
    view = talk.say("fail")
    [call] = calls(view)
    assert call["state"] == "output-error"
    assert "Traceback" not in json.dumps(view.messages)
    # The run goes on, or ends with the masked error, as the framework decides; the next message works.
    assert shown(talk.say("hello"))[-1] == text("You said: hello")


@pytest.mark.row("usage")
def test_usage_is_summed_over_the_model_calls(talk: Talk) -> None:
    usage = talk.say("weather Paris").messages[-1]["metadata"]["usage"]
    told = {name: usage[name] for name in ("inputTokens", "outputTokens", "totalTokens")}
    one = USED["input"] + USED["output"]
    assert told == {"inputTokens": 2 * USED["input"], "outputTokens": 2 * USED["output"], "totalTokens": 2 * one}


def ask_to_pay(talk: Talk, amount: int, *, words: str = "") -> tuple[str, int]:
    """The id of an approval that waits, and how often something was paid before."""
    paid = len(talk.server.effects())
    view = talk.page(resubmits=APPROVALS).send(words or f"pay {amount}").settle()
    call = next(part for part in calls(view) if part["type"] == "tool-pay")
    assert (call["state"], call["input"]) == ("approval-requested", {"amount": amount})
    assert len(talk.server.effects()) == paid
    return call["approval"]["id"], paid


@pytest.mark.row("approvals")
def test_an_approved_call_runs_once_also_in_another_process(talk: Talk, other_server: Served) -> None:
    approval, _ = ask_to_pay(talk, 5)
    before = other_server.effects()
    page = talk.page(server=other_server, messages=talk.kept(), resubmits=APPROVALS)
    view = page.answer_approval(approval, approved=True).settle()
    [call] = calls(view)
    assert (call["state"], call["output"]) == ("output-available", "paid 5")
    assert other_server.effects() == [*before, "paid 5"]
    assert ("tool", "paid 5") in talk.heard()


@pytest.mark.row("approvals")
def test_a_denied_call_is_denied_and_the_model_reads_the_reason(talk: Talk) -> None:
    approval, paid = ask_to_pay(talk, 6)
    page = talk.page(messages=talk.kept(), resubmits=APPROVALS)
    view = page.answer_approval(approval, approved=False, reason="Too expensive").settle()
    [call] = calls(view)
    assert (call["state"], len(talk.server.effects())) == ("output-denied", paid)
    assert "Too expensive" in json.dumps(talk.asked[-1].body)
    assert view.answer[-1]["type"] in ("text", "source-url")


@pytest.mark.row("approvals")
@pytest.mark.row("edits")
def test_the_user_may_edit_the_arguments(talk: Talk) -> None:
    approval, _ = ask_to_pay(talk, 7)
    page = talk.page(messages=talk.kept(), resubmits=APPROVALS)
    options = {"body": {"approvals": {approval: {"input": {"amount": 70}}}}}
    view = page.answer_approval(approval, approved=True, options=options).settle()
    assert (calls(view)[0]["output"], talk.server.effects()[-1]) == ("paid 70", "paid 70")


@pytest.mark.row("approvals")
def test_a_call_beside_one_that_waits_does_not_keep_the_page_waiting(talk: Talk) -> None:
    approval, _ = ask_to_pay(talk, 8, words="pay 8 weather Oslo")
    page = talk.page(messages=talk.kept(), resubmits=APPROVALS)
    view = page.answer_approval(approval, approved=True).settle()
    outputs = {part["type"]: part.get("output") for part in calls(view)}
    assert outputs == {"tool-pay": "paid 8", "tool-get_weather": {"city": "Oslo", "celsius": 21}}


@pytest.mark.row("browser tools")
def test_the_page_answers_a_tool_of_its_own(talk: Talk) -> None:
    view = talk.page(resubmits=TOOLS).send("locate").settle()
    [call] = calls(view)
    assert call["state"] == "input-available"
    page = talk.page(messages=talk.kept(), resubmits=TOOLS)
    view = page.answer_tool(call["toolCallId"], tool="get_location", output="Berlin").settle()
    assert calls(view)[0]["output"] == "Berlin"
    results = [one.text for one in talk.asked[-1].heard if one.role == "tool"]
    assert (len(results), "Berlin" in results[0]) == (1, True)


@pytest.mark.row("stop")
def test_a_stop_closes_the_request_to_the_provider(talk: Talk) -> None:
    page = talk.page()
    page.send("hang").until("This is the beginning")
    talk.stop()
    view = page.settle()
    until(lambda: talk.asked[-1].is_left)
    assert (view.status, view.answer[-1]["text"]) == ("ready", "This is the beginning")
    assert shown(talk.say("hello"))[-1] == text("You said: hello")


@pytest.mark.row("stop")
def test_a_stop_cancels_a_tool_and_leaves_no_dangling_call(talk: Talk) -> None:
    begun = len(talk.server.effects())
    page = talk.page()
    page.send("wait").until("tool-wait")
    assert talk.server.effects(begun + 1)[begun:] == ["waits"]
    talk.stop()
    view = page.settle()
    assert talk.server.effects(begun + 2)[begun:] == ["waits", "cancelled"]
    assert calls(view)[0]["state"] == "output-error"
    assert shown(talk.say("hello"))[-1] == text("You said: hello")
    called = [call.id for one in talk.asked[-1].heard for call in one.calls]
    results = [one.call_id for one in talk.asked[-1].heard if one.role == "tool"]
    assert called == results


@pytest.mark.row("history")
def test_the_second_turn_has_the_first_one_once_and_in_order(talk: Talk) -> None:
    talk.say("weather Paris")
    talk.say("hello")
    heard = talk.heard()
    assert [role for role, _ in heard] == ["user", "assistant", "tool", "assistant", "user"]
    assert [heard[0][1], heard[1][1], heard[4][1]] == ["weather Paris", "Let me look.", "hello"]
    assert json.loads(heard[2][1]) == {"city": "Paris", "celsius": 21}
    assert [call.input for one in talk.asked[-1].heard for call in one.calls] == [{"city": "Paris"}]


@pytest.mark.row("images")
def test_an_image_of_the_user_reaches_the_model(talk: Talk) -> None:
    file = {"type": "file", "mediaType": "image/png", "url": PNG, "filename": "dot.png"}
    view = talk.page().send("look", files=[file]).settle()
    assert shown(view)[-1] == text("You said: look with image")


@pytest.mark.row("history")
def test_regenerate_asks_again_without_the_answer(talk: Talk) -> None:
    talk.say("hello")
    view = talk.page(messages=talk.kept()).regenerate().settle()
    assert (len(view.messages), shown(view)[-1]) == (2, text("You said: hello"))
    assert talk.heard() == [("user", "hello")]


@pytest.mark.row("history")
def test_an_edited_message_replaces_what_followed_it(talk: Talk) -> None:
    talk.say("one")
    talk.say("two")
    page = talk.page(messages=talk.kept())
    page.send("three", message_id=talk.kept()[0]["id"]).settle()
    assert talk.heard() == [("user", "three")]
    page.send("four").settle()
    assert talk.heard() == [("user", "three"), ("assistant", "You said: three"), ("user", "four")]


@pytest.mark.row("history")
def test_what_was_stopped_stays_in_the_history(talk: Talk) -> None:
    page = talk.page()
    page.send("hang").until("This is the beginning")
    talk.stop()
    page.settle()
    talk.say("hello")
    assert ("user", "hang") in talk.heard()


@pytest.mark.row("history")
def test_an_edit_asks_again_without_what_followed(talk: Talk) -> None:
    talk.say("weather Paris")
    talk.say("weather Rome")
    [first, _, third, _] = talk.kept()
    talk.page(messages=talk.kept()).send("hello", message_id=third["id"]).settle()
    assert [said for role, said in talk.heard() if role == "user"] == ["weather Paris", "hello"]
    view = talk.page(messages=talk.kept()).send("hello again", message_id=first["id"]).settle()
    assert (talk.heard(), len(view.messages)) == ([("user", "hello again")], 2)


@pytest.mark.row("history")
def test_a_chat_that_was_deleted_is_forgotten(talk: Talk) -> None:
    talk.say("weather Paris")
    assert talk.server.http.delete(f"/portable/agent/{talk.chat}").status_code == 204
    talk.page().send("hello").settle()
    assert talk.heard() == [("user", "hello")]


@pytest.mark.row("sub-agents")
def test_a_sub_agent_is_a_part_of_its_own(talk: Talk) -> None:
    view = talk.say("help me please")
    parts = {part["data"]["name"]: part["data"] for part in view.answer if part["type"] == "data-subagent"}
    assert (parts["helper"]["status"], "me please" in parts["helper"]["text"]) == ("done", True)
    texts = [part["text"] for part in view.answer if part["type"] == "text"]
    assert texts[0] == "I ask."
    assert not any(one == "You said: me please" for one in texts)


@pytest.mark.row("handoffs")
def test_after_a_handoff_the_other_agent_has_the_conversation(talk: Talk, other_server: Served) -> None:
    view = talk.say("handoff")
    handoffs = [part["data"] for part in view.answer if part["type"] == "data-handoff"]
    assert ([one["to"] for one in handoffs], calls(view)) == (["expert"], [])
    assert "You are the expert." in json.dumps(talk.asked[-1].body)
    talk.page(server=other_server, messages=talk.kept()).send("hello").settle()
    assert "You are the expert." in json.dumps(talk.asked[-1].body)


@pytest.mark.row("sources")
def test_a_citation_is_a_source(talk: Talk) -> None:
    sources = [part for part in talk.say("weather Paris").answer if part["type"] == "source-url"]
    assert [(one["url"], one.get("title")) for one in sources] == [("https://example.org/weather", "Weather")]


@pytest.mark.row("errors")
@pytest.mark.parametrize("words", ["status 500", "break", "fail-later"])
def test_a_provider_that_fails_is_a_masked_error_and_the_next_message_works(talk: Talk, words: str) -> None:
    view = talk.say(words)
    assert view.status == "error"
    assert "secret" not in json.dumps([view.error, view.messages])
    states = [part.get("state") for message in view.messages for part in message["parts"] if part["type"] == "text"]
    assert "streaming" not in states
    assert shown(talk.say("hello"))[-1] == text("You said: hello")


@pytest.mark.row("users")
def test_two_users_do_not_see_each_other(talk: Talk) -> None:
    ann = talk.page(endpoint="users", token="token-of-ann")  # noqa: S106
    bob = talk.page(endpoint="users", token="token-of-bob")  # noqa: S106
    ann.send("I am Ann").settle()
    refused = bob.send("I am Bob").settle()
    assert refused.status == "error"
    talk.chat += "-of-bob"
    talk.page(endpoint="users", token="token-of-bob").send("I am Bob").settle()  # noqa: S106
    assert "Ann" not in json.dumps(talk.asked[-1].body)


@pytest.mark.row("length")
def test_an_answer_that_is_cut_off_says_so(talk: Talk) -> None:
    assert chunks(talk, "long")[-1]["finishReason"] == "length"


@pytest.mark.row("legal")
@pytest.mark.parametrize("client", ["portable", "latest"])
def test_every_stream_is_legal(talk: Talk, client: ClientName) -> None:
    said = chunks(talk, "weather Paris Rome", client)
    assert said[-1]["type"] == "finish"
