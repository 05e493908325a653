"""What a message holds after events of the vocabulary, and that none of them makes a stream illegal."""

from collections.abc import Iterable
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from usechat import events as e
from usechat.errors import AgentError, LocalProtocolError
from usechat.events.mapper import EventMapper, TranslatingMapper
from usechat.protocol import chunks as c
from usechat.protocol.codec import encode_chunk
from usechat.protocol.messages import UIMessage
from usechat.protocol.reader import MessageReader
from usechat.protocol.verdict import judge, recorded_events
from usechat.protocol.writer import MessageWriter

STEP = {"type": "step-start"}


def chunks_of(
    events: Iterable[e.AgentEvent], continues: UIMessage | None = None, *, repeats: bool = False
) -> list[c.Chunk]:
    numbers = count(1)
    writer = MessageWriter("m", new_id=lambda: f"id-{next(numbers)}", continues=continues, client="latest")
    mapper = EventMapper(writer, repeats=repeats)
    chunks = [*writer.start(), *(chunk for event in events for chunk in mapper.map(event)), *mapper.end()]
    if writer.state.phase in ("ended", "failed"):
        return chunks
    # As a turn does whose agent did not say how it ends.
    waits = any(call.state in ("available", "requested") for call in writer.state.open_calls())
    return chunks + writer.finish("tool-calls" if waits else "stop")


def said(*events: e.AgentEvent, continues: UIMessage | None = None, repeats: bool = False) -> UIMessage:
    reader = MessageReader(continues)
    for chunk in chunks_of(events, continues, repeats=repeats):
        reader.apply(chunk)
    return reader.message


def parts(*events: e.AgentEvent, continues: UIMessage | None = None, repeats: bool = False) -> list[dict[str, Any]]:
    return said(*events, continues=continues, repeats=repeats).parts


def text(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, "state": "done", **fields}


def reasoning(text: str, part_id: str = "id-1", **fields: Any) -> dict[str, Any]:
    return {"type": "reasoning", "id": part_id, "text": text, "state": "done", **fields}


def call(state: str, call_id: str = "c", tool: str = "t", /, **fields: Any) -> dict[str, Any]:
    return {"type": f"tool-{tool}", "toolCallId": call_id, "state": state, "input": {}, **fields}


def result(output: Any, call_id: str = "c", **fields: Any) -> dict[str, Any]:
    return call("output-available", call_id, output=output, **fields)


def block(text: str) -> e.Text:
    return e.Text(text, whole=True, block=True)


