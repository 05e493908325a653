"""What is made of LangGraph's stream, by parts as JSON; test_agent.py has the installed frameworks."""

from types import SimpleNamespace
from typing import Any

import pytest

from support.graph_parts import (
    STEP,
    STEP_END,
    STOP,
    Part,
    ai,
    available,
    began,
    call,
    chunk,
    error,
    event,
    mapped,
    message,
    new_mapper,
    output,
    said,
    text,
    text_end,
    tool,
    update,
)
from usechat.errors import MappingError
from usechat.events.mapper import Growth
from usechat.integrations.langgraph.messages import text_of
from usechat.integrations.langgraph.translator import read_options
from usechat.protocol.messages import UIMessage


class Text(str):
    """A text of a class of its own, as LangChain has one."""


def test_what_is_no_part_is_refused_and_an_unknown_mode_is_left_alone() -> None:
    wrongs: list[Any] = [{}, {"type": "updates"}, None, []]
    for wrong in wrongs:
        with pytest.raises(MappingError, match="has no type or no data"):
            list(new_mapper().map(wrong))
    with pytest.raises(MappingError, match="has no metadata"):
        list(new_mapper().map({"type": "messages", "ns": [], "data": None}))
    assert said({"type": "debug", "ns": [], "data": {}}, {"type": "updates", "ns": [], "data": None}) == []


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"colour": 1}, "There is no option 'colour': the options are state, subgraphs and tools."),
        ({"state": "plan"}, "The option state is a list of names."),
        ({"tools": "look"}, "The option tools is a list of names."),
        ({"state": [1]}, "The option state is a list of names."),
        ({"subgraphs": True}, "The option subgraphs is data, lanes or off."),
    ],
)
def test_a_wrong_option_is_refused(options: Part, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_options(options)


def test_a_text_is_a_plain_one() -> None:
    assert type(text_of(Text("Hi"))) is str
    assert [text_of(value) for value in (Text("Hi"), "Hi", None, 1)] == ["Hi", "Hi", "", ""]


def test_the_content_of_a_message_as_json_is_read_in_every_form() -> None:
    blocks = ["Good ", {"type": "text", "text": Text("day")}, {"type": "thinking", "thinking": "Hm"}, 7]
    assert said(message(chunk(blocks))) == [
        STEP,
        *text("Good ", "day"),
        text_end(),
        {"type": "reasoning-start", "id": "id-2"},
        {"type": "reasoning-delta", "id": "id-2", "delta": "Hm"},
    ]
    calls = [{"name": "look", "args": "{}", "id": "c1", "index": 0}]
    begins = [STEP, began(), {"type": "tool-input-delta", "toolCallId": "c1", "inputTextDelta": "{}"}]
    assert said(message(chunk("", tool_call_chunks=calls))) == begins
    assert said(message(chunk([{**calls[0], "type": "tool_call_chunk"}], tool_call_chunks=calls))) == begins
    assert said(message(ai("", tool_calls=[call(at="x")]))) == [STEP, began(), available(value={"at": "x"})]
    assert said(message(chunk([{"type": "non_standard"}]))) == [STEP]


def test_a_message_of_the_user_or_the_system_is_not_shown() -> None:
    assert said(message({"type": "human", "content": "Hi"}), message({"type": "system", "content": "Hi"})) == []


def test_a_chunk_may_have_the_id_of_the_run_or_of_the_provider() -> None:
    chunks = said(
        message(chunk("a", "resp_1")), message(chunk("b", "lc_run--1")), message(chunk("c", "resp_1")), end=True
    )
    assert chunks == [STEP, *text("a", "b", "c"), text_end(), STEP_END, STOP]


def test_two_calls_of_a_model_in_one_task_are_two_steps() -> None:
    first, second = chunk("a", chunk_position="last"), chunk("b", "lc_run--2", chunk_position="last")
    assert said(message(first), message(second)) == [
        STEP,
        *text("a"),
        text_end(),
        STEP_END,
        STEP,
        *text("b", part="id-2"),
        text_end("id-2"),
    ]


def test_two_models_that_speak_in_turns_are_kept_apart() -> None:
    parts = [message(chunk(one, f"lc_run--{number}"), task=f"t{number}") for one, number in ("a1", "b2", "c1", "d2")]
    chunks = said(*parts)
    assert chunks == [
        STEP,
        *text("a"),
        *text("b", part="id-2"),
        {"type": "text-delta", "id": "id-1", "delta": "c"},
        {"type": "text-delta", "id": "id-2", "delta": "d"},
    ]


def test_an_update_ends_what_was_not_ended() -> None:
    chunks = said(message(chunk("a")), update(ai("a")), message(chunk("b", "lc_run--2")))
    assert chunks == [STEP, *text("a"), text_end(), STEP_END, STEP, *text("b", part="id-2")]


def test_an_update_may_name_a_message_otherwise_than_its_first_chunk() -> None:
    pieces = [{"type": "tool_call_chunk", "id": "c1", "name": "look", "args": '{"at": "x', "index": 0}]
    final = update(ai("", "lc_run--1", tool_calls=[call(at="x")]))
    assert said(message(chunk("", "resp_1")), message(chunk(pieces)), final)[-1] == available(value={"at": "x"})


def test_what_a_node_gives_anew_is_not_said_twice() -> None:
    streamed = [message(chunk("a")), message(chunk("b", chunk_position="last"))]
    assert said(*streamed, message(ai("ab", "other")), message(ai("ab", "other")), message(ai("ab"))) == [
        STEP,
        *text("a", "b"),
        text_end(),
    ]
    assert said(*streamed, message(ai("c", "other")))[4:] == [
        text_end(),
        STEP_END,
        STEP,
        *text("c", part="id-2"),
        text_end("id-2"),
    ]
    # A call without a text is not the same as another one.
    calls = [message(chunk("", chunk_position="last")), message(ai("", "other", tool_calls=[call()]))]
    assert said(*calls) == [STEP, began(), available()]


def test_a_message_without_an_id_is_said_each_time() -> None:
    chunks = said(message(ai("a", "")), message(ai("b", ""), task="u"))
    assert [chunk["delta"] for chunk in chunks if "delta" in chunk] == ["a", "b"]


def test_thoughts_of_different_blocks_are_parts_of_their_own() -> None:
    def thought(reasoning: str, index: int) -> Part:
        return message(chunk([{"type": "reasoning", "reasoning": reasoning, "index": index}]))

    chunks = said(thought("a", 0), thought("b", 0), thought("c", 1))
    assert [(chunk["type"], chunk.get("delta")) for chunk in chunks] == [
        ("start-step", None),
        ("reasoning-start", None),
        ("reasoning-delta", "a"),
        ("reasoning-delta", "b"),
        ("reasoning-end", None),
        ("reasoning-start", None),
        ("reasoning-delta", "c"),
    ]


def test_each_page_that_is_cited_is_a_source_once() -> None:
    notes = [
        {"type": "citation", "url": "https://a.example", "title": "A"},
        {"type": "citation", "url": "https://b.example"},
        {"type": "citation", "url": "https://a.example", "title": "A"},
        {"type": "citation", "title": "No place"},
        {"type": "non_standard_annotation", "url": "https://c.example"},
    ]
    chunks = said(message(chunk([{"type": "text", "text": "a", "annotations": notes}])))
    assert chunks[3:] == [
        {"type": "source-url", "sourceId": "id-2", "url": "https://a.example", "title": "A"},
        {"type": "source-url", "sourceId": "id-3", "url": "https://b.example"},
    ]


def test_files_have_their_url_or_their_data() -> None:
    blocks = [
        {"type": "image", "url": "https://a.example/x.png"},
        {"type": "audio", "base64": "AAAA", "mime_type": "audio/wav"},
        {"type": "file", "base64": "AAAA"},
        {"type": "video", "file_id": "known to the provider"},
    ]
    files = [(chunk["url"], chunk["mediaType"]) for chunk in said(message(chunk(blocks))) if chunk["type"] == "file"]
    assert files == [
        ("https://a.example/x.png", "image/*"),
        ("data:audio/wav;base64,AAAA", "audio/wav"),
        ("data:application/octet-stream;base64,AAAA", "application/octet-stream"),
    ]


def test_the_pieces_of_a_call_may_come_without_an_index_or_a_name() -> None:
    def piece(**fields: Any) -> Part:
        return message(chunk([{"type": "tool_call_chunk", **fields}]))

    chunks = said(
        piece(id="c1", args='{"a"'),
        piece(name="look", args=":"),
        piece(args=" 1}"),
        piece(id="c2", name="look", args="{}"),
    )
    deltas = [(chunk["toolCallId"], chunk["inputTextDelta"]) for chunk in chunks if "inputTextDelta" in chunk]
    assert deltas == [("c1", '{"a":'), ("c1", " 1}"), ("c2", "{}")]


def test_a_call_without_an_id_is_left_out_until_its_tool_begins() -> None:
    nameless = said(message(ai("", tool_calls=[call(None), call("c1", "")])), update(ai("", tool_calls=[call(None)])))
    assert nameless == [STEP]
    started = said(event("started", tool_name="look", input={"at": "x"}), event("started", "c2", tool_name=""))
    assert started == [STEP, available(value={"at": "x"})]


def test_a_call_that_could_not_be_read_is_an_error_of_its_input() -> None:
    wrong = {"type": "invalid_tool_call", "id": "c1", "name": "look", "args": "{", "error": "secret"}
    final = update(ai("", invalid_tool_calls=[wrong, {**wrong, "id": None}]))
    pieces = [{"type": "tool_call_chunk", "id": "c1", "name": "look", "args": "{", "index": 0}]
    chunks = said(message(chunk(pieces)), final, final)
    assert chunks[3:] == [
        {
            "type": "tool-input-error",
            "toolCallId": "c1",
            "toolName": "look",
            "input": "{",
            "errorText": "The model's call of the tool could not be read.",
        }
    ]


def test_the_arguments_of_a_call_are_those_that_the_framework_read() -> None:
    pieces = [{"type": "tool_call_chunk", "id": "c1", "name": "look", "args": '{"at": "x', "index": 0}]
    chunks = said(message(chunk(pieces)), update(ai("", tool_calls=[call(at="x")])), event("started", input={"at": 2}))
    assert chunks[-1] == available(value={"at": "x"})


def test_a_model_may_use_the_id_of_a_call_again() -> None:
    chunks = said(
        message(ai("", "lc_run--1", tool_calls=[call(at=1)])),
        event("finished", output=tool("a")),
        message(ai("", "lc_run--2", tool_calls=[call(at=2)]), task="u"),
        event("finished", output=tool("b")),
    )
    outputs = [(chunk["toolCallId"], chunk["output"]) for chunk in chunks if "output" in chunk]
    assert outputs == [("c1", "a"), ("id-1", "b")]


CALLED = message(ai("", tool_calls=[call()]))


RESULTS: list[tuple[Any, Any]] = [
    (tool("rain"), "rain"),
    (tool('{"celsius": 12}'), {"celsius": 12}),
    (tool("[not JSON"), "[not JSON"),
    (tool("12"), "12"),
    (tool([{"type": "text", "text": "[1]"}]), [1]),
    (tool([{"type": "text", "text": "a"}, {"type": "image", "url": "u"}]), None),
    (tool("x", None), "x"),
    ({"update": {"messages": [tool("by command")], "todos": []}, "goto": []}, "by command"),
    ([{"update": {"messages": [tool("for another", "c9")]}, "goto": []}, tool("by a list")], "by a list"),
    (SimpleNamespace(update={"messages": [tool("an object")]}, goto=()), "an object"),
    ({"raw": Text("value")}, {"raw": "value"}),
]


@pytest.mark.parametrize(("given", "shown"), RESULTS)
def test_the_result_of_a_tool_has_its_structure(given: Any, shown: Any) -> None:
    [*_, result] = said(CALLED, event("finished", output=given))
    assert result == output(given["content"] if shown is None else shown)
    # What the stream has of it beside that changes nothing.
    assert said(CALLED, event("finished", output=given), message(tool("else")), update(tool("else")))[-1] == result


def test_a_command_without_a_result_is_none() -> None:
    assert said(CALLED, event("finished", output={"update": None, "goto": "x"}))[-1] == available()
    assert (
        said(CALLED, event("finished", "unknown", output="x"), event("odd"), message(tool("x", "?")))[-1] == available()
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("No such city.", "No such city."),
        ('{"code": 1}', '{"code": 1}'),
        ("", "The tool failed."),
        ([{"type": "image"}], "The tool failed."),
    ],
)
def test_the_message_of_a_tool_that_failed_is_its_error(content: Any, words: str) -> None:
    assert said(CALLED, message(tool(content, status="error")))[-1] == error(words)


