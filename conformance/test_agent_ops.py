"""The streams of Agent Ops's mapper, read by the real clients: the golden logs, and logs that went wrong."""

from typing import Any

import pytest
from hypothesis import given

from agreement import FEW, agree, agree_in_all_profiles
from judge import Judge
from support.goldens import Case, cases, mapped
from support.session_frames import SPOILT_LOGS


@pytest.mark.parametrize("case", cases("agent-ops"), ids=lambda case: case.name)
def test_every_client_makes_our_message_of_a_log(judge: Judge, case: Case) -> None:
    agree_in_all_profiles(judge, case)


@FEW
@given(SPOILT_LOGS)
def test_every_client_takes_what_comes_of_a_log_that_went_wrong(judge: Judge, log: list[dict[str, Any]]) -> None:
    agree(judge, mapped("agent-ops", log, {}))
