from pathlib import Path
from typing import Any

import pytest

from flows.play import Play, edge, flow, node
from usechat.flows import (
    Edge,
    Flow,
    FlowError,
    FlowRuntime,
    FlowState,
    ForEach,
    Node,
    Policy,
    Retry,
    load_flow,
    parse_flow,
)

pytestmark = pytest.mark.anyio

GOOD = """\
name: research
version: 1
state:
  initial: {rounds: 0}
nodes:
  - id: topics
    type: constant
    input:
      value: [owls, "{{ flow.input.topic }}", 2026-01-02]
    ui: {x: 1, y: 2}
  - id: writer
    type: echo
    input: {text: "On {{ topic }}"}
    policy: {retry: {maxAttempts: 2, backoffMs: 5}, timeoutMs: 1000, continueOnError: true}
edges:
  - from: topics
    to: writer
    when: {not: {equals: {var: topics.value, value: []}}}
    forEach: {in: "{{ topics.value }}", as: topic}
"""


def test_a_file_is_the_same_flow_as_one_in_python(tmp_path: Path):
    file = tmp_path / "research.yaml"
    file.write_text(GOOD, encoding="utf-8")
    written = Flow(
        name="research",
        version=1,
        state=FlowState(initial={"rounds": 0}),
        nodes=[
            Node(
                id="topics",
                type="constant",
                input={"value": ["owls", "{{ flow.input.topic }}", "2026-01-02"]},
                ui={"x": 1, "y": 2},
            ),
            Node(
                id="writer",
                type="echo",
                input={"text": "On {{ topic }}"},
                policy=Policy(retry=Retry(max_attempts=2, backoff_ms=5), timeout_ms=1000, continue_on_error=True),
            ),
        ],
        edges=[
            Edge(
                source="topics",
                target="writer",
                when={"not": {"equals": {"var": "topics.value", "value": []}}},
                for_each=ForEach(items="{{ topics.value }}", name="topic"),
            )
        ],
    )
    loaded = load_flow(file)
    assert {name: getattr(loaded, name) for name in Flow.__struct_fields__} == {
        name: getattr(written, name) for name in Flow.__struct_fields__
    }


async def test_a_flow_runs_alike_from_a_file_from_structs_and_from_dicts():
    struct = Flow(name="one", nodes=[Node(id="a", type="echo", input={"x": "{{ flow.input.n }}"})], edges=[])
    text = "name: one\nnodes: [{id: a, type: echo, input: {x: '{{ flow.input.n }}'}}]\nedges: []"
    for made in (struct, parse_flow(text), flow([node("a", value={"x": "{{ flow.input.n }}"})])):
        done = await FlowRuntime(made, {}).run({"n": 5})
        assert done.outputs == {"a": {"x": 5}}


BAD: list[tuple[str, str, int, str, str]] = [
    ("id: writer", "id: topics", 11, "Two nodes have the id 'topics'.", "Give one of them another id."),
    ("id: writer", "id: state", 11, "Expressions know 'state' as something else.", "Give the node another id."),
    ("    to: writer", "    to: printer", 17, "There is no node 'printer'.", "Name one of: topics, writer."),
    ("from: topics", "from: nobody", 16, "There is no node 'nobody'.", "Name one of: topics, writer."),
    ("    type: echo\n", "", 11, "The field `type` is missing.", "Add it."),
    ("name: research\n", "", 1, "The field `name` is missing.", "Add it."),
    ("    ui:", "    uj:", 10, "There is no field `uj` here.", "Correct its name or remove it."),
    ("timeoutMs: 1000", "timeoutMs: soon", 14, "Expected `int | null`, got `str`.", "Write a value of that kind;"),
    ("maxAttempts: 2", "maxAttempts: 0", 14, "Expected `int` >= 1.", "Write a value of that kind;"),
    ("id: writer", "id: 7", 11, "Expected `str`, got `int`.", "a text that looks like a number needs quotes."),
    ("    forEach:", "    gate: some\n    forEach:", 19, "Invalid enum value 'some'.", "Write a value"),
    ("On {{ topic }}", "On {{ topic + }}", 13, "The expression 'topic +' failed:", "Correct the expression (JSONata)."),
    (
        "when: {not: {equals: {var: topics.value, value: []}}}",
        "when: topics.value ==",
        18,
        "The expression 'topics.value ==' failed:",
        "Correct the expression (JSONata).",
    ),
    ("{var: topics.value, value: []}", "{path: x}", 18, "A condition is an expression, or one of", "Correct the"),
    ("    policy:", "    when: '(('\n    policy:", 14, "The expression '((' failed:", "Correct the expression"),
    ('in: "{{ topics.value }}"', "in: topics.value", 19, "`in` must be a binding", "Write '{{ topics.value }}'."),
    ('in: "{{ topics.value }}"', 'in: "{{ topics. }}"', 19, "The expression 'topics.' failed:", "Correct the"),
    ("edges:\n", "edges:\n  - {from: topics, to: writer}\n", 17, "Two edges are called 'topics->writer'.", "an `id`"),
    (
        "edges:\n",
        "edges:\n  - from: writer\n    to: topics\n",
        18,
        "The nodes wait for each other: ",
        "Give the edge that leads back a `maxIterations`",
    ),
    (
        "edges:\n",
        "edges:\n  - {from: topics, to: writer, id: x, gate: all}\n  - {from: topics, to: writer, id: y, gate: any}\n",
        17,
        "The edges to 'writer' do not agree whether `any` or `all` of them open it.",
        "Give them the same `gate`.",
    ),
    ("version: 1", "version: 1\nversion: 2", 3, "`version` stands here twice.", "Remove one of the two."),
    ("[owls,", "[owls", 9, "This is not YAML:", "Correct the indentation, quotes or brackets there."),
    (
        "input:\n      value",
        "input: &a\n      self: *a\n      value",
        1,
        "This is not YAML:",
        "Write the flow as plain",
    ),
    ("name: research", "name: !!python/name:os.system", 1, "This is not YAML:", "Correct the indentation"),
    ("name: research", "name: a\0b", 1, "This is not YAML:", "Write the flow as plain YAML."),
]


