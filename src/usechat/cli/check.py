"""`usechat check`: is a recorded stream legal, and which clients take it?"""

import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from usechat.errors import RemoteProtocolError
from usechat.protocol.clients import ClientName
from usechat.protocol.verdict import Verdict, Violation, judge, recorded_events

__all__ = ["check"]


def check(
    file: Annotated[str, typer.Argument(help="An SSE body, the output of `curl -i`, or a chunk a line; - for stdin.")],
    *,
    client: Annotated[ClientName, typer.Option(help="The clients that must take the stream.")] = "portable",
    message: Annotated[bool, typer.Option("--message", help="Print the message that the client builds.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
) -> None:
    """Judge a recorded stream: exit 0 if it is legal, 1 with the first violation if not."""
    verdict = _judge(_read(file), client)
    if as_json:
        typer.echo(msgspec.json.encode(_report(verdict, with_message=message)))
    elif message:
        typer.echo(msgspec.json.format(msgspec.json.encode(verdict.message), indent=2))
        _print(verdict, file, Console(stderr=True, soft_wrap=True))
    else:
        _print(verdict, file, Console(soft_wrap=True))
    raise typer.Exit(0 if verdict.violation is None else 1)


def _read(file: str) -> bytes:
    if file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise typer.BadParameter(f"{file} cannot be read: {error.strerror}.") from None


def _judge(recording: bytes, client: ClientName) -> Verdict:
    try:
        return judge(recorded_events(recording), client)
    except RemoteProtocolError as error:
        raise typer.BadParameter(str(error)) from None


def _report(verdict: Verdict, *, with_message: bool) -> dict[str, Any]:
    report: dict[str, Any] = {
        "ok": verdict.violation is None,
        "chunks": verdict.chunks,
        "parts": len(verdict.message.parts),
        "clients": verdict.releases,
        "violation": verdict.violation,
    }
    return {**report, "message": verdict.message} if with_message else report


def _print(verdict: Verdict, file: str, console: Console) -> None:
    if verdict.violation is not None:
        _print_violation(verdict.violation, file, console)
        return
    releases = ", ".join(f"{release}+" for release in verdict.releases)
    counts = f"{verdict.chunks} chunks, {len(verdict.message.parts)} parts, accepted by ai {releases}"
    console.print(Text.assemble(("ok", "green"), f": {counts}"))


def _print_violation(violation: Violation, file: str, console: Console) -> None:
    where = f"{'<stdin>' if file == '-' else file}:{violation.line}: "
    console.print(Text.assemble(where, (violation.problem, "red")))
    console.print(Text.assemble(("  rule    ", "dim"), violation.rule))
    console.print(Text.assemble(("  remedy  ", "dim"), violation.remedy))
