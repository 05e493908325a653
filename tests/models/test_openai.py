"""What OpenAI's chat completions are given of a chat."""

from typing import Any

import pytest

from support.model_histories import STEP, call, file, model_messages, said, text
from usechat import to_openai

PNG = "data:image/png;base64,iVBORw0KGgo="


def called(*names: str) -> dict[str, Any]:
    calls = [(name, {"name": "weather", "arguments": f'{{"city":"{name}"}}'}) for name in names]
    tool_calls = [{"id": name, "type": "function", "function": function} for name, function in calls]
    return {"role": "assistant", "content": None, "tool_calls": tool_calls}


def result(call_id: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def asked(*parts: dict[str, Any]) -> Any:
    [message] = to_openai(model_messages(said("user", *parts)))
    assert message["role"] == "user"
    return message["content"]


def test_parallel_calls_are_one_message_and_their_results_follow() -> None:
    messages = model_messages(
        said("system", text("Be brief.")),
        said("user", text("Weather?")),
        said(
            "assistant",
            STEP,
            {"type": "reasoning", "text": "Two cities."},
            text("I look. "),
            text("Now."),
            call("Bonn", "output-available", output={"celsius": 12}),
            call("Kiel", "output-error", errorText="No such station."),
            STEP,
            text("12 °C in Bonn."),
        ),
        said("user", text("Thanks")),
    )
    assert to_openai(messages) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {**called("Bonn", "Kiel"), "content": "I look. Now."},
        result("Bonn", '{"celsius":12}'),
        result("Kiel", "No such station."),
        {"role": "assistant", "content": "12 °C in Bonn."},
        {"role": "user", "content": "Thanks"},
    ]


@pytest.mark.parametrize(
    ("fields", "content"),
    [
        ({"state": "input-available"}, "This call has no result: it was not run, or was interrupted."),
        (
            {"state": "approval-requested", "approval": {"id": "a"}},
            "This call has no result: it was not run, or was interrupted.",
        ),
        (
            {"state": "approval-responded", "approval": {"id": "a", "approved": True}},
            "This call has no result: it was not run, or was interrupted.",
        ),
        (
            {"state": "approval-responded", "approval": {"id": "a", "approved": False}},
            "The user refused this call.",
        ),
        (
            {"state": "output-denied", "approval": {"id": "a", "approved": False, "reason": "too wet"}},
            "The user refused this call. Their reason: too wet",
        ),
        ({"state": "output-denied", "approval": {"id": "a", "approved": False}}, "The user refused this call."),
        ({"state": "output-denied"}, "Tool call execution denied."),
        ({"state": "output-available", "output": "dry"}, "dry"),
        ({"state": "output-available", "output": ""}, '""'),
        ({"state": "output-available"}, "null"),
        (
            {"state": "output-available", "output": 1, "approval": {"id": "a", "approved": False}},
            "1",
        ),
    ],
)
def test_every_call_has_a_result(fields: dict[str, Any], content: str) -> None:
    assert to_openai(model_messages(said("assistant", call("Bonn", **fields)))) == [
        called("Bonn"),
        result("Bonn", content),
    ]


def test_what_was_said_after_the_result_of_a_provider_comes_after_it() -> None:
    done = call("Bonn", "output-available", output=1, providerExecuted=True)
    answer = said("assistant", done, text("One."), call("Kiel", "output-available", output=2))
    assert to_openai(model_messages(answer)) == [
        called("Bonn"),
        result("Bonn", "1"),
        {**called("Kiel"), "content": "One."},
        result("Kiel", "2"),
    ]


def test_a_result_that_an_agent_adds_is_put_where_it_belongs() -> None:
    approved = call("Bonn", "approval-responded", approval={"id": "a", "approved": True})
    messages = model_messages(said("assistant", approved), said("user", text("And?")))
    added = {
        "type": "tool-result",
        "toolCallId": "Bonn",
        "toolName": "weather",
        "output": {"type": "text", "value": "!"},
    }
    orphan = {**added, "toolCallId": "Rome"}
    given = [*messages, {"role": "tool", "content": [added, orphan]}, {"role": "user", "content": "Well?"}]
    assert to_openai(given) == [
        called("Bonn"),
        result("Bonn", "!"),
        {"role": "user", "content": "And?"},
        {"role": "user", "content": "Well?"},
    ]


def test_names_ids_and_inputs_are_such_as_the_api_takes() -> None:
    odd = call("c", "output-error", name="mcp/search.web", input=None, rawInput="{", errorText="broken")
    parts = [odd, call("c", "output-available", name="", input=None, output="x")]
    assert to_openai(model_messages(said("assistant", *parts))) == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "mcp_search_web", "arguments": '{"input":"{"}'}},
                {"id": "c_2", "type": "function", "function": {"name": "tool", "arguments": "{}"}},
            ],
        },
        result("c", "This call has no result: it was not run, or was interrupted."),
        result("c_2", "x"),
    ]


@pytest.mark.parametrize(
    ("part", "item"),
    [
        (file("image/png", PNG), {"type": "image_url", "image_url": {"url": PNG}}),
        (
            file("image/*", "https://example.com/cat"),
            {"type": "image_url", "image_url": {"url": "https://example.com/cat"}},
        ),
        (
            file("", "data:audio/mpeg;base64,SUQz"),
            {"type": "input_audio", "input_audio": {"data": "SUQz", "format": "mp3"}},
        ),
        (
            file("application/pdf", "data:application/pdf;base64,JVBERi0=", filename="a.pdf"),
            {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}},
        ),
        (file("image/png", "/a.png", providerReference={"openai": "f1"}), {"type": "file", "file": {"file_id": "f1"}}),
    ],
)
def test_images_sounds_and_papers_are_shown(part: dict[str, Any], item: dict[str, Any]) -> None:
    assert asked(text("See:"), part) == [text("See:"), item]


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (file("text/csv", "data:text/csv,a%2Cb%0A1%2C2", filename="t.csv"), 'The file "t.csv":\n\na,b\n1,2'),
        (file("text/plain;charset=utf-8", "data:;base64,aGk="), "hi"),
        (file("text/plain", "data:text/plain,"), "[The file (text/plain) cannot be shown here.]"),
        (file("image/png", "/cat.png", filename="cat.png"), '[The file "cat.png" (image/png) cannot be shown here.]'),
        (file("image/heic", "data:image/heic;base64,AAAA"), "[The file (image/heic) cannot be shown here.]"),
        (file("image/png", "data:image/png;base64,iVBO*Rw0KGgo="), "[The file (image/png) cannot be shown here.]"),
        (
            file("video/mp4", "https://example.com/a.mp4"),
            "[The file (video/mp4) at https://example.com/a.mp4 cannot be shown here.]",
        ),
        (
            file("image/png", "/a.png", providerReference={"anthropic": "f1"}),
            "[The file (image/png) cannot be shown here.]",
        ),
        (file("", "blob:x"), "[The file (of unknown type) cannot be shown here.]"),
    ],
)
def test_texts_are_quoted_and_what_the_api_does_not_take_is_named(part: dict[str, Any], words: str) -> None:
    assert asked(part) == words


def test_nothing_empty_is_sent() -> None:
    history = [
        said("system", text(" ")),
        said("user", text(""), {"type": "data-x", "data": 1}),
        said("assistant", text("\n"), file("image/png", PNG)),
    ]
    assert to_openai(model_messages(*history)) == [{"role": "user", "content": "(empty message)"}]
