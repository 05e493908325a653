"""`usechat check`: whether a recorded stream is legal, and which clients accept it."""

from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from usechat.cli.options import read_file, refuse
from usechat.errors import RemoteProtocolError, RequestError
from usechat.protocol.clients import ClientName
from usechat.protocol.codec import parse_json
from usechat.protocol.messages import UIMessage, read_message
from usechat.protocol.verdict import Verdict, Violation, judge, recorded_events

__all__ = ["check"]


def check(
    file: Annotated[
        str, typer.Argument(help="An SSE body, the output of `curl -i`, or one chunk per line; - for stdin.")
    ],
    *,
    client: Annotated[ClientName, typer.Option(help="The AI SDK versions that must accept the stream.")] = "portable",
    continues: Annotated[
        str | None, typer.Option(metavar="FILE", help="The message that the stream continues, as --message prints it.")
    ] = None,
    message: Annotated[bool, typer.Option("--message", help="Print the message that the client builds.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 also after a warning.")] = False,
) -> None:
    """Check whether AI SDK clients accept a recorded stream.

    Exits with 1 and prints the first violation if one of them refuses it. A stream that leaves the message untidy, such
    as a part that never ends, gets a warning.
    """
    before = None if continues is None else _read_message(continues)
    try:
        verdict = judge(recorded_events(read_file(file)), client, continues=before)
    except RemoteProtocolError as error:
        refuse(str(error))
    ok = verdict.violation is None and not (strict and verdict.warnings)
    if as_json:
        typer.echo(msgspec.json.encode(_report(verdict, ok=ok, with_message=message)))
    elif message:
        typer.echo(msgspec.json.format(msgspec.json.encode(verdict.message), indent=2))
        _print(verdict, file, Console(stderr=True, soft_wrap=True))
    else:
        _print(verdict, file, Console(soft_wrap=True))
    raise typer.Exit(0 if ok else 1)


def _read_message(file: str) -> UIMessage:
    content = read_file(file)
    try:
        message = read_message(parse_json(content), "The message", max_parts=len(content))
    except RequestError as error:
        refuse(f"{file}: {error}")
    except ValueError as error:
        refuse(f"{file} is not JSON: {error}.")
    if message.role != "assistant":
        refuse(f"{file} must be a message of the assistant.")
    return message


def _report(verdict: Verdict, *, ok: bool, with_message: bool) -> dict[str, Any]:
    level = "refused" if verdict.violation is not None else "untidy" if verdict.warnings else "clean"
    report: dict[str, Any] = {
        "ok": ok,
        "level": level,
        "chunks": verdict.chunks,
        "parts": len(verdict.message.parts),
        "clients": verdict.releases,
        "violation": verdict.violation,
        "warnings": verdict.warnings,
    }
    return {**report, "message": verdict.message} if with_message else report


def _print(verdict: Verdict, file: str, console: Console) -> None:
    for warning in verdict.warnings:
        _print_violation(warning, file, console)
    if verdict.violation is not None:
        _print_violation(verdict.violation, file, console)
        return
    releases = ", ".join(f"{release}+" for release in verdict.releases)
    counts = f"{verdict.chunks} chunks, {len(verdict.message.parts)} parts, accepted by ai {releases}"
    word = ("untidy", "yellow") if verdict.warnings else ("ok", "green")
    console.print(Text.assemble(word, f": {counts}"))


def _print_violation(violation: Violation, file: str, console: Console) -> None:
    where = f"{'<stdin>' if file == '-' else file}:{violation.line}: "
    warns = violation.level == "untidy"
    console.print(Text.assemble(where, "warning: " if warns else "", (violation.problem, "yellow" if warns else "red")))
    console.print(Text.assemble(("  rule    ", "dim"), violation.rule))
    console.print(Text.assemble(("  remedy  ", "dim"), violation.remedy))
