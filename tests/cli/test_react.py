from pathlib import Path

from typer.testing import CliRunner

import usechat
from usechat.cli.app import app

SOURCE = Path(usechat.__file__).parent / "kit" / "usechat.ts"


def test_the_transport_is_printed_as_it_is() -> None:
    done = CliRunner().invoke(app, ["react"])
    assert (done.exit_code, done.stdout_bytes, done.stderr_bytes) == (0, SOURCE.read_bytes(), b"")
