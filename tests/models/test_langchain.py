"""What LangChain is given of a chat."""

from typing import Any

import pytest
from langchain_core.messages import AIMessage, ToolMessage, convert_to_messages

from support.model_histories import STEP, call, file, model_messages, said, text
from usechat.models import to_langchain

PNG = "data:image/png;base64,iVBORw0KGgo="


def asked(*parts: dict[str, Any]) -> Any:
    [message] = to_langchain(model_messages(said("user", *parts)))
    assert message["role"] == "user"
    return message["content"]


def test_parallel_calls_are_one_message_and_their_results_follow() -> None:
    messages = model_messages(
        said("system", text("Be brief.")),
        said("system", text(" ")),
        said("user", text("Weather?")),
        said(
            "assistant",
            STEP,
            {"type": "reasoning", "text": "Two cities."},
            text("I look."),
            call("Bonn", "output-available", output={"celsius": 12}),
            call("Kiel", "output-error", errorText="No such station."),
            STEP,
            text("12 °C in Bonn."),
            {"type": "data-note", "data": 1},
        ),
        said("assistant", STEP),
    )
    converted = to_langchain(messages)
    assert converted == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [
                {"type": "tool_call", "id": "Bonn", "name": "weather", "args": {"city": "Bonn"}},
                {"type": "tool_call", "id": "Kiel", "name": "weather", "args": {"city": "Kiel"}},
            ],
        },
        {"role": "tool", "tool_call_id": "Bonn", "content": '{"celsius":12}', "status": "success"},
        {"role": "tool", "tool_call_id": "Kiel", "content": "No such station.", "status": "error"},
        {"role": "assistant", "content": "12 °C in Bonn."},
    ]
    real = convert_to_messages(converted)
    assert [message.type for message in real] == ["system", "human", "ai", "tool", "tool", "ai"]
    assert isinstance(real[2], AIMessage)
    assert [tool_call["args"] for tool_call in real[2].tool_calls] == [{"city": "Bonn"}, {"city": "Kiel"}]
    assert isinstance(real[4], ToolMessage)
    assert real[4].status == "error"


@pytest.mark.parametrize(
    ("part", "block"),
    [
        (file("image/png", PNG), {"type": "image", "base64": "iVBORw0KGgo=", "mime_type": "image/png"}),
        (
            file("image/png", "https://a.example/x.png"),
            {"type": "image", "url": "https://a.example/x.png", "mime_type": "image/png"},
        ),
        (
            file("audio/wav", "data:audio/wav;base64,AAAA"),
            {"type": "audio", "base64": "AAAA", "mime_type": "audio/wav"},
        ),
        (
            file("application/pdf", "data:application/pdf;base64,AAAA"),
            {"type": "file", "base64": "AAAA", "mime_type": "application/pdf"},
        ),
        (file("image/png", "", providerReference={"openai": "f-1"}), {"type": "image", "file_id": "f-1"}),
    ],
)
def test_a_file_is_a_block_of_its_kind(part: dict[str, Any], block: dict[str, Any]) -> None:
    assert asked(text("Look:"), part, text(" ")) == [text("Look:"), block]


@pytest.mark.parametrize(
    ("parts", "content"),
    [
        ([text("Good "), text("day")], "Good day"),
        ([text(" ")], "(empty message)"),
        ([file("text/plain", "data:text/plain,abc", filename="a.txt")], 'The file "a.txt":\n\nabc'),
        ([file("text/plain", "data:text/plain,abc")], "abc"),
        ([file("image/png", "blob:x")], "[The file (image/png) cannot be shown here.]"),
    ],
)
def test_what_is_text_is_a_string(parts: list[dict[str, Any]], content: str) -> None:
    assert asked(*parts) == content
