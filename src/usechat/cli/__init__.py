"""The `usechat` command."""

import sys

from usechat.extras import missing

__all__ = ["main"]


def main() -> None:
    try:
        from usechat.cli.app import app
    except ModuleNotFoundError as error:
        sys.exit(missing("The usechat command", error, "cli"))
    app()
