import sys
from pathlib import Path

import pytest

from usechat.integrations.agno import AgnoAgent


class Agent:
    """An object of Agno, which the development environment does not have."""

    __module__ = "agno.agent.agent"
    id = "main"


class Clerk(Agent):
    __module__ = "app"


def install(version: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = folder / f"agno-{version}.dist-info"
    place.mkdir()
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: agno\nVersion: {version}\n", encoding="utf-8")
    monkeypatch.setattr("sys.path", [str(folder), *sys.path])


def test_an_agent_and_its_subclasses_are_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install("3.0.0", tmp_path, monkeypatch)
    assert isinstance(AgnoAgent.wrap(Clerk()), AgnoAgent)
    assert AgnoAgent.wrap(object()) is AgnoAgent.wrap(Clerk) is None


def test_an_agno_that_is_too_old_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install("2.9.1", tmp_path, monkeypatch)
    message = (
        r"AgnoAgent needs agno 3\.0 or newer, and 2\.9\.1 is here\. Install it with: pip install 'usechat\[agno\]'"
    )
    with pytest.raises(ImportError, match=message):
        AgnoAgent(Agent())


def test_a_missing_agno_is_named() -> None:
    with pytest.raises(ImportError, match=r"AgnoAgent needs agno\. Install it with: pip install 'usechat\[agno\]'"):
        AgnoAgent(Agent())
