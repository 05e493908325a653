from collections.abc import AsyncIterator, Awaitable, Iterator
from functools import partial, wraps
from itertools import pairwise
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
    agent_node,
    load_flow,
    parse_flow,
)
from usechat.turns.chat import Chat

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
    ("id: writer", "id: state", 11, "The id 'state' is reserved for expressions.", "Give the node another id."),
    ("    to: writer", "    to: printer", 17, "There is no node 'printer'.", "Did you mean 'writer'?"),
    ("from: topics", "from: nobody", 16, "There is no node 'nobody'.", "Use one of: topics, writer."),
    ("    type: echo\n", "", 11, "The field `type` is missing.", "Add it."),
    ("name: research\n", "", 1, "The field `name` is missing.", "Add it."),
    ("timeoutMs: 1000", "timeoutMs: soon", 14, "Expected `int | null`, got `str`.", "Write a value of that type."),
    ("maxAttempts: 2", "maxAttempts: 0", 14, "Expected `int` >= 1.", "Write a value of that type."),
    ("id: writer", "id: 7", 11, "Expected `str`, got `int`.", "Text that looks like a number needs quotes."),
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
        "The edges to 'writer' have different gates.",
        "Give them the same `gate`.",
    ),
    ("version: 1", "version: 1\nversion: 2", 3, "The field `version` is given twice.", "Remove one of the two."),
    ("[owls,", "[owls", 9, "This is not YAML:", "Correct the indentation, quotes or brackets there."),
    (
        "input:\n      value",
        "input: &a\n      self: *a\n      value",
        9,
        "An alias is inside the value that it repeats.",
        "Write the value out.",
    ),
    ("On {{ topic }}", "On {{ topik }}", 13, "There is no node 'topik'.", "Did you mean 'topic'?"),
    ('text: "On {{ topic }}"', "deep: [1, {a: '{{ nobody.x }}'}]", 13, "There is no node 'nobody'.", "Use one of:"),
    ("var: topics.value", "var: topic.value", 18, "There is no node 'topic'.", "Did you mean 'topics'?"),
    ("{{ topics.value }}", "{{ wrtr.value }}", 19, "There is no node 'wrtr'.", "Did you mean 'writer'?"),
    ("    policy:", "    when: stat.rounds > 1\n    policy:", 14, "There is no node 'stat'.", "Did you mean 'state'?"),
    (
        "{{ flow.input.topic }}",
        "{{ flow.topic }}",
        9,
        "`flow` has no 'topic', only `input`.",
        "Write flow.input.topic",
    ),
    ('"On {{ topic }}"', "{{ topic.name }}", 13, "This binding needs quotes", 'Write "{{ topic.name }}".'),
    (
        '"On {{ topic }}"',
        "{{ topic }} on",
        13,
        "This binding needs quotes.",
        "Write the whole text in quotes.",
    ),
    (
        '"On {{ topic }}"',
        "On {{ topic }}",
        13,
        "This binding needs quotes.",
        "Write the whole text in quotes.",
    ),
    (
        "    to: writer\n",
        "    to: writer\n    when: {{ a }}\n",
        18,
        "This binding needs",
        'Write "{{ a }}".',
    ),
    ("name: research", "name: !!python/name:os.system", 1, "This is not YAML:", "Correct the"),
    ("rounds: 0", "rounds: 0, true: 1", 4, "A field name must be a string, not true.", "Write it in quotes."),
    ("rounds: 0", "rounds: 0, ~: 1", 4, "A field name must be a string, not ~.", "Write it in quotes."),
    ("rounds: 0", "rounds: 0, ? : 1", 4, "A field name must be a string, not nothing.", "Write it in quotes."),
    ("rounds: 0", "rounds: 0, [a]: 1", 4, "This is not YAML: found unhashable key.", "Correct the"),
    ("[owls,", f"[{'[' * 500}{']' * 500},", 9, "Values are nested more than 100 levels deep.", "Nest them less"),
    ("rounds: 0", "rounds: !!int many", 4, "This is not YAML: this is not a valid !!int.", "Correct the"),
    ("rounds: 0", "rounds: !!bool yes", 4, "This is not YAML: this is not a valid !!bool.", "Correct the"),
    ("rounds: 0", "rounds: !!timestamp soon", 4, "This is not YAML: this is not a valid !!timestamp.", "Correct the"),
    ("rounds: 0", f"rounds: {'9' * 5000}", 4, "This is not YAML: this is not a valid !!int.", "Correct the"),
    ("name: research", "name: a\0b", 1, "This is not YAML:", "Write the flow as plain YAML."),
]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        *(
            (text, text)
            for text in ("yes", "No", "on", "OFF", "y", "12:30:45", "1_000", "0b11", "=", "<<", "1.2.3", "+")
        ),
        *((text, text) for text in ("2026-01-02", "2026-01-02T03:04:05Z", "0o18", "-0x1F", "1e", ".", "tRue", "nULL")),
        *((text, None) for text in ("~", "null", "Null", "NULL", "")),
        *((text, text.lower() == "true") for text in ("true", "True", "TRUE", "false", "False", "FALSE")),
        *(("017", 17), ("-017", -17), ("+5", 5), ("0o17", 15), ("0x1F", 31), ("08", 8), ("0", 0)),
        *(
            ("1e3", 1000),
            ("3.0", 3),
            ("3.", 3),
            ("-0.0", 0),
            ("1.5E-1", 0.15),
            (".5", 0.5),
            ("+.5", 0.5),
            ("1e300", 1e300),
        ),
        *(("-.inf", float("-inf")), ("!!float 3", 3), ("!!str 3", "3"), ('"017"', "017"), ("'yes'", "yes")),
    ],
)
def test_a_plain_value_is_what_yaml_1_2_says(written: str, read: Any):
    text = f"name: plain\nnodes:\n  - id: a\n    type: constant\n    input:\n      value: {written}\nedges: []\n"
    (made,) = parse_flow(text).nodes
    assert (made.input["value"], type(made.input["value"])) == (read, type(read))


