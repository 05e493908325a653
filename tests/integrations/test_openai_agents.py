"""What needs no SDK; `frameworks/` has the rows with the real one, and `golden/` its recorded logs."""

from importlib import metadata
from typing import Any

import pytest

from usechat import events as e
from usechat.integrations.openai_agents import OpenAIAgent
from usechat.integrations.openai_agents.translator import OpenAIAgentsTranslator, log_translator


class Agent:
    """As the SDK's, which is known by its name and its module."""

    __module__ = "agents.agent"


class Child(Agent):
    __module__ = "app"


def call_item(call_id: str, name: str) -> dict[str, Any]:
    raw = {"type": "function_call", "call_id": call_id, "name": name, "arguments": "{}"}
    return {"type": "tool_call_item", "agent": {"name": "main"}, "raw_item": raw}


def item_event(name: str, item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "run_item_stream_event", "name": name, "item": item}


def test_an_agent_and_its_subclasses_are_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda _: "0.17.0")  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    assert [isinstance(OpenAIAgent.wrap(thing), OpenAIAgent) for thing in (Agent(), Child(), Agent, "Hi")] == [
        *(True, True, False, False)
    ]


def test_an_old_or_missing_sdk_is_refused_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda _: "0.16.3")  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    with pytest.raises(ImportError, match=r"needs openai-agents 0.17 or newer, and 0.16.3 is installed. Upgrade it"):
        OpenAIAgent(Agent())

    def find(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", find)
    with pytest.raises(ImportError, match=r"OpenAIAgent needs openai-agents. Install it with: pip install"):
        OpenAIAgent(Agent())


def test_a_tool_with_the_name_of_a_handoff_is_shown_if_it_is_none() -> None:
    event = item_event("tool_called", call_item("c1", "transfer_to_account"))
    assert list(OpenAIAgentsTranslator("main", handoffs=["transfer_to_expert"]).translate(event)) == [
        e.ToolCall("c1", "transfer_to_account", {})
    ]
    assert list(log_translator({}).translate(event)) == []
    assert list(log_translator({"handoffs": []}).translate(event)) == [e.ToolCall("c1", "transfer_to_account", {})]


def test_a_tool_without_a_name_is_called_after_its_type() -> None:
    raw = {"type": "shell_call", "call_id": "c1", "action": {"commands": ["ls"]}}
    event = item_event("tool_called", {"type": "tool_call_item", "agent": {"name": "main"}, "raw_item": raw})
    assert list(log_translator({}).translate(event)) == [e.ToolCall("c1", "shell", {"commands": ["ls"]})]


def test_a_hosted_mcp_call_that_was_answered_is_over() -> None:
    translator = log_translator({})
    request = {
        "type": "mcp_approval_request",
        "id": "m1",
        "name": "search",
        "arguments": '{"q": 1}',
        "server_label": "s",
    }
    asked = item_event("tool_approval_requested", {"agent": {"name": "main"}, "raw_item": request})
    assert list(translator.translate(asked)) == [e.ToolCall("m1", "search", {"q": 1}), e.ApprovalRequest("", "m1")]
    for approve, end in ((True, e.ToolResult("m1", {"approved": True})), (False, e.ToolDenied("m1"))):
        answer = {"type": "mcp_approval_response", "approval_request_id": "m1", "approve": approve}
        event = item_event("mcp_approval_response", {"agent": {"name": "main"}, "raw_item": answer})
        assert list(translator.translate(event)) == [end]


@pytest.mark.parametrize("options", [{"agent": "main"}, {"handoffs": "transfer_to_expert"}])
def test_options_that_a_log_does_not_have_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="The options are handoffs, a list of tools, and structured"):
        log_translator(options)


def test_a_model_that_sends_only_the_whole_response_is_read() -> None:
    said = {"type": "message", "content": [{"type": "output_text", "text": "Hello"}]}
    call = {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": "{}"}
    event = {"type": "response.completed", "response": {"output": [said, call]}}
    assert list(log_translator({}).translate({"type": "raw_response_event", "data": event})) == [
        e.Step(),
        e.Text("Hello", whole=True),
        e.EndPart(),
        e.ToolCall("c1", "get_weather", {}),
        e.Finish("stop"),
    ]
