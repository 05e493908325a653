"""What the streams of model providers say, also those of servers that only resemble them."""

from collections.abc import Iterable
from typing import Any

import pytest

from usechat import events as e
from usechat.models.decoders import (
    AnthropicDecoder,
    ChatCompletionsDecoder,
    IncompleteStreamError,
    ResponsesDecoder,
)

JSON = dict[str, Any]


def chunk(delta: JSON, end: str | None = None, **rest: Any) -> JSON:
    return {"id": "c1", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": end}], **rest}


def piece(arguments: str, **rest: Any) -> JSON:
    name = {"name": rest.pop("name")} if "name" in rest else {}
    return {"tool_calls": [{**rest, "function": {**name, "arguments": arguments}}]}


def read(decoder: e.Translator[Any], events: Iterable[Any]) -> list[e.AgentEvent]:
    said = [one for event in events for one in decoder.translate(event)]
    return [*said, *decoder.end()]


def chat(*chunks: JSON) -> list[e.AgentEvent]:
    """What the chunks say after the step has begun."""
    step, *said = read(ChatCompletionsDecoder(), chunks)
    assert step == e.Step()
    return said


def test_chat_completions_say_reasoning_text_calls_and_usage() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}
    usage |= {"prompt_tokens_details": {"cached_tokens": 2}, "completion_tokens_details": {"reasoning_tokens": 1}}
    assert chat(
        chunk({"role": "assistant", "content": ""}),
        chunk({"reasoning_content": "Hm."}),
        chunk({"content": "Hi"}),
        chunk(piece("", index=0, id="a", name="look")),
        chunk(piece('{"x":', index=0)),
        chunk(piece("1}", index=0)),
        chunk({}, "tool_calls"),
        {"id": "c1", "model": "m", "choices": [], "usage": usage},
    ) == [
        e.Reasoning("Hm."),
        e.Text("Hi"),
        e.ToolInputStart("a", "look"),
        e.ToolInputDelta("a", '{"x":'),
        e.ToolInputDelta("a", "1}"),
        e.ToolCall("a", "look", {"x": 1}),
        e.Usage(input_tokens=9, output_tokens=4, total_tokens=13, cache_read_tokens=2, reasoning_tokens=1, model="m"),
    ]


def test_calls_of_servers_that_leave_out_ids_and_indices_or_use_one_index_for_all_keep_apart() -> None:
    said = chat(
        chunk(piece('{"n": 1}', index=0, id="a", name="look")),
        chunk(piece('{"n": 2}', index=0, id="b", name="look")),
        chunk({}, "tool_calls"),
    )
    calls = [one for one in said if isinstance(one, e.ToolCall)]
    assert calls == [e.ToolCall("a", "look", {"n": 1}), e.ToolCall("b", "look", {"n": 2})]
    both = {"tool_calls": [piece("{}", name="one")["tool_calls"][0], piece("{}", name="two")["tool_calls"][0]]}
    assert chat(chunk(both), chunk({}, "tool_calls"))[-2:] == [
        e.ToolCall("c1-1", "one", {}),
        e.ToolCall("c1-2", "two", {}),
    ]


def test_a_name_that_is_repeated_and_arguments_that_are_empty_or_no_json() -> None:
    assert chat(
        chunk(piece('{"a"', index=0, id="a", name="look")),
        chunk(piece(": 1}", index=0, id="a", name="look")),
        chunk(piece("", index=1, id="b", name="rest")),
        chunk(piece('{"cut', index=2, id="c", name="look")),
        chunk({}, "tool_calls"),
    )[-3:] == [
        e.ToolCall("a", "look", {"a": 1}),
        e.ToolCall("b", "rest", {}),
        e.ToolInputError("c", "look", '{"cut', "The model wrote arguments that are not valid JSON."),
    ]


