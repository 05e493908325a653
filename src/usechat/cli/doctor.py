"""`usechat doctor`: whether a Redis can be the store of several workers."""

from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from usechat.cli.options import refuse, refusing

if TYPE_CHECKING:
    # Its driver is an extra.
    from usechat.cli.redis_checks import Finding, Level

__all__ = ["doctor"]

_COLORS: Final[dict["Level", str]] = {"ok": "green", "warning": "yellow", "problem": "red"}
_WIDTH: Final = max(map(len, _COLORS))


def doctor(
    *,
    store: Annotated[
        str,
        typer.Option(
            envvar="USECHAT_STORE",
            metavar="URL",
            help="The URL of the Redis, as for usechat serve: redis://user:password@host:port/0.",
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Check whether a Redis can be the --store of several workers.

    Exits with 1 and prints what to do if it cannot. Warnings do not change the exit code. The doctor leaves nothing in
    the Redis.
    """
    with refusing("usechat doctor", "redis"):
        from usechat.cli.redis_checks import examine
    try:
        findings = examine(store)
    except ValueError as error:
        refuse(str(error))
    ok = all(finding.level != "problem" for finding in findings)
    if as_json:
        typer.echo(msgspec.json.encode({"ok": ok, "findings": findings}))
    else:
        _print(findings)
    raise typer.Exit(0 if ok else 1)


def _print(findings: list["Finding"]) -> None:
    console = Console(soft_wrap=True, highlight=False)
    checks = max(len(finding.check) for finding in findings)
    for finding in findings:
        level = (f"{finding.level:{_WIDTH}}", _COLORS[finding.level])
        console.print(Text.assemble(level, f"  {finding.check:{checks}}  {finding.text}"))
        if finding.remedy:
            console.print(Text(f"{'':{_WIDTH + checks + 4}}{finding.remedy}"))
