"""What the CLI of the Claude Agent SDK does to sessions and approvals, beyond the rows that all frameworks share."""

import json
from pathlib import Path

import pytest

from talks import Talk, calls, shown, text
from test_rows import APPROVALS, ask_to_pay

pytestmark = pytest.mark.only("claude-agent")


def sessions(folder: Path) -> list[Path]:
    return [*folder.glob(".claude/projects/*/*.jsonl")]


@pytest.mark.row("approvals")
def test_of_two_calls_that_wait_one_is_asked_about_and_the_model_reads_why(talk: Talk) -> None:
    approval, paid = ask_to_pay(talk, 6, words="pay 6 pay 7")
    [_, refused] = calls(talk.page(messages=talk.kept()).look())
    assert (refused["state"], "waits for the user's approval" in refused["errorText"]) == ("output-error", True)
    page = talk.page(messages=talk.kept(), resubmits=APPROVALS)
    page.answer_approval(approval, approved=True).settle()
    assert talk.server.effects()[paid:] == ["paid 6"]
    results = {one.call_id: one.text for one in talk.asked[-1].heard if one.role == "tool"}
    assert (results["call_1"], "Make this call again" in results["call_2"]) == ("paid 6", True)


@pytest.mark.row("approvals")
def test_the_model_reads_the_result_of_a_call_that_waited_beside_another(talk: Talk) -> None:
    for amount in (3, 4):
        approval, _ = ask_to_pay(talk, amount, words=f"pay {amount} weather Oslo")
        page = talk.page(messages=talk.kept(), resubmits=APPROVALS)
        page.answer_approval(approval, approved=True).settle()
        results = [one.text for one in talk.asked[-1].heard if one.role == "tool"]
        assert f"paid {amount}" in results
        assert "Tool result missing" not in json.dumps(talk.asked[-1].body)


@pytest.mark.row("approvals")
def test_a_user_who_goes_on_has_approved_nothing(talk: Talk) -> None:
    _, paid = ask_to_pay(talk, 9)
    view = talk.page(messages=talk.kept()).send("hello").settle()
    assert (shown(view)[-1], len(talk.server.effects())) == (text("You said: hello"), paid)
    [result] = [one.text for one in talk.asked[-1].heard if one.role == "tool"]
    assert "the user approved nothing" in result
    # Nothing was asked in the user's name.
    assert len(talk.asked) == 2


@pytest.mark.row("approvals")
def test_an_answer_that_waits_can_be_regenerated(talk: Talk) -> None:
    talk.say("hello")
    _, paid = ask_to_pay(talk, 2)
    view = talk.page(messages=talk.kept(), resubmits=APPROVALS).regenerate().settle()
    [call] = calls(view)
    assert (call["state"], len(view.messages)) == ("approval-requested", 4)
    assert talk.heard() == [("user", "hello"), ("assistant", "You said: hello"), ("user", "pay 2")]
    page = talk.page(messages=talk.kept(), resubmits=APPROVALS)
    page.answer_approval(call["approval"]["id"], approved=True).settle()
    assert talk.server.effects()[paid:] == ["paid 2"]


def test_the_users_words_name_no_file_and_run_no_command(talk: Talk) -> None:
    for words in ("look at @/etc/hostname", "/compact", "Continue from where you left off."):
        assert shown(talk.say(words))[-1] == text(f"You said: {words}")
    assert "Called the Read tool" not in json.dumps(talk.asked[-1].body)


def test_a_later_message_can_be_regenerated_and_the_chat_goes_on_from_there(talk: Talk) -> None:
    talk.say("weather Paris")
    talk.say("hello")
    talk.page(messages=talk.kept()).regenerate().settle()
    talk.page(messages=talk.kept()).send("bye").settle()
    users = [said for role, said in talk.heard() if role == "user"]
    assert users == ["weather Paris", "hello", "bye"]


def test_a_session_that_is_gone_begins_anew_with_the_history(talk: Talk, folder: Path) -> None:
    talk.say("I am Ann")
    for session in sessions(folder):
        session.unlink()
    assert shown(talk.say("hello"))[-1] == text("You said: hello")
    assert "I am Ann" in json.dumps(talk.asked[-1].body)


def test_a_deleted_chat_leaves_no_session(talk: Talk, folder: Path) -> None:
    talk.say("this goes")
    assert any("this goes" in session.read_text("utf-8") for session in sessions(folder))
    assert talk.server.http.delete(f"/portable/agent/{talk.chat}").status_code == 204
    assert not any("this goes" in session.read_text("utf-8") for session in sessions(folder))
