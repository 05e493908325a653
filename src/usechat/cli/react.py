"""`usechat react` and `usechat types`: files that a React app copies and owns."""

from collections.abc import Callable
from importlib.resources import files
from typing import Annotated, Final

import typer

from usechat.cli.options import refuse
from usechat.integrations.deepagent_sdk.typescript import deep_agent_types

__all__ = ["print_types", "react"]

_TYPES: Final[dict[str, Callable[[], str]]] = {"deep-agent": deep_agent_types}
_NAMES: Final = ", ".join(_TYPES)


def react(
    *, parts: Annotated[bool, typer.Option("--parts", help="Print components that draw data parts.")] = False
) -> None:
    """Print a chat transport for React apps with AI SDK 5, 6 or 7: `usechat react > src/usechat.ts`.

    `usechat react --parts > src/parts.tsx` prints components that draw data parts: todos, files, commands, the web,
    sub-agents, flows, questions.
    """
    name = "parts.tsx" if parts else "usechat.ts"
    typer.echo((files("usechat") / "react" / name).read_text(encoding="utf-8"), nl=False)


def print_types(source: Annotated[str, typer.Argument(help=f"The integration: {_NAMES}.")]) -> None:
    """Print TypeScript types for an integration's data parts."""
    if source not in _TYPES:
        refuse(f"There are no types for {source!r:.60}. There are types for {_NAMES}.")
    typer.echo(_TYPES[source](), nl=False)
