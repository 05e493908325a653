import sys
from types import ModuleType

import pytest

from usechat.integrations import agent_of
from usechat.integrations.google_adk import ADKAgent

BaseAgent = type("BaseAgent", (), {"__module__": "google.adk.agents.base_agent"})
LlmAgent = type("LlmAgent", (BaseAgent,), {})


def test_an_agent_is_recognised_and_a_missing_package_is_named() -> None:
    with pytest.raises(RuntimeError, match=r"ADKAgent needs google.*: pip install 'usechat\[google-adk\]'"):
        agent_of(LlmAgent())


def test_an_older_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = {name: ModuleType(name) for name in ("google", "google.adk", "google.adk.version")}
    modules["google.adk.version"].__dict__["__version__"] = "1.33.0"
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    with pytest.raises(RuntimeError, match=r"needs Google ADK 2\.2 or newer, and this is 1\.33\.0"):
        agent_of(LlmAgent())


@pytest.mark.parametrize("thing", [LlmAgent, "agent", None])
def test_what_is_nothing_of_adk_is_refused(thing: object) -> None:
    assert ADKAgent.wrap(thing) is None
    with pytest.raises(TypeError, match="give an agent, an App or a Runner"):
        ADKAgent(thing)
