"""The streams of Open Harness's mapper, read by the real clients: the golden logs, and logs at random."""

from typing import Any

import pytest
from hypothesis import given

from agreement import FEW, agree, agree_in_all_profiles
from judge import Judge
from support.goldens import Case, cases, mapped
from support.harness_runs import ANY_EVENTS, OPTIONS, RUNS, Story


@pytest.mark.parametrize("case", cases("open-harness"), ids=lambda case: case.name)
def test_every_client_makes_our_message_of_a_log(judge: Judge, case: Case) -> None:
    agree_in_all_profiles(judge, case)


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