LONG = "0123456789" * 50
CALL = e.ToolCall("c", "t", {})
FAILED = call("output-error", errorText="no")


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        pytest.param(["a", e.Text("b")], [text("ab")], id="a string is text"),
        pytest.param([e.Text("a", "x"), e.Text("b", "y"), e.Text("c", "x")], [text("ac"), text("b")], id="keys"),
        pytest.param([e.Text("a"), e.EndPart(), e.Text("b")], [text("a"), text("b")], id="the end of a part"),
        pytest.param([e.Text("a"), e.Text("ab", whole=True), "c"], [text("ab"), text("c")], id="the rest"),
        pytest.param([e.Text("ab", whole=True)], [text("ab")], id="only a whole text"),
        pytest.param([e.Text("ab"), e.Text("ab", whole=True)], [text("ab")], id="nothing is left"),
        pytest.param([*(e.Text("ab", whole=True) for _ in range(3))], [text("ab")], id="whole three times"),
        pytest.param([e.Text("ab"), e.Text("b", whole=True)], [text("ab")], id="the end of what was said"),
        pytest.param([e.Text("ab"), e.Text("xy", whole=True)], [text("ab"), text("xy")], id="another text"),
        pytest.param(
            [e.Text("a", whole=True), e.Text("b", whole=True)], [text("a"), text("b")], id="another whole text"
        ),
        pytest.param(
            [e.Text("a"), e.Text("a", whole=True), e.Text("b"), e.Text("b", whole=True)],
            [text("a"), text("b")],
            id="deltas after a whole text",
        ),
        pytest.param(
            [e.Text("a"), e.Text("a", whole=True), e.EndPart(), e.Text("a", whole=True)],
            [text("a"), text("a")],
            id="said again on purpose",
        ),
        pytest.param(
            [e.Reasoning("a"), e.Reasoning("ab", whole=True, metadata={"p": {"signature": "s"}}), "c"],
            [reasoning("ab", providerMetadata={"p": {"signature": "s"}}), text("c")],
            id="reasoning with a signature",
        ),
        pytest.param(
            [e.Reasoning("a", metadata={"p": {"signature": "s"}}), e.Reasoning("b")],
            [reasoning("a", providerMetadata={"p": {"signature": "s"}}), reasoning("b", "id-2")],
            id="a signature ends its part",
        ),
        pytest.param(
            ["a", e.Reasoning("", metadata={"p": {"redacted": "r"}}), e.Text("b", metadata={"p": {"x": 1}}), "c"],
            [
                text("a"),
                reasoning("", "id-2", providerMetadata={"p": {"redacted": "r"}}),
                text("b", providerMetadata={"p": {"x": 1}}),
                text("c"),
            ],
            id="reasoning that only its provider can read",
        ),
        pytest.param(
            [e.Text("a"), CALL, e.ToolResult("c", 1), e.Text("b"), e.Text("b!", whole=True)],
            [text("a"), result(1), STEP, text("b!")],
            id="the whole text since the last call",
        ),
        pytest.param(
            [e.Text("a"), CALL, e.ToolResult("c", 1), e.Text("b"), e.Text("ab!", whole=True)],
            [text("a"), result(1), STEP, text("b!")],
            id="the whole text of all",
        ),
        pytest.param([e.Text("a"), e.Text("", whole=True), e.Text("a", whole=True)], [text("a")], id="an empty whole"),
        pytest.param([block("a"), block("a")], [text("a"), text("a")], id="the same block again"),
        pytest.param(
            [e.Text("a"), e.Text("b"), block("a"), block("b!"), block("b!")],
            [text("ab"), text("!"), text("b!")],
            id="pieces of the next block before the whole one",
        ),
        pytest.param([e.Text("ab"), block("ac")], [text("ab"), text("ac")], id="another block"),
        pytest.param([e.Text(LONG), block(LONG + "!")], [text(LONG + "!")], id="the rest of a long block"),
        pytest.param(
            [*map(e.Text, LONG), e.Text("b" * 99), block(LONG), block("b" * 99 + "!")],
            [text(LONG + "b" * 99), text("!")],
            id="long blocks in small pieces",
        ),
        pytest.param([*map(e.Text, LONG), block(LONG[99:])], [text(LONG)], id="the end of a long text"),
        pytest.param(
            [e.Text("a\ud83d"), e.Text("\ude00"), block("a😀!")], [text("a😀!")], id="a character in two halves"
        ),
    ],
)
def test_texts(events: list[e.AgentEvent], expected: list[dict[str, Any]]) -> None:
    assert parts(*events) == [STEP, *expected]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        pytest.param([CALL], call("input-available"), id="left for the browser"),
        pytest.param([CALL, CALL, e.ToolResult("c", 1)], result(1), id="said twice"),
        pytest.param(
            [
                e.ToolInputStart("c", "t", title="T", provider_executed=True),
                e.ToolInputStart("c", "t"),
                e.ToolInputDelta("c", "{"),
                e.ToolInputDelta("c", "}"),
                CALL,
                e.ToolInputDelta("c", "late"),
                e.ToolResult("c", 1, provider_executed=True),
            ],
            result(1, providerExecuted=True, title="T"),
            id="streamed",
        ),
        pytest.param(
            [e.ToolCall("c", "t", {}, "T", metadata={"p": {"a": 1}}), e.ToolResult("c", 1)],
            result(1, title="T", callProviderMetadata={"p": {"a": 1}}),
            id="with a title and metadata",
        ),
        pytest.param(
            [CALL, e.ToolProgress("c", 1), e.ToolProgress("c", 2), e.ToolResult("c", 3), e.ToolProgress("c", 4)],
            result(3),
            id="progress",
        ),
        pytest.param(
            [CALL, e.ToolResult("c", 1), e.ToolResult("c", 2), e.ToolError("c", "no")], result(1), id="first end"
        ),
        pytest.param([CALL, e.ToolError("c", "no"), e.ToolDenied("c")], FAILED, id="error"),
        pytest.param([e.ToolResult("c", 1, "t")], result(1), id="a result without its call"),
        pytest.param([e.ToolError("c", "no", "t")], FAILED, id="an error without its call"),
    ],
)
def test_calls(events: list[e.AgentEvent], expected: dict[str, Any]) -> None:
    found = [part for part in parts(*events) if part["type"] == "tool-t"]
    assert found == [expected]


