"""The message of a DeepAgent run, beyond what its golden logs show."""

import re
from collections.abc import Mapping
from itertools import count
from typing import Any

import msgspec
import pytest

from usechat.errors import MappingError
from usechat.events import Source
from usechat.events.mapper import TranslatingMapper
from usechat.integrations.deepagent_sdk.events import DeepAgentEvent
from usechat.integrations.deepagent_sdk.pages import found_pages
from usechat.integrations.deepagent_sdk.side_events import SideEventBatches
from usechat.integrations.deepagent_sdk.translator import (
    DeepAgentLog,
    DeepAgentOptions,
    DeepAgentTranslator,
    read_options,
)
from usechat.protocol.clients import ClientName
from usechat.protocol.messages import UIMessage
from usechat.protocol.writer import MessageWriter

Event = dict[str, Any]

STEP = {"type": "start-step"}
STEP_END = {"type": "finish-step"}
STOP = {"type": "finish", "finishReason": "stop"}
WAITS = {"type": "finish", "finishReason": "tool-calls"}
DONE: Event = {"type": "done"}


Mapper = TranslatingMapper[Any]


def new_mapper(*, client: ClientName = "portable", continues: UIMessage | None = None, **options: Any) -> Mapper:
    numbers = count(1)
    writer = MessageWriter("m", new_id=lambda: f"id-{next(numbers)}", client=client, continues=continues)
    chosen = read_options(options)
    in_log = continues is None and chosen.batches is not None
    return TranslatingMapper(
        DeepAgentLog(chosen) if in_log else DeepAgentTranslator(chosen, continues=continues), writer
    )


def mapped(mapper: Mapper, *events: Mapping[str, Any]) -> list[Any]:
    return msgspec.to_builtins([chunk for event in events for chunk in mapper.map(event)])


def whole(mapper: Mapper, *events: Mapping[str, Any]) -> list[Any]:
    """The chunks of a run without the first, which is its start."""
    return (mapped(mapper, *events) + msgspec.to_builtins(list(mapper.end())))[1:]


def call(call_id: str = "c-1", tool: str = "ls", **args: Any) -> Event:
    return {"type": "tool-call", "toolCallId": call_id, "toolName": tool, "args": args}


def result(value: Any, call_id: str = "c-1", tool: str = "ls", **fields: Any) -> Event:
    return {"type": "tool-result", "toolCallId": call_id, "toolName": tool, "result": value, **fields}


def requested(call_id: str = "c-1", approval: str = "a-1") -> Event:
    fields = {"approvalId": approval, "toolCallId": call_id, "toolName": "ls", "args": {"path": "/"}}
    return {"type": "approval-requested", **fields}


def answer(*, approved: bool, approval: str = "a-1") -> Event:
    return {"type": "approval-response", "approvalId": approval, "approved": approved}


def parts(chunks: list[Any], kind: str) -> list[Any]:
    return [chunk for chunk in chunks if chunk["type"] == kind]


def test_an_event_may_be_typed_and_its_texts_of_a_class_of_their_own() -> None:
    class Said(str):
        __slots__ = ()

    events: list[DeepAgentEvent] = [{"type": "text", "text": Said("Hi")}, {"type": "done", "text": "Hi"}]
    assert parts(whole(new_mapper(), *events), "text-delta") == [{"type": "text-delta", "id": "id-1", "delta": "Hi"}]


def test_an_empty_text_and_a_thought_that_is_not_chosen_are_not_shown() -> None:
    thought = {"type": "reasoning", "text": "Hm."}
    assert whole(new_mapper(events=["text"]), {"type": "text", "text": ""}, thought, DONE) == [STOP]


# Files.


@pytest.mark.parametrize("kind", ["file-write-start", "file-written"])
@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ("x" * 65_536, {"content": "x" * 65_536}),
        (
            "x" * 70_000,
            {"content": "x" * 65_536 + "… [4464 more characters left out]", "truncated": True},
        ),
        (
            "é" * 40_000,
            {"content": "é" * 32_768 + "… [7232 more characters left out]", "truncated": True},
        ),
        ("é" * 32_768, {"content": "é" * 32_768}),
    ],
    ids=["fits", "too long", "too many bytes", "fits in bytes"],
)
def test_the_content_of_a_file_is_cut_at_64_kb(kind: str, content: str, shown: Event) -> None:
    [data] = parts(mapped(new_mapper(), {"type": kind, "path": "/a", "content": content}), f"data-{kind}")
    assert data == {"type": f"data-{kind}", "data": {"path": "/a", **shown}}