def test_a_name_that_yaml_1_1_takes_for_a_bool_and_a_whole_float_are_fine():
    text = GOOD.replace("rounds: 0", "on: 1, no: 2, 3.0: 3").replace("forEach:", "maxIterations: 3.0\n    forEach:")
    read = parse_flow(text)
    assert read.state is not None
    assert read.state.initial == {"on": 1, "no": 2, "3": 3}
    assert read.edges[0].max_iterations == 3


@pytest.mark.parametrize(("old", "new", "line", "problem", "remedy"), BAD)
def test_a_bad_flow_is_refused_with_file_line_and_remedy(old: str, new: str, line: int, problem: str, remedy: str):
    assert GOOD.count(old) == 1
    with pytest.raises(FlowError) as caught:
        parse_flow(GOOD.replace(old, new), file="research.yaml")
    assert (caught.value.file, caught.value.line) == ("research.yaml", line)
    assert caught.value.problem.startswith(problem)
    assert remedy in caught.value.remedy
    assert str(caught.value) == f"research.yaml:{line}: {caught.value.problem} {caught.value.remedy}"


def test_a_binding_in_a_long_input_is_found_at_its_own_line():
    deep = "      more:\n        - one\n        - two: '{{ nobody }}'\n"
    with pytest.raises(FlowError) as caught:
        parse_flow(GOOD.replace("    ui:", f"{deep}    ui:"), file="research.yaml")
    assert (caught.value.path, caught.value.line) == ("nodes[0].input.more[1].two", 12)


def test_the_name_of_a_node_that_needs_backticks_is_told():
    made = flow([node("my-node"), node("b", value={"x": "{{ my-node.x }}"})])
    with pytest.raises(FlowError) as caught:
        FlowRuntime(made, {})
    assert str(caught.value) == (
        "nodes[1].input.x: There is no node 'my'. If you mean `my-node`, write it with the backticks."
    )


def test_a_binding_may_name_what_is_bound_by_the_expression_or_by_the_run():
    bindings = [
        "{{ $iteration & item.name }}",
        "{{ ($x := state.any; $map(item.list, function($v) { $v.price * $x })) }}",
        "{{ item.list[price > 3].name }}",
        "{{ $sum(item.list.(price * amount)) }}",
        "{{ b.list@$v.(name) }}",
        "{{ later.text }}",
        "{{ $$.anything }}",
        "{{ state.anything }}",
        "{{ {'name': b.x, 'text': \"quoted\"} }}",
    ]
    nodes = [node("a", value={"all": bindings}), node("b"), node("later")]
    loop = [edge("b", "a", forEach={"in": "{{ b.list }}", "as": "item"}), edge("a", "later")]
    FlowRuntime(flow(nodes, loop), {})


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("    ui:", "    uj:", "10: The unknown field `uj` is ignored. Did you mean `ui`?"),
        (
            "timeoutMs",
            "timeoutMS",
            "14: The unknown field `timeoutMS` is ignored. Did you mean `timeoutMs`?",
        ),
        (
            "backoffMs",
            "wait",
            "14: The unknown field `wait` is ignored. The fields are maxAttempts, backoffMs.",
        ),
        ("version: 1", "author: me", "2: The unknown field `author` is ignored. The fields are name, nodes,"),
        (
            "value: []}",
            "value: [], note: x}",
            "18: The unknown field `note` is ignored. The fields are var, value.",
        ),
        (
            "{not: {eq",
            "{why: x, not: {eq",
            "18: The unknown field `why` is ignored. The fields are equals, not,",
        ),
        ("On {{ topic }}", "On {{ state.round }}", "13: The initial state has no 'round'. Did you mean 'rounds'?"),
    ],
)
def test_what_may_be_a_mistake_is_logged_and_the_flow_is_read(
    caplog: pytest.LogCaptureFixture, old: str, new: str, said: str
):
    assert GOOD.count(old) == 1
    assert parse_flow(GOOD.replace(old, new), file="research.yaml").name == "research"
    (logged,) = caplog.messages
    assert logged.startswith(f"research.yaml:{said}")


