"""`usechat types`: what a source sends beside the SDK's own parts, as TypeScript."""

from collections.abc import Callable
from typing import Annotated, Final

import typer

from usechat.cli.refusal import refuse
from usechat.sources.deep_agent_typescript import deep_agent_types

__all__ = ["print_types"]

_TYPES: Final[dict[str, Callable[[], str]]] = {"deep-agent": deep_agent_types}
_NAMES: Final = ", ".join(_TYPES)


def print_types(source: Annotated[str, typer.Argument(help=f"Whose data parts: {_NAMES}.")]) -> None:
    """Print the TypeScript types of a source's data parts, as one file that a React app can copy."""
    if source not in _TYPES:
        refuse(f"There are no types of {source!r:.60}: there are those of {_NAMES}.")
    typer.echo(_TYPES[source](), nl=False)