def test_an_exception_of_a_tool_waits_for_what_becomes_of_it() -> None:
    failed = event("error", message="secret")
    assert said(CALLED, failed)[-1] == available()
    assert said(CALLED, failed, message(tool("Try again.", status="error")))[-1] == error("Try again.")
    went_on = said(CALLED, failed, message(chunk("Well", "lc_run--2"), task="u"))
    assert went_on[3:] == [error("The tool failed."), STEP_END, STEP, *text("Well")]
    assert error("The tool failed.") in said(CALLED, failed, end=True)
    assert said(event("error", "unknown")) == []


def test_what_a_tool_says_while_it_works_is_told_more_rarely_as_it_grows() -> None:
    deltas = [event("output-delta", delta="x" * 10) for _ in range(200)]
    told = [chunk["output"] for chunk in said(CALLED, *deltas) if "output" in chunk]
    assert told[:2] == ["x" * 10, "x" * 80]
    assert sum(map(len, told)) < 6 * 2_000
    assert said(CALLED, event("output-delta", delta={"a": 1}))[-1] == output([{"a": 1}], preliminary=True)
    assert said(event("output-delta", "unknown", delta="x")) == []


def test_growth_tells_the_first_piece_and_then_ever_longer_ones() -> None:
    growth = Growth()
    assert [length for length in range(400) if growth.is_due(length)] == [1, 65, 129, 193, 257, 321, 401][:6]


