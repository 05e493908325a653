"""The golden logs of all integrations, read by the real clients."""

import pytest

from agreement import agree_in_all_profiles
from judge import Judge
from support.goldens import CASES, Case


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.source}: {case.name}")
def test_every_client_makes_our_message_of_a_log(judge: Judge, case: Case) -> None:
    agree_in_all_profiles(judge, case)