def test_fields_that_nobody_knows_stay_in_the_part_and_what_is_no_json_is_replaced() -> None:
    event = {"type": "ls", "path": ".", "count": 2, "seconds": 0.5, "by": ValueError("secret")}
    [data] = parts(mapped(new_mapper(), event), "data-ls")
    assert data["data"] == {"path": ".", "count": 2, "seconds": 0.5, "by": {"error": "ValueError"}}


@pytest.mark.parametrize(
    ("event", "problem"),
    [
        ({"type": "ls", "count": 1}, "A DeepAgent event `ls` has no usable `path`."),
        ({"type": "ls", "path": 1, "count": 1}, "A DeepAgent event `ls` has no usable `path`."),
        (
            {"type": "todos-changed", "todos": [{"content": "x", "status": "secret"}]},
            "A DeepAgent event `todos-changed` has no usable `todos`.",
        ),
        ({"type": "new"}, "DeepAgent has no event of the type 'new'."),
        ({"type": 1}, "A DeepAgent event has no type."),
        ("text", "A DeepAgent event has no type."),
        ({**requested(), "approvalId": "a\n1"}, "A DeepAgent event `approval-requested` has no usable `approvalId`."),
    ],
)
def test_an_event_of_no_use_is_told_without_its_values_and_changes_nothing(event: Any, problem: str) -> None:
    mapper = new_mapper()
    with pytest.raises(MappingError) as told:
        mapper.map(event)
    assert str(told.value) == problem
    assert whole(mapper, DONE) == [STOP]


# Calls.


def test_a_side_event_names_the_call_as_the_page_knows_it() -> None:
    step = {"type": "step-start"}
    changed = {"type": "file-edited", "path": ".", "occurrences": 2}
    chunks = whole(new_mapper(), step, call(), result("a"), step, call(), changed, result("b"))
    assert [chunk["toolCallId"] for chunk in parts(chunks, "tool-input-available")] == ["c-1", "id-1"]
    assert [chunk["data"]["toolCallId"] for chunk in parts(chunks, "data-file-edited")] == ["id-1"]


def test_an_input_that_streams_is_begun_once() -> None:
    start = {"type": "tool-input-start", "toolCallId": "c-1", "toolName": "ls"}
    chunks = whole(new_mapper(), start, start, result("a"), DONE)
    assert parts(chunks, "tool-input-start") == [start]
    assert parts(chunks, "tool-output-available") == [
        {"type": "tool-output-available", "toolCallId": "c-1", "output": "a"}
    ]


def test_an_input_that_streams_is_not_shown_where_tools_are_not() -> None:
    start = {"type": "tool-input-start", "toolCallId": "c-1", "toolName": "ls"}
    delta = {"type": "tool-input-delta", "toolCallId": "c-1", "delta": "{}"}
    assert whole(new_mapper(events=["text"]), start, delta, call(), result("a"), DONE) == [STOP]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        ({"name": "Error", "message": "kaput"}, "kaput"),
        ("kaput", "kaput"),
        ("x" * 5_000, "x" * 4_000),
        (ValueError("password=1"), "The tool failed."),
        ({"name": "Error"}, "The tool failed."),
        (None, "The tool failed."),
    ],
)
def test_of_a_tools_error_what_an_event_says_is_shown_and_what_an_exception_says_is_not(error: Any, text: str) -> None:
    [failed] = parts(mapped(new_mapper(), call(), result(error, isError=True)), "tool-output-error")
    assert failed["errorText"] == text


# Approvals.


def test_an_answer_during_the_run_is_shown_by_clients_that_know_it() -> None:
    chunks = whole(new_mapper(client="latest"), call(), requested(), answer(approved=True), result("a"), DONE)
    assert [chunk["type"] for chunk in chunks] == [
        *("start-step", "tool-input-available", "data-approval-requested", "data-approval-response"),
        *("tool-approval-request", "tool-approval-response", "tool-output-available"),
        *("finish-step", "start-step", "message-metadata", "finish-step", "finish"),
    ]


def test_a_refusal_during_the_run_is_a_denied_call() -> None:
    refusal = (call(), requested(), answer(approved=False), result("Tool execution denied by user."), DONE)
    assert [chunk["type"] for chunk in whole(new_mapper(client="latest"), *refusal)[4:7]] == [
        *("tool-approval-request", "tool-approval-response", "tool-output-denied")
    ]
    assert parts(whole(new_mapper(), *refusal), "tool-output-error") == [
        {"type": "tool-output-error", "toolCallId": "c-1", "errorText": "The call was denied."}
    ]