def server_call(kind: str = "server_tool_call", **fields: Any) -> Part:
    return {"type": kind, "id": "s1", "name": "search", **fields}


def server_result(**fields: Any) -> Part:
    return {"type": "server_tool_result", "tool_call_id": "s1", "status": "success", "output": [1], **fields}


def test_what_the_provider_runs_is_told_so() -> None:
    by_provider = {"providerExecuted": True}
    begins, value = began("s1", "search", **by_provider), available("s1", "search", {"q": 1}, **by_provider)
    whole = [server_call(args={"q": 1}), server_result()]
    assert said(message(ai(whole))) == [STEP, begins, value, output([1], "s1")]
    pieces = [server_call("server_tool_call_chunk", args='{"q":', index=0)]
    rest = [server_call("server_tool_call_chunk", args=" 1}", index=0, id=None, name=None), server_result()]
    # A tool that the graph does not have is not held back if the provider runs it.
    chunks = said(message(chunk(pieces)), message(chunk([*rest, server_result()])), tools=[])
    assert (chunks[1], chunks[-2:]) == (begins, [value, output([1], "s1")])
    other = server_call("server_tool_call_chunk", id="s2", args="{}", index=1)
    assert said(message(chunk([*pieces, other])), message(chunk(rest)))[-2:] == [value, output([1], "s1")]
    failed = said(message(ai([server_call(args={"q": 1}), server_result(status="error")])))
    assert failed[-1] == error("The tool failed.", "s1")
    unread = [server_call("server_tool_call_chunk", args="{", index=0)]
    ended = said(message(chunk(unread)), message(chunk("", chunk_position="last")))
    assert ended[-1] == available("s1", "search", {"input": "{"}, **by_provider)
    assert said(message(chunk([server_result(tool_call_id="?")]))) == [STEP]


