"""The `usechat` command."""

import sys

__all__ = ["main"]


def main() -> None:
    try:
        from usechat.cli.app import app
    except ModuleNotFoundError as error:
        sys.exit(f"The usechat command needs {error.name}. Install it with: pip install 'usechat[cli]'")
    app()
