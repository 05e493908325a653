"""Tells what came of a row: on a terminal, and as its line in the table of docs/faults.md."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from rows import Result, Row

__all__ = ["tell", "write"]

_DOCUMENT: Final = Path(__file__).parent.parent / "docs" / "faults.md"


def tell(result: Result) -> None:
    """Print what came of a row, and each failure with the seed of its answer."""
    figures = "; ".join(f"{name}: {_spread(name, values)}" for name, values in result.figures.items())
    counts = f"{result.runs} runs, {result.faults} faults, {len(result.failures)} failures"
    print(
        f"{result.row}, seed {result.seed}: {counts}, {_ends(result)}; {figures} ({result.seconds:.0f} s)", flush=True
    )
    for failure in result.failures:
        print(f"  {failure}", flush=True)


def write(row: Row, result: Result) -> None:
    """Put the line of the row into the table, in place of the one that it has."""
    figures = "; ".join(f"{name} {_spread(name, values)}" for name, values in result.figures.items()) or "–"
    day = datetime.now(UTC).date().isoformat()
    counts = f"{result.runs} | {result.faults} | {len(result.failures)}"
    line = f"| {row.title} | {counts} | {_ends(result)} | {figures} | {result.seed}, {day} |"
    lines = _DOCUMENT.read_text("utf-8").splitlines()
    _DOCUMENT.write_text("\n".join(_put(lines, row.title, line)) + "\n", "utf-8")


def _put(lines: list[str], title: str, line: str) -> list[str]:
    found = [number for number, each in enumerate(lines) if each.startswith(f"| {title} |")]
    if found:
        return [line if number == found[0] else each for number, each in enumerate(lines)]
    last = max(number for number, each in enumerate(lines) if each.startswith("|"))
    return [*lines[: last + 1], line, *lines[last + 1 :]]


def _ends(result: Result) -> str:
    return ", ".join(f"{count} {end or 'unknown'}" for end, count in sorted(result.ends.items()))


def _spread(name: str, values: list[float]) -> str:
    some = sorted(values)
    middle, high, most = (some[int((len(some) - 1) * part)] for part in (0.5, 0.99, 1.0))
    if name.startswith("MB"):
        return f"{middle:.1f}, {most:.1f} at most"
    return f"p50 {middle * 1e3:,.0f}, p99 {high * 1e3:,.0f}, at most {most * 1e3:,.0f} ms"
