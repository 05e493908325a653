import tracemalloc
from itertools import count
from typing import Any

import msgspec
import pytest

from support.open_harness_table import BEGUN, COMPLETE, FLOW, ROWS, Row, agent, node
from usechat.errors import MappingError
from usechat.events.mapper import TranslatingMapper
from usechat.integrations.open_harness.translator import OpenHarnessTranslator, TransportOptions, read_options
from usechat.protocol.chunks import (
    Chunk,
    Data,
    Error,
    Finish,
    TextEnd,
    ToolInputAvailable,
    ToolOutputAvailable,
    ToolOutputError,
)
from usechat.protocol.messages import UIMessage
from usechat.protocol.reader import MessageReader
from usechat.protocol.writer import MessageWriter

TYPES = {
    *("flow:start", "flow:complete", "flow:paused", "flow:resumed", "flow:aborted"),
    *("node:start", "node:complete", "node:error", "node:skipped", "edge:fire", "loop:iterate", "state:patch"),
    *("command:received", "agent:start", "agent:text:delta", "agent:text", "agent:thinking:delta", "agent:thinking"),
    *("agent:tool", "agent:error", "agent:complete", "agent:paused", "agent:aborted", "recording:linked", "event"),
    # Beside those of the original.
    "agent:part",
}


class Mapped:
    """The message of one run."""

    def __init__(self, translator: OpenHarnessTranslator) -> None:
        numbers = count(1)
        self._writer = MessageWriter("m", new_id=lambda: f"id-{next(numbers)}")
        self._mapper = TranslatingMapper(translator, self._writer)

    @property
    def ended(self) -> bool:
        return self._writer.state.phase in ("ended", "failed")

    def map(self, event: dict[str, Any]) -> list[Chunk]:
        return list(self._mapper.map(event))

    def end(self) -> list[Chunk]:
        return list(self._mapper.end())


def new_mapper(**options: bool) -> Mapped:
    return Mapped(OpenHarnessTranslator(read_options(options)))


def mapped(mapper: Mapped, *events: dict[str, Any]) -> list[Chunk]:
    return [chunk for event in events for chunk in mapper.map(event)]


def message_of(*events: dict[str, Any], **options: bool) -> UIMessage:
    mapper, reader = new_mapper(**options), MessageReader()
    for chunk in [*mapped(mapper, *events), *mapper.end()]:
        reader.apply(chunk)
    return reader.message


def texts_of(*events: dict[str, Any]) -> list[str]:
    return [part["text"] for part in message_of(*BEGUN, *events).parts if part["type"] == "text"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.event['type']} {row.case}")
def test_an_event_gives_the_chunks_of_its_row(row: Row) -> None:
    mapper = new_mapper(**row.options)
    mapped(mapper, *row.before)
    assert msgspec.to_builtins(mapper.map(row.event)) == row.chunks


def test_the_table_has_every_event_of_the_runtime() -> None:
    assert {row.event["type"] for row in ROWS} == TYPES