def test_other_choices_refusals_images_and_citations() -> None:
    cited = {"type": "url_citation", "url_citation": {"url": "https://a.example", "title": "A"}}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    other = {"id": "c1", "choices": [{"index": 1, "delta": {"content": "no"}, "finish_reason": None}]}
    assert chat(
        chunk({"refusal": "I cannot."}), other, chunk({"images": [image], "annotations": [cited]}), chunk({}, "stop")
    ) == [
        e.Text("I cannot."),
        e.File("data:image/png;base64,AA==", "image/png"),
        e.Source("https://a.example", "A"),
        e.Finish("stop"),
    ]


@pytest.mark.parametrize(("reason", "finish"), [("length", "length"), ("content_filter", "content-filter")])
def test_why_an_answer_was_cut_off(reason: str, finish: Any) -> None:
    assert chat(chunk({"content": "Hi"}, reason)) == [e.Text("Hi"), e.Finish(finish)]


@pytest.mark.parametrize(
    ("decoder", "event"),
    [
        (ChatCompletionsDecoder, chunk({"content": "Hi"})),
        (ResponsesDecoder, {"type": "response.created", "response": {}}),
        (AnthropicDecoder, {"type": "message_start", "message": {}}),
    ],
)
def test_a_stream_without_its_end_is_an_error(decoder: Any, event: JSON) -> None:
    with pytest.raises(IncompleteStreamError):
        read(decoder(), [event])


@pytest.mark.parametrize(
    ("decoder", "event"),
    [
        (ResponsesDecoder, {"type": "response.failed", "response": {"error": {"code": "x", "message": "y"}}}),
        (ResponsesDecoder, {"type": "error", "code": "x", "message": "y"}),
        (AnthropicDecoder, {"type": "error", "error": {"type": "x", "message": "y"}}),
    ],
)
def test_an_answer_that_failed_is_an_error(decoder: Any, event: JSON) -> None:
    with pytest.raises(IncompleteStreamError, match="x: y"):
        read(decoder(), [event])


def item(place: int, what: JSON, *, done: bool = True) -> JSON:
    return {"type": f"response.output_item.{'done' if done else 'added'}", "output_index": place, "item": what}


def responses(*events: JSON, **response: Any) -> list[e.AgentEvent]:
    """What the events say between the beginning and the end of a response."""
    begin: JSON = {"type": "response.created", "response": {}}
    step, *said, finish = read(
        ResponsesDecoder(), [begin, *events, {"type": "response.completed", "response": response}]
    )
    assert (step, finish) == (e.Step(), e.Finish("stop"))
    return said


def test_a_response_says_text_citations_calls_and_usage() -> None:
    def at(kind: str, place: int, **rest: Any) -> JSON:
        return {"type": f"response.{kind}", "output_index": place, **rest}

    cited = {"type": "container_file_citation", "file_id": "f"}
    call = {"type": "function_call", "id": "i", "call_id": "c", "name": "look"}
    usage = {"input_tokens": 9, "output_tokens": 4, "total_tokens": 13}
    usage |= {"input_tokens_details": {"cached_tokens": 2}, "output_tokens_details": {"reasoning_tokens": 1}}
    assert responses(
        at("output_text.delta", 0, delta="Hi"),
        at("output_text.annotation.added", 0, annotation=cited),
        at("output_text.done", 0, text="Hi"),
        item(0, {"type": "message", "content": [{"type": "output_text", "text": "Hi"}]}),
        item(1, {**call, "arguments": ""}, done=False),
        at("function_call_arguments.delta", 1, delta='{"x":1}'),
        at("function_call_arguments.delta", 7, delta="nobody's"),
        item(1, {**call, "arguments": '{"x":1}'}),
        item(2, {"type": "message", "content": []}, done=False),
        {"type": "response.output_text.annotation.added", "annotation": {"type": "unknown"}},
        model="m",
        usage=usage,
    ) == [
        e.Text("Hi"),
        e.Document("f", "text/plain", "f"),
        e.Text("Hi", whole=True),
        e.EndPart(),
        e.ToolInputStart("c", "look"),
        e.ToolInputDelta("c", '{"x":1}'),
        e.ToolCall("c", "look", {"x": 1}),
        e.Usage(input_tokens=9, output_tokens=4, total_tokens=13, cache_read_tokens=2, reasoning_tokens=1, model="m"),
    ]