def outputs(*events: e.AgentEvent) -> list[tuple[str, Any]]:
    """The id and the end of each call."""
    found = [part for part in parts(*events, repeats=True) if "toolCallId" in part]
    return [(part["toolCallId"], part.get("output", part.get("errorText"))) for part in found]


def test_a_result_without_an_id_is_that_of_the_oldest_call_of_its_name_and_key() -> None:
    calls = [e.ToolCall(one, "t", {}, key="k") for one in "cd"]
    others = [e.ToolCall("x", "u", {}, key="k"), e.ToolCall("y", "t", {})]
    ends = [e.ToolResult("", 1, "t", key="k"), e.ToolError("", "no", "t", key="k"), e.ToolResult("", 3, "t")]
    assert outputs(*others[:1], *calls, *others[1:], *ends, e.ToolResult("x", 4)) == [
        ("x", 4),
        ("c", 1),
        ("d", "no"),
        ("y", 3),
    ]
    # Without such a call each is one of its own.
    assert outputs(e.ToolResult("", 1, "t"), e.ToolResult("", 1, "t")) == [("id-1", 1), ("id-2", 1)]


def test_the_calls_of_a_speaker_who_is_done_fail_and_late_results_are_dropped_until_the_next_step() -> None:
    calls = [e.ToolCall("c", "t", {}, key="k"), e.ToolCall("d", "t", {}, key="k"), e.ToolCall("x", "t", {})]
    late = e.ToolResult("", 9, "t", key="k")
    ended = [*calls, e.ToolResult("d", 1), e.EndCalls("Gone.", "k"), e.ToolResult("x", 2)]
    known = [("c", "Gone."), ("d", 1), ("x", 2)]
    assert outputs(*ended, late) == known
    assert outputs(*ended, late, late) == [*known, ("id-1", 9)]
    assert outputs(*ended, e.Step(), late) == [*known, ("id-1", 9)]


def test_a_call_that_the_user_is_asked_about_does_not_end_with_its_speaker() -> None:
    found = parts(CALL, e.ApprovalRequest("a", "c"), e.EndCalls("Gone."))
    assert [part["state"] for part in found if "state" in part] == ["approval-requested"]


def test_a_call_that_could_not_be_read_is_an_error_and_stays_one() -> None:
    events = [e.ToolInputError("c", "t", "{", "Unreadable."), e.ToolInputError("c", "t", "{", "Unreadable.")]
    found = [part for part in parts(*events, e.ToolError("c", "no"), repeats=True) if part["type"] != "step-start"]
    assert found == [call("output-error", errorText="Unreadable.") | {"input": "{"}]


def test_a_plain_agent_means_another_call_by_an_id_that_is_used_up_and_a_framework_repeats_itself() -> None:
    events = [CALL, e.ToolResult("c", 1), CALL, e.ToolResult("c", 2)]
    outputs = [part["output"] for part in parts(*events) if "output" in part]
    repeated = [part["output"] for part in parts(*events, repeats=True) if "output" in part]
    next_step = [part["output"] for part in parts(*events[:2], e.Step(), *events[2:], repeats=True) if "output" in part]
    streamed = [
        part["output"]
        for part in parts(*events[:2], e.ToolInputStart("c", "t"), *events[2:], repeats=True)
        if "output" in part
    ]
    assert (outputs, repeated, next_step, streamed) == ([1, 2], [1], [1, 2], [1, 2])


ASKED = UIMessage(
    "m",
    "assistant",
    [STEP, call("approval-requested", approval={"id": "a"}), call("approval-requested", "d", approval={"id": "b"})],
)


def answered(**approved: bool) -> UIMessage:
    ids = {"a": "c", "b": "d"}
    parts = [
        call("approval-responded", ids[name], approval={"id": name, "approved": approved[name]}) for name in approved
    ]
    return UIMessage("m", "assistant", [STEP, *parts])


def test_the_user_is_asked_once_and_the_turn_ends_with_tool_calls() -> None:
    events = [CALL, e.ApprovalRequest("a", "c", "Really?"), e.ApprovalRequest("a", "c"), e.Finish("stop")]
    chunks = chunks_of(events)
    assert [chunk for chunk in chunks if isinstance(chunk, c.ToolApprovalRequest)] == [
        c.ToolApprovalRequest("a", "c", reason="Really?")
    ]
    assert chunks[-1] == c.Finish("tool-calls")


