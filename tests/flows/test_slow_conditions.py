"""What happens while a condition is evaluated elsewhere."""

import asyncio
from typing import Any

import pytest

from flows.play import Play, edge, flow, node
from usechat.flows import NodeContext, RunSnapshot

pytestmark = pytest.mark.anyio

# Not to be looked up, so that the event loop has its turn.
TRUE = "$count([1..20000]) = 20000"
FALSE = "$count([1..20000]) = 0"


@pytest.mark.parametrize(("when", "then"), [(TRUE, "node:start b"), (FALSE, "node:skipped b when")])
async def test_a_run_that_is_paused_meanwhile_decides_nothing_and_decides_anew_when_it_goes_on(when: str, then: str):
    play = Play(flow([node("a"), node("b", when=when)], [edge("a", "b")]))
    play.on("edge:fire a->b", lambda _: asyncio.get_running_loop().call_soon(play.runtime.dispatch, {"type": "pause"}))
    paused = await play.run()
    assert (paused.status, paused.node_status["b"]) == ("paused", "pending")
    assert play.lines()[-3:] == ["edge:fire a->b", "command:received pause", "flow:paused"]
    done = await play.run()
    assert (done.status, done.node_status["b"]) == ("complete", "done")
    assert play.lines("flow:resumed", "node:")[3:4] == [then]


async def test_a_node_is_not_done_before_its_edges_are_decided():
    seen: list[RunSnapshot] = []

    async def watch() -> None:
        while True:
            seen.append(play.runtime.snapshot())
            await asyncio.sleep(0.001)

    async def watched(_context: NodeContext, _value: dict[str, Any]) -> None:
        tasks.append(asyncio.create_task(watch()))

    tasks: list[asyncio.Task[None]] = []
    play = Play(flow([node("a", "watched"), node("b")], [edge("a", "b", when=TRUE)]), {"watched": watched})
    await play.run()
    tasks[0].cancel()
    both = {(snapshot.node_status["a"], snapshot.edge_status["a->b"]) for snapshot in seen}
    assert ("running", "pending") in both
    assert both <= {("running", "pending"), ("done", "fired")}