def test_a_good_flow_is_read_without_a_word(caplog: pytest.LogCaptureFixture):
    parse_flow(GOOD)
    assert caplog.messages == []


def test_the_values_of_inputs_and_states_are_the_authors_own(caplog: pytest.LogCaptureFixture):
    own = {"when": {"not a condition": 1}, "policy": {"x": [{"when": {"y": 2}}]}}
    Play(flow([node("a", value=own, ui=own)], state={"initial": own}))
    assert caplog.messages == []


def test_an_unknown_field_of_a_flow_in_python_is_logged_with_its_place(caplog: pytest.LogCaptureFixture):
    FlowRuntime(flow([node("a", tipe="x")]), {})
    assert caplog.messages == ["nodes[0].tipe: The unknown field `tipe` is ignored. Did you mean `type`?"]


def test_a_few_aliases_that_stand_for_billions_are_refused_at_once():
    laughs = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    laughs += [f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]" for old, new in pairwise("abcdefghi")]
    with pytest.raises(FlowError) as caught:
        parse_flow("\n".join(laughs), file="laughs.yaml")
    assert str(caught.value) == (
        "laughs.yaml:6: With all aliases written out, the file has more than 100,000 values. Use fewer aliases."
    )


def test_merged_aliases_that_stand_for_billions_are_refused_at_once():
    merged = ["a: &a {k1: 1, k2: 2, k3: 3}"]
    merged += [f"{new}: &{new} {{<<: [{', '.join([f'*{old}'] * 9)}]}}" for old, new in pairwise("abcdefghi")]
    with pytest.raises(FlowError, match="more than 100,000 values"):
        parse_flow("\n".join(merged))


async def _nothing(_context: Any, _value: dict[str, Any]) -> None:
    return None


async def _agent(chat: Chat) -> AsyncIterator[str]:
    yield chat.text


async def _answer(chat: Chat) -> str:
    return chat.text


def _plain(_context: Any, value: dict[str, Any]) -> dict[str, Any]:
    return value


def _sync_agent(chat: Chat) -> Iterator[str]:
    yield chat.text


def _handing_on(context: Any, value: dict[str, Any]) -> Awaitable[None]:
    return _nothing(context, value)


class _Node:
    async def run(self, _context: Any, _value: dict[str, Any]) -> None:
        return None

    async def __call__(self, _context: Any, _value: dict[str, Any]) -> None:
        return None

    def plain(self, _context: Any, _value: dict[str, Any]) -> None:
        return None


AGENT = "Wrap it in agent_node(…)."
ASYNC = "Write `async def`, or wrap an agent in agent_node(…)."


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (_agent, f"a generator function, like an agent. {AGENT}"),
        (_sync_agent, f"a generator function, like an agent. {AGENT}"),
        (_plain, f"a plain function. {ASYNC}"),
        (_Node().plain, f"a plain function. {ASYNC}"),
        (
            _answer,
            "a function with other parameters. Let it take `(context, input)`, or wrap an agent in agent_node(…).",
        ),
        (object(), "not a function. Wrap an agent in agent_node(…)."),
        (None, "There is no node type 'mime'. Did you mean 'mine'? Or add it to the nodes."),
    ],
)
def test_a_node_that_cannot_run_is_refused_before_the_run_with_its_line(function: Any, said: str):
    kind = "mime" if function is None else "mine"
    read = parse_flow(GOOD.replace("type: echo", f"type: {kind}"), file="research.yaml")
    with pytest.raises(FlowError) as caught:
        FlowRuntime(read, {"mine": function or _nothing})
    about = "" if function is None else "The node type 'mine' is "
    assert str(caught.value) == f"research.yaml:12: {about}{said}"


def test_whatever_may_be_waited_for_is_a_node():
    @wraps(_nothing)
    def wrapped(*arguments: Any) -> Any:
        return _nothing(*arguments)

    made: list[Any] = [
        _nothing,
        _handing_on,
        wrapped,
        lambda context, value: _nothing(context, value),  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
        _Node(),
        _Node().run,
        partial(_nothing),
        agent_node(_agent),
    ]
    for function in made:
        FlowRuntime(flow([node("a", "mine")]), {"mine": function})


@pytest.mark.parametrize("prompt", [42, 1.5, True, None, ["text"]])
def test_a_prompt_that_is_no_text_is_refused_before_the_run(prompt: Any):
    made = flow([node("a", value={"prompt": prompt}), node("b", "agent", {"prompt": prompt})])
    with pytest.raises(FlowError) as caught:
        FlowRuntime(made, {"agent": agent_node(_agent)})
    assert str(caught.value) == (
        f"nodes[1].input.prompt: An agent's prompt must be a string, not {prompt!r}. Write it in quotes."
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
    with pytest.raises(FlowError, match="The edges to 'c' have different gates") as caught:
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
        (flow([node("a")], [edge("a", "b")]), "edges[0].to: There is no node 'b'. Use one of: a."),
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
