"""`usechat session-agent`: an Agent Ops session for development."""

import asyncio
import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from usechat.cli.options import refuse, refusing

__all__ = ["session_agent"]


def session_agent(
    *,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port. 0 takes one that is free.")] = 8787,
    script: Annotated[
        str,
        typer.Option(metavar="FILE", help="Frames to play, one JSON object per line, in place of scripted prompts."),
    ] = "",
    token: Annotated[str, typer.Option(help="The only bearer token that may connect. Without it, any may.")] = "",
    vocabulary: Annotated[
        Literal["client", "v2", "both"], typer.Option(help="The frames of a turn: the client's, V2, or both.")
    ] = "client",
    pace: Annotated[float, typer.Option(min=0, help="Seconds after each delta and tool update.")] = 0.03,
    question_seconds: Annotated[float, typer.Option(min=0, help="Seconds until a question expires.")] = 300.0,
    collect_seconds: Annotated[float, typer.Option(min=0, help="Seconds that prompts are collected.")] = 3.0,
    init_bytes: Annotated[int, typer.Option(min=0, help="The least size of init, in bytes.")] = 0,
    fault: Annotated[
        list[str],
        typer.Option(help="What goes wrong with each socket, as name:frames, such as drop:20. Repeat it for more."),
    ] = [],  # noqa: B006
) -> None:
    """Run a SessionAgent of Agent Ops for development. Prompts and options script it, and it asks no model."""
    with refusing("usechat session-agent", "server"):
        from usechat.session_agent import Script, SessionAgent, SessionSettings, read_fault, read_script
    settings = SessionSettings(
        pace=pace,
        question_seconds=question_seconds,
        collect_seconds=collect_seconds,
        init_bytes=init_bytes,
        vocabulary=vocabulary,
    )
    try:
        agent = SessionAgent(
            settings,
            token=token,
            script=read_script(Path(script).read_text(encoding="utf-8")) if script else Script(),
            faults=[read_fault(text) for text in fault],
            die=lambda: os._exit(1),
        )
    except OSError as error:
        refuse(f"{script} cannot be read: {error.strerror}.")
    except UnicodeDecodeError:
        refuse(f"{script} is not text.")
    except ValueError as error:
        refuse(str(error))
    try:
        asyncio.run(agent.run(port, typer.echo))
    except OSError as error:
        refuse(f"The session agent cannot listen at port {port}: {os.strerror(error.errno or 0)}.")
