"""What each integration makes of the logs in `tests/golden`: a change of one byte is seen here.

`USECHAT_GOLDEN=write pytest tests/integrations/test_golden.py` writes the chunks anew.
"""

import os

import pytest

from support.goldens import CASES, Case, mapped
from usechat.integrations import load_log_translators
from usechat.protocol.codec import encode_chunk
from usechat.protocol.verdict import judge, recorded_events


def test_every_integration_that_maps_logs_has_golden_files() -> None:
    assert {case.source for case in CASES} == set(load_log_translators())


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.source}: {case.name}")
def test_the_stream_of_a_log_is_legal_and_as_it_was(case: Case) -> None:
    stream = b"".join(encode_chunk(chunk) + b"\n" for chunk in mapped(case.source, case.events, case.options))
    assert judge(recorded_events(stream)).violation is None
    if os.environ.get("USECHAT_GOLDEN") == "write":
        case.chunks.write_bytes(stream)
    assert stream.decode().splitlines() == case.chunks.read_text("utf-8").splitlines()
