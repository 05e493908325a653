"""How a command refuses what it was told."""

from typing import NoReturn

import typer

__all__ = ["refuse"]


def refuse(sentence: str) -> NoReturn:
    typer.echo(sentence, err=True)
    raise typer.Exit(2)
