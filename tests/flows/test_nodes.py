import asyncio
from typing import Any

import pytest

from usechat.flows.nodes import Cancel, Inbox, State

pytestmark = pytest.mark.anyio


def test_the_state_is_read_and_written_by_dot_paths():
    state = State({"a": {"b": 1}, "list": [1]})
    assert (state.get("a.b"), state.get("a"), state.get("a.x"), state.get("list.0"), state.get("a.b.c")) == (
        1,
        {"b": 1},
        None,
        None,
        None,
    )
    state.set("a.c.d", 2)
    state.set("list.x", 3)
    assert state.snapshot() == {"a": {"b": 1, "c": {"d": 2}}, "list": {"x": 3}}
    assert state.get("") == state.snapshot()


def test_the_state_as_a_whole_can_be_replaced_by_another_object():
    values = {"a": 1}
    state = State(values)
    state.set("", {"b": 2})
    assert (state.snapshot(), values) == ({"b": 2}, {"b": 2})
    with pytest.raises(TypeError, match="The state of a run must be an object"):
        state.set("", [1])
    assert state.snapshot() == {"b": 2}


def test_a_patch_sets_or_merges():
    state = State({"a": {"b": 1}, "n": 1})
    state.patch({"op": "merge", "path": "a", "value": {"c": 2}})
    state.patch({"op": "merge", "path": "n", "value": {"c": 2}})
    state.patch({"op": "set", "path": "x.y", "value": 3})
    state.patch({"op": "merge", "path": "", "value": {"z": 4}})
    assert state.snapshot() == {"a": {"b": 1, "c": 2}, "n": {"c": 2}, "x": {"y": 3}, "z": 4}


@pytest.mark.parametrize("path", ["a", ""])
@pytest.mark.parametrize(
    ("value", "added"),
    [("text", {}), (7, {}), (None, {}), (True, {}), ([], {}), (["x", "y"], {"0": "x", "1": "y"}), ({"c": 1}, {"c": 1})],
)
def test_to_merge_what_is_no_object_adds_what_it_has_as_in_the_original(path: str, value: Any, added: dict[str, Any]):
    state = State({"a": {"b": 1}} if path else {"b": 1})
    state.patch({"op": "merge", "path": path, "value": value})
    assert state.get(path) == {"b": 1, **added}


@pytest.mark.parametrize("old", ["text", 7, None, [1]])
def test_to_merge_into_what_is_no_object_makes_it_one(old: Any):
    state = State({"a": old})
    state.patch({"op": "merge", "path": "a", "value": {"b": 1}})
    state.patch({"op": "merge", "path": "new", "value": "text"})
    assert state.snapshot() == {"a": {"b": 1}, "new": {}}


def test_a_patch_that_lacks_its_fields_merges_into_the_whole():
    state = State({"a": 1})
    state.patch({"value": {"b": 2}})
    state.patch({})
    state.patch({"op": "set", "path": "a"})
    assert state.snapshot() == {"a": None, "b": 2}


def test_what_the_state_gives_is_a_copy():
    state = State({"a": {"b": [1]}})
    state.get("a")["b"].append(2)
    state.snapshot()["a"]["b"].append(2)
    given = {"n": [1]}
    state.set("g", given)
    given["n"].append(2)
    assert state.snapshot() == {"a": {"b": [1]}, "g": {"n": [1]}}


def test_the_first_reason_to_cancel_counts():
    cancel = Cancel()
    heard: list[str] = []
    cancel.on_cancel(lambda: heard.append("first"))
    leave = cancel.on_cancel(lambda: heard.append("left"))
    leave()
    leave()
    cancel.raise_if_cancelled()
    assert (cancel.cancelled, cancel.reason) == (False, None)
    cancel.cancel("pause")
    cancel.cancel("abort")
    cancel.on_cancel(lambda: heard.append("late"))()
    assert (cancel.cancelled, cancel.reason, heard) == (True, "pause", ["first", "late"])
    with pytest.raises(asyncio.CancelledError, match="Cancelled: pause"):
        cancel.raise_if_cancelled()


def test_a_listener_that_fails_keeps_no_other_from_being_told(caplog: pytest.LogCaptureFixture):
    cancel = Cancel()
    heard: list[str] = []
    cancel.on_cancel(lambda: 1 / 0)
    cancel.on_cancel(lambda: heard.append("second"))
    cancel.cancel("timeout")
    assert heard == ["second"]
    assert [record.message for record in caplog.records] == ["a listener of a cancelled node failed"]


async def test_an_inbox_gives_its_commands_in_order_and_waits_for_more():
    inbox = Inbox()
    for number in range(2):
        inbox.put({"type": "send", "message": number})
    assert [(await inbox.next())["message"], (await inbox.next())["message"]] == [0, 1]
    reading = asyncio.create_task(inbox.next())
    await asyncio.sleep(0)
    assert inbox.waiting
    inbox.put({"type": "send", "message": 2})
    assert (await reading)["message"] == 2
    assert not inbox.waiting


async def test_a_reader_that_gives_up_takes_no_command_along():
    inbox = Inbox()
    reading = asyncio.create_task(inbox.next())
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    inbox.put({"type": "send", "message": 1})
    assert not inbox.waiting
    assert (inbox.pending(), inbox.drain(), inbox.drain()) == (
        [{"type": "send", "message": 1}],
        [{"type": "send", "message": 1}],
        [],
    )
