"""Messages for a model; conformance/test_model_messages.py holds them against the SDK's own."""

from typing import Any

import pytest

from usechat.protocol.messages import Role, UIMessage
from usechat.protocol.model_messages import to_model_messages

META = {"anthropic": {"signature": "s"}}
OTHER_META = {"openai": {"itemId": "i"}}


def said(role: Role, *parts: dict[str, Any]) -> UIMessage:
    return UIMessage("m", role, list(parts))


def answered(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return to_model_messages([said("assistant", *parts)])


def call(state: str, **fields: Any) -> dict[str, Any]:
    return {"type": "tool-look-up", "toolCallId": "c", "state": state, "input": {"q": 1}, **fields}


def called(**fields: Any) -> dict[str, Any]:
    return {"type": "tool-call", "toolCallId": "c", "toolName": "look-up", "input": {"q": 1}, **fields}


def result(output: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"type": "tool-result", "toolCallId": "c", "toolName": "look-up", "output": output, **fields}


def test_a_system_message_is_one_text() -> None:
    texts = [{"type": "text", "text": "Be ", "providerMetadata": META}, {"type": "text", "text": "brief."}]
    assert to_model_messages([said("system", *texts, {"type": "data-x", "data": 1})]) == [
        {"role": "system", "content": "Be brief.", "providerOptions": META}
    ]
    assert to_model_messages([said("system")]) == [{"role": "system", "content": ""}]


def test_a_user_message_has_its_texts_and_files() -> None:
    url = "data:image/png;base64,iVBORw0KGgo="
    parts = [
        {"type": "text", "text": "What is this?", "state": "done"},
        {"type": "file", "mediaType": "image/png", "url": url, "filename": "cat.png", "providerMetadata": META},
        {"type": "file", "mediaType": "application/pdf", "url": "/a.pdf", "providerReference": {"openai": "file-1"}},
        {"type": "source-url", "sourceId": "s", "url": "https://example.com"},
        {"type": "data-chart", "data": 1},
    ]
    assert to_model_messages([said("user", *parts)]) == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is this?"},
                {
                    "type": "file",
                    "mediaType": "image/png",
                    "filename": "cat.png",
                    "data": {"type": "url", "url": url},
                    "providerOptions": META,
                },
                {
                    "type": "file",
                    "mediaType": "application/pdf",
                    "data": {"type": "reference", "reference": {"openai": "file-1"}},
                },
            ],
        }
    ]


