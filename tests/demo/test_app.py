"""What the demo offers, by what is installed and which keys there are."""

import sys

import pytest

from usechat.demo.app import make_demo


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
