"""What the demo offers, by what is installed and which keys there are."""

import sys

import httpx
import pytest

from support.hang import HANG_SECONDS
from support.loopback import message, serving
from usechat.demo.app import make_demo
from usechat.protocol.verdict import judge, recorded_events
from usechat.testing import collect

# It waits for an answer.
QUESTION = "Deploy the app"
FAILING = {"Ask the closed harbour", "Plan a day on the moon", "Ask an overloaded model"}


def names(**environ: str) -> tuple[list[str], tuple[str, ...]]:
    demo = make_demo(environ=environ)
    return [agent.name for agent in demo.agents], demo.missing


def test_an_agent_whose_package_is_not_installed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("deepagents", "jsonata", "openai", "anthropic"):
        monkeypatch.setitem(sys.modules, package, None)
    for module in [name for name in sys.modules if name.startswith(("usechat.demo", "usechat.flows"))]:
        monkeypatch.delitem(sys.modules, module)
    assert names(OPENAI_API_KEY="k", ANTHROPIC_API_KEY="k") == (
        ["Python generator", "Agent Ops session"],
        (
            "The Open Harness flow needs jsonata. Install it with: pip install 'usechat[flows]'",
            "The deep agent needs deepagents. Install it with: pip install 'usechat[deepagents]'",
            "OpenAI gpt-5-mini needs openai. Install it with: pip install 'openai'",
            "Anthropic claude-sonnet-5 needs anthropic. Install it with: pip install 'anthropic'",
        ),
    )


def test_a_key_offers_its_model() -> None:
    scripted = ["Python generator", "Open Harness flow", "Agent Ops session", "Deep agent"]
    assert names(OPENAI_API_KEY="", ANTHROPIC_API_KEY="") == (scripted, ())
    assert names(OPENAI_API_KEY="k", ANTHROPIC_API_KEY="k", ANTHROPIC_MODEL="claude-x") == (
        [*scripted, "OpenAI gpt-5-mini", "Anthropic claude-x"],
        (),
    )
    assert names(OPENAI_BASE_URL="http://localhost:11434/v1", OPENAI_MODEL="qwen3") == ([*scripted, "OpenAI qwen3"], ())


def test_every_prompt_gets_a_stream_that_all_clients_take() -> None:
    ends: dict[str, str] = {}
    with serving(make_demo(pace=0).app) as url, httpx.Client(base_url=url, timeout=HANG_SECONDS) as page:
        for agent in page.get("/page/settings").json()["agents"]:
            for prompt in (prompt["text"] for prompt in agent["prompts"]):
                if prompt == QUESTION:
                    continue
                body = page.post(agent["path"], json=message(prompt, prompt)).content
                verdict = judge(recorded_events(body), "portable")
                assert (verdict.violation, verdict.warnings) == (None, []), prompt
                ends[prompt] = collect(body)[-1]["type"]
    assert len(ends) > 15
    assert {prompt for prompt, end in ends.items() if end == "error"} == FAILING
    assert set(ends.values()) == {"error", "finish"}
