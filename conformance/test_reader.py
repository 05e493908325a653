"""Our reader against the newest client of each major, after every chunk of random legal streams."""

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple, cast

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, seed, settings
from msgspec import UNSET

from json_values import ARGUMENTS
from judge import Judge
from promises import PINNED, V5, V6, V7, release_of
from same_json import as_json, strict
from streams import Part, Turn, answered, turns
from support.soak import SEED, draws
from usechat.errors import RemoteProtocolError
from usechat.protocol.chunks import (
    Chunk,
    MessageMetadata,
    Start,
    StartStep,
    TextEnd,
    TextStart,
    ToolApprovalRequest,
    ToolInputAvailable,
    ToolInputDelta,
    ToolInputError,
    ToolInputStart,
    ToolOutputAvailable,
    ToolOutputError,
)
from usechat.protocol.messages import UIMessage
from usechat.protocol.reader import MessageReader

NEWEST = (V5, V6, V7)
MANY: Final = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


class Ignored(NamedTuple):
    """Fields of a chunk that the client does not use."""

    clients: tuple[str, ...]
    chunk: type[Chunk]
    fields: tuple[str, ...]
    when: Callable[[Any, list[Part]], bool] | None = None

    def applies(self, chunk: Chunk, parts: list[Part]) -> bool:
        return isinstance(chunk, self.chunk) and (self.when is None or self.when(chunk, parts))


class Changed(NamedTuple):
    """What the client makes of a tool's part otherwise; the function is given the chunk, our part and the client's."""

    clients: tuple[str, ...]
    chunk: type[Chunk]
    change: Callable[[Any, Part, Part], None]


def _part(parts: list[Part], call_id: str) -> Part:
    absent: Part = {}
    return next((part for part in reversed(parts) if part.get("toolCallId") == call_id), absent)


def _metadata_of_a_wrong_input_is_the_calls(chunk: ToolInputError, ours: Part, theirs: Part) -> None:
    if "resultProviderMetadata" in ours:
        ours["callProviderMetadata"] = ours.pop("resultProviderMetadata")


def _call_is_known(chunk: ToolInputError, parts: list[Part]) -> bool:
    return _part(parts, chunk.tool_call_id) != {}


def _no_input_if(pattern: str) -> Callable[[ToolInputDelta, Part, Part], None]:
    # Inside of a string the same characters do no harm, so the client's part has the last word.
    def change(chunk: ToolInputDelta, ours: Part, theirs: Part) -> None:
        if re.search(pattern, ours["rawInput"], re.ASCII) and "input" not in theirs:
            ours.pop("input", None)

    return change


# How the older clients differ from our reader of their major. `usechat check` refuses what it would need for the most.
DIFFERENCES: Final[tuple[Ignored | Changed, ...]] = (
    Ignored((V5, V6), TextEnd, ("citations",)),
    Ignored((V5,), ToolInputStart, ("title", "provider_metadata", "tool_metadata", "input_encoding")),
    Ignored((V5,), ToolInputAvailable, ("title", "tool_metadata")),
    Ignored((V5,), ToolInputError, ("tool_metadata",)),
    Ignored((V5,), ToolInputError, ("provider_metadata",), _call_is_known),
    Ignored((V5,), ToolOutputAvailable, ("provider_metadata", "tool_metadata")),
    Ignored((V5,), ToolOutputError, ("provider_metadata", "tool_metadata")),
    Ignored((V6,), ToolApprovalRequest, ("reason", "is_automatic")),
    Changed((V5,), ToolInputError, _metadata_of_a_wrong_input_is_the_calls),
    # What cannot begin a value, or is a minus, right after a bracket makes the repair of partial JSON fail.
    Changed((V5, V6), ToolInputDelta, _no_input_if(r'\[[ \t\n\r]*[^ \t\n\r\d"{\[tfn\]]')),
    # So does an escape that is not whole.
    Changed((V5,), ToolInputDelta, _no_input_if(r"\\u[\da-fA-F]{0,3}(?![\da-fA-F])")),
)


class Expectation:
    """The message that one client should have, which our reader builds and the differences correct."""

    def __init__(self, client: str, continues: UIMessage | None = None) -> None:
        self._differences = [difference for difference in DIFFERENCES if client in difference.clients]
        self._reader = MessageReader(continues, major=release_of(client).major)

    def after(self, chunk: Chunk, theirs: Part) -> Part:
        message = self._reader.feed(self._used(chunk))
        for difference in self._differences:
            if isinstance(difference, Changed) and isinstance(chunk, difference.chunk):
                # The reader goes on with its message, so that a change stays for the chunks after it.
                call_id = cast("ToolInputDelta | ToolInputError", chunk).tool_call_id
                difference.change(chunk, _part(message.parts, call_id), _part(theirs["parts"], call_id))
        return as_json(message)

    def _used(self, chunk: Chunk) -> Chunk:
        for difference in self._differences:
            if isinstance(difference, Ignored) and difference.applies(chunk, self._reader.message.parts):
                chunk = msgspec.structs.replace(chunk, **dict.fromkeys(difference.fields, UNSET))
        return chunk


def named(message: Part) -> Part:
    """The message without the id that the client made up because the stream has none."""
    return {**message, "id": ""} if re.fullmatch(r"generated-\d+", message["id"]) else message