def test_a_call_that_is_not_shown_is_shown_when_the_user_is_asked_about_it() -> None:
    for events in ((call(), requested()), (call(),), (requested(),)):
        chunks = whole(new_mapper(events=["text"]), *events, DONE)
        assert len(parts(chunks, "tool-input-available")) == 1
        assert (len(parts(chunks, "tool-approval-request")), chunks[-1]) == (1, WAITS)


def test_the_input_of_a_call_that_the_user_is_asked_about_is_made_whole() -> None:
    start = {"type": "tool-input-start", "toolCallId": "c-1", "toolName": "ls"}
    chunks = whole(new_mapper(), start, requested(), DONE)
    [shown] = parts(chunks, "tool-input-available")
    assert shown["input"] == {"path": "/"}


def test_a_result_answers_the_question_too() -> None:
    chunks = whole(new_mapper(), call(), requested(), result("a"), DONE)
    assert (parts(chunks, "tool-approval-request"), chunks[-1]) == ([], STOP)


def test_an_id_of_an_approval_counts_once() -> None:
    mapper = new_mapper()
    mapped(mapper, call("c-1"), call("c-2"), requested("c-1"))
    with pytest.raises(MappingError, match="no usable `approvalId`"):
        mapper.map(requested("c-2"))
    mapped(mapper, answer(approved=True), result("a"))
    with pytest.raises(MappingError, match="answers nothing that was asked"):
        mapper.map(answer(approved=True))


def test_a_question_about_a_call_that_is_over_is_not_asked() -> None:
    chunks = whole(new_mapper(), call("c-1"), result("a"), requested("c-1", "a-2"), DONE)
    assert (parts(chunks, "tool-approval-request"), chunks[-1]) == ([], STOP)


def answered(call_id: str, **approval: Any) -> Event:
    state = "approval-responded" if approval else "approval-requested"
    part: Event = {"type": "tool-ls", "toolCallId": call_id, "state": state, "input": {}}
    return {**part, "approval": {"id": f"a-{call_id}", **approval}}


def continuing(*calls: Event) -> Mapper:
    return new_mapper(continues=UIMessage("m", "assistant", [{"type": "step-start"}, *calls]))


def test_a_run_goes_on_with_the_call_that_the_user_allowed() -> None:
    begin = {"type": "step-start", "stepNumber": 1}
    side = {"type": "file-edited", "path": "x", "occurrences": 1}
    for events in ((result("a", "c-1"),), (call("c-1"), result("a", "c-1"))):
        mapper = continuing(answered("c-1", approved=True))
        answered_here = answer(approved=True, approval="a-c-1")
        chunks = whole(mapper, begin, answered_here, side, *events, {"type": "text", "text": "Hi"}, DONE)
        assert chunks[0] == {"type": "data-file-edited", "data": {"path": "x", "occurrences": 1, "toolCallId": "c-1"}}
        assert chunks[1:3] == [{"type": "tool-output-available", "toolCallId": "c-1", "output": "a"}, STEP]


def test_a_call_that_the_user_refused_is_denied_first() -> None:
    mapper = continuing(answered("c-1", approved=False))
    chunks = whole(mapper, {"type": "text", "text": "Then not."}, call("c-1"), result("no", "c-1"), DONE)
    assert chunks[:2] == [{"type": "tool-output-denied", "toolCallId": "c-1"}, STEP]
    assert [chunk for chunk in chunks if "toolCallId" in chunk] == chunks[:1]


def test_a_call_that_was_allowed_and_has_no_result_is_not_asked_about_again() -> None:
    chunks = whole(continuing(answered("c-1", approved=True)), DONE)
    assert chunks[0] == {
        "type": "tool-output-error",
        "toolCallId": "c-1",
        "errorText": "The call ended without a result.",
    }
    assert chunks[-1] == STOP


def test_a_call_that_was_allowed_may_be_asked_about_with_another_question() -> None:
    chunks = whole(continuing(answered("c-1", approved=True)), requested("c-1", "a-2"))
    assert [chunk["type"] for chunk in chunks] == ["data-approval-requested", "tool-approval-request", "finish"]


def test_a_call_that_still_waits_for_an_answer_has_no_result() -> None:
    mapper = continuing(answered("c-1", approved=True), answered("c-2"))
    chunks = whole(mapper, result("b", "c-2"), result("a", "c-1"), DONE)
    assert [chunk.get("toolCallId") for chunk in chunks] == ["c-1", None]
    assert chunks[-1] == WAITS


# Several side events in one part.