def test_a_message_that_was_not_streamed_is_said_whole() -> None:
    cited = [{"type": "url_citation", "url": "https://a.example", "title": "A"}]
    cited.append({"type": "file_citation", "file_id": "f", "filename": "a.txt"})
    parts = [{"type": "output_text", "text": "Hi", "annotations": cited}, {"type": "refusal", "refusal": "No."}]
    assert responses(item(0, {"type": "message", "content": parts})) == [
        e.Text("Hi", whole=True),
        e.Source("https://a.example", "A"),
        e.Document("a.txt", "text/plain", "a.txt"),
        e.Text("No.", whole=True),
        e.EndPart(),
    ]


def test_reasoning_keeps_what_the_next_turn_needs_of_it() -> None:
    def summary(kind: str, index: int, **rest: Any) -> JSON:
        return {"type": f"response.reasoning_summary_{kind}", "output_index": 0, "summary_index": index, **rest}

    kept: JSON = {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "E"}
    assert responses(
        summary("part.added", 0),
        summary("text.delta", 0, delta="One."),
        summary("part.added", 1),
        summary("text.delta", 1, delta="Two."),
        item(0, kept),
        item(1, {"type": "reasoning", "id": "s", "content": [{"text": "Three."}, {"text": "Four."}]}),
    ) == [
        e.Reasoning("One."),
        e.EndPart(),
        e.Reasoning("Two."),
        e.Reasoning("", metadata={"openai": {"itemId": "r", "reasoningEncryptedContent": "E"}}),
        e.Reasoning("Three."),
        e.EndPart(),
        e.Reasoning("Four."),
        e.EndPart(),
    ]


@pytest.mark.parametrize(
    ("done", "name", "given", "result"),
    [
        ({"type": "web_search_call", "action": {"query": "q"}}, "web_search", {"action": {"query": "q"}}, None),
        ({"type": "file_search_call", "queries": ["q"], "results": []}, "file_search", {"queries": ["q"]}, []),
        ({"type": "code_interpreter_call", "code": "1", "outputs": []}, "code_interpreter", {"code": "1"}, []),
        ({"type": "image_generation_call"}, "image_generation", {}, None),
        ({"type": "mcp_call", "name": "look", "arguments": '{"a": 1}', "output": "b"}, "look", {"a": 1}, "b"),
    ],
)
def test_a_tool_that_openai_runs_is_a_call_of_the_provider(done: JSON, name: str, given: JSON, result: Any) -> None:
    done = {"id": "t", "status": "completed", **done}
    start, call, end = responses(
        item(0, {"id": "t", "type": done["type"], "name": done.get("name")}, done=False), item(0, done)
    )
    dynamic = done["type"] == "mcp_call"
    assert start == e.ToolInputStart("t", name, provider_executed=True, dynamic=dynamic)
    assert call == e.ToolCall("t", name, given, provider_executed=True, dynamic=dynamic)
    assert isinstance(end, e.ToolResult)
    assert (end.id, end.provider_executed) == ("t", True)
    assert result in (end.output, None) or result in end.output.values()


def test_a_tool_of_openai_that_failed_an_image_and_a_custom_call() -> None:
    assert responses(
        item(0, {"id": "t", "type": "mcp_call", "name": "look", "arguments": "", "error": "secret"}),
        item(1, {"id": "i", "type": "image_generation_call", "status": "completed", "result": "AA=="}),
        item(2, {"id": "x", "call_id": "c", "type": "custom_tool_call", "name": "run", "input": "ls"}),
        item(3, {"id": "u", "type": "compaction"}),
    ) == [
        e.ToolCall("t", "look", {}, provider_executed=True, dynamic=True),
        e.ToolError("t", "The tool failed.", provider_executed=True),
        e.ToolCall("i", "image_generation", {}, provider_executed=True),
        e.ToolResult("i", {"status": "completed"}, provider_executed=True),
        e.File("data:image/png;base64,AA==", "image/png"),
        e.ToolCall("c", "run", "ls"),
    ]


