"""Chats with graphs, in this process: what a page would post, and what it would be told."""

from collections.abc import Mapping
from itertools import count
from typing import Any

import msgspec
from langchain_core.messages import BaseMessage

from support.scripted_model import ScriptedModel
from usechat.history import HistoryStore, MemoryHistory
from usechat.integrations import AnyAgent
from usechat.protocol.messages import UIMessage
from usechat.protocol.requests import ChatRequest, Trigger
from usechat.protocol.verdict import judge, recorded_events
from usechat.server.endpoint import ChatEndpoint
from usechat.turns.settings import ChatSettings

__all__ = ["GraphChat", "heard", "shown"]


class GraphChat:
    """One chat with an agent; `body` is what the page puts beside the messages.

    Users are told the type of an error.
    """

    def __init__(
        self, agent: AnyAgent, chat_id: str = "chat", user: str | None = None, history: HistoryStore | None = None
    ) -> None:
        settings = ChatSettings(error_text=lambda error: type(error).__name__)
        self.endpoint = ChatEndpoint(agent, settings=settings, history=history or MemoryHistory())
        self.id = chat_id
        self.user = user
        self._numbers = count(1)

    async def say(self, text: str, message_id: str | None = None, **body: Any) -> list[dict[str, Any]]:
        message_id = message_id or f"u{next(self._numbers)}"
        return await self.post(UIMessage(message_id, "user", [{"type": "text", "text": text}]), **body)

    async def answer(self, answers: Mapping[str, Mapping[str, Any]], /, **body: Any) -> list[dict[str, Any]]:
        """Answer approvals of the last message by the ids of their calls, as the client does it."""
        last = (await self.messages())[-1]
        for part in last.parts:
            if part.get("toolCallId") in answers:
                part |= {"state": "approval-responded"}
                part["approval"] |= answers[part["toolCallId"]]
        return await self.post(last, **body)

    async def post(self, message: UIMessage, trigger: Trigger = "submit-message", **body: Any) -> list[dict[str, Any]]:
        """The chunks of the turn, which are legal."""
        reader = await self.begin(message, trigger, **body)
        while reader.log.outcome is None:
            await reader.log.changed()
        frames = b"".join(reader.log.frames)
        reader.leave()
        # A stream that goes on with a message is not legal alone.
        assert message.role == "assistant" or judge(recorded_events(frames)).violation is None
        lines = [line.removeprefix(b"data: ") for line in frames.splitlines() if line.startswith(b"data: {")]
        return [msgspec.json.decode(line) for line in lines]

    async def begin(self, message: UIMessage, trigger: Trigger = "submit-message", **body: Any) -> Any:
        request = ChatRequest(id=self.id, last=message, trigger=trigger, extra=body)
        return await self.endpoint.chats.begin(request, self.user, {})

    async def messages(self) -> list[UIMessage]:
        stored = await self.endpoint.chats.messages(self.id, self.user)
        return [msgspec.json.decode(message, type=UIMessage) for message in stored]

    async def parts(self) -> list[dict[str, Any]]:
        """The parts of the last message, without what is always the same."""
        return shown((await self.messages())[-1])

    async def approvals(self) -> dict[str, str]:
        """The ids of the approvals that the last message asks for, by the ids of their calls."""
        parts = (await self.messages())[-1].parts
        return {part["toolCallId"]: part["approval"]["id"] for part in parts if part.get("approval")}


def shown(message: UIMessage) -> list[dict[str, Any]]:
    left_out = ("state", "id")
    return [
        {name: value for name, value in part.items() if name not in left_out or "toolCallId" in part}
        for part in message.parts
    ]


def heard(model: ScriptedModel) -> list[list[tuple[str, Any]]]:
    """The type and the content of the messages that the model was given, for each of its calls."""
    return [[(message.type, _content(message)) for message in messages] for messages in model.seen]


def _content(message: BaseMessage) -> Any:
    calls = getattr(message, "tool_calls", None)
    return [call["id"] for call in calls] if calls else message.content
