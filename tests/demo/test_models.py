"""The real models of the demo against scripted servers that speak as the providers do."""

import json
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from support.loopback import STEP, ask, last_two, parts, serving, text_part
from support.openai_server import Model, words
from usechat import create_app
from usechat.demo.models import find_models


class Claude:
    """A server that says one thing, and keeps what it was asked."""

    def __init__(self, *texts: str) -> None:
        self.asked: list[dict[str, Any]] = []
        self._texts = texts
        self.app = Starlette(routes=[Route("/v1/messages", self._answer, methods=["POST"])])

    async def _answer(self, request: Request) -> Response:
        self.asked.append(await request.json())
        message: dict[str, Any] = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": []}
        message |= {"stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1}}
        block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        deltas = [{"type": "text_delta", "text": text} for text in self._texts]
        events: list[dict[str, Any]] = [
            {"type": "message_start", "message": message},
            block,
            *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}},
            {"type": "message_stop"},
        ]
        lines = (f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
        return StreamingResponse(lines, media_type="text/event-stream")


def answer_of(**environ: str) -> str:
    [model] = find_models(environ)
    with serving(create_app(model.make())) as url:
        return ask(f"{url}/api/chat").text


def test_openai_is_asked() -> None:
    server = Model(words("It ", "floats."))
    with serving(server.app) as url:
        assert parts(answer_of(OPENAI_BASE_URL=f"{url}/v1")) == [STEP, text_part("It floats.")]
    assert [asked["messages"] for asked in server.asked] == [[{"role": "user", "content": "Hello"}]]


def test_anthropic_is_asked() -> None:
    server = Claude("It ", "floats.")
    with serving(server.app) as url:
        answer = answer_of(ANTHROPIC_API_KEY="k", ANTHROPIC_BASE_URL=url)
    assert parts(answer) == [STEP, text_part("It floats.")]
    [asked] = server.asked
    said = [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]
    assert (asked["model"], asked["messages"]) == ("claude-sonnet-5", said)


async def refuse(_request: Request) -> Response:
    return JSONResponse({"error": {"message": "Incorrect API key provided: sk-secret."}}, status_code=401)


def test_a_refusal_is_told_without_the_words_of_the_server() -> None:
    with serving(Starlette(routes=[Route("/{path:path}", refuse, methods=["POST"])])) as url:
        answers = [
            answer_of(OPENAI_API_KEY="sk-secret", OPENAI_BASE_URL=f"{url}/v1"),
            answer_of(ANTHROPIC_API_KEY="sk-secret", ANTHROPIC_BASE_URL=url),
        ]
    assert [last_two(answer)[0] for answer in answers] == [
        '{"type":"error","errorText":"gpt-5-mini cannot be asked: its server answered 401."}',
        '{"type":"error","errorText":"claude-sonnet-5 cannot be asked: its server answered 401."}',
    ]
