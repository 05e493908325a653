"""Nodes that do not want to end, or want to end everything."""

import asyncio
import sys
from collections.abc import Awaitable
from typing import Any

import pytest

from flows.play import Play, edge, flow, node
from support.hang import HANG_SECONDS
from usechat.flows import NodeContext

pytestmark = pytest.mark.anyio


class Stubborn:
    """A node that swallows every cancellation, until it is let go."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()
        self.over = asyncio.Event()

    async def __call__(self, context: NodeContext, _value: dict[str, Any]) -> str:
        while not self.let_go.is_set():
            try:
                await self.let_go.wait()
            except asyncio.CancelledError:
                context.state.set("cancelled", context.cancel.reason)
        context.emit({"type": "agent:text", "content": "late"})
        context.state.set("late", 1)
        self.over.set()
        return "late"


async def test_a_node_that_swallows_its_cancellation_is_given_up():
    nodes = [Stubborn() for _ in range(4)]
    timed = Play(
        flow([node("a", "x", policy={"timeoutMs": 10, "continueOnError": True}), node("b")], [edge("a", "b")]),
        {"x": nodes[0]},
    )
    aborted, halted, cancelled = (Play(flow([node("a", "x")]), {"x": stubborn}) for stubborn in nodes[1:])
    runs = [asyncio.create_task(play.run()) for play in (timed, aborted, halted, cancelled)]
    await cancelled.until("node:start a")
    await asyncio.sleep(0)
    aborted.runtime.dispatch({"type": "abort"})
    halted.runtime.dispatch({"type": "pause"})
    runs[3].cancel()
    done, pending = await asyncio.wait(runs, timeout=HANG_SECONDS)
    assert (len(done), pending) == (4, set())
    assert timed.lines()[1:] == [
        "node:start a",
        "node:error a Node execution timed out after 10ms",
        "edge:fire a->b",
        "node:start b",
        "node:complete b",
        "flow:complete complete",
    ]
    assert [play.runtime.snapshot().status for play in (aborted, halted, cancelled)] == ["aborted", "paused", "running"]
    assert runs[3].cancelled()
    for stubborn in nodes:
        stubborn.let_go.set()
        await asyncio.wait_for(stubborn.over.wait(), HANG_SECONDS)
    told = [play.lines("agent:") for play in (timed, aborted, halted, cancelled)]
    states = [play.runtime.snapshot().state for play in (timed, aborted, halted)]
    assert (told, states) == ([[]] * 4, [{"cancelled": reason} for reason in ("timeout", "abort", "pause")])


class Unspeakable(Exception):  # noqa: N818
    def __str__(self) -> str:
        sys.exit(3)


async def in_a_coroutine(_context: NodeContext, _value: dict[str, Any]) -> None:
    sys.exit(3)


def before_it_awaits(_context: NodeContext, _value: dict[str, Any]) -> Awaitable[None]:
    sys.exit(3)


async def in_a_listener(context: NodeContext, _value: dict[str, Any]) -> None:
    context.cancel.on_cancel(lambda: sys.exit(3))
    await asyncio.Event().wait()


async def while_it_is_cancelled(_context: NodeContext, _value: dict[str, Any]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        sys.exit(3)


async def in_the_text_of_its_error(_context: NodeContext, _value: dict[str, Any]) -> None:
    raise Unspeakable


@pytest.mark.parametrize(
    ("leaves", "error"),
    [
        (in_a_coroutine, "3"),
        (before_it_awaits, "3"),
        (in_a_listener, "Node execution timed out after 10ms"),
        (while_it_is_cancelled, "Node execution timed out after 10ms"),
        (in_the_text_of_its_error, "Unspeakable"),
    ],
)
async def test_a_node_that_leaves_the_process_has_failed_and_nothing_else(leaves: Any, error: str):
    timeout = 10 if "timed out" in error else 60_000
    play = Play(flow([node("a", "x", policy={"timeoutMs": timeout})]), {"x": leaves})
    assert (await play.run()).outputs == {"a": {"error": error}}
    assert play.lines()[-1] == "flow:complete failed"
