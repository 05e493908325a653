"""Streams that stay as they are: a change of one byte, or of what a client makes of it, is seen here.

`USECHAT_GOLDEN=write pytest conformance/test_golden.py` writes them anew.
"""

import json
import os
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from judge import Judge
from promises import promised
from usechat.protocol.chunks import Chunk
from usechat.protocol.codec import encode_chunk
from usechat.protocol.messages import UIMessage
from usechat.protocol.writer import MessageWriter

GOLDEN: Final = Path(__file__).parent / "golden"
Story = Callable[[MessageWriter], list[Chunk]]


def text(w: MessageWriter) -> list[Chunk]:
    return w.start({"model": "m-1"}) + w.text("Hello, ") + w.text("wörld 😀\n") + w.finish(metadata={"tokens": 3})


def reasoning_and_tool(w: MessageWriter) -> list[Chunk]:
    chunks = w.reasoning("Where? ") + w.reasoning("Bern.") + w.tool_input_start("c-1", "weather")
    chunks += w.tool_input_delta("c-1", '{"city":') + w.tool_input_delta("c-1", '"Bern"}')
    chunks += w.tool_input("c-1", "weather", {"city": "Bern"}) + w.tool_output("c-1", None)
    return chunks + w.text("I do not know.") + w.finish()


def parallel_tools(w: MessageWriter) -> list[Chunk]:
    chunks = w.text("Both.") + w.tool_input("c-1", "a", 1) + w.tool_input("c-2", "b", [2], dynamic=True)
    chunks += w.tool_error("c-2", "no connection") + w.tool_output("c-1", "half", preliminary=True)
    return chunks + w.tool_output("c-1", "whole") + w.text("One worked.") + w.finish("length")


def ends_on_a_result(w: MessageWriter) -> list[Chunk]:
    return w.tool_input("c-1", "a", {}) + w.tool_output("c-1", {"ok": True}) + w.finish()


def lanes(w: MessageWriter) -> list[Chunk]:
    chunks = w.text("left 1 ", "left") + w.text("right 1 ", "right") + w.text("left 2", "left")
    chunks += w.tool_input("c-1", "a", {}, lane="right") + w.text(" left 3", "left") + w.tool_output("c-1", 1)
    return chunks + w.text("right 2", "right") + w.text("left 4", "left") + w.finish()


def parts_of_all_kinds(w: MessageWriter) -> list[Chunk]:
    chunks = w.source_url("https://a.example", title="A") + w.source_document("B", "text/plain", filename="b.txt")
    chunks += w.file("data:text/plain,x", "text/plain") + w.data("progress", {"done": 1}, id="p")
    chunks += w.data("progress", {"done": 2}, id="p") + w.data("note", [1]) + w.data("ping", 1, transient=True)
    return chunks + w.metadata({"a": {"b": 1}}) + w.metadata({"a": {"c": 2}}) + w.text("Done.") + w.finish()


def wrong_input(w: MessageWriter) -> list[Chunk]:
    return w.tool_input_error("c-1", "a", "{", "not JSON") + w.text("Again.") + w.finish()


def browser_tool(w: MessageWriter) -> list[Chunk]:
    return w.text("Where are you?") + w.tool_input("c-1", "locate", {}) + w.finish("tool-calls")


def approval(w: MessageWriter) -> list[Chunk]:
    return w.tool_input("c-1", "rm", {"file": "a"}) + w.approval_request("c-1") + w.finish("tool-calls")


def stopped(w: MessageWriter) -> list[Chunk]:
    return w.reasoning("Hm") + w.tool_input("c-1", "a", {}) + w.tool_input_start("c-2", "b") + w.abort("user")


def failed(w: MessageWriter) -> list[Chunk]:
    return w.text("I was about to") + w.fail("Something went wrong.")


STORIES: Final[list[Story]] = [
    text,
    reasoning_and_tool,
    parallel_tools,
    ends_on_a_result,
    lanes,
    parts_of_all_kinds,
    wrong_input,
    browser_tool,
    approval,
    stopped,
    failed,
]


def written(story: Story) -> list[Chunk]:
    numbers = count(1)
    return story(MessageWriter("m-1", new_id=lambda: f"id-{next(numbers)}"))


def in_common(message: dict[str, Any]) -> dict[str, Any]:
    """The message without what only some of the clients keep."""
    parts = [dict(part) for part in message["parts"]]
    for part in parts:
        if part["type"] == "reasoning":
            part.pop("id", None)
        if part.get("state") == "output-error":
            # A wrong or unfinished input is kept in one of the two.
            part.pop("rawInput", None)
            part.pop("input", None)
    return {**message, "parts": parts}


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_the_stream_and_the_message_of_every_client_are_as_they_were(judge: Judge, story: Story) -> None:
    chunks = written(story)
    lines = [encode_chunk(chunk).decode() for chunk in chunks]
    results = judge.read(chunks, promised("portable", chunks))
    messages = [in_common(result["messages"][0]) for result in results.values()]
    golden = GOLDEN / f"{story.__name__}.json"
    if os.environ.get("USECHAT_GOLDEN") == "write":
        golden.write_text(json.dumps({"chunks": [*map(json.loads, lines)], "message": messages[0]}, indent=2) + "\n")
    expected = json.loads(golden.read_text(encoding="utf-8"))
    assert [json.loads(line) for line in lines] == expected["chunks"]
    assert messages == [expected["message"]] * len(messages)
    ends = {(result["status"], result["error"] and result["error"]["message"]) for result in results.values()}
    assert ends == ({("error", "Something went wrong.")} if story is failed else {("ready", None)})


def test_a_continuation_goes_on_with_the_same_message(judge: Judge) -> None:
    parts: list[dict[str, Any]] = [
        {"type": "step-start"},
        {"type": "tool-locate", "toolCallId": "c-1", "state": "input-available", "input": {}},
    ]
    before = UIMessage(id="m-1", role="assistant", parts=parts)
    writer = MessageWriter("unused", new_id=iter(["id-1"]).__next__, continues=before)
    chunks = writer.tool_output("c-1", "Bern") + writer.text("Bern it is.") + writer.finish()
    continues = {"id": "m-1", "role": "assistant", "parts": parts}
    results = judge.read(chunks, promised("portable", chunks), continues=continues)
    message = {
        "id": "m-1",
        "role": "assistant",
        "parts": [
            {"type": "step-start"},
            {**parts[1], "state": "output-available", "output": "Bern"},
            {"type": "step-start"},
            {"type": "text", "text": "Bern it is.", "state": "done"},
        ],
    }
    assert [result["messages"] for result in results.values()] == [[message]] * len(results)
