"""What only LlamaIndex has: questions that a message answers, handoffs, ReAct, and workflows that are no agents."""

import pytest

from environments import Environment, chosen
from pages import Message
from talks import STEP, Served, Talk, calls, shown, text


@pytest.fixture(
    scope="module", params=[one for one in chosen() if one.name == "llama-index"], ids=lambda one: one.version
)
def environment(request: pytest.FixtureRequest) -> Environment:
    return request.param


def question(amount: int) -> Message:
    asked = {"id": "input-1", "prefix": f"Pay {amount}?", "amount": amount}
    return {"type": "data-input-required", "id": "input-1", "data": asked}


def paid(amount: int, output: str) -> Message:
    return {
        "type": "tool-pay",
        "toolCallId": "call_1",
        "state": "output-available",
        "input": {"amount": amount},
        "output": output,
    }


def test_the_next_message_answers_a_question_also_in_another_process(talk: Talk, other_server: Served) -> None:
    talk.say("hello")
    before = other_server.effects()
    view = talk.say("pay 5")
    waits = paid(5, "This call waits for your answer.")
    assert [part for part in shown(view) if part != STEP] == [text("May I?"), waits, question(5)]
    assert other_server.effects() == before

    view = talk.page(server=other_server, messages=talk.kept()).send("yes").settle()
    assert calls(view) == [paid(5, "paid 5")]
    assert other_server.effects() == [*before, "paid 5"]
    # The run has the messages from before it.
    assert talk.heard() == [
        ("user", "hello"),
        ("assistant", "You said: hello"),
        ("user", "pay 5"),
        ("assistant", "May I?"),
        ("tool", "paid 5"),
    ]

    talk.page(server=other_server, messages=talk.kept()).send("thanks").settle()
    assert talk.heard()[2:] == [
        ("user", "pay 5"),
        ("assistant", "May I?"),
        ("user", "yes"),
        ("assistant", ""),
        ("tool", "paid 5"),
        ("assistant", "The tool said: paid 5"),
        ("user", "thanks"),
    ]


def test_an_answer_that_is_regenerated_asks_again_or_answers_again(talk: Talk) -> None:
    talk.say("pay 6")
    view = talk.page(messages=talk.kept()).regenerate().settle()
    assert [part for part in shown(view) if part != STEP][-1] == question(6)
    talk.page(messages=talk.kept()).send("no").settle()
    view = talk.page(messages=talk.kept()).regenerate().settle()
    assert calls(view) == [paid(6, "The user said: no")]


def test_a_call_beside_one_that_waits_runs_once(talk: Talk) -> None:
    view = talk.say("pay 7 weather Oslo")
    assert [(part["type"], part["output"]) for part in calls(view)] == [
        ("tool-pay", "This call waits for your answer."),
        ("tool-get_weather", {"city": "Oslo", "celsius": 21}),
    ]
    view = talk.page(messages=talk.kept()).send("yes").settle()
    assert calls(view) == [paid(7, "paid 7")]


def test_the_next_message_goes_to_the_agent_that_has_the_conversation(talk: Talk) -> None:
    view = talk.say("handoff expert")
    assert calls(view) == []
    handoffs = [part["data"] for part in view.answer if part["type"] == "data-handoff"]
    assert handoffs == [{"from": "main", "to": "expert"}]
    talk.say("hello")
    offered = {tool["function"]["name"] for tool in talk.asked[-1].body["tools"]}
    assert offered == {"get_weather"}


def test_a_regenerated_handoff_begins_with_the_agent_that_had_the_conversation(talk: Talk) -> None:
    talk.say("handoff expert")
    talk.page(messages=talk.kept()).regenerate().settle()
    assert "pay" in {tool["function"]["name"] for tool in talk.asked[0].body["tools"]}
    offered = [{tool["function"]["name"] for tool in asked.body["tools"]} for asked in talk.asked]
    assert ["pay" in names for names in offered] == [True, False, True, False]
