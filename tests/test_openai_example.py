"""examples/openai against a scripted server that speaks chat completions."""

import json
import re
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from http_pages import user
from loopback import SECONDS, STEP, USECHAT, ask, parts, running, serving, text_part

ROOT = Path(__file__).parents[1]
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


@contextmanager
def serving_example(model: Model, folder: Path) -> Generator[str, None, None]:
    # The folder is that of the database; the example is found from the root.
    example = (*USECHAT, "serve", "examples.openai.agent:agent", "--port", "0")
    with (
        serving(model.app) as url,
        running(example, ROOT, OPENAI_BASE_URL=f"{url}/v1", USECHAT_HISTORY=f"sqlite:///{folder}/chats.db") as process,
    ):
        line = process.first_line()
        assert " at http" in line, line + process.errors()
        yield line.rpartition(" at ")[2].strip()


def test_the_example_streams_calls_tools_in_parallel_and_remembers(tmp_path: Path) -> None:
    two_calls = [
        {"content": "I "},
        {"content": "look."},
        begun(0, "call_a"),
        more(0, '{"zone":'),
        begun(1, "call_b"),
        more(1, '{"zo'),
        more(0, '"UTC"}'),
        more(1, 'ne":"Nowhere"}'),
    ]
    model = Model(
        answer(two_calls, "tool_calls"),
        answer([begun(0, "call_c"), more(0, "{broken")], "tool_calls"),
        words("It is ", "late."),
        words("You are", " wel", reason="length"),
    )
    with serving_example(model, tmp_path) as url:
        first = parts(ask(url, "What time is it?").text)
        thanks = {"id": "chat", "messages": [user("m2", "Thanks")]}
        second = parts(httpx.post(url, json=thanks, timeout=SECONDS).text)

    time = first[2]["output"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d\+00:00", time)
    wrong = "local_time cannot be called so."
    call = {"type": "tool-local_time", "toolCallId": "call_a", "state": "output-available", "input": {"zone": "UTC"}}
    failed = {**call, "toolCallId": "call_b", "state": "output-error", "input": {"zone": "Nowhere"}, "errorText": wrong}
    assert first == [
        STEP,
        text_part("I look."),
        {**call, "output": time},
        failed,
        STEP,
        {**failed, "toolCallId": "call_c", "input": "{broken"},
        STEP,
        text_part("It is late."),
    ]
    assert second == [STEP, text_part("You are wel")]

    def sent(call_id: str, arguments: str) -> JSON:
        return {"id": call_id, "type": "function", "function": {"name": "local_time", "arguments": arguments}}

    def result(call_id: str, content: str) -> JSON:
        return {"role": "tool", "tool_call_id": call_id, "content": content}

    calls = [sent("call_a", '{"zone":"UTC"}'), sent("call_b", '{"zone":"Nowhere"}')]
    question = {"role": "user", "content": "What time is it?"}
    looked = {"role": "assistant", "content": "I look.", "tool_calls": calls}
    tried = [
        question,
        looked,
        result("call_a", time),
        result("call_b", wrong),
        {"role": "assistant", "content": None, "tool_calls": [sent("call_c", "{broken")]},
        result("call_c", wrong),
    ]
    remembered = [
        *tried[:4],
        {"role": "assistant", "content": None, "tool_calls": [sent("call_c", '{"input":"{broken"}')]},
        result("call_c", wrong),
        {"role": "assistant", "content": "It is late."},
        {"role": "user", "content": "Thanks"},
    ]
    assert [asked["messages"] for asked in model.asked] == [tried[:1], tried[:4], tried, remembered]
    assert {(asked["model"], asked["stream"], len(asked["tools"])) for asked in model.asked} == {
        ("gpt-5-mini", True, 1)
    }
