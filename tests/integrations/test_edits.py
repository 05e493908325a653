from types import SimpleNamespace
from typing import Any

import pytest

from usechat.errors import RequestError
from usechat.integrations import load_integration
from usechat.integrations.edits import check_edits, edited_input
from usechat.turns.chat import Approval


def answered(extra: Any, *, approved: bool = True) -> Approval:
    return Approval("a1", "c1", "pay", {"amount": 5}, approved, extra=extra)


def test_an_edit_is_an_object() -> None:
    assert edited_input(answered({"input": {"amount": 1}})) == {"amount": 1}
    assert edited_input(answered(None)) is None


@pytest.mark.parametrize("extra", [{"input": "x"}, {"input": None}, {"args": {"amount": 1}}, {}, "yes", 5, False])
def test_what_is_no_edit_does_not_run_the_call_as_it_was(extra: Any) -> None:
    with pytest.raises(RequestError, match="to change the arguments"):
        check_edits([answered(extra)])
    check_edits([answered(extra, approved=False)])


def test_a_framework_may_take_something_else_in_place_of_the_input() -> None:
    check_edits([answered({"payload": 5})], also="payload")
    with pytest.raises(RequestError):
        check_edits([answered({"payload": 5, "input": "x"})], also="payload")


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["pydantic-ai", "openai-agents", "agno", "google-adk", "claude-agent", "ag-ui"])
async def test_every_framework_refuses_what_is_no_edit(name: str) -> None:
    kind = load_integration(name)
    pending = SimpleNamespace(approvals=[answered({"args": {"amount": 1}})], state=None, message=None, edits=False)
    with pytest.raises(RequestError, match="to change the arguments"):
        # The framework itself is not installed.
        await kind.admit(object.__new__(kind), pending)
