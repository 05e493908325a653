"""The streams of Open Harness, read by the real clients: logs at random."""

from typing import Any

from hypothesis import given

from agreement import FEW, agree
from judge import Judge
from support.goldens import mapped
from support.harness_runs import ANY_EVENTS, OPTIONS, RUNS, Story


@FEW
@given(RUNS, OPTIONS)
def test_every_client_takes_what_a_runtime_may_say(judge: Judge, story: Story, options: dict[str, Any]) -> None:
    agree(judge, mapped("open-harness", story.events, options))


@FEW
@given(ANY_EVENTS, OPTIONS)
def test_every_client_takes_what_comes_of_nonsense(
    judge: Judge, events: list[dict[str, Any]], options: dict[str, Any]
) -> None:
    agree(judge, mapped("open-harness", events, options))
