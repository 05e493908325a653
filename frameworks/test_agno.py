"""What only Agno has: members of teams, and the example of its guide."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from environments import HERE, Environment, chosen
from support.hang import HANG_SECONDS
from talks import Served, Talk, calls
from test_rows import APPROVALS, TOOLS

GUIDE = HERE.parent / "docs" / "guides" / "agno.md"
# Posts a message to the agent of the guide, approves its call, and prints what the page reads.
CLIENT = """
import asyncio, httpx, json
from app import agent
from usechat import create_app

async def main():
    app = create_app(agent)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as http:
        said = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "Pay, please."}]}
        await http.post("/api/chat", json={"id": "c", "message": said})
        [_, answer] = (await http.get("/api/chat/c/messages")).json()
        answer["parts"][-1]["state"] = "approval-responded"
        answer["parts"][-1]["approval"]["approved"] = True
        await http.post("/api/chat", json={"id": "c", "message": answer})
        print(json.dumps((await http.get("/api/chat/c/messages")).json()[-1]["parts"]))

asyncio.run(main())
"""


@pytest.fixture(
    scope="module", params=[one for one in chosen() if one.name == "agno-team"], ids=lambda one: one.version
)
def environment(request: pytest.FixtureRequest) -> Environment:
    return request.param


@pytest.mark.row("approvals")
@pytest.mark.parametrize("approved", [True, False])
def test_a_member_asks_the_user_also_from_another_process(talk: Talk, other_server: Served, approved: bool) -> None:
    view = talk.page(resubmits=APPROVALS).send("help pay 9").settle()
    asked = next(part for part in calls(view) if part["type"] == "tool-pay")
    assert (asked["state"], asked["input"]) == ("approval-requested", {"amount": 9})
    before = other_server.effects()
    page = talk.page(server=other_server, messages=talk.kept(), resubmits=APPROVALS)
    view = page.answer_approval(asked["approval"]["id"], approved=approved, reason="I say so").settle()
    call = next(part for part in calls(view) if part["type"] == "tool-pay")
    [member] = [part["data"] for part in view.answer if part["type"] == "data-subagent"]
    assert call["state"] == ("output-available" if approved else "output-denied")
    assert other_server.effects() == [*before, *(["paid 9"] if approved else [])]
    assert (member["name"], member["status"]) == ("helper", "done")
    assert member["tools"] == [
        {"toolCallId": "call_1", "toolName": "pay", "state": "done" if approved else "failed"},
    ]
    # The leader does not take the call of its member for one of its own.
    talk.say("hello")
    assert {call.name for one in talk.asked[-1].heard for call in one.calls} == {"delegate_task_to_member"}


def test_the_page_answers_a_tool_of_a_member(talk: Talk) -> None:
    # Agno 3.0.0 mixes up calls of the leader and of a member that have the same id, which no real provider gives.
    talk.say("weather Paris")
    view = talk.page(resubmits=TOOLS).send("help locate").settle()
    call = next(part for part in calls(view) if part["type"] == "tool-get_location")
    assert call["state"] == "input-available"
    page = talk.page(messages=talk.kept(), resubmits=TOOLS)
    page.answer_tool(call["toolCallId"], tool="get_location", output="Berlin").settle()
    assert "Berlin" in json.dumps(talk.heard()[-1])


def test_the_example_of_the_guide_works(environment: Environment, tmp_path: Path) -> None:
    [example] = re.findall(r"```python\n(# app\.py\n.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "app.py").write_text(example, encoding="utf-8")
    done = subprocess.run(
        [environment.python, "-c", CLIENT],
        cwd=tmp_path,
        env={"PYTHONPATH": str(HERE.parent / "src"), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=True,
    )
    [*_, call, _, text] = json.loads(done.stdout)
    assert (call["type"], call["state"], call["output"]) == ("tool-pay", "output-available", {"paid": 5})
    assert text["text"] == "Done: {'paid': 5}"