@pytest.mark.parametrize(("old", "new", "line", "problem", "remedy"), BAD)
def test_a_bad_flow_is_refused_with_file_line_and_remedy(old: str, new: str, line: int, problem: str, remedy: str):
    assert GOOD.count(old) == 1
    with pytest.raises(FlowError) as caught:
        parse_flow(GOOD.replace(old, new), file="research.yaml")
    assert (caught.value.file, caught.value.line) == ("research.yaml", line)
    assert caught.value.problem.startswith(problem)
    assert remedy in caught.value.remedy
    assert str(caught.value) == f"research.yaml:{line}: {caught.value.problem} {caught.value.remedy}"


def test_an_unknown_node_type_is_refused_before_the_run_with_its_line():
    read = parse_flow(GOOD.replace("type: echo", "type: ecco"), file="research.yaml")
    with pytest.raises(FlowError) as caught:
        FlowRuntime(read, {"mine": _nothing})
    assert str(caught.value) == (
        "research.yaml:12: There is no node type 'ecco'. Write one of constant, echo, mine, or register it."
    )


def test_a_field_that_comes_from_an_anchor_is_found_at_the_place_that_takes_it():
    text = """\
name: merged
nodes: [{id: a, type: echo, input: {}}, {id: b, type: echo, input: {}}, {id: c, type: echo, input: {}}]
edges:
  - {from: a, to: c, gate: all}
  - &any {from: a, to: b, gate: any}
  - <<: *any
    to: c
    id: another
"""
    with pytest.raises(FlowError, match="The edges to 'c' do not agree") as caught:
        parse_flow(text)
    assert (caught.value.path, caught.value.line) == ("edges[2].gate", 6)


@pytest.mark.parametrize(("text", "problem"), [("", "The file is empty."), ("- 1", "Expected `object`, got `array`.")])
def test_a_file_that_is_no_flow_at_all_is_refused(text: str, problem: str):
    with pytest.raises(FlowError) as caught:
        parse_flow(text)
    assert (caught.value.problem, caught.value.line) == (problem, 1)


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path):
    file = tmp_path / "latin.yaml"
    file.write_bytes(b"name: caf\xe9\n")
    with pytest.raises(FlowError, match="Save the file as UTF-8"):
        load_flow(file)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (flow([{"id": "a", "type": "echo"}]), "nodes[0]: The field `input` is missing. Add it."),
        (flow([node("a")], [edge("a", "b")]), "edges[0].to: There is no node 'b'. Name one of: a."),
        (
            flow([node("a", value={"x": "{{ ( }}"})]),
            "nodes[0].input.x: The expression '(' failed: Expected ) before end of expression. "
            "Correct the expression (JSONata).",
        ),
        (Flow(name="x", nodes=[Node(id="", type="echo", input={})], edges=[]), "nodes[0].id: Expected `str` of length"),
    ],
)
def test_a_bad_flow_in_python_is_refused_with_its_place(made: Any, said: str):
    with pytest.raises(FlowError) as caught:
        FlowRuntime(made, {})
    assert str(caught.value).startswith(said)


def test_a_cycle_whose_edge_has_a_cap_is_legal():
    Play(flow([node("a"), node("b")], [edge("a", "b"), edge("b", "a", maxIterations=2)]))


async def _nothing(_context: Any, _value: dict[str, Any]) -> None:
    return None