def test_a_form_that_a_model_fills_in_is_no_call() -> None:
    tools = ["look"]
    pieces = [{"type": "tool_call_chunk", "id": "c1", "name": "Report", "args": "{}", "index": 0}]
    form = ai("", tool_calls=[call(name="Report")])
    filled = update(form, tool("Returning it"), structured_response={"celsius": 12})
    shown = [STEP, {"type": "data-output", "data": {"celsius": 12}}]
    assert said(message(chunk(pieces)), message(tool("Returning it")), filled, tools=tools) == shown
    assert said(message(form), filled, tools=tools) == shown
    # A tool that was not known is called after all.
    assert said(message(chunk(pieces)), update(form), tools=tools) == [STEP, available(name="Report")]
    assert said(update(ns=["sub:1"], structured_response=1), tools=tools) == []


def test_a_nodes_update_may_be_a_list_or_none_or_hold_no_messages() -> None:
    data = {"a": [{"messages": ai("x")}, None], "b": None, "__metadata__": {"cached": True}, "c": "text"}
    assert said(message(chunk("x")), {"type": "updates", "ns": [], "data": data}) == [STEP, *text("x"), text_end()]


def test_the_reason_of_the_end_is_the_models() -> None:
    for told, reason in (
        ({"finish_reason": "length"}, "length"),
        ({"stop_reason": "max_tokens"}, "length"),
        ({"finish_reason": "content_filter"}, "content-filter"),
        ({"finish_reason": "tool_calls"}, "stop"),
        ({"finish_reason": 7}, "stop"),
    ):
        assert said(message(ai("x", response_metadata=told)), end=True)[-1]["finishReason"] == reason
    inner = message(ai("x", response_metadata={"finish_reason": "length"}), ["sub:1"])
    assert said(inner, end=True)[-1] == STOP


