from pathlib import Path

import pytest
from typer.testing import CliRunner

import usechat
from usechat.cli.app import app
from usechat.integrations.deepagent_sdk.typescript import deep_agent_parts

REACT = Path(usechat.__file__).parent / "react"


@pytest.mark.parametrize(("options", "name"), [([], "usechat.ts"), (["--parts"], "parts.tsx")])
def test_a_file_is_printed_as_it_is(options: list[str], name: str) -> None:
    done = CliRunner().invoke(app, ["react", *options])
    assert (done.exit_code, done.stdout_bytes, done.stderr_bytes) == (0, (REACT / name).read_bytes(), b"")


def test_the_components_have_the_types_that_are_printed_alone() -> None:
    types = deep_agent_parts()
    assert types in CliRunner().invoke(app, ["types", "deep-agent"]).stdout
    assert types in (REACT / "parts.tsx").read_text(encoding="utf-8")
