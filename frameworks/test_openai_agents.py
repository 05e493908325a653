"""What only the OpenAI Agents SDK has: agents as tools that ask the user, and the example of its guide."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from environments import HERE, Environment, chosen
from support.hang import HANG_SECONDS
from talks import Served, Talk, calls
from test_rows import APPROVALS

GUIDE = HERE.parent / "docs" / "guides" / "openai-agents.md"
# Posts a message to the agent of the guide, approves its call, and prints what the page reads.
CLIENT = """
import asyncio, json
from payments import agent
from usechat import create_app

async def post(app, path, body=None):
    scope = {"type": "http", "method": "GET" if body is None else "POST", "path": path, "query_string": b""}
    scope["headers"] = [(b"content-type", b"application/json")]
    given, told = [{"type": "http.request", "body": json.dumps(body).encode()}], []
    async def receive():
        return given.pop() if given else await asyncio.Event().wait()
    async def send(message):
        told.append(message.get("body", b""))
    await app(scope, receive, send)
    return b"".join(told)

async def main():
    app = create_app(agent)
    said = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "Pay, please."}]}
    await post(app, "/api/chat", {"id": "c", "message": said})
    [_, answer] = json.loads(await post(app, "/api/chat/c/messages"))
    answer["parts"][-1]["state"] = "approval-responded"
    answer["parts"][-1]["approval"]["approved"] = True
    await post(app, "/api/chat", {"id": "c", "message": answer})
    print(json.dumps(json.loads(await post(app, "/api/chat/c/messages"))[-1]["parts"]))

asyncio.run(main())
"""


@pytest.fixture(
    scope="module",
    params=[one for one in chosen() if one.framework.environment == "openai-agents"],
    ids=lambda one: f"{one.name}-{one.version}",
)
def environment(request: pytest.FixtureRequest) -> Environment:
    return request.param


@pytest.mark.row("approvals")
@pytest.mark.parametrize("approved", [True, False])
def test_an_agent_that_is_a_tool_asks_the_user(talk: Talk, other_server: Served, approved: bool) -> None:
    view = talk.page(resubmits=APPROVALS).send("help pay 9").settle()
    asked = next(part for part in calls(view) if part["type"] == "tool-pay")
    assert (asked["state"], asked["input"]) == ("approval-requested", {"amount": 9})
    before = other_server.effects()
    page = talk.page(server=other_server, messages=talk.kept(), resubmits=APPROVALS)
    view = page.answer_approval(asked["approval"]["id"], approved=approved, reason="I say so").settle()
    call = next(part for part in calls(view) if part["type"] == "tool-pay")
    [helper] = [part["data"] for part in view.answer if part["type"] == "data-subagent"]
    assert call["state"] == ("output-available" if approved else "output-denied")
    assert other_server.effects() == [*before, *(["paid 9"] if approved else [])]
    assert (helper["name"], helper["status"]) == ("helper", "done")
    assert [part["state"] for part in calls(view) if part["type"] == "tool-helper"] == ["output-available"]


def test_the_example_of_the_guide_works(environment: Environment, tmp_path: Path) -> None:
    [example] = re.findall(r"```python\n(# payments\.py\n.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "payments.py").write_text(example, encoding="utf-8")
    done = subprocess.run(
        [environment.python, "-c", CLIENT],
        cwd=tmp_path,
        env={"PYTHONPATH": str(HERE.parent / "src"), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    if environment.is_oldest:
        # The scripted model of the example came later.
        assert "No module named 'agents.testing'" in done.stderr
        return
    [*_, call, _, text] = json.loads(done.stdout or done.stderr)
    assert (call["type"], call["state"], call["output"]) == ("tool-pay", "output-available", {"paid": 5})
    assert text["text"] == "Done."
