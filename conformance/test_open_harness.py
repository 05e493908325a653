"""The streams of Open Harness's mapper, read by the real clients: the golden logs, and logs at random."""

from typing import Any

import pytest
from hypothesis import given

from agreement import FEW, agree
from judge import Judge
from promises import PROMISES
from support.goldens import Case, cases, mapped
from support.harness_runs import ANY_EVENTS, OPTIONS, RUNS, Story
from usechat.protocol.clients import ClientName


@pytest.mark.parametrize("case", cases("open-harness"), ids=lambda case: case.name)
@pytest.mark.parametrize("client", PROMISES)
def test_every_client_makes_our_message_of_a_log(judge: Judge, case: Case, client: ClientName) -> None:
    agree(judge, mapped(case.source, case.events, case.options, client), client)


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
