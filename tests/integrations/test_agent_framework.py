"""The driver without the framework: what it recognises. `frameworks/` runs it with the real package."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from usechat.errors import RequestError
from usechat.events import Finish, Step, SubAgent, Text, ToolCall, ToolInputDelta, ToolInputStart, ToolResult, Usage
from usechat.integrations import agent_of
from usechat.integrations.agent_framework import AgentFrameworkAgent, AgentFrameworkTranslator, show_sub_agent
from usechat.turns.chat import Approval


class RawAgent:
    """An agent of the framework, by what is known of it without importing it."""

    def __init__(self) -> None:
        self.default_options: dict[str, Any] = {}


RawAgent.__module__ = "agent_framework._agents"


class Agent(RawAgent):
    pass


@pytest.mark.anyio
async def test_an_agent_is_recognised_by_its_classes() -> None:
    assert isinstance(agent_of(Agent()), AgentFrameworkAgent)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("answered", "problem"),
    [
        (["a", "b"], None),
        (["a"], "The calls that wait together have to be answered together."),
        (["a", "b", "c"], "This answers no approval that is open."),
    ],
)
async def test_the_calls_that_wait_are_answered_together(answered: list[str], problem: str | None) -> None:
    pending: Any = SimpleNamespace(
        state={"agentFramework": {"requests": {"a": {}, "b": {}}}},
        approvals=[Approval(one, one, "pay", {}, approved=True) for one in answered],
    )
    with nullcontext() if problem is None else pytest.raises(RequestError, match=problem):
        await AgentFrameworkAgent(Agent()).admit(pending)


def update(*contents: dict[str, Any], role: str = "assistant", **rest: Any) -> dict[str, Any]:
    return {"contents": list(contents), "role": role, **rest}


def call(piece: str, call_id: str, name: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": piece}


def test_pieces_of_a_call_that_do_not_name_it_belong_to_the_last_one() -> None:
    translator = AgentFrameworkTranslator()
    pieces = [call("", "c1", "pay"), call('{"amount":', "", ""), call(" 5}", "", "")]
    said = [event for piece in pieces for event in translator.translate(update(piece))]
    assert said == [
        Step(lazy=True),
        ToolInputStart("c1", "pay"),
        ToolInputDelta("c1", '{"amount":'),
        ToolInputDelta("c1", " 5}"),
    ]
    assert list(translator.translate(update(finish_reason="tool_calls"))) == [Finish("stop")]
    assert list(translator.end()) == [ToolCall("c1", "pay", {"amount": 5})]


def test_a_sub_agent_has_the_call_that_it_works_for_and_counts_apart() -> None:
    translator = AgentFrameworkTranslator()
    usage = {"type": "usage", "merge_mode": "replace", "usage_details": {"input_token_count": 1}}
    whole = {"type": "text", "merge_mode": "replace", "text": "Hi"}
    inner = update({"type": "text", "text": "Hi"}, whole, usage, author_name="helper")
    assert list(translator.translate({"sub_agent": "c1", "update": inner})) == [
        SubAgent("c1", "helper", Step(lazy=True), call_id="c1"),
        SubAgent("c1", "helper", Text("Hi"), call_id="c1"),
        SubAgent("c1", "helper", Usage(input_tokens=1, key="c1:run"), call_id="c1"),
    ]
    result = {"type": "function_result", "call_id": "c1", "result": "Hi"}
    assert list(translator.translate(update(result, role="tool"))) == [
        SubAgent("c1", "helper", status="done", call_id="c1"),
        ToolResult("c1", "Hi"),
    ]


def test_a_usage_is_one_more_model_call_unless_it_is_the_sum_of_all() -> None:
    translator = AgentFrameworkTranslator()

    def used(count: int, **rest: Any) -> list[Any]:
        content = {"type": "usage", "usage_details": {"input_token_count": count}, **rest}
        return list(translator.translate(update(content, role="tool")))

    assert used(10) == [Usage(input_tokens=10, key="run")]
    assert used(5, merge_mode="append") == [Usage(input_tokens=15, key="run")]
    assert used(25, merge_mode="replace") == [Usage(input_tokens=25, key="run")]


def test_the_callback_of_a_sub_agent_does_nothing_outside_of_a_turn() -> None:
    show_sub_agent(update())
