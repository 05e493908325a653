"""The streams of DeepAgent, read by the real clients: runs that went wrong."""

from typing import Any

from hypothesis import given

from agreement import FEW, agree
from judge import Judge
from support.deep_agent_runs import OPTIONS, SPOILT_RUNS
from support.goldens import mapped


@FEW
@given(SPOILT_RUNS, OPTIONS)
def test_every_client_takes_what_comes_of_a_run_that_went_wrong(
    judge: Judge, log: list[dict[str, Any]], options: dict[str, Any]
) -> None:
    agree(judge, mapped("deep-agent", log, options))