UNUSABLE: list[tuple[dict[str, Any], str]] = [
    ({}, "An Open Harness event has no type."),
    ({"type": None}, "An Open Harness event has no type."),
    ({"type": ["flow:start"]}, "An Open Harness event has no type."),
    ({"type": "phase:entered"}, "Open Harness has no event of the type 'phase:entered'."),
    ({"type": "event"}, "An Open Harness event `event` has no usable `event`."),
    ({"type": "event", "event": {"type": "event"}}, "Open Harness has no event of the type 'event'."),
    ({"type": "event", "event": {"type": "send"}}, "Open Harness has no event of the type 'send'."),
    *(
        ({**agent(kind, content="x", toolName="t"), field: value}, f"`agent:{kind}` has no usable `{field}`.")
        for kind in ("start", "text:delta", "text", "thinking:delta", "thinking", "tool", "error", "complete")
        for field in ("nodeId", "runId")
        for value in (None, 7, ["r-1"])
    ),
    *(
        (agent(kind, content=value), f"`agent:{kind}` has no usable `content`.")
        for kind in ("text:delta", "text", "thinking:delta", "thinking")
        for value in (None, 7, ["x"])
    ),
    (agent("tool"), "`agent:tool` has no usable `toolName`."),
    (agent("tool", toolName=""), "`agent:tool` has no usable `toolName`."),
    (agent("tool", toolName="t", error={"code": 1}), "`agent:tool` has no usable `error`."),
    *(
        ({"type": kind, "nodeId": "a"}, f"`{kind}` has no usable `runId`.")
        for kind in ("node:start", "node:complete", "node:error", "agent:paused", "agent:aborted")
    ),
    ({"type": "node:skipped"}, "`node:skipped` has no usable `nodeId`."),
    *(
        (agent("part", part=part), "`agent:part` has no usable `part`.")
        for part in (None, "file", {}, {"type": "file"}, {"type": "error", "errorText": "x"}, {"type": "finish"})
    ),
    ({"type": "agent:part", "nodeId": "a", "part": {"type": "data-x", "data": 1}}, "has no usable `runId`."),
]


@pytest.mark.parametrize(("event", "problem"), UNUSABLE)
def test_an_event_that_cannot_be_used_is_refused_and_changes_nothing(event: dict[str, Any], problem: str) -> None:
    mapper, untouched = new_mapper(), new_mapper()
    with pytest.raises(MappingError) as caught:
        mapper.map(event)
    assert str(caught.value).endswith(problem)
    rest = [agent("text", content="Hi"), COMPLETE]
    assert mapped(mapper, *rest) == mapped(untouched, *rest)


def test_an_event_that_is_no_object_is_refused() -> None:
    not_an_event: Any = "flow:start"
    with pytest.raises(MappingError, match=r"^An Open Harness event has no type\.$"):
        new_mapper().map(not_an_event)


def test_text_is_said_once_whichever_way_it_comes() -> None:
    said = [("Hello ", "there."), ("", "One."), ("Two", "")]
    for pieces, whole in ((True, False), (True, True), (False, True)):
        events: list[dict[str, Any]] = []
        for halves in said:
            events += [agent("text:delta", content=half) for half in halves if pieces]
            events += [agent("text", content="".join(halves))] if whole else []
        assert "".join(texts_of(*events)) == "Hello there.One.Two"


def test_every_whole_text_ends_a_part() -> None:
    pieces = [agent("text:delta", content="One"), agent("text", content="One.")]
    assert texts_of(*pieces, agent("text", content="Two."), *pieces) == ["One.", "Two.", "One."]


@pytest.mark.parametrize(
    ("events", "texts"),
    [
        # The pieces lack the beginning: the whole is said, in a part of its own.
        ([("delta", "lo there"), ("whole", "Hello there")], ["lo there", "Hello there"]),
        # The pieces of two blocks come before the whole of the first.
        ([("delta", "One. "), ("delta", "Two."), ("whole", "One. "), ("whole", "Two.")], ["One. Two."]),
        # The whole of a block never comes.
        ([("delta", "One. "), ("delta", "Two."), ("whole", "Two."), ("whole", "Three.")], ["One. Two.", "Three."]),
        # The whole lost its leading space.
        ([("delta", "\n"), ("delta", "Hi."), ("whole", "Hi."), ("whole", "Hi.")], ["\nHi.", "Hi."]),
        ([("delta", "Hi."), ("whole", ""), ("whole", "Hi.")], ["Hi."]),
        # A character in two halves.
        ([("delta", "a\ud83d"), ("delta", "\ude00"), ("whole", "a😀!")], ["a😀!"]),
        ([("delta", "\ud83d"), ("delta", "\ude00é"), ("whole", "😀é")], ["😀é"]),
    ],
)
def test_a_whole_that_does_not_match_its_pieces_is_neither_lost_nor_doubled_as_far_as_can_be_told(
    events: list[tuple[str, str]], texts: list[str]
) -> None:
    kinds = {"delta": "text:delta", "whole": "text"}
    assert texts_of(*(agent(kinds[kind], content=content) for kind, content in events)) == texts


