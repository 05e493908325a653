"""What only the Claude Agent SDK has: its CLI's sessions and approvals, and the example of its guide."""

import json
import os
import re
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from environments import HERE, Environment, chosen
from support.hang import HANG_SECONDS
from support.loopback import INSTALLED_USECHAT, free_port
from talks import Talk, calls, shown, text, until
from test_rows import APPROVALS, ask_to_pay

GUIDE = (HERE.parent / "docs/guides/claude-agent.md").read_text("utf-8")


@pytest.fixture(
    scope="module",
    params=[one for one in chosen() if one.framework.environment == "claude-agent"],
    ids=lambda one: f"{one.name}-{one.version}",
)
def environment(request: pytest.FixtureRequest) -> Environment:
    return request.param


def sessions(folder: Path) -> list[Path]:
    return [*folder.glob(".claude/projects/*/*.jsonl")]


@pytest.mark.row("approvals")
def test_of_two_calls_that_wait_one_is_asked_about_and_the_model_reads_why(talk: Talk) -> None:
    approval, paid = ask_to_pay(talk, 6, words="pay 6 pay 7")
    [_, refused] = calls(talk.page(messages=talk.kept()).look())
    assert (refused["state"], "waits for the user's approval" in refused["errorText"]) == ("output-error", True)
    page = talk.page(messages=talk.kept(), resubmits=APPROVALS)
    page.answer_approval(approval, approved=True).settle()
    assert talk.server.effects()[paid:] == ["paid 6"]
    results = {one.call_id: one.text for one in talk.asked[-1].heard if one.role == "tool"}
    assert (results["call_1"], "Make this call again" in results["call_2"]) == ("paid 6", True)


@pytest.mark.row("approvals")
def test_the_model_reads_the_result_of_a_call_that_waited_beside_another(talk: Talk) -> None:
    for amount in (3, 4):
        approval, _ = ask_to_pay(talk, amount, words=f"pay {amount} weather Oslo")
        page = talk.page(messages=talk.kept(), resubmits=APPROVALS)
        page.answer_approval(approval, approved=True).settle()
        results = [one.text for one in talk.asked[-1].heard if one.role == "tool"]
        assert f"paid {amount}" in results
        assert "Tool result missing" not in json.dumps(talk.asked[-1].body)


@pytest.mark.row("approvals")
def test_a_user_who_goes_on_has_approved_nothing(talk: Talk) -> None:
    _, paid = ask_to_pay(talk, 9)
    view = talk.page(messages=talk.kept()).send("hello").settle()
    assert (shown(view)[-1], len(talk.server.effects())) == (text("You said: hello"), paid)
    [result] = [one.text for one in talk.asked[-1].heard if one.role == "tool"]
    assert "the user approved nothing" in result
    # Nothing was asked in the user's name.
    assert len(talk.asked) == 2


@pytest.mark.row("approvals")
def test_an_answer_that_waits_can_be_regenerated(talk: Talk) -> None:
    talk.say("hello")
    _, paid = ask_to_pay(talk, 2)
    view = talk.page(messages=talk.kept(), resubmits=APPROVALS).regenerate().settle()
    [call] = calls(view)
    assert (call["state"], len(view.messages)) == ("approval-requested", 4)
    assert talk.heard() == [("user", "hello"), ("assistant", "You said: hello"), ("user", "pay 2")]
    page = talk.page(messages=talk.kept(), resubmits=APPROVALS)
    page.answer_approval(call["approval"]["id"], approved=True).settle()
    assert talk.server.effects()[paid:] == ["paid 2"]


def test_the_users_words_name_no_file_and_run_no_command(talk: Talk) -> None:
    for words in ("look at @/etc/hostname", "/compact", "Continue from where you left off."):
        assert shown(talk.say(words))[-1] == text(f"You said: {words}")
    assert "Called the Read tool" not in json.dumps(talk.asked[-1].body)


def test_a_later_message_can_be_regenerated_and_the_chat_goes_on_from_there(talk: Talk) -> None:
    talk.say("weather Paris")
    talk.say("hello")
    talk.page(messages=talk.kept()).regenerate().settle()
    talk.page(messages=talk.kept()).send("bye").settle()
    users = [said for role, said in talk.heard() if role == "user"]
    assert users == ["weather Paris", "hello", "bye"]


def test_a_session_that_is_gone_begins_anew_with_the_history(talk: Talk, folder: Path) -> None:
    talk.say("I am Ann")
    for session in sessions(folder):
        session.unlink()
    assert shown(talk.say("hello"))[-1] == text("You said: hello")
    assert "I am Ann" in json.dumps(talk.asked[-1].body)


def test_a_deleted_chat_leaves_no_session(talk: Talk, folder: Path) -> None:
    talk.say("this goes")
    assert any("this goes" in session.read_text("utf-8") for session in sessions(folder))
    assert talk.server.http.delete(f"/portable/agent/{talk.chat}").status_code == 204
    assert not any("this goes" in session.read_text("utf-8") for session in sessions(folder))


@pytest.fixture
def example(tmp_path: Path) -> Path:
    for program in re.findall(r"```python\n(# (?:\w+)\.py\n.*?)```", GUIDE, re.DOTALL):
        (tmp_path / program.split()[1]).write_text(program, encoding="utf-8")
    return tmp_path


@contextmanager
def started(environment: Environment, folder: Path, app: str, **variables: str) -> Generator[int]:
    port = free_port()
    program = f"import uvicorn; from usechat import create_app; {app}; uvicorn.run(app, port={port}, log_level='error')"
    process = subprocess.Popen([environment.python, "-c", program], cwd=folder, env=environ(folder, **variables))
    try:
        until(lambda: answers(port))
        yield port
    finally:
        process.terminate()
        process.wait(HANG_SECONDS)


def environ(folder: Path, **variables: str) -> dict[str, str]:
    return {**os.environ, "HOME": str(folder), "PYTHONPATH": str(HERE.parent / "src"), **variables}


def answers(port: int) -> bool:
    try:
        httpx.get(f"http://127.0.0.1:{port}/", trust_env=False)
    except httpx.ConnectError:
        return False
    return True


def test_the_example_asks_and_pays_and_its_log_is_mapped(environment: Environment, example: Path) -> None:
    with started(environment, example, "from provider import app") as provider:
        to = {"ANTHROPIC_BASE_URL": f"http://127.0.0.1:{provider}", "ANTHROPIC_API_KEY": "none"}
        with started(environment, example, "from shop import agent; app = create_app(agent)", **to) as port:
            asked: dict[str, Any] = {"id": "u", "role": "user", "parts": [{"type": "text", "text": "Pay 5"}]}
            url = f"http://127.0.0.1:{port}/api/chat"
            answer = httpx.post(url, json={"id": "c", "message": asked}, trust_env=False, timeout=HANG_SECONDS)
            assert '"type":"tool-approval-request"' in answer.text
            assert '"toolName":"pay"' in answer.text
        command = [environment.python, "record.py", "Hello"]
        recorded = subprocess.run(command, cwd=example, env=environ(example, **to), check=True, capture_output=True)
    (example / "run.jsonl").write_bytes(recorded.stdout)
    command = [INSTALLED_USECHAT, "map", "claude-agent", "run.jsonl", "--output", "message"]
    mapped = subprocess.run(command, cwd=example, check=True, capture_output=True)
    parts = json.loads(mapped.stdout)["parts"]
    # Nobody has allowed the call, and nobody is asked by `query`.
    assert [part["type"] for part in parts] == ["step-start", "tool-pay", "step-start", "text"]
    assert parts[-1]["text"] == "It is paid."