def edited(path: str) -> Event:
    return {"type": "file-edited", "path": path, "occurrences": 1}


def test_side_events_wait_for_others_until_they_are_flushed() -> None:
    batches = SideEventBatches(20, ())
    assert [batches.take(edited("a")), batches.take(edited("b"))] == [[], []]
    [batch] = batches.flush()
    assert batch == {"type": "batch", "events": [edited("a"), edited("b")]}
    assert batches.flush() == []
    [part] = mapped(new_mapper(), batch)[1:]
    assert part == {"type": "data-batch", "data": {"events": [edited("a"), edited("b")]}}


def test_an_event_of_no_use_does_not_wait() -> None:
    wrong = {"type": "ls", "path": "."}
    assert SideEventBatches(20, ()).take(wrong) == [wrong]
    mapper = new_mapper(batch=True)
    with pytest.raises(MappingError, match="no usable `count`"):
        mapped(mapper, edited("a"), wrong)
    assert len(parts(whole(mapper, edited("b"), DONE), "data-batch")) == 1


@pytest.mark.parametrize("events", [None, [7], [{"type": "text", "text": "x"}]])
def test_a_batch_holds_side_events_only(events: Any) -> None:
    with pytest.raises(MappingError, match="`batch` has no usable `events`"):
        mapped(new_mapper(), {"type": "batch", "events": events})


def test_a_part_with_several_side_events_has_a_bound() -> None:
    content = {"type": "file-written", "path": "/a", "content": "x" * 65_536}
    chunks = mapped(new_mapper(batch=1_000), *[content] * 4, edited("a"))
    assert [len(chunk["data"]["events"]) for chunk in parts(chunks, "data-batch")] == [4]


# Sources.


@pytest.mark.parametrize(
    ("found", "pages"),
    [
        (
            [{"url": "https://a.example", "title": "A"}, {"link": "http://b.example"}],
            ["https://a.example", "http://b.example"],
        ),
        ({"results": [{"url": "https://a.example", "title": 7}]}, ["https://a.example"]),
        ('{"results": [{"url": "https://a.example"}]}', ["https://a.example"]),
        ('[{"url": "https://a.example"}, {"url": "javascript:alert(1)"}, 7]', ["https://a.example"]),
        ("{not JSON\nURL: https://a.example", ["https://a.example"]),
        ("[" * 100_000, []),
        (
            "**Tides**\n- **URL:** <https://a.example>\nSource: https://a.example\nLink: https://b.example",
            ["https://a.example", "https://b.example"],
        ),
        ("See [Tides](https://a.example) and [sea](https://b.example).", ["https://a.example", "https://b.example"]),
        ("No page at https://a.example.", []),
        ({"results": "none"}, []),
        (None, []),
    ],
)
def test_pages_are_found_in_the_result_of_a_search(found: Any, pages: list[str]) -> None:
    assert [page.url for page in found_pages(found)] == pages


def test_a_page_has_the_title_that_stands_above_it_and_there_are_not_too_many() -> None:
    text = "## Result 1: Tides\nURL: https://a.example\n[2] The sea\nURL: https://b.example\nURL: https://c.example"
    assert found_pages(text) == [
        Source("https://a.example", "Tides"),
        Source("https://b.example", "The sea"),
        Source("https://c.example", ""),
    ]
    assert len(found_pages([{"url": f"https://{number}.example"} for number in range(200)])) == 100


def test_a_tool_of_another_name_searches_if_its_run_says_so() -> None:
    search = {"type": "web-search-start", "query": "tides"}
    pages = [{"url": "https://a.example", "title": "A"}]
    chunks = whole(new_mapper(sources="both"), call(tool="internet_search"), search, result(pages), DONE)
    assert [chunk["url"] for chunk in parts(chunks, "source-url")] == ["https://a.example"]
    assert parts(whole(new_mapper(sources="both"), call(tool="other"), result(pages), DONE), "source-url") == []


def test_a_file_is_a_source_once_and_by_its_kind() -> None:
    written = [
        {"type": "file-written", "path": path, "content": ""} for path in ("/a/b.JSON", "/a/b.JSON", "Makefile", "/")
    ]
    documents = parts(whole(new_mapper(sources="standard"), *written, DONE), "source-document")
    assert [(part["title"], part["mediaType"], part["filename"]) for part in documents] == [
        ("/a/b.JSON", "application/json", "b.JSON"),
        ("Makefile", "text/plain", "Makefile"),
        ("/", "text/plain", "/"),
    ]