def block(index: int, content: JSON, *deltas: JSON) -> list[JSON]:
    return [
        {"type": "content_block_start", "index": index, "content_block": content},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def anthropic(*events: JSON) -> list[e.AgentEvent]:
    """What the events say between the beginning and the usage of a message."""
    begin = {"type": "message_start", "message": {"model": "m", "usage": {"input_tokens": 3}}}
    delta = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}}
    step, *said, usage, finish = read(AnthropicDecoder(), [begin, *events, delta, {"type": "message_stop"}])
    assert (step, usage) == (e.Step(), e.Usage(input_tokens=3, output_tokens=2, model="m"))
    assert finish == e.Finish("stop")
    return said


def test_thinking_with_its_signature_redacted_or_whole() -> None:
    assert anthropic(
        *block(
            0,
            {"type": "thinking", "thinking": "Hm"},
            {"type": "thinking_delta", "thinking": "."},
            {"type": "signature_delta", "signature": "S"},
        ),
        *block(1, {"type": "redacted_thinking", "data": "R"}),
        *block(2, {"type": "text", "text": "Hi"}, {"type": "text_delta", "text": "!"}),
    ) == [
        e.Reasoning("Hm"),
        e.Reasoning("."),
        e.Reasoning("", metadata={"anthropic": {"signature": "S"}}),
        e.EndPart(),
        e.Reasoning("", metadata={"anthropic": {"redactedData": "R"}}),
        e.EndPart(),
        e.Text("Hi"),
        e.Text("!"),
        e.EndPart(),
    ]


def test_calls_of_tools_that_anthropic_or_the_agent_runs() -> None:
    assert anthropic(
        *block(0, {"type": "tool_use", "id": "a", "name": "look", "input": {"x": 1}}),
        *block(
            1,
            {"type": "server_tool_use", "id": "b", "name": "web_search", "input": {}},
            {"type": "input_json_delta", "partial_json": '{"query": "q"}'},
        ),
        *block(2, {"type": "web_search_tool_result", "tool_use_id": "b", "content": [{"url": "u"}]}),
        *block(3, {"type": "web_search_tool_result", "tool_use_id": "c", "content": {"error_code": "too_many"}}),
        *block(4, {"type": "mcp_tool_result", "tool_use_id": "d", "content": "x", "is_error": True}),
        *block(5, {"type": "container_upload"}),
    ) == [
        e.ToolInputStart("a", "look"),
        e.ToolCall("a", "look", {"x": 1}),
        e.ToolInputStart("b", "web_search", provider_executed=True),
        e.ToolInputDelta("b", '{"query": "q"}'),
        e.ToolCall("b", "web_search", {"query": "q"}, provider_executed=True),
        e.ToolResult("b", [{"url": "u"}], provider_executed=True),
        e.EndPart(),
        e.ToolError("c", "The tool failed: too_many.", provider_executed=True),
        e.EndPart(),
        e.ToolError("d", "The tool failed.", provider_executed=True),
        e.EndPart(),
        e.EndPart(),
    ]


def test_citations_are_sources_or_documents() -> None:
    cited = [
        {"type": "web_search_result_location", "url": "https://a.example", "title": "A"},
        {"type": "page_location", "document_title": "B"},
        {"type": "char_location"},
    ]
    deltas = [{"type": "citations_delta", "citation": one} for one in cited]
    assert anthropic(*block(0, {"type": "text", "text": ""}, *deltas, {"type": "unknown"})) == [
        e.Source("https://a.example", "A"),
        e.Document("B", "application/pdf"),
        e.Document("Document", "text/plain"),
        e.EndPart(),
    ]


def test_what_is_read_from_the_cache_and_written_to_it_counts_as_input() -> None:
    usage = {"input_tokens": 3, "cache_read_input_tokens": 20, "cache_creation_input_tokens": 100, "output_tokens": 1}
    begin = {"type": "message_start", "message": {"model": "m", "usage": usage}}
    last = {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": 5}}
    assert read(AnthropicDecoder(), [begin, last, {"type": "message_stop"}])[1:] == [
        e.Usage(input_tokens=123, output_tokens=5, cache_read_tokens=20, cache_write_tokens=100, model="m"),
        e.Finish("length"),
    ]
