"""The writer's streams, read by the real clients.

A failure of the random test prints what to call to see it again.
"""

from itertools import count
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from judge import Judge
from promises import PROMISES, promised
from same_json import as_json
from support.soak import draws
from usechat.protocol.chunks import Chunk, Finish, FinishReason, FinishStep, MessageMetadata, StartStep
from usechat.protocol.messages import UIMessage
from usechat.protocol.writer import MessageWriter
from writing import Writing, call_part

STEP: Final = {"type": "step-start"}
WAITING: Final = call_part("one", "input-available")
ANSWERED: Final = call_part("one", "output-available", output=21)


def test_any_sequence_of_calls_gives_a_stream_that_the_promised_clients_take(judge: Judge):
    class Judged(Writing):
        def __init__(self) -> None:
            super().__init__(judge)

    run_state_machine_as_test(
        Judged,
        settings=settings(
            max_examples=draws(30, 40),
            stateful_step_count=25,
            deadline=None,
            print_blob=True,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )


def text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text, "state": "done"}


def fresh(continues: UIMessage | None = None) -> MessageWriter:
    numbers = count()
    return MessageWriter("m", new_id=lambda: f"id-{next(numbers)}", continues=continues)


def agree(judge: Judge, chunks: list[Chunk], parts: list[dict[str, Any]], continues: UIMessage | None = None) -> None:
    """Check that every promised client has these parts in one message, is content and does not post again."""
    clients = promised("portable", chunks)
    old = None if continues is None else as_json(continues)
    results = judge.read(chunks, clients, continues=old)
    assert {client: (result["status"], result["error"]) for client, result in results.items()} == dict.fromkeys(
        clients, ("ready", None)
    )
    for client in clients:
        assert results[client]["accumulated"]["id"] == "m"
        assert results[client]["accumulated"]["parts"] == parts, client
    assert judge.posts_after(results, chunks, continues=old) == dict.fromkeys(clients, 1)


def test_parallel_calls_and_results_stay_in_one_step_and_what_follows_begins_another(judge: Judge):
    writer = fresh()
    chunks = writer.text("Looking.") + writer.tool_input("one", "weather", {}) + writer.tool_input("two", "weather", {})
    chunks += writer.tool_output("two", 2) + writer.data("mark", 0) + writer.text("Still one.")
    chunks += writer.tool_output("one", 1) + writer.data("mark", 1) + writer.metadata({"a": 1}) + writer.text("Done.")
    first, second = call_part("one", "output-available", output=1), call_part("two", "output-available", output=2)
    marks = [{"type": "data-mark", "data": 0}, {"type": "data-mark", "data": 1}]
    here = [STEP, text_part("Looking."), first, second, marks[0], text_part("Still one."), marks[1]]
    agree(judge, chunks + writer.finish(), [*here, STEP, text_part("Done.")])


def test_lanes_keep_their_text_apart_and_go_on_in_new_parts_after_a_step(judge: Judge):
    writer = fresh()
    chunks = writer.text("a1 ", lane="a") + writer.text("b1 ", lane="b")
    chunks += writer.text("a2", lane="a") + writer.text("b2", lane="b")
    chunks += writer.tool_input("one", "weather", {}, lane="a") + writer.text("b3", lane="b")
    chunks += writer.tool_output("one", 1) + writer.text("b4", lane="b") + writer.text("a3", lane="a") + writer.finish()
    here = [STEP, text_part("a1 a2"), text_part("b1 b2b3"), call_part("one", "output-available", output=1)]
    agree(judge, chunks, [*here, STEP, text_part("b4"), text_part("a3")])


def test_a_continuation_answers_in_the_old_step_and_goes_on_in_a_new_one_of_the_same_message(judge: Judge):
    continues = UIMessage("m", "assistant", [STEP, text_part("Looking."), WAITING, call_part("two", "input-available")])
    writer = fresh(continues)
    chunks = writer.tool_output("two", 2) + writer.tool_error("one", "no") + writer.text("Done.") + writer.finish()
    failed, done = call_part("one", "output-error", errorText="no"), call_part("two", "output-available", output=2)
    agree(judge, chunks, [STEP, text_part("Looking."), failed, done, STEP, text_part("Done.")], continues)


def test_a_turn_that_ends_on_the_result_of_the_servers_tool_is_not_posted_again(judge: Judge):
    writer = fresh()
    chunks = writer.tool_input("one", "weather", {}) + writer.tool_output("one", 21) + writer.finish()
    agree(judge, chunks, [STEP, ANSWERED, STEP])
    without_the_step = [chunk for chunk in chunks if not isinstance(chunk, StartStep | FinishStep | MessageMetadata)]
    clients = PROMISES["portable"]
    assert judge.posts(without_the_step, clients) == dict.fromkeys(clients, 5)


@pytest.mark.parametrize(
    ("reason", "state"),
    [
        ("tool-calls", {"state": "input-available"}),
        ("stop", {"state": "output-error", "errorText": "The call ended without a result."}),
    ],
)
def test_only_a_finish_for_tool_calls_leaves_a_call_to_the_browser(
    judge: Judge, reason: FinishReason, state: dict[str, Any]
):
    writer = fresh()
    chunks = writer.tool_input("one", "weather", {}) + writer.finish(reason)
    agree(judge, chunks, [STEP, {**WAITING, **state}, *([] if reason == "tool-calls" else [STEP])])


def test_a_finish_without_a_reason_leaves_the_page_to_answer_an_approval(judge: Judge):
    writer = fresh()
    chunks = writer.tool_input("one", "weather", {}) + writer.approval_request("one", approval_id="a")
    agree(judge, chunks + writer.send(Finish()), [STEP, call_part("one", "approval-requested", approval={"id": "a"})])


def test_an_approval_of_a_turn_that_is_cut_shows_an_error_and_no_buttons(judge: Judge):
    writer = fresh()
    chunks = writer.tool_input("one", "weather", {}) + writer.approval_request("one", approval_id="a") + writer.abort()
    failed = call_part("one", "output-error", errorText="The call was stopped.", approval={"id": "a"})
    agree(judge, chunks, [STEP, failed, STEP])
    valid = {client: result["valid"] for client, result in judge.read(chunks, promised("portable", chunks)).items()}
    assert all(isinstance(sentence, str) for sentence in valid.values())
