"""Several nodes at a time: the same result as with one, and no node waits without a reason."""

import asyncio
import random
from typing import Any

import pytest

from flows.play import Play, edge, flow, node
from usechat.flows import Event, FlowError, NodeContext
from usechat.flows.context import without_state

pytestmark = pytest.mark.anyio


def some_flow(seed: int) -> dict[str, Any]:
    """A flow with forks, joins, loops, conditions and expressions that name any node, in a natural order or in none."""
    chance = random.Random(seed)
    names = [f"n{number}" for number in range(chance.randint(2, 7))]
    has_state = chance.random() < 0.3

    def reading() -> str:
        read = chance.choice([*names, "state"] if has_state else names)
        return f"$exists({read}.n{chance.choice(['', '', '[$ > 1]'])})" if chance.random() < 0.1 else f"{read}.n"

    def condition() -> dict[str, Any]:
        if chance.random() < 0.6:
            return {}
        return {"when": chance.choice([f"{reading()} < {chance.randint(1, 3)}", f"$not({reading()} = 1)", "false"])}

    def made(name: str) -> dict[str, Any]:
        kind = chance.choice(["work", "work", "calm", "fail"])
        given = {"x": f"{{{{ {reading()} }}}}"} if chance.random() < 0.4 else {}
        return node(name, kind, given, policy={"continueOnError": True}, **condition())

    nodes, edges = [made(name) for name in names], list[dict[str, Any]]()
    for place, name in enumerate(names):
        for target in chance.sample(names[place + 1 :], min(chance.choice([0, 1, 1, 2, 3]), len(names) - place - 1)):
            each = {"forEach": {"in": "{{ [1, 2] }}", "as": "item"}} if chance.random() < 0.1 else {}
            edges.append(edge(name, target, **condition(), **each))
    gates = {name: chance.choice(["any", "all"]) for name in names}
    for number in range(chance.choice([0, 1, 1, 2])):
        source, target = chance.choice(names), chance.choice(names)
        when = f"{source}.n < {chance.randint(1, 3)}"
        edges.append(edge(source, target, id=f"loop{number}", when=when, maxIterations=9))
    for made_edge in edges:
        made_edge["gate"] = gates[made_edge["to"]]
    if chance.random() < 0.5:
        chance.shuffle(nodes)
        chance.shuffle(edges)
    return flow(nodes, edges, **({"state": {"initial": {"n": 0, "log": []}}} if has_state else {}))


class Outcome:
    """All that happens in a run of the flow whose nodes take as long as the seed says."""

    def __init__(self, played: dict[str, Any], concurrency: int, seed: int) -> None:
        self._chance = random.Random(seed)
        self._ran: dict[str, int] = {}
        self.together = 0
        self._now: set[str] = set()
        self._has_state = "state" in played
        nodes = {"work": self._work, "calm": self._calm, "fail": self._fail}
        self._play = Play(played, nodes, concurrency=concurrency)

    async def told(self) -> dict[str, Any]:
        try:
            done = await self._play.run({})
        except FlowError as error:
            return {"error": str(error)}
        events: dict[str, list[Any]] = {}
        for event in self._play.events:
            about = event.get("nodeId") or event.get("edgeId") or f"{event.get('from')}->{event.get('to')}"
            events.setdefault(about, []).append(_stable(event))
        parts = (done.status, done.outputs, done.state, done.node_status, done.edge_status, done.loop_counters)
        return {"snapshot": parts, "events": events}

    async def _work(self, context: NodeContext, value: dict[str, Any]) -> dict[str, Any]:
        if self._has_state:
            log = [*context.state.get("log"), context.node_id]
            value = {**value, "before": len(log)}
            await self._take_time(context)
            context.state.set("log", log)
            context.state.set("n", len(log))
            return {**value, "n": self._count(context)}
        return await self._calm(context, value)

    @without_state
    async def _calm(self, context: NodeContext, value: dict[str, Any]) -> dict[str, Any]:
        await self._take_time(context)
        return {**value, "n": self._count(context)}

    async def _fail(self, context: NodeContext, value: dict[str, Any]) -> dict[str, Any]:
        done = await self._calm(context, value)
        if done["n"] == 1:
            raise ValueError("the first time")
        return done

    def _count(self, context: NodeContext) -> int:
        self._ran[context.node_id] = self._ran.get(context.node_id, 0) + 1
        return self._ran[context.node_id]

    async def _take_time(self, context: NodeContext) -> None:
        self._now.add(context.node_id)
        self.together = max(self.together, len(self._now))
        for _ in range(self._chance.choice([0, 1, 3, 10, 30])):
            await asyncio.sleep(0)
        self._now.discard(context.node_id)


def _stable(event: Event) -> Any:
    return {name: value for name, value in event.items() if name not in ("timestamp", "runId")}


@pytest.mark.parametrize("block", range(4))
async def test_any_flow_gives_the_same_with_one_node_at_a_time_and_with_many(
    block: int, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("ERROR", "usechat")
    most = 0
    for seed in range(block * 40, block * 40 + 40):
        played = some_flow(seed)
        alone = await Outcome(played, 1, seed).told()
        for concurrency in (2, 8):
            beside = Outcome(played, concurrency, seed)
            assert await beside.told() == alone, (seed, concurrency)
            most = max(most, beside.together)
    assert most >= 2
