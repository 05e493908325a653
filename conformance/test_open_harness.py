"""The streams of Open Harness's mapper, read by the real clients: the golden logs, and logs at random."""

from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings

from goldens import Case, cases, mapped
from harness_runs import ANY_EVENTS, OPTIONS, RUNS, Story
from judge import Judge
from promises import PROMISES, promised
from same_json import as_json, strict
from soak import draws
from usechat.protocol.chunks import Chunk, Error
from usechat.protocol.clients import ClientName
from usechat.protocol.reader import MessageReader

# The judge is a fixture of the whole session.
FEW: Final = settings(
    max_examples=draws(30), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def message_of(chunks: list[Chunk]) -> dict[str, Any]:
    reader = MessageReader()
    for chunk in chunks:
        reader.apply(chunk)
    return as_json(reader.message)


def in_common(message: dict[str, Any]) -> Any:
    """The message without what only the newest clients keep."""
    parts = [{name: value for name, value in part.items() if name != "rawInput"} for part in message["parts"]]
    for part in parts:
        if part["type"] == "reasoning":
            part.pop("id", None)
    return strict({**message, "parts": parts})


def agree(judge: Judge, chunks: list[Chunk], client: ClientName = "portable") -> None:
    """Check that every promised client has our message and our end, and no page posts again."""
    clients = promised(client, chunks)
    results = judge.read(chunks, clients)
    last = chunks[-1]
    error = {"name": "Error", "message": last.error_text} if isinstance(last, Error) else None
    expected = in_common(message_of(chunks))
    for name in clients:
        assert (results[name]["status"], results[name]["error"]) == ("error" if error else "ready", error), name
        assert in_common(results[name]["accumulated"]) == expected, name
        assert error or results[name]["valid"] in (True, None) or expected["parts"] == [], name
    assert error or judge.posts(chunks, clients) == dict.fromkeys(clients, 1)


@pytest.mark.parametrize("case", cases("open-harness"), ids=lambda case: case.name)
@pytest.mark.parametrize("client", PROMISES)
def test_every_client_makes_our_message_of_a_log(judge: Judge, case: Case, client: ClientName) -> None:
    agree(judge, mapped(case.source, case.events, case.options, client), client)


@FEW
@given(RUNS, OPTIONS)
def test_every_client_takes_what_a_runtime_may_say(judge: Judge, story: Story, options: dict[str, Any]) -> None:
    agree(judge, mapped("open-harness", story.events, options))


@FEW
@given(ANY_EVENTS, OPTIONS)
def test_every_client_takes_what_comes_of_nonsense(
    judge: Judge, events: list[dict[str, Any]], options: dict[str, Any]
) -> None:
    agree(judge, mapped("open-harness", events, options))