def usage(total: int, read: int = 0, written: int = 0, output: int = 0, reasoning: int = 0) -> Part:
    return {
        "usage": {
            "inputTokens": total,
            "inputTokenDetails": {
                "noCacheTokens": total - read - written,
                "cacheReadTokens": read,
                "cacheWriteTokens": written,
            },
            "outputTokens": output,
            "outputTokenDetails": {"textTokens": output - reasoning, "reasoningTokens": reasoning},
            "totalTokens": total + output,
            "reasoningTokens": reasoning,
            "cachedInputTokens": read,
        }
    }


def test_what_was_used_is_summed_also_over_what_is_not_shown() -> None:
    first = {"input_tokens": 10, "input_token_details": {"cache_read": 4, "cache_creation": 2}}
    rest = {"output_tokens": 7, "output_token_details": {"reasoning": 3}}
    chunks = said(
        message(chunk("a", usage_metadata=first)),
        message(chunk("", usage_metadata=rest, chunk_position="last")),
        message(chunk("SUMMARY", "lc_run--2", usage_metadata={"input_tokens": 5}), lc_source="summarization"),
        message(chunk("CHOICE", "lc_run--3"), lc_internal_call=True),
        message(ai("b", "lc_run--4", usage_metadata={"input_tokens": True, "output_tokens": 2**60}), ["sub:1"]),
        message(chunk("", "lc_run--5", usage_metadata={"output_tokens": 1}), ["sub:1"]),
        end=True,
    )
    told = [chunk["messageMetadata"] for chunk in chunks if chunk["type"] == "message-metadata"]
    assert told == [usage(10, 4, 2, 7, 3), usage(15, 4, 2, 7, 3), usage(15, 4, 2, 8, 3)]
    assert "SUMMARY" not in str(chunks)
    assert "CHOICE" not in str(chunks)


def test_a_message_that_goes_on_has_used_what_it_had_used_before() -> None:
    mapper = new_mapper(UIMessage("m", "assistant", [], usage(10, 4, 2, 7, 3)))
    chunks = mapped(mapper, message(ai("a", usage_metadata={"input_tokens": 1})))
    assert chunks[-1]["messageMetadata"] == usage(11, 4, 2, 7, 3)


def custom(data: Any, ns: list[str] | None = None) -> Part:
    return {"type": "custom", "ns": ns or [], "data": data}


def test_what_a_node_writes_is_data() -> None:
    assert said(
        custom({"type": "data-x", "data": 1, "id": "i"}),
        custom({"type": "data-y", "data": None, "transient": True}),
        custom({"type": "data-", "data": 1}),
        custom({"type": "data-z"}),
        custom("x", ["sub:1"]),
    ) == [
        {"type": "data-x", "data": 1, "id": "i"},
        {"type": "data-y", "data": None, "transient": True},
        {"type": "data-custom", "data": {"type": "data-", "data": 1}},
        {"type": "data-custom", "data": {"type": "data-z"}},
        {"type": "data-custom", "data": "x"},
    ]
    assert said(custom("x", ["sub:1"]), subgraphs="off") == []


def test_the_state_is_told_when_a_chosen_key_has_changed() -> None:
    def values(ns: list[str] | None = None, **state: Any) -> Part:
        return {"type": "values", "ns": ns or [], "data": {"secret": 1, **state}}

    chunks = said(
        values(plan=["a"]),
        values(plan=["a"]),
        values(plan=["a", "b"], left=1),
        values(["sub:1"], plan=["c"]),
        values(plan=None, left=1),
        state=["plan", "left"],
    )
    assert chunks == [
        {"type": "data-plan", "data": ["a", "b"], "id": "plan"},
        {"type": "data-left", "data": 1, "id": "left"},
    ]
