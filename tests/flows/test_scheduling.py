"""The scheduler's rules: each row of the original's contract, and what is beyond it."""

import asyncio
import contextlib
from typing import Any

import pytest
from msgspec import UNSET

from flows.play import Play, edge, flow, node
from support.hang import HANG_SECONDS
from usechat.flows import FlowError, NodeContext

pytestmark = pytest.mark.anyio


async def boom(_context: NodeContext, _value: dict[str, Any]) -> None:
    raise OSError("no network")


async def test_nodes_run_one_after_the_other_in_the_order_of_the_file():
    running: list[str] = []

    async def alone(context: NodeContext, _value: dict[str, Any]) -> None:
        assert running == []
        running.append(context.node_id)
        await asyncio.sleep(0)
        running.remove(context.node_id)

    play = Play(flow([node(name, "alone") for name in "dbca"]), {"alone": alone})
    await play.run()
    assert play.lines("node:start") == ["node:start d", "node:start b", "node:start c", "node:start a"]


async def test_the_first_ready_node_of_the_file_is_next_even_if_another_was_ready_before():
    play = Play(flow([node("late"), node("first"), node("second")], [edge("first", "late")]))
    await play.run()
    assert play.lines("node:start") == ["node:start first", "node:start late", "node:start second"]


async def test_edges_are_decided_in_the_order_of_the_file():
    play = Play(flow([node("a"), node("b"), node("c")], [edge("a", "c", id="x"), edge("a", "b")]))
    await play.run()
    assert [(event.get("edgeId"), event["to"]) for event in play.events if event["type"] == "edge:fire"] == [
        ("x", "c"),
        (None, "b"),
    ]


async def test_gate_all_skips_a_node_if_any_edge_was_skipped():
    play = Play(flow([node("a"), node("b"), node("c")], [edge("a", "c"), edge("b", "c", when="false")]))
    done = await play.run()
    assert play.lines("node:skipped") == ["node:skipped c edge"]
    assert (done.node_status["c"], done.outputs["c"]) == ("done", {"skipped": True, "reason": "edge"})
    assert done.edge_status == {"a->c": "fired", "b->c": "skipped"}


async def test_gate_any_runs_a_node_if_one_edge_fired():
    edges = [edge("a", "c", gate="any"), edge("b", "c", when="false")]
    play = Play(flow([node("a"), node("b"), node("c")], edges))
    await play.run()
    assert play.lines("node:start") == ["node:start a", "node:start b", "node:start c"]


async def test_gate_any_skips_a_node_if_no_edge_fired():
    edges = [edge("a", "c", gate="any", when="false"), edge("b", "c", when="false")]
    play = Play(flow([node("a"), node("b"), node("c")], edges))
    await play.run()
    assert play.lines("node:skipped") == ["node:skipped c edge"]


async def test_a_skipped_node_still_fires_its_edges():
    nodes = [
        node("decide", "constant", {"value": "left"}),
        node("left"),
        node("right"),
        node("join"),
    ]
    edges = [
        edge("decide", "left", when="decide.value = 'left'"),
        edge("decide", "right", when="decide.value = 'right'"),
        edge("left", "join"),
        edge("right", "join"),
    ]
    play = Play(flow(nodes, edges))
    await play.run()
    assert play.lines() == [
        "flow:start",
        "node:start decide",
        "node:complete decide",
        "edge:fire decide->left",
        "node:start left",
        "node:complete left",
        "edge:fire left->join",
        "node:skipped right edge",
        "edge:fire right->join",
        "node:start join",
        "node:complete join",
        "flow:complete complete",
    ]


async def test_a_node_whose_condition_does_not_hold_is_skipped_and_its_edges_fire():
    play = Play(flow([node("a", when="flow.input.go"), node("b")], [edge("a", "b")]))
    done = await play.run({"go": False})
    assert play.lines() == [
        "flow:start",
        "node:skipped a when",
        "edge:fire a->b",
        "node:start b",
        "node:complete b",
        "flow:complete complete",
    ]
    assert "runId" not in play.events[1]
    assert done.outputs["a"] == {"skipped": True, "reason": "when"}


def each(items: str = "{{ flow.input.items }}", **more: Any) -> dict[str, Any]:
    return edge("a", "b", forEach={"in": items, "as": "item"}, **more)