def test_an_approval_without_an_id_gets_one() -> None:
    request = next(
        chunk for chunk in chunks_of([CALL, e.ApprovalRequest("", "c")]) if isinstance(chunk, c.ToolApprovalRequest)
    )
    assert request.approval_id.startswith("id-")


def test_what_the_user_denied_is_denied_whatever_the_framework_makes_of_it() -> None:
    continues = answered(a=False, b=False)
    ends = [e.ToolProgress("c", 0), e.ToolResult("c", "refused"), e.ToolError("d", "refused")]
    states = [part["state"] for part in parts(*ends, continues=continues) if "state" in part]
    denied = [part["state"] for part in parts(e.ToolDenied("c"), continues=answered(a=False)) if "state" in part]
    assert (states, denied) == (["output-denied", "output-denied"], ["output-denied"])


def test_an_approved_call_with_another_input_is_another_call_for_a_plain_agent_and_the_same_for_a_framework() -> None:
    events = [e.ToolCall("c", "t", {"n": 1}), e.ToolResult("c", 1)]
    plain = [part.get("output") for part in parts(*events, continues=answered(a=True)) if "toolCallId" in part]
    edited = [
        part.get("output") for part in parts(*events, continues=answered(a=True), repeats=True) if "toolCallId" in part
    ]
    assert (plain, edited) == ([None, 1], [1])


def test_calls_that_go_on_after_an_answer_say_so_and_no_page_waits_for_them() -> None:
    chunks = chunks_of([CALL, e.ToolCall("d", "t", {}), e.ApprovalRequest("a", "c"), e.Pause("Waits.")])
    assert [chunk for chunk in chunks if isinstance(chunk, c.ToolOutputAvailable)] == [
        c.ToolOutputAvailable("d", "Waits.")
    ]
    assert chunks[-1] == c.Finish("tool-calls")
    assert chunks_of([CALL, e.Pause("Waits.")])[-1] == c.Finish("other")


@pytest.mark.parametrize(
    ("events", "end"),
    [
        ([], c.Finish("stop")),
        ([e.Finish("length", {"a": 1})], c.Finish("length", {"a": 1})),
        ([e.Finish("length"), e.Finish("content-filter")], c.Finish("content-filter")),
        ([CALL, e.Finish("stop")], c.Finish("tool-calls")),
        ([c.Finish("other"), "late", e.Finish("stop")], c.Finish("other")),
        ([{"type": "error", "errorText": "No."}, "late"], c.Error("No.")),
    ],
)
def test_the_end(events: list[e.AgentEvent], end: c.Chunk) -> None:
    assert chunks_of(events)[-1] == end


def test_parts_of_other_kinds() -> None:
    page, paper = e.Source("https://a.example", "A"), e.Document("B", "text/plain", "b.txt")
    others = [
        e.File("data:,", "text/plain"),
        e.Data("d", 1, "x"),
        e.Data("d", 2, "x"),
        e.Data("gone", 1, transient=True),
        e.StructuredOutput(3),
    ]
    found = parts(page, page, e.Source("https://b.example"), paper, paper, *others, e.Handoff("b", "a"))
    assert found == [
        STEP,
        {"type": "source-url", "sourceId": "id-1", "url": "https://a.example", "title": "A"},
        {"type": "source-url", "sourceId": "id-2", "url": "https://b.example"},
        {"type": "source-document", "sourceId": "id-3", "mediaType": "text/plain", "title": "B", "filename": "b.txt"},
        {"type": "file", "url": "data:,", "mediaType": "text/plain"},
        {"type": "data-d", "id": "x", "data": 2},
        {"type": "data-structured-output", "data": 3},
        {"type": "data-handoff", "data": {"from": "a", "to": "b"}},
    ]


def test_the_usage_of_model_calls_is_summed_over_the_message_and_over_a_message_that_is_continued() -> None:
    first = said(
        e.Usage(input_tokens=10, output_tokens=4, cache_read_tokens=6, reasoning_tokens=1, model="m-1"),
        e.Step(),
        e.Usage(input_tokens=5, output_tokens=1),
    )
    whole: dict[str, Any] = {
        "inputTokens": 15,
        "inputTokenDetails": {"noCacheTokens": 9, "cacheReadTokens": 6, "cacheWriteTokens": 0},
        "outputTokens": 5,
        "outputTokenDetails": {"textTokens": 4, "reasoningTokens": 1},
        "totalTokens": 20,
        "cachedInputTokens": 6,
        "reasoningTokens": 1,
    }
    assert first.metadata == {"usage": whole, "model": "m-1"}
    second: Any = said(e.Usage(input_tokens=1, output_tokens=1, total_tokens=3), continues=first)
    assert second.metadata["usage"]["totalTokens"] == 23
    assert second.metadata["usage"]["inputTokenDetails"] == whole["inputTokenDetails"] | {"noCacheTokens": 10}


