"""examples/openai against a scripted server that speaks chat completions."""

import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx

from support.hang import HANG_SECONDS
from support.http_pages import user
from support.loopback import STEP, USECHAT, ask, parts, running, serving, text_part
from support.openai_server import JSON, Model, answer, begun, more, words

ROOT = Path(__file__).parents[2]


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
        second = parts(httpx.post(url, json=thanks, timeout=HANG_SECONDS).text)

    time = first[2]["output"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d\+00:00", time)
    wrong = "local_time cannot be called with these arguments."
    unread = "The model wrote arguments that are not valid JSON."
    call = {"type": "tool-local_time", "toolCallId": "call_a", "state": "output-available", "input": {"zone": "UTC"}}
    failed = {**call, "toolCallId": "call_b", "state": "output-error", "input": {"zone": "Nowhere"}, "errorText": wrong}
    assert first == [
        STEP,
        text_part("I look."),
        {**call, "output": time},
        failed,
        STEP,
        {**failed, "toolCallId": "call_c", "input": "{broken", "errorText": unread},
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
        {"role": "assistant", "content": None, "tool_calls": [sent("call_c", '{"input":"{broken"}')]},
        result("call_c", unread),
    ]
    remembered = [
        *tried,
        {"role": "assistant", "content": "It is late."},
        {"role": "user", "content": "Thanks"},
    ]
    assert [asked["messages"] for asked in model.asked] == [tried[:1], tried[:4], tried, remembered]
    assert {(asked["model"], asked["stream"], len(asked["tools"])) for asked in model.asked} == {
        ("gpt-5-mini", True, 1)
    }