async def test_for_each_runs_the_target_for_each_item_with_a_run_id_each():
    value = {
        "text": "{{ item.name }} {{ $iteration }}/{{ $maxIterations }}",
        "first": "{{ $first }}",
        "last": "{{ $last }}",
    }
    play = Play(flow([node("a"), node("b", value=value), node("c")], [each(), edge("b", "c")]))
    done = await play.run({"items": [{"name": "x"}, {"name": "y"}, {"name": "z"}]})
    assert play.lines("node:") == [
        "node:start a",
        "node:complete a",
        *["node:start b", "node:complete b"] * 3,
        "node:start c",
        "node:complete c",
    ]
    starts = [event["runId"] for event in play.events if event["type"] == "node:start" and event["nodeId"] == "b"]
    assert len(set(starts)) == 3
    assert done.outputs["b"] == {
        "iterations": [
            {"item": {"name": "x"}, "output": {"text": "x 0/3", "first": True, "last": False}},
            {"item": {"name": "y"}, "output": {"text": "y 1/3", "first": False, "last": False}},
            {"item": {"name": "z"}, "output": {"text": "z 2/3", "first": False, "last": True}},
        ]
    }


async def test_for_each_skips_the_items_that_the_node_does_not_want():
    play = Play(flow([node("a"), node("b", value={"n": "{{ item }}"}, when="item > 1")], [each()]))
    done = await play.run({"items": [1, 2]})
    assert done.outputs["b"] == {"iterations": [{"item": 1, "skipped": True}, {"item": 2, "output": {"n": 2}}]}
    assert play.lines("node:skipped") == []


async def test_for_each_over_nothing_is_done_at_once():
    play = Play(flow([node("a"), node("b")], [each()]))
    done = await play.run({"items": []})
    assert (done.outputs["b"], done.node_status["b"]) == ({"iterations": []}, "done")
    assert "node:start b" not in play.lines()


async def test_for_each_goes_on_after_an_item_that_failed_if_the_node_may_fail():
    nodes = [node("a"), node("b", "boom", policy={"continueOnError": True}), node("c")]
    play = Play(flow(nodes, [each(), edge("b", "c")]), {"boom": boom})
    done = await play.run({"items": [1, 2]})
    failures = [{"item": 1, "error": "no network"}, {"item": 2, "error": "no network"}]
    assert (done.outputs["b"], done.node_status["b"]) == ({"iterations": failures}, "done")
    assert play.lines()[-4:] == ["edge:fire b->c", "node:start c", "node:complete c", "flow:complete complete"]


async def test_for_each_ends_the_flow_at_the_first_item_that_fails():
    play = Play(flow([node("a"), node("b", "boom")], [each()]), {"boom": boom})
    done = await play.run({"items": [1, 2]})
    assert play.lines()[-3:] == ["node:start b", "node:error b no network", "flow:complete failed"]
    assert (done.node_status["b"], done.outputs["b"]) == ("failed", {"error": "no network"})


@pytest.mark.parametrize("words", ["node:start b", "node:complete b"])
async def test_for_each_that_is_paused_begins_again(words: str):
    play = Play(flow([node("a"), node("b", "note", {"n": "{{ item }}"})], [each()]))
    play.on(words, lambda _: play.runtime.dispatch({"type": "pause"}))
    paused = await play.run({"items": [1, 2]})
    assert (paused.status, paused.node_status["b"]) == ("paused", "running")
    assert play.lines()[-1] == "flow:paused"
    done = await play.run()
    iterations = [{"item": 1, "output": {"n": 1}}, {"item": 2, "output": {"n": 2}}]
    assert done.outputs["b"] == {"iterations": iterations}


async def test_two_for_each_edges_into_one_node_are_an_error():
    edges = [each(), edge("c", "b", forEach={"in": "{{ flow.input.items }}", "as": "item"})]
    play = Play(flow([node("a"), node("c"), node("b")], edges))
    with pytest.raises(FlowError, match="Multiple forEach edges fired into node 'b'"):
        await play.run({"items": [1]})


@pytest.mark.parametrize("value", ["text", {"a": 1}, None, 3])
async def test_for_each_over_something_else_than_an_array_is_an_error(value: Any):
    play = Play(flow([node("a"), node("b")], [each()]))
    with pytest.raises(FlowError, match=r"edges\[0\]\.forEach\.in: forEach expects array at a->b\."):
        await play.run({"items": value})
    assert play.runtime.snapshot().status == "complete"


async def count(context: NodeContext, _value: dict[str, Any]) -> dict[str, Any]:
    number = (context.state.get("counter") or 0) + 1
    context.state.set("counter", number)
    return {"count": number}


def loop(cap: int) -> dict[str, Any]:
    edges = [
        edge("counter", "review"),
        edge("review", "counter", id="again", when="counter.count < 3", maxIterations=cap),
    ]
    return flow([node("counter", "count"), node("review")], edges, state={"initial": {"counter": 0}})