def test_other_numbers_are_summed_beside_the_usage() -> None:
    no_number: Any = "one"
    first = said(e.Usage(extra={"cost": 2, "turns": 1}), e.Usage(extra={"cost": 3, "turns": no_number}), e.Usage())
    assert first.metadata == {"cost": 5, "turns": 1}
    second: Any = said(e.Usage(output_tokens=1, extra={"cost": 1}), continues=first)
    assert (second.metadata["cost"], second.metadata["usage"]["totalTokens"]) == (6, 1)
    assert not said(e.Usage()).metadata


def test_usage_that_is_told_again_and_again_counts_once_and_is_written_once() -> None:
    growing = [e.Usage(input_tokens=10, output_tokens=count, key="call") for count in (1, 2, 3)]
    chunks = chunks_of([*growing, "a", e.Step(), e.Usage(output_tokens=1, key="other")])
    written = [chunk.message_metadata for chunk in chunks if isinstance(chunk, c.MessageMetadata)]
    assert [metadata["usage"]["totalTokens"] for metadata in written] == [13, 14]


@pytest.mark.parametrize("count", [True, -1, 2**53, float("nan"), "3"])
def test_what_is_no_number_of_tokens_is_not_counted(count: Any) -> None:
    message: Any = said(e.Usage(input_tokens=count, output_tokens=2))
    usage = message.metadata["usage"]
    assert (usage["inputTokens"], usage["outputTokens"], usage["totalTokens"]) == (0, 2, 2)


@pytest.mark.parametrize(
    "metadata",
    [
        {"usage": {"inputTokens": 1}},
        {"usage": None},
        None,
        {"usage": {"inputTokens": 1, "outputTokens": "x", "totalTokens": 1, "inputTokenDetails": 3}},
    ],
)
def test_the_usage_of_a_continued_message_may_be_anything(metadata: Any) -> None:
    continues = UIMessage("m", "assistant", [STEP, text("a")], metadata)
    message: Any = said(e.Usage(output_tokens=2), continues=continues)
    assert message.metadata["usage"]["outputTokens"] == 2


def sub(event: e.AgentEvent | None = None, **fields: Any) -> e.SubAgent:
    return e.SubAgent("s", "searcher", event, **fields)


def part(**fields: Any) -> dict[str, Any]:
    told: dict[str, Any] = {"id": "s", "name": "searcher", "status": "running", "text": "", "tools": []}
    return {"type": "data-subagent", "id": "s", "data": {**told, **fields}}


def test_a_sub_agent_is_one_part_of_the_message() -> None:
    events = [
        sub(),
        sub("Looking"),
        sub(e.Text(" it up.")),
        sub(e.Reasoning("Hm.", key="k")),
        sub(e.EndPart("k")),
        sub(e.EndPart("k")),
        sub(e.Step()),
        sub(e.Text("")),
        sub(e.ToolInputStart("c", "find")),
        sub(e.ToolInputDelta("c", "{")),
        sub(e.ToolCall("c", "find", {})),
        sub(e.ToolCall("c", "find", {})),
        sub(e.ToolProgress("c", 1)),
        sub(e.ToolResult("c", 2)),
        sub(e.ToolCall("d", "find", {})),
        sub(e.ToolError("d", "no")),
        sub(e.ToolInputError("x", "find", "{", "no")),
        sub(e.Usage(output_tokens=3)),
        sub(e.Data("found", 1)),
        sub(e.Text("Found."), call_id="task", parent="p"),
        "Done.",
        sub(status="done", call_id="task", parent="p"),
    ]
    message: Any = said(*events)
    tools = [
        {"toolCallId": "c", "toolName": "find", "state": "done"},
        {"toolCallId": "d", "toolName": "find", "state": "failed"},
        {"toolCallId": "x", "toolName": "find", "state": "failed"},
    ]
    told = {"text": "Looking it up.\n\nFound.", "reasoning": "Hm.", "tools": tools, "toolCallId": "task", "parent": "p"}
    assert message.parts == [part(status="done", **told), {"type": "data-found", "data": 1}, STEP, text("Done.")]
    assert message.metadata["usage"]["outputTokens"] == 3


