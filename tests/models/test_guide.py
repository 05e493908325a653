"""The agents of docs/guides/models.md, against scripted servers of both APIs."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from support.hang import HANG_SECONDS
from support.http_pages import Page, client, to_end, user
from support.loopback import STEP, message, parts, serving, serving_here, text_part
from usechat import Chat, ToolCall, create_app, to_openai

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "models.md").read_text(encoding="utf-8")
OPENAI, ANTHROPIC, APPROVED = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
JSON = dict[str, Any]


def completion(delta: JSON, reason: str | None = None) -> JSON:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


ANSWER: JSON = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None}
USAGE = {"input_tokens": 1, "output_tokens": 1}
EVENTS: dict[str, list[JSON]] = {
    "/v1/chat/completions": [completion({"content": "It "}), completion({"content": "is."}), completion({}, "stop")],
    "/v1/messages": [
        {"type": "message_start", "message": {**ANSWER, "stop_sequence": None, "usage": USAGE}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "It "}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "is."}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": USAGE},
        {"type": "message_stop"},
    ],
}


class Model:
    """A server of both APIs that keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[JSON] = []
        self.app = Starlette(routes=[Route(path, self._answer, methods=["POST"]) for path in EVENTS])

    async def _answer(self, request: Request) -> Response:
        self.asked.append(await request.json())
        events = EVENTS[request.url.path]
        body = "".join(f"event: {event.get('type', 'message')}\ndata: {json.dumps(event)}\n\n" for event in events)
        return Response(body, media_type="text/event-stream")


def run(block: str) -> JSON:
    names: JSON = {}
    exec(compile(block, "models.md", "exec"), names)  # noqa: S102
    return names


@pytest.mark.parametrize("block", [OPENAI, ANTHROPIC], ids=["openai", "anthropic"])
def test_the_agents_of_the_guide_give_the_chat_to_the_model(block: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        model = Model()
        async with serving_here(model.app) as port:
            monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{port}/v1")
            monkeypatch.setenv("OPENAI_API_KEY", "key")
            monkeypatch.setenv("ANTHROPIC_BASE_URL", f"http://127.0.0.1:{port}")
            monkeypatch.setenv("ANTHROPIC_API_KEY", "key")
            guide = run(block)
            async with (
                guide["client"],
                serving_here(create_app(guide["agent"])) as chat,
                httpx.AsyncClient(timeout=HANG_SECONDS) as page,
            ):
                bodies = [message("Is it?"), {"id": "chat", "messages": [user("m2", "Sure?")]}]
                for body in bodies:
                    answer = await page.post(f"http://127.0.0.1:{chat}/api/chat", json=body)
                    assert parts(answer.text) == [STEP, text_part("It is.")]
        [first, second] = [[text_of(each) for each in asked["messages"]] for asked in model.asked]
        assert first == [("user", "Is it?")]
        assert second == [("user", "Is it?"), ("assistant", "It is."), ("user", "Sure?")]

    asyncio.run(main())


def text_of(said: JSON) -> tuple[str, str]:
    content = said["content"]
    return said["role"], content if isinstance(content, str) else content[0]["text"]


def test_the_result_of_an_approved_call_is_for_the_model_too(monkeypatch: pytest.MonkeyPatch) -> None:
    guide = run(APPROVED)

    async def agent(chat: Chat) -> Any:
        if chat.continues:
            async for said in guide["agent"](chat):
                yield said
        else:
            yield ToolCall("c", "pay", {"amount": 3})
            chat.write.approval_request("c")

    seen: list[Any] = []

    def noting(messages: list[JSON]) -> list[Any]:
        seen.append(to_openai(messages))
        return seen[-1]

    monkeypatch.setitem(guide, "to_openai", noting)
    with serving(create_app(agent)) as url, client(url) as http:
        page = Page(http)
        with page.posting(user("m1", "Pay!")) as lines:
            to_end(lines)
        asked = page.messages()[-1]
        call = asked["parts"][-1]
        call |= {"state": "approval-responded", "approval": {**call["approval"], "approved": True}}
        with page.posting(asked) as lines:
            to_end(lines)
        assert page.messages()[-1]["parts"][-1]["text"] == "3 messages for the model."
    function = {"name": "pay", "arguments": '{"amount":3}'}
    assert seen == [
        [
            {"role": "user", "content": "Pay!"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c", "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": "c", "content": "Paid 3 €."},
        ]
    ]