async def test_a_loop_runs_until_its_condition_ends_it():
    play = Play(loop(5), {"count": count})
    done = await play.run()
    first = ["node:start counter", "node:complete counter", "edge:fire counter->review"]
    second = ["node:start review", "node:complete review"]
    assert play.lines()[1:-1] == [
        *first,
        *second,
        *["edge:fire review->counter", "loop:iterate 1"],
        *first,
        *second,
        *["edge:fire review->counter", "loop:iterate 2"],
        *first,
        *second,
    ]
    assert (done.state, done.loop_counters["again"]) == ({"counter": 3}, 2)
    assert [event["edgeId"] for event in play.events if event["type"] == "loop:iterate"] == ["again", "again"]


async def test_a_loop_that_reaches_its_cap_ends_the_run_with_an_error_and_no_event():
    play = Play(loop(2), {"count": count})
    with pytest.raises(FlowError, match="Loop edge review -> counter exceeded 2"):
        await play.run()
    assert play.lines()[-2:] == ["edge:fire review->counter", "loop:iterate 2"]
    with pytest.raises(FlowError, match="is not resumable"):
        await play.run()


async def test_a_loop_re_enters_a_node_that_failed():
    tries: list[int] = []

    async def fail_once(_context: NodeContext, _value: dict[str, Any]) -> str:
        tries.append(1)
        if len(tries) == 1:
            raise OSError("no network")
        return "done"

    nodes = [node("a", "fail_once", policy={"continueOnError": True}), node("b")]
    edges = [edge("a", "b"), edge("b", "a", when="$exists(a.error)", maxIterations=3)]
    done = await Play(flow(nodes, edges), {"fail_once": fail_once}).run()
    assert (done.outputs["a"], done.node_status) == ("done", {"a": "done", "b": "done"})


async def test_an_edge_with_a_cap_is_not_waited_for():
    play = Play(flow([node("a"), node("b")], [edge("a", "b"), edge("b", "a", when="false", maxIterations=1)]))
    await play.run()
    assert play.lines("node:start") == ["node:start a", "node:start b"]


async def test_a_node_that_fails_ends_the_flow():
    play = Play(flow([node("a", "boom"), node("b")], [edge("a", "b")]), {"boom": boom})
    done = await play.run()
    assert play.lines()[1:] == ["node:start a", "node:error a no network", "flow:complete failed"]
    assert done.node_status == {"a": "failed", "b": "pending"}


async def test_a_node_that_may_fail_does_not_end_the_flow():
    nodes = [node("a", "boom", policy={"continueOnError": True}), node("b", value={"why": "{{ a.error }}"})]
    play = Play(flow(nodes, [edge("a", "b")]), {"boom": boom})
    done = await play.run()
    assert play.lines()[1:] == [
        "node:start a",
        "node:error a no network",
        "edge:fire a->b",
        "node:start b",
        "node:complete b",
        "flow:complete complete",
    ]
    assert done.outputs == {"a": {"error": "no network"}, "b": {"why": "no network"}}
    assert done.node_status == {"a": "failed", "b": "done"}


async def test_a_node_gets_as_many_attempts_as_its_policy_says():
    tries: list[int] = []

    async def counted(_context: NodeContext, _value: dict[str, Any]) -> None:
        tries.append(1)
        raise OSError(f"try {len(tries)}")

    play = Play(flow([node("a", "counted", policy={"retry": {"maxAttempts": 3}})]), {"counted": counted})
    await play.run()
    assert play.lines()[1:] == ["node:start a", "node:error a try 3", "flow:complete failed"]


async def test_the_pause_between_attempts_is_that_of_the_policy():
    times: list[float] = []

    async def timed(_context: NodeContext, _value: dict[str, Any]) -> None:
        times.append(asyncio.get_running_loop().time())
        raise OSError

    policy = {"retry": {"maxAttempts": 2, "backoffMs": 50}}
    play = Play(flow([node("a", "timed", policy=policy)]), {"timed": timed})
    await play.run()
    assert times[1] - times[0] >= 0.05
    assert play.lines()[2] == "node:error a OSError"


async def test_a_timeout_really_cancels_the_node():
    seen: list[Any] = []

    async def slow(context: NodeContext, _value: dict[str, Any]) -> None:
        context.cancel.on_cancel(lambda: seen.append(context.cancel.reason))
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    play = Play(flow([node("a", "slow", policy={"timeoutMs": 20})]), {"slow": slow})
    await play.run()
    assert seen == ["timeout", "cancelled"]
    assert play.lines()[1:] == [
        "node:start a",
        "node:error a Node execution timed out after 20ms",
        "flow:complete failed",
    ]