def test_an_attempt_that_repeats_the_text_of_a_failed_one_is_shown_again() -> None:
    attempt = [agent("text:delta", content="Work"), agent("text:delta", content="ing.")]
    failure = agent("error", errorType="overloaded_error", message="Overloaded.")
    again = agent("start", sessionId="s", prompt="Go")
    whole = agent("text", content="Working.")
    assert texts_of(*attempt, failure, again, *attempt, whole) == ["Working.", "Working."]
    assert texts_of(attempt[0], failure, whole) == ["Work", "Working."]
    assert texts_of(attempt[0], again, whole) == ["Work", "Working."]


def test_runs_at_the_same_time_keep_their_text_apart_and_in_order() -> None:
    runs = {name: {"nodeId": name, "runId": f"run-{name}"} for name in ("left", "right")}
    events: list[dict[str, Any]] = [{"type": "node:start", **run} for run in runs.values()]
    for word in ("one ", "two ", "three"):
        events += [{"type": "agent:text:delta", **run, "content": f"{name} {word}"} for name, run in runs.items()]
    events += [{"type": "agent:text", **runs["left"], "content": "left one left two left three"}]
    parts = [part["text"] for part in message_of(FLOW, *events).parts if part["type"] == "text"]
    assert parts == ["left one left two left three", "right one right two right three"]


def test_calls_of_one_tool_are_answered_in_their_order_and_within_their_run() -> None:
    other = {"nodeId": "other", "runId": "r-2"}
    begun = [agent("tool", toolName="search", toolInput={"n": 1}), agent("tool", toolName="search", toolInput={"n": 2})]
    begun.append({**agent("tool", toolName="search", toolInput={"n": 3}), **other})
    ended = [{**agent("tool", toolName="search", toolOutput=number), **run} for number, run in ((3, other), (1, {}))]
    ended.append(agent("tool", toolName="search", toolOutput=2))
    calls = [part for part in message_of(*BEGUN, *begun, *ended).parts if part["type"] == "tool-search"]
    assert [(call["input"]["n"], call["output"]) for call in calls] == [(1, 1), (2, 2), (3, 3)]
    assert len({call["toolCallId"] for call in calls}) == 3


def test_a_result_that_comes_after_its_node_failed_is_dropped_but_a_new_run_begins_anew() -> None:
    mapper = new_mapper()
    mapped(mapper, *BEGUN, agent("tool", toolName="search", toolInput={}))
    [closed] = mapper.map(node("error", error="broken"))
    assert closed == ToolOutputError("r-1-1", "The call was cut off by an error.")
    assert mapper.map(agent("tool", toolName="search", toolOutput="late")) == []
    mapped(mapper, node("start"), agent("tool", toolName="search", toolInput={}))
    mapper.map(node("complete"))
    mapper.map(node("start"))
    *_, made_up, result = mapper.map(agent("tool", toolName="search", toolOutput=1))
    assert (made_up, result) == (ToolInputAvailable("id-1", "search", {}), ToolOutputAvailable("id-1", 1))


def test_text_that_comes_after_the_end_of_its_node_is_a_part_of_its_own() -> None:
    late = [agent("text:delta", content="late"), agent("text", content="late.")]
    assert texts_of(agent("text:delta", content="Hi"), node("complete"), *late) == ["Hi", "late."]