def test_steps_are_messages_and_what_is_for_the_page_is_left_out() -> None:
    parts = [
        {"type": "step-start"},
        {"type": "reasoning", "text": "Hm.", "providerMetadata": META},
        {"type": "reasoning-file", "mediaType": "image/png", "url": "https://example.com/a.png"},
        {"type": "custom", "kind": "x.y", "providerMetadata": META},
        {"type": "source-url", "sourceId": "s", "url": "https://example.com"},
        call("output-available", output="found"),
        {"type": "step-start"},
        {"type": "data-chart", "data": 1},
        {"type": "of-a-newer-client"},
        {"type": "step-start"},
        {"type": "text", "text": "Here."},
        {"type": "steering-message", "id": "u", "parts": [{"type": "text", "text": "Wait!"}]},
        {"type": "text", "text": "Yes?"},
    ]
    assert answered(*parts) == [
        {
            "role": "assistant",
            "content": [
                {"type": "reasoning", "text": "Hm.", "providerOptions": META},
                {
                    "type": "reasoning-file",
                    "data": {"type": "url", "url": "https://example.com/a.png"},
                    "mediaType": "image/png",
                },
                {"type": "custom", "kind": "x.y", "providerOptions": META},
                called(),
            ],
        },
        {"role": "tool", "content": [result({"type": "text", "value": "found"})]},
        {"role": "assistant", "content": [{"type": "text", "text": "Here."}]},
        {"role": "user", "content": [{"type": "text", "text": "Wait!"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Yes?"}]},
    ]


@pytest.mark.parametrize(
    ("part", "content"),
    [
        (call("input-streaming"), []),
        (call("input-available"), [called()]),
        (
            call("output-available", callProviderMetadata=META),
            [called(providerOptions=META), result({"type": "json", "value": None}, providerOptions=META)],
        ),
        (
            call("output-available", output=[1], preliminary=True, resultProviderMetadata=OTHER_META),
            [called(), result({"type": "json", "value": [1]})],
        ),
        (
            call("output-error", input=None, rawInput="{", errorText="broken", resultProviderMetadata=OTHER_META),
            [called(input="{", providerOptions=OTHER_META), result({"type": "error-text", "value": "broken"})],
        ),
        (
            {**call("output-available", output=1), "type": "dynamic-tool", "toolName": "look-up", "dynamic": False},
            [
                called(),
                result({"type": "text", "value": "Tool output omitted because the tool is no longer available."}),
            ],
        ),
    ],
    ids=["streaming", "unanswered", "nothing", "preliminary", "wrong input", "a tool that is gone"],
)
def test_a_call_is_given_with_its_result(part: dict[str, Any], content: list[dict[str, Any]]) -> None:
    assert [item for message in answered(part) for item in message["content"]] == content
    assert [message["role"] for message in answered(part)] == ["assistant", "tool"][: len(content)]


@pytest.mark.parametrize(
    ("state", "fields", "output"),
    [
        ("output-available", {"output": 1}, {"type": "json", "value": 1}),
        ("output-error", {"errorText": "away"}, {"type": "error-json", "value": "away"}),
    ],
)
def test_the_result_of_a_tool_of_the_provider_stays_beside_its_call(
    state: str, fields: dict[str, Any], output: dict[str, Any]
) -> None:
    executed = call(
        state, providerExecuted=True, callProviderMetadata=META, resultProviderMetadata=OTHER_META, **fields
    )
    assert answered(executed, {"type": "text", "text": "So."}) == [
        {
            "role": "assistant",
            "content": [
                called(providerExecuted=True, providerOptions=META),
                result(output, providerOptions=OTHER_META),
                {"type": "text", "text": "So."},
            ],
        }
    ]


def test_an_approval_is_a_request_and_its_answer() -> None:
    asked = {"id": "a", "isAutomatic": True, "requestReason": "costs", "signature": "s", "inputSchemaInput": None}
    request = {
        "type": "tool-approval-request",
        "approvalId": "a",
        "toolCallId": "c",
        "isAutomatic": True,
        "reason": "costs",
        "signature": "s",
        "inputSchemaInput": None,
    }
    assert answered(call("approval-requested", approval=asked)) == [
        {"role": "assistant", "content": [called(), request]}
    ]
    approved = answered(call("approval-responded", approval={"id": "a", "approved": True}))
    assert approved[1] == {
        "role": "tool",
        "content": [{"type": "tool-approval-response", "approvalId": "a", "approved": True}],
    }


@pytest.mark.parametrize(
    ("state", "reason", "output"),
    [
        ("approval-responded", {"reason": "no"}, {"type": "execution-denied", "reason": "no"}),
        ("approval-responded", {}, {"type": "execution-denied"}),
        ("output-denied", {"reason": "no"}, {"type": "error-text", "value": "no"}),
        ("output-denied", {}, {"type": "error-text", "value": "Tool call execution denied."}),
    ],
)
def test_a_refusal_is_an_answer_and_a_result(state: str, reason: dict[str, Any], output: dict[str, Any]) -> None:
    refused = {"id": "a", "approved": False, **reason}
    answer = {"type": "tool-approval-response", "approvalId": "a", "approved": False, **reason}
    assert answered(call(state, approval=refused))[1] == {"role": "tool", "content": [answer, result(output)]}


def test_an_approval_that_nobody_answered_is_gone_after_the_next_question() -> None:
    waiting = said("assistant", {"type": "text", "text": "May I?"}, call("approval-requested", approval={"id": "a"}))
    question = said("user", {"type": "text", "text": "Never mind."})
    asked = {"role": "user", "content": [{"type": "text", "text": "Never mind."}]}
    assert to_model_messages([waiting, question]) == [
        {"role": "assistant", "content": [{"type": "text", "text": "May I?"}]},
        asked,
    ]
    request = {"type": "tool-approval-request", "approvalId": "a", "toolCallId": "c"}
    assert to_model_messages([question, waiting]) == [
        asked,
        {"role": "assistant", "content": [{"type": "text", "text": "May I?"}, called(), request]},
    ]


def test_a_message_without_parts_for_the_model() -> None:
    assert to_model_messages([said("user"), said("assistant"), said("assistant", {"type": "step-start"})]) == [
        {"role": "user", "content": []}
    ]
    assert to_model_messages([]) == []
