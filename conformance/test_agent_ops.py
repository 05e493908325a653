"""The streams of Agent Ops's mapper, read by the real clients: the golden logs, and logs that went wrong."""

from typing import Any

import pytest
from hypothesis import given

from agreement import FEW, agree
from judge import Judge
from promises import PROMISES
from support.goldens import Case, cases, mapped
from support.session_frames import SPOILT_LOGS
from usechat.protocol.clients import ClientName


@pytest.mark.parametrize("case", cases("agent-ops"), ids=lambda case: case.name)
@pytest.mark.parametrize("client", PROMISES)
def test_every_client_makes_our_message_of_a_log(judge: Judge, case: Case, client: ClientName) -> None:
    agree(judge, mapped(case.source, case.events, case.options, client), client)


@FEW
@given(SPOILT_LOGS)
def test_every_client_takes_what_comes_of_a_log_that_went_wrong(judge: Judge, log: list[dict[str, Any]]) -> None:
    agree(judge, mapped("agent-ops", log, {}))
