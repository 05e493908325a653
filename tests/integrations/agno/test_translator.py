import json
from pathlib import Path
from typing import Any

import pytest

from usechat.errors import MappingError
from usechat.events import SubAgent, ToolDenied, ToolResult
from usechat.integrations.agno.translator import AgnoTranslator
from usechat.protocol.chunks import Error

GOLDEN = Path(__file__).parents[2] / "golden" / "agno"


def log(case: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (GOLDEN / f"{case}.events.jsonl").read_text("utf-8").splitlines()]


def completed(result: str) -> dict[str, Any]:
    tool = {"tool_call_id": "call_1", "tool_name": "look", "result": result}
    return {"event": "ToolCallCompleted", "run_id": "r", "tool": tool}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (
            "{'celsius': 21, 'sunny': True, 'wind': None, 3: (1, 2)}",
            {"celsius": 21, "sunny": True, "wind": None, "3": [1, 2]},
        ),
        ('{"celsius": 21, "sunny": true}', {"celsius": 21, "sunny": True}),
        ("[1, 'two']", [1, "two"]),
        ("{__import__('os').getcwd()}", "{__import__('os').getcwd()}"),
        ("{'time': datetime.datetime(2026, 1, 1)}", "{'time': datetime.datetime(2026, 1, 1)}"),
        ("21", "21"),
        ("", ""),
    ],
)
def test_the_text_of_a_result_is_read_back_and_never_run(text: str, value: Any) -> None:
    assert list(AgnoTranslator().translate(completed(text))) == [ToolResult("call_1", value, "look")]


def test_a_member_hears_that_its_call_was_refused() -> None:
    begun, *_ = log("team_approval_approved")
    member = next(event for event in log("team_approval_approved") if event["event"] == "RunContinued")
    denied = ToolDenied(f"{member['run_id']}:call_1")
    translator = AgnoTranslator([denied])
    first, *_ = translator.translate(begun)
    assert first == denied
    inside = SubAgent(member["run_id"], "helper", ToolDenied("call_1"))
    assert inside in list(translator.translate(member))


def test_a_log_that_breaks_off_ends_with_an_error() -> None:
    translator = AgnoTranslator()
    for event in log("text")[:-1]:
        list(translator.translate(event))
    assert list(translator.end()) == [Error("The run was interrupted.")]


def test_what_is_no_event_is_of_no_use() -> None:
    with pytest.raises(MappingError, match=r"^Agno has no event of the type dict\.$"):
        list(AgnoTranslator().translate({"type": "text"}))
