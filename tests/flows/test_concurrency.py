"""Several nodes at a time: the same result as with one, and no node waits without a reason."""

import asyncio
import random
from typing import Any

import pytest

from flows.play import Play, edge, flow, node
from support.hang import HANG_SECONDS
from usechat import Chat
from usechat.flows import Event, FlowError, NodeContext, NodeFunction, agent_node, without_state

pytestmark = pytest.mark.anyio


def some_flow(seed: int) -> dict[str, Any]:
    """A flow with forks, joins, loops, conditions and expressions that name any node, in a natural order or in none."""
    chance = random.Random(seed)  # noqa: S311
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
        self._chance = random.Random(seed)  # noqa: S311
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


async def test_the_exit_of_a_loop_is_taken_once():
    nodes = [node("draft", "work"), node("review"), node("publish", "note"), node("beside", "work")]
    edges = [
        edge("draft", "review"),
        edge("review", "draft", when="draft.n < 3", maxIterations=5),
        edge("review", "publish", when="draft.n >= 3"),
    ]
    play = Play(flow(nodes, edges), {"work": counted()}, concurrency=4)
    await play.run()
    assert [line for line in play.lines("node:", "edge:") if "publish" in line] == [
        "edge:fire review->publish",
        "node:start publish",
        "node:complete publish",
    ]


def counted() -> NodeFunction:
    times: dict[str, int] = {}

    async def work(context: NodeContext, _value: dict[str, Any]) -> dict[str, int]:
        times[context.node_id] = times.get(context.node_id, 0) + 1
        await asyncio.sleep(0)
        return {"n": times[context.node_id]}

    return work


async def test_the_rounds_of_loops_to_one_node_count_for_the_same_edge():
    async def slow(_context: NodeContext, _value: dict[str, Any]) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    nodes = [node("plan"), node("a", "slow"), node("b"), node("judge", "work")]
    edges = [edge("plan", "a"), edge("plan", "b")]
    edges += [edge(name, "judge", id=name, maxIterations=9) for name in "ab"]
    edges.append(edge("judge", "plan", id="again", when="judge.n < 3", maxIterations=9))
    for concurrency in (1, 2):
        play = Play(flow(nodes, edges), {"slow": slow, "work": counted()}, concurrency=concurrency)
        counters = (await play.run()).loop_counters
        assert {name: counters[name] for name in ("a", "b", "again")} == {"a": 2, "b": 0, "again": 2}


async def starts_together(played: dict[str, Any], nodes: dict[str, NodeFunction] | None = None) -> list[list[str]]:
    """Which nodes start before any other one has ended, one group after the other."""
    play = Play(played, {"work": counted(), **(nodes or {})}, concurrency=9)
    await play.run()
    groups: list[list[str]] = [[]]
    for event in play.events:
        if event["type"] == "node:start":
            groups[-1].append(event["nodeId"])
        elif event["type"] == "node:complete" and groups[-1]:
            groups.append([])
    return [group for group in groups if group]


async def test_independent_nodes_run_together_in_every_round_of_a_loop():
    fork = [edge("plan", "a"), edge("plan", "b"), edge("a", "judge"), edge("b", "judge")]
    again = edge("judge", "plan", when="judge.n < 3", maxIterations=5)
    played = flow([node(name, "work") for name in ("plan", "a", "b", "judge")], [*fork, again])
    assert await starts_together(played) == [["plan"], ["a", "b"], ["judge"]] * 3


async def test_a_chain_goes_on_beside_a_node_that_takes_its_time():
    last = asyncio.Event()

    async def slow(_context: NodeContext, _value: dict[str, Any]) -> None:
        async with asyncio.timeout(HANG_SECONDS):
            await last.wait()

    async def ends(_context: NodeContext, _value: dict[str, Any]) -> None:
        last.set()

    nodes = [node("slow", "slow"), node("a"), node("b"), node("c", "ends")]
    play = Play(flow(nodes, [edge("a", "b"), edge("b", "c")]), {"slow": slow, "ends": ends}, concurrency=2)
    assert (await play.run()).status == "complete"


@pytest.mark.parametrize(
    ("expression", "together"),
    [
        ("flow.input.a", True),
        ("c.a & 'x'", True),
        ("$a", True),
        ("2 * 3 % 2", True),
        ("c[n > 1].*", True),
        ("c[a > 1]", True),
        ("$now()", True),
        ("$keys()", False),
        ("($now := $keys; $now())", False),
        ("a.n", False),
        ("c & a.n", False),
        ("`a`.n", False),
        ('"a".n', False),
        ("(a).n", False),
        ("$$.a", False),
        ("$.a", False),
        ("$count(*)", False),
        ("$count(**)", False),
        ("c.%.a", False),
        ("c@$c.a", False),
        ("1 in *", False),
    ],
)
async def test_a_node_whose_expression_may_name_another_one_waits_for_it(expression: str, *, together: bool):
    expected = [["a", "b"]] if together else [["a"], ["b"]]
    # It is there to be named, and never runs.
    a, c = node("a", "work"), node("c", when="false")
    for found in (
        flow([a, node("b", value={"x": f"A name: {{{{ {expression} }}}}."}), c]),
        flow([a, node("b", value={"x": [{"y": f"{{{{ {expression} }}}}"}]}), c]),
        flow([a, node("b", when=f"$type([{expression}]) = 'array'"), c]),
        flow([a, node("b"), node("d", when="false"), c], [edge("b", "d", when=f"$exists({expression})")]),
        flow([a, node("b", when={"not": {"equals": {"var": expression, "value": []}}}), c]),
    ):
        assert (await starts_together(found))[:2] == expected, found


async def test_a_node_whose_items_name_another_one_waits_for_it():
    each = edge("c", "b", forEach={"in": "{{ [a.n] }}", "as": "item"})
    assert await starts_together(flow([node("c"), node("a", "work"), node("b")], [each])) == [["c", "a"], ["b"]]


async def talk(_chat: Chat) -> str:
    return "Hi"


@pytest.mark.parametrize("more", [{"state": {"initial": {}}}, {}])
async def test_functions_that_may_share_a_state_run_one_after_the_other(more: dict[str, Any]):
    apart = [node("c", "alone"), node("d", "talk", {"prompt": "Hi"}), node("e"), node("f", "constant")]
    alone: dict[str, NodeFunction] = {"alone": without_state(counted()), "talk": agent_node(talk)}
    functions, reader = [node("a", "work"), node("b", "work")], node("r", value={"x": "{{ state.x }}"})
    assert (await starts_together(flow([*functions, *apart]), alone)) == [[*"abcdef"]]
    for nodes, first in (([*functions, reader], "a"), ([reader, *functions], "r")):
        groups = await starts_together(flow([*nodes, *apart], **more), alone)
        assert groups[0] == [first, *"cdef"]
        assert sorted(groups[1:]) == [[name] for name in "abr" if name != first]