def test_a_page_that_could_not_be_read_is_no_source() -> None:
    fetched = {"type": "fetch-url-finish", "url": "https://a.example", "success": False}
    assert parts(whole(new_mapper(sources="both"), fetched, DONE), "source-url") == []


def test_what_a_subagent_found_is_cited_whatever_the_form_of_its_result() -> None:
    page = [{"url": "https://a.example"}]
    calls = [{"toolName": "web_search", "result": page}, {"toolName": "ls"}]
    step = {"type": "subagent-step", "stepIndex": 0, "toolCalls": calls}
    assert len(parts(whole(new_mapper(sources="both"), step, DONE), "source-url")) == 1


# Usage.


def test_what_cannot_be_counted_is_not() -> None:
    usage = {"inputTokens": -1, "outputTokens": 3, "reasoningTokens": True, "inputTokenDetails": 7}
    [metadata] = parts(
        whole(new_mapper(), {"type": "usage", **usage}, {**DONE, "usage": {"inputTokens": 1}}), "message-metadata"
    )
    assert metadata["messageMetadata"]["usage"] == {
        "inputTokens": 0,
        "inputTokenDetails": {},
        "outputTokens": 3,
        "outputTokenDetails": {},
        "totalTokens": 3,
    }


# Options.


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"events": "some"}, 'events is "all", "critical" or a set of names, not \'some\'.'),
        ({"events": ["ls", "rm"]}, "'rm' in events is none of approval-requested, approval-response,"),
        ({"events": 7}, "The option events is all, critical or a list of names, not 7."),
        ({"sources": "none"}, "sources is one of data, standard, both, not 'none'."),
        ({"batch": -1}, "batch is a number of events up to 1,000, not -1."),
        ({"batch": "many"}, "The option batch is true, false or a number, not 'many'."),
        ({"transient": "text"}, "'text' in transient is none of checkpoint-loaded,"),
        ({"throttle": 1}, "There is no option 'throttle': the options are events, sources, batch, transient."),
    ],
)
def test_a_wrong_option_is_told(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(problem)}"):
        read_options(options)


def test_names_are_a_set_and_no_text() -> None:
    with pytest.raises(ValueError, match="transient must be a set of names, not 'ls'"):
        DeepAgentOptions(transient="ls")
    assert DeepAgentOptions(events={"ls"}, transient=()).shown >= {"ls", "text", "tool-result"}
    assert (DeepAgentOptions(batch=False).batches, DeepAgentOptions(batch=1).batches) == (None, None)


# The end.


def test_after_its_end_a_run_says_nothing() -> None:
    mapper = new_mapper()
    mapped(mapper, {"type": "error", "error": RuntimeError("secret")})
    assert (mapped(mapper, {"type": "text", "text": "x"}), list(mapper.end())) == ([], [])


@pytest.mark.parametrize("error", [{"name": "AbortError"}, type("AbortError", (Exception,), {})()])
def test_an_abort_in_any_step_is_an_abort(error: Any) -> None:
    for before in ([], [{"type": "step-start"}, {"type": "text", "text": "x"}], [call(), requested()]):
        assert mapped(new_mapper(), *before, {"type": "error", "error": error})[-1] == {"type": "abort"}


def test_todos_of_a_subagent_go_with_it_if_the_run_has_none_itself() -> None:
    todos: Event = {"type": "todos-changed", "todos": []}
    start, finish = (
        {"type": "subagent-start", "name": "x", "task": ""},
        {"type": "subagent-finish", "name": "x", "result": ""},
    )
    assert len(parts(whole(new_mapper(), start, todos, finish, finish, DONE), "data-todos-changed")) == 1


def test_each_subagent_finishes_by_its_name() -> None:
    started = [{"type": "subagent-start", "name": name, "task": name} for name in ("a", "b")]
    tasks = [call(f"c-{name}", "task", description=name) for name in ("a", "b")]
    finished = [{"type": "subagent-finish", "name": name, "result": ""} for name in ("b", "a", "c")]
    chunks = whole(new_mapper(), *tasks, *started, *finished, DONE)
    assert [part["data"].get("toolCallId") for part in parts(chunks, "data-subagent-finish")] == ["c-b", "c-a", None]


def test_what_comes_after_the_last_step_was_not_aborted() -> None:
    events: list[dict[str, Any]] = [
        {"type": "step-start", "stepNumber": 1},
        {"type": "text", "text": "a"},
        {"type": "step-finish", "stepNumber": 1},
        {"type": "text", "text": "b"},
        {"type": "done"},
    ]
    assert whole(new_mapper(), *events)[-1] == STOP
