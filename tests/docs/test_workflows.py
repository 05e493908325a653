"""What GitHub runs is what the project has: its commands, its Python versions, its release."""

import re
import tomllib
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[2]
PROJECT: Final[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
VERSION: Final = "Programming Language :: Python :: 3."


def workflow(name: str) -> dict[str, Any]:
    # BaseLoader takes `on` for a text, as GitHub does.
    text = (ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8")
    return yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506


def commands(job: dict[str, Any]) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


def test_the_two_commands_run_on_each_python_that_the_package_is_for() -> None:
    job = workflow("test")["jobs"]["test"]
    versions = [f"3.{each.removeprefix(VERSION)}" for each in PROJECT["classifiers"] if each.startswith(VERSION)]
    assert job["strategy"]["matrix"]["python"] == versions
    assert PROJECT["requires-python"] == f">={versions[0]}"
    assert job["container"]["image"] == "python:${{ matrix.python }}-bookworm"
    assert commands(job)[-2:] == ["make test", "make fresh-clone"]


def test_a_tag_is_published_once_its_tests_have_passed() -> None:
    publish = workflow("publish")
    assert publish["on"] == {"push": {"tags": ["v*"]}}
    jobs = publish["jobs"]
    assert jobs["test"] == {"uses": "./.github/workflows/test.yml"}
    assert "workflow_call" in workflow("test")["on"]
    assert commands(jobs["build"])[0] == "make dist"
    assert jobs["publish"]["needs"] == ["test", "build"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    kept, taken = jobs["build"]["steps"][-1]["with"], jobs["publish"]["steps"][0]["with"]
    assert (kept["name"], kept["path"]) == (taken["name"], taken["path"]) == ("dist", "dist")


def test_the_workflows_use_one_node_and_commands_that_there_are() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    jobs = [job for name in ("test", "publish") for job in workflow(name)["jobs"].values() if "steps" in job]
    named = [word for job in jobs for line in commands(job) for word in re.findall(r"^make ([a-z-]+)", line)]
    assert {*named} - {*targets} == set()
    nodes = [
        step["with"]["node-version"] for job in jobs for step in job["steps"] if "setup-node" in step.get("uses", "")
    ]
    assert nodes == ["20", "20"]


def test_the_changelog_has_the_version_below_what_is_unreleased() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert headings[1].startswith(f"{PROJECT['version']} - ")