async def test_a_timeout_counts_for_each_attempt():
    tries: list[int] = []

    async def slow_once(_context: NodeContext, _value: dict[str, Any]) -> str:
        tries.append(1)
        if len(tries) == 1:
            await asyncio.Event().wait()
        return "done"

    policy = {"timeoutMs": 20, "retry": {"maxAttempts": 2}}
    play = Play(flow([node("a", "slow_once", policy=policy)]), {"slow_once": slow_once})
    assert (await play.run()).outputs == {"a": "done"}


async def test_a_node_that_answers_its_timeout_with_a_result_has_failed_all_the_same():
    async def stubborn(_context: NodeContext, _value: dict[str, Any]) -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "too late"

    play = Play(flow([node("a", "stubborn", policy={"timeoutMs": 10})]), {"stubborn": stubborn})
    assert (await play.run()).outputs == {"a": {"error": "Node execution timed out after 10ms"}}


async def test_an_abort_between_two_nodes_ends_the_run_without_further_events():
    play = Play(flow([node("a"), node("b")], [edge("a", "b")]))
    play.on("edge:fire a->b", lambda _: play.runtime.dispatch({"type": "abort"}))
    done = await play.run()
    assert play.lines()[-3:] == ["edge:fire a->b", "command:received abort", "flow:aborted"]
    assert (done.status, done.node_status) == ("aborted", {"a": "done", "b": "pending"})


async def test_a_binding_that_fails_over_a_value_fails_its_node():
    play = Play(flow([node("a", value={"x": "{{ flow.input.n + 1 }}"})]))
    await play.run({"n": "one"})
    assert play.lines()[1] == "node:start a"
    assert play.lines()[2].startswith("node:error a The expression 'flow.input.n + 1' failed:")
    assert play.lines()[3] == "flow:complete failed"


@pytest.mark.parametrize(
    ("played", "place"),
    [
        (flow([node("a"), node("b")], [edge("a", "b", when="flow.input.n > 1")]), "edges[0].when"),
        (flow([node("a", when="flow.input.n > 1")]), "nodes[0].when"),
        (flow([node("a"), node("b")], [each("{{ flow.input.n + 1 }}")]), "edges[0].forEach.in"),
        (flow([node("a"), node("b", when="item > 1")], [each("{{ ['x'] }}")]), "nodes[1].when"),
    ],
)
async def test_a_condition_that_fails_over_a_value_ends_the_run_with_its_place(played: Any, place: str):
    play = Play(played)
    with pytest.raises(FlowError) as caught:
        await play.run({"n": "one"})
    assert (caught.value.path, play.runtime.snapshot().status) == (place, "complete")


async def test_independent_nodes_run_at_the_same_time_if_they_may():
    barrier = asyncio.Barrier(3)

    async def meet(context: NodeContext, _value: dict[str, Any]) -> str:
        async with asyncio.timeout(HANG_SECONDS):
            await barrier.wait()
        return context.node_id

    nodes = [node(name, "meet") for name in "abc"] + [node("d")]
    play = Play(flow(nodes, [edge(name, "d") for name in "abc"]), {"meet": meet}, concurrency=3)
    done = await play.run()
    assert play.lines()[1:4] == ["node:start a", "node:start b", "node:start c"]
    assert play.lines()[-3:] == ["node:start d", "node:complete d", "flow:complete complete"]
    assert done.outputs == {"a": "a", "b": "b", "c": "c", "d": {}}


async def test_no_more_nodes_run_at_the_same_time_than_may():
    running, most = 0, 0

    async def counted(_context: NodeContext, _value: dict[str, Any]) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1

    await Play(flow([node(name, "counted") for name in "abcdefg"]), {"counted": counted}, concurrency=2).run()
    assert most == 2


async def test_a_node_that_fails_ends_the_nodes_beside_it():
    started = asyncio.Event()

    async def wait(_context: NodeContext, _value: dict[str, Any]) -> None:
        started.set()
        await asyncio.Event().wait()

    async def fail(_context: NodeContext, _value: dict[str, Any]) -> None:
        await started.wait()
        raise OSError("no network")

    play = Play(flow([node("a", "wait"), node("b", "fail")]), {"wait": wait, "fail": fail}, concurrency=2)
    done = await play.run()
    assert play.lines()[-3:] == [
        "node:error b no network",
        "node:error a The node was cancelled because another node failed.",
        "flow:complete failed",
    ]
    assert (done.node_status, done.node_runs) == ({"a": "failed", "b": "failed"}, UNSET)


async def test_a_pause_before_a_node_has_begun_keeps_it_from_beginning():
    nodes = [node("a", "note"), node("b", when="false")]
    play = Play(flow(nodes), concurrency=2)
    play.on("node:skipped b when", lambda _: play.runtime.dispatch({"type": "pause"}))
    await play.run()
    assert play.started == []
    assert (await play.run()).status == "complete"
    assert play.started == ["a"]
