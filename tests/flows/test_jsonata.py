"""The engine against JSONata 2.1.1: what that gave is in `golden/jsonata.json`."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from usechat.flows.expression_worker import evaluate
from usechat.flows.expressions import Expression, Scope, parse

GOLDEN: Final[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "golden/jsonata.json").read_text("utf-8"))
NAMES: Final[dict[str, Any]] = GOLDEN["names"]
OUTCOMES: Final[list[tuple[str, dict[str, Any]]]] = GOLDEN["outcomes"]

# These are in a table of docs/guides/open-harness.md.
DIFFERENT: Final = {
    "1/0": "error",
    "1%0": "error",
    "$base64encode('ä')": {"value": "w6Q="},
    "$replace('abc','b',nothing)": "error",
    "$number(' 1 ')": {"value": 1},
    "$number('1.')": {"value": 1},
    "$number('0b11')": "error",
    "1 /* c */": "error",
}

NAMED = st.sampled_from(["a", "b", "c"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMED, inner, max_size=3),
    max_leaves=12,
)


def short(outcome: dict[str, Any]) -> Any:
    return "error" if "error" in outcome else outcome


def test_expressions_give_what_jsonata_gives():
    found = {text: short(evaluate(text, NAMES, {})) for text, _ in OUTCOMES}
    assert len(found) > 500
    assert {text: found[text] for text, outcome in OUTCOMES if found[text] != short(outcome)} == DIFFERENT


def test_an_expression_reads_no_name_but_those_that_it_is_sent():
    sent: dict[str, list[str]] = {}
    for text, _ in OUTCOMES:
        try:
            parsed = parse(text)
        except ValueError:
            continue
        if parsed.whole:
            continue
        sent[text] = [name for name, _ in parsed.heads]
        names = {name: NAMES[name] for name in sent[text] if name in NAMES}
        assert short(evaluate(text, names, {})) == short(evaluate(text, NAMES, {}))
    assert len(sent) > 500
    assert sent["a[y='q'].x"] == ["a"]


def test_an_error_does_not_repeat_a_long_value():
    said = evaluate("$number(text)", {"text": "x" * 100_000}, {})["error"]
    assert said.startswith("The expression '$number(text)' failed: ")
    assert len(said) < 500


@pytest.mark.parametrize(
    "text",
    ["$", "$$.a", "*", "**.x", "a.$$.s", "a[$$.s='str'].x", "a.x.%.y", "a@$v.{'v':$v.x}", "$lookup('a')", "$keys()"],
)
def test_an_expression_that_may_read_everything_is_sent_everything(text: str):
    assert parse(text).whole


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as made:
        yield made


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(NAMED, VALUES, max_size=3), st.lists(NAMED, min_size=1, max_size=3))
def test_a_path_is_looked_up_as_the_engine_does(runner: asyncio.Runner, names: dict[str, Any], path: list[str]):
    text = ".".join(path)
    assert exactly(outcome_here(runner, text, Scope(names))) == exactly(evaluate(text, names, {}))


@pytest.mark.parametrize(
    "text", ["true", "false", "null", "3", "-3", "2.0", "'text'", '"text"', "$iteration", "$first"]
)
def test_a_literal_and_a_variable_are_looked_up_as_the_engine_does(runner: asyncio.Runner, text: str):
    variables = {"iteration": 2, "first": False}
    assert exactly(outcome_here(runner, text, Scope({}, variables))) == exactly(evaluate(text, {}, variables))


def outcome_here(runner: asyncio.Runner, text: str, scope: Scope) -> dict[str, Any]:
    """What the expression gives where it is looked up if it can be, else in a worker."""
    found = runner.run(Expression(text).evaluate(scope))
    return {} if found is UNSET else {"value": found}


def exactly(outcome: dict[str, Any]) -> str:
    """As text, since True equals 1 and 2.0 equals 2."""
    return json.dumps(outcome)