def test_what_a_sub_agent_said_last_is_told_at_the_end() -> None:
    assert parts(sub("a"), sub("b")) == [part(text="ab")]


def test_a_sub_agent_in_lanes_speaks_beside_the_answer() -> None:
    events = [
        "main ",
        sub("as", show="lanes"),
        sub(e.Text("ide"), show="lanes"),
        sub(e.Step(), show="lanes"),
        sub(e.ToolInputStart("c", "t"), show="lanes"),
        sub(e.ToolInputDelta("c", "{}"), show="lanes"),
        sub(e.ToolCall("c", "t", {}), show="lanes"),
        sub(e.ApprovalRequest("a", "c"), show="lanes"),
        sub(e.Source("https://a.example"), show="lanes"),
        sub(show="lanes", status="waiting"),
        "text",
    ]
    found = parts(*events)
    asked = call("approval-requested", "s:c", approval={"id": "a"})
    source = {"type": "source-url", "sourceId": "id-3", "url": "https://a.example"}
    assert found == [STEP, text("main text"), text("aside"), asked, source]


@pytest.mark.parametrize("show", ["data", "off"])
def test_a_call_that_a_sub_agent_asks_about_is_the_messages_own(show: Any) -> None:
    events = [
        sub(e.ToolCall("c", "t", {}), show=show),
        sub(e.ApprovalRequest("a", "c"), show=show),
        sub(e.ApprovalRequest("a", "c"), show=show),
        # The graph around it announces the call as well.
        e.ToolInputStart("c", "t"),
        e.ToolCall("c", "t", {}),
        sub(status="waiting", show=show),
    ]
    message = said(*events)
    shown = [part(status="waiting", tools=[{"toolCallId": "c", "toolName": "t", "state": "running"}])]
    asked = call("approval-requested", "s:c", approval={"id": "a"})
    data = shown if show == "data" else []
    assert [p for p in message.parts if p["type"] in ("data-subagent", "tool-t")] == [*data, asked]
    message.parts[-1] |= {"state": "approval-responded", "approval": {"id": "a", "approved": True}}
    ends = [sub(e.ToolProgress("c", 0), show=show), e.ToolCall("c", "t", {}), sub(e.ToolResult("c", 1), show=show)]
    found = [p for p in parts(*ends, continues=message) if p["type"] == "tool-t"]
    assert [one["output"] for one in found] == [1]


def test_the_part_of_a_sub_agent_goes_on_in_a_message_that_is_continued() -> None:
    tools: list[Any] = [{"toolCallId": "c", "toolName": "t", "state": "running"}, {"toolCallId": 3}, None]
    before = part(text="a", reasoning="r", tools=tools, status="waiting")
    continues = UIMessage("m", "assistant", [before])
    found = parts(sub("b"), sub(e.ToolDenied("c")), sub(status="done"), continues=continues)
    assert found == [part(text="a\n\nb", reasoning="r", tools=[tools[0] | {"state": "failed"}], status="done")]
    continues = UIMessage("m", "assistant", [{**before, "data": 3}, {**before, "data": {"tools": 3}}])
    assert parts(sub("b"), continues=continues)[0] == part(text="b")


def test_a_long_text_of_a_sub_agent_is_told_a_few_times_only() -> None:
    chunks = chunks_of([sub("0123456789") for _ in range(1_000)])
    told = [chunk.data["text"] for chunk in chunks if isinstance(chunk, c.Data)]
    assert told[-1] == "0123456789" * 1_000
    assert sum(map(len, told)) < 6 * len(told[-1])


class Doubled(str):
    __slots__ = ()


class Chapter(e.Text, frozen=True):
    pass


class Note(c.MessageMetadata, frozen=True, tag="message-metadata"):
    pass


def test_events_of_subclasses_are_what_they_are_derived_from_and_chunks_are_not() -> None:
    assert parts(Doubled("a"), Chapter("b")) == [STEP, text("ab")]
    with pytest.raises(LocalProtocolError):
        said(Note({"a": 1}))


