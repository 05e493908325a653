"""What Anthropic's Messages API is given of a chat."""

from typing import Any

import pytest

from support.model_histories import STEP, call, file, model_messages, said, text
from usechat import to_anthropic

PNG = "data:image/png;base64,iVBORw0KGgo="


def used(call_id: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "weather", "input": {"city": call_id}}


def result(call_id: str, content: str, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **fields}


def thought(words: str, **options: Any) -> dict[str, Any]:
    return {"type": "reasoning", "text": words, "providerMetadata": {"anthropic": options}}


def test_the_results_of_parallel_calls_begin_the_next_message_and_roles_alternate() -> None:
    messages = model_messages(
        said("system", text("Be brief.")),
        said("user", text("Weather?")),
        said("user", text("Please.")),
        said(
            "assistant",
            STEP,
            thought("Two cities.", signature="s1"),
            thought("", redactedData="r1"),
            {"type": "reasoning", "text": "Of another model."},
            text("I look."),
            call("Bonn", "output-available", output={"celsius": 12}),
            call("Kiel", "output-error", errorText="No such station."),
            call("Rome", "approval-responded", approval={"id": "a", "approved": False, "reason": "too far"}),
            call("Oslo", "input-available"),
        ),
        said("user", text("And?")),
        said("assistant", STEP, text("12 °C "), STEP, text("in Bonn. \n")),
        said("system", text("Be kind.")),
    )
    assert to_anthropic(messages) == {
        "system": "Be brief.\n\nBe kind.",
        "messages": [
            {"role": "user", "content": [text("Weather?"), text("Please.")]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Two cities.", "signature": "s1"},
                    {"type": "redacted_thinking", "data": "r1"},
                    text("I look."),
                    used("Bonn"),
                    used("Kiel"),
                    used("Rome"),
                    used("Oslo"),
                ],
            },
            {
                "role": "user",
                "content": [
                    result("Bonn", '{"celsius":12}'),
                    result("Kiel", "No such station.", is_error=True),
                    result("Rome", "The user refused this call. Their reason: too far", is_error=True),
                    result("Oslo", "This call has no result: it was not run, or was interrupted.", is_error=True),
                    text("And?"),
                ],
            },
            {"role": "assistant", "content": [text("12 °C "), text("in Bonn.")]},
        ],
    }


def test_an_assistant_who_speaks_first_has_somebody_to_speak_to() -> None:
    assert to_anthropic(model_messages(said("assistant", text("Hello!")))) == {
        "messages": [
            {"role": "user", "content": [text("(The assistant speaks first.)")]},
            {"role": "assistant", "content": [text("Hello!")]},
        ]
    }
    assert to_anthropic([]) == {"messages": []}


def test_the_ids_of_calls_are_such_as_the_api_takes() -> None:
    first = said(
        "assistant", call("a|b", "output-available", output=1), STEP, call("a_b", "output-available", output=2)
    )
    again = said("assistant", call("a|b", "output-available", output=3))
    content = [
        block for message in to_anthropic(model_messages(first, again))["messages"] for block in message["content"]
    ]
    assert [block["id"] for block in content if block["type"] == "tool_use"] == ["a_b", "a_b_2", "a_b_3"]
    results = [(block["tool_use_id"], block["content"]) for block in content if block["type"] == "tool_result"]
    assert results == [("a_b", "1"), ("a_b_2", "2"), ("a_b_3", "3")]


@pytest.mark.parametrize(
    ("part", "block"),
    [
        (
            file("image/png", PNG, filename="cat.png"),
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}},
        ),
        (
            file("image/*", "https://example.com/cat"),
            {"type": "image", "source": {"type": "url", "url": "https://example.com/cat"}},
        ),
        (
            file("application/pdf", "https://example.com/a.pdf", filename="a.pdf"),
            {"type": "document", "source": {"type": "url", "url": "https://example.com/a.pdf"}, "title": "a.pdf"},
        ),
        (
            file("application/pdf", "data:application/pdf;base64,JVBERi0="),
            {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}},
        ),
        (
            file("application/json", "data:application/json,%5B1%5D"),
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "[1]"}},
        ),
        (
            file("image/png", "/a.png", providerReference={"anthropic": "f1"}),
            {"type": "image", "source": {"type": "file", "file_id": "f1"}},
        ),
        (file("image/png", "/cat.png"), text("[The file (image/png) cannot be shown here.]")),
        (file("audio/wav", "data:audio/wav;base64,UklGRg=="), text("[The file (audio/wav) cannot be shown here.]")),
    ],
)
def test_images_and_papers_are_shown_and_the_rest_is_named(part: dict[str, Any], block: dict[str, Any]) -> None:
    [message] = to_anthropic(model_messages(said("user", part)))["messages"]
    assert message == {"role": "user", "content": [block]}


def test_nothing_empty_is_sent() -> None:
    history = [
        said("system", text(" ")),
        said("user", text("")),
        said("assistant", text("\n"), file("image/png", PNG)),
        said("assistant"),
    ]
    assert to_anthropic(model_messages(*history)) == {
        "messages": [{"role": "user", "content": [text("(empty message)")]}]
    }
