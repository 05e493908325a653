"""Whatever a chat holds, the APIs take what is made of it: by the types of their own packages, and by their rules."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

import pytest
from hypothesis import given, settings
from pydantic import TypeAdapter

from support.soak import draws
from ui_messages import HISTORIES
from usechat import UIMessage, to_anthropic, to_model_messages, to_openai

MANY: Final = settings(max_examples=draws(60, 25), deadline=None)
NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
ID: Final = re.compile(r"[a-zA-Z0-9_-]+")


# The packages take seconds to import, which nobody should wait for who only collects the tests.
@pytest.fixture(scope="module")
def openai_types() -> TypeAdapter[Any]:
    from openai.types.chat import ChatCompletionMessageParam

    return TypeAdapter(list[ChatCompletionMessageParam])


@pytest.fixture(scope="module")
def anthropic_types() -> TypeAdapter[Any]:
    from anthropic.types import MessageParam

    return TypeAdapter(list[MessageParam])


def whole(value: Any) -> Any:
    """A validated value with its lists: the types of the packages have iterables, which pydantic reads late."""
    if isinstance(value, Mapping):
        return {name: whole(item) for name, item in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [whole(item) for item in cast("Iterable[Any]", value)]
    return value


def calls_of(messages: list[UIMessage]) -> list[str]:
    content = [part for message in to_model_messages(messages) for part in message["content"]]
    return [part["toolCallId"] for part in content if isinstance(part, dict) and part["type"] == "tool-call"]


def assert_said(texts: Iterable[str]) -> None:
    assert [text for text in texts if not text.strip()] == []


def texts_of(content: list[dict[str, Any]]) -> list[str]:
    return [item["text"] for item in content if item["type"] == "text"]


@MANY
@given(HISTORIES)
def test_openai_takes_every_history(openai_types: TypeAdapter[Any], history: list[UIMessage]) -> None:
    messages = to_openai(to_model_messages(history))
    # A field that is not in the types would be gone after the validation.
    assert whole(openai_types.validate_python(messages)) == messages
    rest = list(messages)
    called = 0
    while rest:
        message = rest.pop(0)
        content, calls = message["content"], message.get("tool_calls", [])
        assert message["role"] in ("system", "user", "assistant")
        assert content or calls
        assert_said([content] if isinstance(content, str) else texts_of(content or []))
        results, rest = rest[: len(calls)], rest[len(calls) :]
        ids = [call["id"] for call in calls]
        assert [(result["role"], result["tool_call_id"]) for result in results] == [("tool", each) for each in ids]
        assert len(set(ids)) == len(ids)
        assert all(NAME.fullmatch(call["function"]["name"]) for call in calls)
        assert all(isinstance(json.loads(call["function"]["arguments"]), dict) for call in calls)
        assert_said(result["content"] for result in results)
        called += len(calls)
    assert called == len(calls_of(history))


@MANY
@given(HISTORIES)
def test_anthropic_takes_every_history(anthropic_types: TypeAdapter[Any], history: list[UIMessage]) -> None:
    body = to_anthropic(to_model_messages(history))
    messages = body["messages"]
    assert whole(anthropic_types.validate_python(messages)) == messages
    assert_said([body["system"]] if "system" in body else [])
    assert [message["role"] for message in messages] == [("user", "assistant")[n % 2] for n in range(len(messages))]
    open_calls: list[str] = []
    called: list[str] = []
    for message in messages:
        content = message["content"]
        assert content
        assert_said(texts_of(content))
        results = [block for block in content if block["type"] == "tool_result"]
        assert results == content[: len(results)]
        assert [block["tool_use_id"] for block in results] == open_calls
        assert_said(block["content"] for block in results)
        calls = [block for block in content if block["type"] == "tool_use"]
        assert calls == content[len(content) - len(calls) :]
        assert all(NAME.fullmatch(block["name"]) for block in calls)
        open_calls = [block["id"] for block in calls]
        called += open_calls
    assert open_calls == []
    assert all(ID.fullmatch(each) for each in called)
    assert len(set(called)) == len(called) == len(calls_of(history))
    if messages and messages[-1]["role"] == "assistant":
        assert [text for text in texts_of(messages[-1]["content"][-1:]) if text != text.rstrip()] == []