@pytest.mark.parametrize("last", [{"type": "flow:complete", "status": "complete"}, {"type": "flow:paused"}])
def test_nothing_follows_the_end(last: dict[str, Any]) -> None:
    mapper = new_mapper()
    mapped(mapper, *BEGUN)
    assert not mapper.ended
    mapper.map(last)
    assert mapper.ended
    assert mapped(mapper, agent("paused"), {"type": "no such type"}, agent("text", content="late")) == []
    assert mapper.end() == []


def test_a_run_that_stops_without_an_end_says_so_once() -> None:
    mapper = new_mapper()
    mapped(mapper, *BEGUN, agent("text:delta", content="Hel"))
    last = mapper.end()
    assert (last[0], last[-1]) == (TextEnd("id-1"), Error("The run was interrupted before it was finished."))
    assert (mapper.ended, mapper.end()) == (True, [])


def test_a_node_that_fails_does_not_end_a_flow_that_goes_on() -> None:
    events = [node("error", error="upstream 503"), {**node("start"), "runId": "r-2"}]
    events += [
        {**agent("text", content="All the same."), "runId": "r-2"},
        {"type": "flow:complete", "status": "complete"},
    ]
    mapper = new_mapper()
    assert mapped(mapper, *BEGUN, *events)[-1] == Finish("stop")


def test_no_text_of_an_exception_reaches_the_page() -> None:
    secret = "postgres://app:hunter2@db"  # noqa: S105
    failures = [agent("error", errorType=kind, message=secret, details=secret) for kind in ("exception", "IOException")]
    failures += [agent("error", errorType=7, message=None), node("error", error=secret)]
    mapper = new_mapper(send_flow_metadata=True, send_node_outputs=True)
    chunks = mapped(mapper, *BEGUN, *failures, {"type": "flow:complete", "status": "failed"})
    assert secret not in repr(chunks)
    assert [type(chunk) for chunk in chunks].count(Error) == 1
    errors = [chunk.data for chunk in chunks if isinstance(chunk, Data) and chunk.type == "data-agent-error"]
    assert [error["errorType"] for error in errors] == ["exception", "IOException", ""]


def test_states_commands_and_outputs_are_sent_only_when_asked_for() -> None:
    events: list[dict[str, Any]] = [
        {"type": "state:patch", "patch": {"op": "set", "path": "token", "value": "hunter2"}},
        {"type": "command:received", "command": {"type": "send", "message": "hunter2"}},
        node("complete", output={"token": "hunter2"}),
    ]
    assert "hunter2" not in repr(message_of(*BEGUN, *events))
    assert repr(message_of(*BEGUN, *events, send_flow_metadata=True, send_node_outputs=True)).count("hunter2") == 3


def test_a_page_sees_one_status_of_the_flow_and_one_of_each_run() -> None:
    events = [node("complete", output=1), {"type": "flow:complete", "status": "complete"}]
    parts = message_of(*BEGUN, *events, send_flow_metadata=True).parts
    assert [(part["type"], part["data"]["status"]) for part in parts if part["type"].startswith("data-")] == [
        ("data-flow-status", "complete"),
        ("data-node", "complete"),
    ]


def test_ids_of_calls_do_not_depend_on_chance() -> None:
    events = [*BEGUN, *(agent("tool", toolName="search", toolInput={}, toolOutput=n) for n in range(3))]
    first, second = (message_of(*events) for _ in range(2))
    assert first == second


def test_memory_does_not_grow_with_the_deltas() -> None:
    def kept_after(deltas: int) -> int:
        mapper = new_mapper()
        mapped(mapper, *BEGUN)
        tracemalloc.start()
        for number in range(deltas):
            mapper.map(agent("text:delta", content=f"{number:08}"))
        kept, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return kept

    kept_after(10)
    assert kept_after(10_000) < kept_after(1_000) + 10_000


