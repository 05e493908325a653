"""The streams of Agent Ops, read by the real clients: logs that went wrong."""

from typing import Any

from hypothesis import given

from agreement import FEW, agree
from judge import Judge
from support.goldens import mapped
from support.session_frames import SPOILT_LOGS


@FEW
@given(SPOILT_LOGS)
def test_every_client_takes_what_comes_of_a_log_that_went_wrong(judge: Judge, log: list[dict[str, Any]]) -> None:
    agree(judge, mapped("agent-ops", log, {}))
