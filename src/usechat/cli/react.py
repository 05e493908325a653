"""`usechat react`: what a React app needs beside `useChat()`, as files that it copies and owns."""

from importlib.resources import files
from typing import Annotated

import typer

__all__ = ["react"]


def react(
    *, parts: Annotated[bool, typer.Option("--parts", help="Print the components that draw data parts.")] = False
) -> None:
    """Print the chat transport for AI SDK 5, 6 and 7: `usechat react > src/usechat.ts`.

    `usechat react --parts > src/parts.tsx` prints the components that draw data parts: todos, files, commands, the web,
    sub-agents, flows, questions.
    """
    name = "parts.tsx" if parts else "usechat.ts"
    typer.echo((files("usechat") / "kit" / name).read_text(encoding="utf-8"), nl=False)
