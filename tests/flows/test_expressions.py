import subprocess
import sys
import time
from typing import Any

import pytest
from msgspec import UNSET

from usechat.flows.expressions import Expression, ExpressionError, Scope, condition, template

pytestmark = pytest.mark.anyio

NAMES: dict[str, Any] = {
    "flow": {"input": {"topic": "birds", "items": ["a", "b", "c"], "empty": "", "trick": "{{ state.secret }}"}},
    "state": {"secret": "s3cret", "count": 3, "zero": 0},
    "researcher": {
        "text": "Owls fly.",
        "score": 0.75,
        "whole": 5.0,
        "long": 1e300,
        "tags": ["owl", "bird"],
        "none": None,
        "ok": True,
        "sources": [{"url": "u1", "rank": 2}, {"url": "u2", "rank": 1}],
        "nested": {"deep": {"value": 42}},
    },
    "my-node": {"text": "dashed"},
    "single": [{"x": 1}],
    "item": "b",
}
SCOPE = Scope(NAMES, {"iteration": 1, "first": False, "last": True, "maxIterations": 2})

BINDINGS: list[tuple[Any, Any]] = [
    ("{{ flow.input.topic }}", "birds"),
    ("{{flow.input.topic}}", "birds"),
    ("  {{ state.count }}\n", 3),
    ("{{ researcher.score }}", 0.75),
    ("{{ researcher.ok }}", True),
    ("{{ researcher.none }}", None),
    ("{{ researcher.tags }}", ["owl", "bird"]),
    ("{{ researcher.nested.deep }}", {"value": 42}),
    ("{{ researcher.tags[0] }}", "owl"),
    ("{{ researcher.tags[-1] }}", "bird"),
    ("{{ researcher.tags[7] }}", UNSET),
    ("{{ researcher.missing }}", UNSET),
    ("{{ nobody.text }}", UNSET),
    ("{{ researcher.text.length }}", UNSET),
    ("{{ `my-node`.text }}", "dashed"),
    ("{{ item }}", "b"),
    ("{{ $iteration }}", 1),
    ("{{ $first }}", False),
    ("{{ $last }}", True),
    ("{{ $iteration + 1 & ' of ' & $maxIterations }}", "2 of 2"),
    ("{{ $unknown }}", UNSET),
    ("{{ state.count > 2 ? 'many' : 'few' }}", "many"),
    ("{{ researcher.missing ? 'yes' : 'no' }}", "no"),
    ("{{ 'about ' & flow.input.topic }}", "about birds"),
    ("{{ researcher.missing & 'x' }}", "x"),
    ("{{ $uppercase(flow.input.topic) }}", "BIRDS"),
    ("{{ $count(flow.input.items) }}", 3),
    ("{{ $join(researcher.tags, ', ') }}", "owl, bird"),
    ("{{ state.count * 2 + 1 }}", 7),
    ("{{ 10 / 4 }}", 2.5),
    ("{{ researcher.sources[rank = 1].url }}", "u2"),
    ("{{ researcher.sources^(rank).url }}", ["u2", "u1"]),
    ("{{ researcher.sources.url }}", ["u1", "u2"]),
    ("{{ single.x }}", 1),
    ("{{ [single.x] }}", [1]),
    ("{{ $map(flow.input.items, function($v) { $v & '!' }) }}", ["a!", "b!", "c!"]),
    ("{{ {'inner': {'n': state.count}} }}", {"inner": {"n": 3}}),
    ("{{ $exists(researcher.none) }}", True),
    ("{{ $exists(researcher.missing) }}", False),
    ("{{ [1..3] }}", [1, 2, 3]),
    ("no binding", "no binding"),
    ("", ""),
    ("Say {{ researcher.text }} now", "Say Owls fly. now"),
    ("{{ flow.input.topic }}-{{ state.count }}", "birds-3"),
    ("[{{ researcher.missing }}|{{ researcher.none }}]", "[|]"),
    ("n={{ researcher.score }} t={{ researcher.ok }} i={{ 10 / 2 }}", "n=0.75 t=true i=5"),
    ("{{ researcher.whole }}!", "5!"),
    ("{{ researcher.long }}!", "1e300!"),
    ("as JSON: {{ researcher.nested }}", 'as JSON: {"deep":{"value":42}}'),
    ("list: {{ researcher.tags }}", 'list: ["owl","bird"]'),
    ("left {{ open", "left {{ open"),
    ("{{ flow.input.trick }}", "{{ state.secret }}"),
    ("It says {{ flow.input.trick }}", "It says {{ state.secret }}"),
    (7, 7),
    (None, None),
    ({"a": "{{ state.count }}", "b": {"c": ["{{ item }}", 1]}}, {"a": 3, "b": {"c": ["b", 1]}}),
    ({"there": 1, "not there": "{{ researcher.missing }}"}, {"there": 1}),
    (["{{ researcher.missing }}", 1], [None, 1]),
]
CONDITIONS: list[tuple[Any, bool]] = [
    (None, True),
    ("true", True),
    ("false", False),
    ("state.count = 3", True),
    ("state.count != 3", False),
    ("researcher.score > 0.5 and state.count < 10", True),
    ("researcher.missing", False),
    ("researcher.missing > 3", False),
    ("researcher.missing = 'x'", False),
    ("researcher.none", False),
    ("$not(researcher.ok)", False),
    ("state.zero", False),
    ("flow.input.empty", False),
    ("flow.input.topic", True),
    ("researcher.tags", True),
    ("[]", True),
    ("'owl' in researcher.tags", True),
    ("$iteration < $maxIterations", True),
    ("$exists(researcher) and researcher.score > 0.5", True),
    ({"equals": {"var": "state.count", "value": 3}}, True),
    ({"equals": {"var": "state.count", "value": "3"}}, False),
    ({"equals": {"var": "researcher.ok", "value": 1}}, False),
    ({"equals": {"var": "researcher.missing", "value": None}}, False),
    ({"equals": {"var": "researcher.none", "value": None}}, True),
    ({"equals": {"var": "researcher.tags", "value": ["owl", "bird"]}}, True),
    ({"equals": {"var": "researcher.tags", "value": ["owl"]}}, False),
    ({"equals": {"var": "researcher.nested", "value": {"deep": {"value": 42}}}}, True),
    ({"equals": {"var": "researcher.nested", "value": {"deep": {"value": True}}}}, False),
    ({"not": {"equals": {"var": "researcher.missing", "value": 1}}}, True),
    ({"and": [{"equals": {"var": "state.count", "value": 3}}, "researcher.ok"]}, True),
    ({"and": ["researcher.ok", "researcher.missing"]}, False),
    ({"and": []}, True),
    ({"or": ["researcher.missing", {"not": "researcher.missing"}]}, True),
    ({"or": []}, False),
]
WRONG: list[str] = ["a +", "", "  ", "(a", "'open", "a b", "a && b", "a == b", "!a", "$f(", "a.[", "#"]


