"""The streams of DeepAgent's mapper, read by the real clients: the golden logs, and runs that went wrong."""

from typing import Any

import pytest
from hypothesis import given

from agreement import FEW, agree, agree_in_all_profiles
from judge import Judge
from support.deep_agent_runs import OPTIONS, SPOILT_RUNS
from support.goldens import Case, cases, mapped


@pytest.mark.parametrize("case", cases("deep-agent"), ids=lambda case: case.name)
def test_every_client_makes_our_message_of_a_log(judge: Judge, case: Case) -> None:
    agree_in_all_profiles(judge, case)


@FEW
@given(SPOILT_RUNS, OPTIONS)
def test_every_client_takes_what_comes_of_a_run_that_went_wrong(
    judge: Judge, log: list[dict[str, Any]], options: dict[str, Any]
) -> None:
    agree(judge, mapped("deep-agent", log, options))
