"""`usechat react`: what a React app needs beside `useChat()`, as a file that it copies and owns."""

from importlib.resources import files

import typer

__all__ = ["react"]


def react() -> None:
    """Print the chat transport for AI SDK 5, 6 and 7: `usechat react > src/usechat.ts`."""
    typer.echo((files("usechat") / "kit" / "usechat.ts").read_text(encoding="utf-8"), nl=False)
