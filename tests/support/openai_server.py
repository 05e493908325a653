"""A scripted server that speaks OpenAI's chat completions."""

import json
from collections.abc import Iterable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

__all__ = ["JSON", "Model", "answer", "begun", "more", "words"]

JSON = dict[str, Any]


class Model:
    """A server that gives one answer after the other, and keeps what it was asked."""

    def __init__(self, *answers: list[JSON]) -> None:
        self.asked: list[JSON] = []
        self._answers = list(answers)
        self.app = Starlette(routes=[Route("/v1/chat/completions", self._complete, methods=["POST"])])

    async def _complete(self, request: Request) -> Response:
        self.asked.append(await request.json())
        events = [*map(json.dumps, self._answers.pop(0)), "[DONE]"]
        return StreamingResponse((f"data: {event}\n\n" for event in events), media_type="text/event-stream")


def answer(deltas: Iterable[JSON], reason: str) -> list[JSON]:
    """The chunks of an answer: the role first, then the deltas, the reason for the end, and the usage."""
    head: JSON = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000, "model": "m"}
    choices = [({"role": "assistant", "content": None, "refusal": None}, None), *((delta, None) for delta in deltas)]
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return [
        *(
            {**head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": end}]}
            for delta, end in [*choices, ({}, reason)]
        ),
        {**head, "choices": [], "usage": usage},
    ]


def words(*texts: str, reason: str = "stop") -> list[JSON]:
    return answer([{"content": text} for text in texts], reason)


def begun(index: int, call_id: str, name: str = "local_time") -> JSON:
    function = {"name": name, "arguments": ""}
    return {"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]}


def more(index: int, arguments: str) -> JSON:
    return {"tool_calls": [{"index": index, "function": {"arguments": arguments}}]}