def compare(judge: Judge, client: str, chunks: list[Chunk], continues: UIMessage | None = None) -> UIMessage | None:
    """Check the message after each chunk and give the last one."""
    posted = None if continues is None else as_json(continues)
    result = judge.read(chunks, [client], continues=posted, each=True)[client]
    snapshots: list[Part] = result["snapshots"]
    if result["status"] == "error":
        snapshots.append(result["accumulated"])
    expectation = Expectation(client, continues)
    replay = f"{client}, USECHAT_SEED={SEED}"
    message: Part | None = None
    assert len(snapshots) == len(chunks), (replay, result["error"])
    for index, (chunk, theirs) in enumerate(zip(chunks, snapshots, strict=True)):
        message = expectation.after(chunk, theirs)
        assert strict(message) == strict(named(theirs)), (replay, index)
    return None if message is None else msgspec.convert(message, UIMessage)


def play(judge: Judge, client: str, turn: Turn) -> None:
    continues = compare(judge, client, turn.before) if turn.before else None
    if continues is not None:
        continues.parts = answered(continues.parts, turn.answers)
    compare(judge, client, turn.chunks, continues)


# A stream of v5 is played to three clients, one of v7 to a single one.
@pytest.mark.parametrize(("oldest", "streams"), [(V5, 20), (V6, 24), (V7, 40)])
def test_the_reader_has_the_clients_message_after_every_chunk(judge: Judge, oldest: str, streams: int):
    @seed(SEED)
    @settings(MANY, max_examples=draws(streams, 100))
    @given(turns(release_of(oldest)))
    def check(turn: Turn) -> None:
        for client in NEWEST[NEWEST.index(oldest) :]:
            play(judge, client, turn)

    check()


@seed(SEED)
@settings(MANY, max_examples=draws(25, 20))
@given(ARGUMENTS)
@example(r'{"a":"\ud83d\ude00","b":[-1.5E-3,-0]}')
@example(r'{"a\"b":{"\\":[true,false,null]}}')
@example('{"__proto__":1,"a":2}')
@example('[1e999,"\u2028"] x')
def test_every_prefix_of_streamed_arguments_is_parsed_as_the_client_parses_it(judge: Judge, text: str):
    deltas = [ToolInputDelta("c", character) for character in text]
    for client in NEWEST:
        compare(judge, client, [ToolInputStart("c", "weather"), *deltas])


@pytest.mark.parametrize("client", NEWEST)
def test_an_input_that_was_cut_off_goes_on_where_it_stopped(judge: Judge, client: str):
    cut: Part = {"type": "tool-weather", "toolCallId": "c", "state": "input-streaming", "rawInput": '{"city":"Kö'}
    continues = UIMessage("m", "assistant", [{**cut, "input": {"city": "Kö"}}])
    message = compare(judge, client, [Start("m"), ToolInputDelta("c", 'ln"')], continues)
    parts = [{**cut, "rawInput": '{"city":"Köln"', "input": {"city": "Köln"}}]
    assert message == UIMessage("m", "assistant", parts)


@pytest.mark.parametrize("client", NEWEST)
@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize(
    "changed",
    [
        [],
        [ToolInputAvailable("c", "weather", {"city": "Köln"}, provider_metadata={"p": {"k": 1}})],
        [ToolOutputAvailable("c", 21)],
        [ToolOutputError("c", "no")],
    ],
    ids=["streaming", "whole", "done", "failed"],
)
def test_more_of_an_input_makes_it_stream_again(judge: Judge, client: str, dynamic: bool, changed: list[Chunk]):
    begun = ToolInputStart("c", "weather", provider_executed=False, dynamic=dynamic)
    changed = [msgspec.structs.replace(chunk, dynamic=dynamic) for chunk in changed]
    chunks = [Start("m"), StartStep(), begun, ToolInputDelta("c", '{"city"'), *changed, ToolInputDelta("c", ':"Bonn"')]
    message = compare(judge, client, [*chunks, *changed, ToolInputDelta("c", "}")])
    assert message is not None
    assert (message.parts[-1]["state"], message.parts[-1]["input"]) == ("input-streaming", {"city": "Bonn"})


def test_more_of_an_input_that_was_whole_makes_it_stream_again_in_all_clients(judge: Judge):
    begun: list[Chunk] = [ToolInputStart("c", "weather"), ToolInputDelta("c", "{")]
    stream = [*begun, ToolInputAvailable("c", "weather", {}), ToolInputDelta("c", "}")]
    states = {
        client: result["accumulated"]["parts"][0]["state"] for client, result in judge.read(stream, PINNED).items()
    }
    assert states == dict.fromkeys(PINNED, "input-streaming")


@pytest.mark.parametrize("client", NEWEST)
def test_a_start_with_another_id_renames_a_continued_message(judge: Judge, client: str):
    continues = UIMessage("m", "assistant", [{"type": "text", "text": "old"}])
    chunks: list[Chunk] = [Start("other"), StartStep(), TextStart("t"), TextEnd("t")]
    message = compare(judge, client, chunks, continues)
    assert message is not None
    assert message.id == "other"


def test_the_reader_throws_where_the_client_cannot_merge_metadata(judge: Judge):
    chunks: list[Chunk] = [Start("m", 5), MessageMetadata({"a": 1})]
    errors = {client: result["error"]["name"] for client, result in judge.read(chunks, NEWEST).items()}
    assert errors == dict.fromkeys(NEWEST, "TypeError")
    reader = MessageReader()
    reader.apply(chunks[0])
    with pytest.raises(RemoteProtocolError):
        reader.apply(chunks[1])


@pytest.mark.parametrize("client", NEWEST)
@pytest.mark.parametrize(
    ("old", "metadata"), [({"a": 1}, "x😀"), (None, [1])], ids=["text is taken apart by UTF-16", "null is replaced"]
)
def test_odd_metadata_is_merged_as_javascript_does_it(judge: Judge, client: str, old: Any, metadata: Any):
    continues = UIMessage("m", "assistant", [{"type": "text", "text": "old"}], old)
    compare(judge, client, [Start("m"), MessageMetadata(metadata)], continues)
