"""Parts of a chat with a model, as pages post them."""

from typing import Any

from usechat import UIMessage, to_model_messages
from usechat.protocol.messages import Role

__all__ = ["STEP", "call", "file", "model_messages", "said", "text"]

STEP: dict[str, Any] = {"type": "step-start"}


def said(role: Role, *parts: dict[str, Any]) -> UIMessage:
    return UIMessage("m", role, list(parts))


def model_messages(*messages: UIMessage) -> list[dict[str, Any]]:
    return to_model_messages(messages)


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def file(media_type: str, url: str, **fields: Any) -> dict[str, Any]:
    return {"type": "file", "mediaType": media_type, "url": url, **fields}


def call(call_id: str, state: str, name: str = "weather", **fields: Any) -> dict[str, Any]:
    return {"type": f"tool-{name}", "toolCallId": call_id, "state": state, "input": {"city": call_id}, **fields}
