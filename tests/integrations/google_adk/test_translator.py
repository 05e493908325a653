import re
from types import SimpleNamespace
from typing import Any, cast

import pytest

from support.goldens import Case, cases
from usechat.errors import MappingError
from usechat.events import AgentEvent, Data, SubAgent, Text, ToolError, ToolResult
from usechat.integrations.google_adk.translator import ADKTranslator, log_translator

# What is a dict in ADK's objects, too.
DICTS = ("args", "response", "stateDelta", "artifactDelta", "requestedToolConfirmations")


def as_object(value: Any) -> Any:
    """JSON as ADK's objects have it."""
    if isinstance(value, list):
        return [as_object(one) for one in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, Any]", value)
    named = {re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name): name for name in fields}
    return SimpleNamespace(
        **{ours: fields[name] if name in DICTS else as_object(fields[name]) for ours, name in named.items()}
    )


def translated(events: list[Any], translator: ADKTranslator) -> list[AgentEvent]:
    return [said for event in events for said in translator.translate(event)] + list(translator.end())


@pytest.mark.parametrize("case", cases("google-adk"), ids=lambda case: case.name)
def test_objects_are_read_as_their_json_is(case: Case) -> None:
    objects = [as_object(event) for event in case.events]
    assert translated(objects, ADKTranslator()) == translated(case.events, ADKTranslator())


def event(*parts: Any, author: str = "main", **rest: Any) -> dict[str, Any]:
    return {"author": author, "content": {"role": "model", "parts": list(parts)}, **rest}


def result(response: Any) -> list[AgentEvent]:
    return translated([event({"functionResponse": {"id": "a", "name": "tool", "response": response}})], ADKTranslator())


def test_a_result_is_what_the_tool_returned() -> None:
    assert result({"result": [1, 2]}) == [ToolResult("a", [1, 2])]
    assert result({"result": 1, "unit": "m"}) == [ToolResult("a", {"result": 1, "unit": "m"})]
    assert result({"error": "No."}) == [ToolError("a", "No.")]
    assert result({"error": None, "value": 1}) == [ToolResult("a", {"error": None, "value": 1})]


def test_state_of_the_user_and_the_app_and_credentials_stay_on_the_server() -> None:
    delta = {
        "topic": "cats",
        "user:name": "Ann",
        "app:key": "x",
        "temp:a": 1,
        "_adk": 1,
        "adk_token": 1,
        "my_credential": 1,
    }
    assert translated([event(actions={"stateDelta": delta})], ADKTranslator()) == [Data("state", {"topic": "cats"})]


def test_the_address_to_sign_in_is_shown_and_no_secret() -> None:
    config = {
        "rawAuthCredential": {"oauth2": {"clientSecret": "secret"}},
        "exchangedAuthCredential": {"oauth2": {"authUri": "https://example.org/in", "clientSecret": "secret"}},
    }
    call = {"functionCall": {"id": "a", "name": "adk_request_credential", "args": {"authConfig": config}}}
    shown = Data("sign-in", {"id": "a", "url": "https://example.org/in"}, id="a")
    assert translated([event(call)], ADKTranslator()) == [shown]


def test_an_answer_by_an_output_schema_is_a_value() -> None:
    events = [event({"text": '{"x":'}, partial=True), event({"text": '{"x": 1}'})]
    assert translated(events, ADKTranslator(structured={"main"})) == [Data("output", {"x": 1})]
    assert translated([event({"text": "no JSON"})], ADKTranslator(structured={"main"})) == [Text("no JSON")]


def test_a_sub_agent_of_the_continued_message_does_not_take_it_over() -> None:
    said = translated([event({"text": "Hi"}, author="helper", branch="helper@1")], ADKTranslator({"helper"}))
    text = Text("Hi", whole=True, block=True)
    assert said == [SubAgent("helper@1", "helper", text), SubAgent("helper@1", "helper", status="done")]


def test_an_agent_that_only_runs_others_does_not_take_the_message() -> None:
    state = {"author": "pipeline", "actions": {"agentState": {"current_sub_agent": "writer"}}}
    events = [state, event({"text": "Hi"}, author="writer"), state]
    assert translated(events, ADKTranslator()) == [Text("Hi", whole=True, block=True)]


def test_what_is_no_event_of_adk_is_refused() -> None:
    with pytest.raises(MappingError, match="it has no author"):
        translated([{"type": "text"}], ADKTranslator())
    with pytest.raises(ValueError, match="has no options"):
        log_translator({"state": True})
