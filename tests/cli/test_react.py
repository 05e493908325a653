from pathlib import Path

import pytest
from typer.testing import CliRunner

import usechat
from usechat.cli.app import app
from usechat.sources.deep_agent_typescript import deep_agent_parts

KIT = Path(usechat.__file__).parent / "kit"


@pytest.mark.parametrize(("options", "name"), [([], "usechat.ts"), (["--parts"], "parts.tsx")])
def test_a_file_is_printed_as_it_is(options: list[str], name: str) -> None:
    done = CliRunner().invoke(app, ["react", *options])
    assert (done.exit_code, done.stdout_bytes, done.stderr_bytes) == (0, (KIT / name).read_bytes(), b"")


def test_the_components_have_the_types_that_are_printed_alone() -> None:
    types = deep_agent_parts()
    assert types in CliRunner().invoke(app, ["types", "deep-agent"]).stdout
    assert types in (KIT / "parts.tsx").read_text(encoding="utf-8")