@pytest.mark.parametrize("wrong", [None, 3, b"bytes", ["a"], object()])
def test_what_is_no_event_is_refused_by_its_type(wrong: Any) -> None:
    with pytest.raises(AgentError, match=f"^An agent cannot yield a value of type {type(wrong).__name__}.$"):
        said(wrong)


def test_a_dict_that_is_no_chunk_is_refused() -> None:
    with pytest.raises(AgentError, match=r"^An agent cannot yield a dict that is no chunk\."):
        said({"type": "nothing"})


def test_a_result_without_a_call_or_a_name_is_the_agents_fault() -> None:
    for event in (e.ToolResult("c", 1), e.ToolError("c", "no"), e.ToolInputDelta("c", "{"), e.ToolProgress("c", 1)):
        with pytest.raises(LocalProtocolError):
            said(event)


class Shouting:
    """A framework whose events are words."""

    def translate(self, event: str) -> tuple[e.AgentEvent, ...]:
        return (e.Text(event.upper()),)

    def end(self) -> list[e.AgentEvent]:
        return [e.Finish("length")]


def test_nothing_is_translated_after_the_end() -> None:
    class Ending:
        def translate(self, event: str) -> list[e.AgentEvent]:
            return [event.upper(), c.Finish("other")]

        def end(self) -> list[e.AgentEvent]:
            return ["late"]

    mapper = TranslatingMapper(Ending(), MessageWriter("m", new_id=lambda: "id"))
    assert list(mapper.map("a"))[-1] == c.Finish("other")
    not_a_word: Any = None
    assert ([*mapper.map(not_a_word)], [*mapper.end()]) == ([], [])


def test_a_translator_says_what_a_framework_says() -> None:
    writer = MessageWriter("m", new_id=lambda: "id")
    mapper = TranslatingMapper(Shouting(), writer)
    chunks = [*mapper.map("a"), *mapper.map("b"), *mapper.end()]
    assert chunks == [
        c.Start("m"),
        c.StartStep(),
        c.TextStart("id"),
        c.TextDelta("id", "A"),
        c.TextDelta("id", "B"),
        c.TextEnd("id"),
        c.FinishStep(),
        c.Finish("length"),
    ]


IDS = st.sampled_from(["c", "d"])
KEYS = st.sampled_from(["", "k"])
WORDS = st.sampled_from(["", "a", "ab"])
SIMPLE = st.one_of(
    WORDS,
    st.builds(e.Text, WORDS, KEYS, st.booleans(), block=st.booleans()),
    st.builds(e.Reasoning, WORDS, KEYS, st.booleans(), st.sampled_from([None, {"p": {"s": 1}}])),
    st.builds(e.EndPart, KEYS),
    st.builds(e.ToolInputStart, IDS, st.just("t"), key=KEYS),
    st.builds(e.ToolCall, IDS, st.just("t"), st.integers(0, 1), key=KEYS, hidden=st.booleans()),
    st.builds(e.ToolInputError, IDS, st.just("t"), st.just(1), st.just("no")),
    st.builds(e.ToolResult, IDS | st.just(""), st.integers(0, 1), st.just("t"), key=KEYS),
    st.builds(e.ToolError, IDS | st.just(""), st.just("no"), st.just("t"), key=KEYS),
    st.builds(e.EndCalls, st.just("Gone."), KEYS),
    st.builds(e.Usage, output_tokens=st.integers(0, 9), key=KEYS),
    st.builds(e.Source, st.sampled_from(["https://a.example", "https://b.example"])),
    st.builds(e.Data, st.just("d"), st.integers(0, 1), KEYS),
    st.builds(e.Step, st.booleans()),
    st.just(e.ApprovalRequest()),
    st.just(e.Pause("Waits.")),
    st.builds(e.Finish, st.sampled_from(["stop", "length"])),
)
EVENTS = st.lists(
    st.one_of(
        SIMPLE,
        st.builds(
            e.SubAgent,
            st.sampled_from(["s", "u"]),
            st.just("sub"),
            st.one_of(st.none(), SIMPLE),
            st.sampled_from(["running", "done", "waiting"]),
            show=st.sampled_from(["data", "lanes", "off"]),
        ),
    ),
    max_size=30,
)


@given(EVENTS, st.booleans())
def test_events_in_any_order_give_a_legal_stream(events: list[e.AgentEvent], repeats: bool) -> None:
    stream = b"".join(encode_chunk(chunk) + b"\n" for chunk in chunks_of(events, repeats=repeats))
    assert judge(recorded_events(stream)).violation is None