@pytest.mark.parametrize(("written", "filled"), BINDINGS)
async def test_a_binding_gives_what_the_original_gives(written: Any, filled: Any):
    found = await template(written)(SCOPE)
    assert (found, type(found)) == (filled, type(filled))


@pytest.mark.parametrize(("when", "holds"), CONDITIONS)
async def test_a_condition_holds_when_it_holds_in_the_original(when: Any, holds: bool):
    assert await condition(when)(SCOPE) is holds


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_expression_is_refused_before_it_is_used(text: str):
    with pytest.raises(ExpressionError):
        condition(text)
    with pytest.raises(ExpressionError):
        template(f"before {{{{{text}}}}} after")


@pytest.mark.parametrize("when", [{}, {"is": 1}, {"equals": {"var": "a"}}, {"not": None}, {"and": "a"}, {"or": [None]}])
def test_a_tree_of_another_shape_is_refused(when: Any):
    with pytest.raises(ExpressionError):
        condition(when)


async def test_a_value_is_never_run_as_an_expression():
    scope = Scope({"value": "1 + 1", "state": {"secret": "s3cret"}})
    for trick in ("$eval(value)", "($e := $eval; $e(value))", "value ~> $eval"):
        with pytest.raises(ExpressionError, match="it would run a value as an expression"):
            await Expression(trick).evaluate(scope)


async def test_an_expression_that_recurses_too_deeply_is_ended():
    with pytest.raises(ExpressionError, match="Stack overflow"):
        await Expression("($f := function($n) { 1 + $f($n + 1) }; $f(0))").evaluate(SCOPE)
    with pytest.raises(ExpressionError, match="nested too deeply"):
        Expression("(" * 2000 + "1" + ")" * 2000)


async def test_an_expression_that_gives_a_function_is_no_value():
    for text in ("$sum", "function($x) { $x }", "[$sum]"):
        with pytest.raises(ExpressionError, match="returns a function"):
            await Expression(text).evaluate(SCOPE)


async def test_the_time_is_that_of_each_evaluation():
    clock = Expression("$millis()")
    await Expression("1").evaluate(SCOPE)
    first = await clock.evaluate(SCOPE)
    while time.time() * 1000 < first + 2:
        pass
    assert await clock.evaluate(SCOPE) > first


@pytest.mark.parametrize("text", ["a^(x)", "$reverse(a)", "$append(a, 1)", "$sort(a.x)", "a ~> |$|{'x': 9}|", "a", "$"])
async def test_an_expression_leaves_the_values_as_they_were(text: str):
    names = {"a": [{"x": 2}, {"x": 1}]}
    found = await Expression(text).evaluate(Scope(names))
    (found["a"] if text == "$" else found).clear()
    assert names == {"a": [{"x": 2}, {"x": 1}]}


def test_the_library_does_not_change_how_deep_this_process_may_recurse():
    code = "import sys; before = sys.getrecursionlimit(); import usechat.flows; print(sys.getrecursionlimit() - before)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "0\n"