@pytest.mark.parametrize("how", ["paused", "aborted"])
def test_an_agent_of_a_live_flow_ends_without_it(how: str) -> None:
    mapper = Mapped(OpenHarnessTranslator(live=True))
    mapped(mapper, agent("text:delta", content="So"))
    assert mapped(mapper, {"type": "flow:resumed"}, agent(how)) == [TextEnd("id-1")]
    assert not mapper.ended
    # Without a flow there is nothing else that could end.
    alone = Mapped(OpenHarnessTranslator(live=True))
    mapped(alone, agent("text:delta", content="So"), agent(how))
    assert alone.ended


def test_a_message_that_joins_a_flow_has_its_status_and_name() -> None:
    mapper = Mapped(OpenHarnessTranslator(TransportOptions(send_flow_metadata=True), live=True, joined=lambda: "story"))
    with pytest.raises(MappingError):
        mapper.map({"type": "no such type"})
    chunks = mapped(mapper, agent("text:delta", content="So"), COMPLETE, {"type": "flow:paused"})
    statuses = [chunk.data for chunk in chunks if isinstance(chunk, Data) and chunk.type == "data-flow-status"]
    assert statuses == [{"status": "running", "flowName": "story"}, {"status": "paused", "flowName": "story"}]
    assert chunks.index(Finish("other")) == len(chunks) - 1


def test_options_are_read_by_either_spelling() -> None:
    assert read_options({}) == TransportOptions()
    assert read_options({"sendReasoning": False, "send_flow_metadata": True}) == TransportOptions(
        send_reasoning=False, send_flow_metadata=True
    )
    assert read_options({"sendStepMarkers": False, "sendNodeOutputs": True}) == TransportOptions(
        send_step_markers=False, send_node_outputs=True
    )


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (
            {"sendThoughts": True},
            "There is no option 'sendThoughts': the options are send_reasoning, send_step_markers, "
            "send_flow_metadata, send_node_outputs.",
        ),
        ({"generateMessageId": "uuid"}, "There is no option 'generateMessageId': the options are send_reasoning"),
        ({"send_reasoning": 1}, "The option send_reasoning is true or false, not 1."),
    ],
)
def test_an_option_that_is_not_known_or_no_truth_value_is_refused(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match="option") as caught:
        read_options(given)
    assert str(caught.value).startswith(problem)


def test_the_parts_have_what_the_components_read() -> None:
    """`<Tool>`, `<Reasoning>`, `<Context>` and `<Task>` of AI Elements, as users.md lists what they read."""
    events = [
        agent("thinking:delta", content="Hm."),
        agent("thinking", content="Hm."),
        agent("tool", toolName="search", toolInput={"q": "tide"}, toolOutput={"at": "noon"}),
        agent("tool", toolName="search", toolInput={"q": "moon"}, error="no such page"),
        agent("text", content="At noon."),
        COMPLETE,
        node("complete", output={"text": "At noon."}),
        {"type": "flow:complete", "flowName": "story", "status": "complete"},
    ]
    message = message_of(*BEGUN, *events, send_flow_metadata=True)
    by_type: dict[str, list[dict[str, Any]]] = {}
    for part in message.parts:
        by_type.setdefault(part["type"], []).append(part)
    assert by_type["reasoning"] == [{"type": "reasoning", "text": "Hm.", "state": "done", "id": "id-1"}]
    assert by_type["text"] == [{"type": "text", "text": "At noon.", "state": "done"}]
    good, bad = by_type["tool-search"]
    assert (good["state"], good["input"], good["output"]) == ("output-available", {"q": "tide"}, {"at": "noon"})
    assert (bad["state"], bad["input"], bad["errorText"]) == ("output-error", {"q": "moon"}, "no such page")
    metadata: Any = message.metadata
    read = {
        name: metadata["usage"][name] for name in ("inputTokens", "outputTokens", "totalTokens", "cachedInputTokens")
    }
    assert read == {"inputTokens": 15, "outputTokens": 4, "totalTokens": 19, "cachedInputTokens": 10}
    assert [part["data"]["status"] for part in by_type["data-node"]] == ["complete"]
