"""Writes the parts of the documents that are made from the tables; with --check it only tells what is out of date."""

import inspect
import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

from msgspec import structs

from usechat.events import AgentEvent, Text
from usechat.integrations.deepagent_sdk.typescript import deep_agent_parts
from usechat.protocol.chunks import CHUNK_TYPES
from usechat.protocol.clients import CLIENTS, FIELDS, LOOSE, TYPES, VALUES, Client, Release, Since
from usechat.protocol.rules import RULES
from usechat.protocol.tables import CALLS, MESSAGE, PARTS

DOCS = Path(__file__).parent
sys.path.append(str(DOCS.parent / "tests"))

sys.path.append(str(DOCS.parent / "frameworks"))

from environments import FRAMEWORKS  # noqa: E402
from support.open_harness_table import ROWS  # noqa: E402

RESULTS = DOCS.parent / "frameworks" / "results"
REACT = DOCS.parent / "src" / "usechat" / "react" / "parts.tsx"
BLOCK = re.compile(r"((?:<!--|//) begin: (\S+)(?: -->)?\n).*?((?:<!--|//) end)", re.DOTALL)


def diagram(table: Mapping[str, Mapping[Any, str]]) -> str:
    moves: dict[tuple[str, str], list[str]] = {}
    for chunk, row in table.items():
        for before, after in row.items():
            moves.setdefault((before, after), []).append(chunk)
    lines = [f"    {before} --> {after}: {' | '.join(chunks)}" for (before, after), chunks in moves.items()]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```", ""])


def rules() -> str:
    rows = [f"| `{name}` | {rule.level} | {rule.meaning} | {rule.remedy} |" for name, rule in RULES.items()]
    return "\n".join(["| rule | level | what it forbids | what to do instead |", "|---|---|---|---|", *rows, ""])


def chunks() -> str:
    rows = [
        line
        for name, kind in CHUNK_TYPES.items()
        for line in [
            f"| `{name}` | {_required(name, kind.__struct_encode_fields__)} | {_since(TYPES[name])} |",
            *(f"| | `{field}` | {_since(since)} |" for field, since in FIELDS.get(name, {}).items()),
            *(f"| | `{row[1]}` = `{row[2]}` | {_since(since)} |" for row, since in VALUES.items() if row[0] == name),
        ]
    ]
    head = ["| chunk | field | 5 | 6 | 7 |", "|---|---|---|---|---|"]
    return "\n".join([*head, *rows, f"| any | a field that the type does not have | {_since(LOOSE)} |", ""])


def frameworks() -> str:
    """What `make frameworks` has shown, and why the rest cannot be."""
    shown = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(RESULTS.glob("*.json"))}
    rows = list(dict.fromkeys(row for versions in shown.values() for done in versions.values() for row in sorted(done)))
    lines = [f"| framework | versions | {' | '.join(rows)} |", f"|---|---|{'---|' * len(rows)}"]
    for name, versions in shown.items():
        marks = ["✓" if all(done.get(row) for done in versions.values()) else "–" for row in rows]
        lines.append(f"| {name} | {', '.join(versions)} | {' | '.join(marks)} |")
    reasons = [f"- **{name}, {row}**: {why}" for name in shown for row, why in sorted(FRAMEWORKS[name].cannot.items())]
    return "\n".join([*lines, "", *reasons, ""])


def clients() -> str:
    rows = [
        f"| `{client.name}` | {', '.join(f'{release}+' for release in client.oldest)} | {_older(client)} |"
        for client in CLIENTS.values()
    ]
    return "\n".join(["| client | releases | chunks that are sent in an older form |", "|---|---|---|", *rows, ""])


def _required(name: str, fields: tuple[str, ...]) -> str:
    required = [f"`{field}`" for field in fields if field not in FIELDS.get(name, {}) and field != "type"]
    return ", ".join(required)


def _since(since: Since) -> str:
    return " | ".join("–" if patch is None else str(Release(major, patch)) for major, patch in enumerate(since, 5))


def _older(client: Client) -> str:
    names = [name for name, since in TYPES.items() if not client.takes(since) and name not in client.passes]
    return ", ".join(f"`{name}`" for name in names) or "none"


def open_harness() -> str:
    rows = [
        f"| `{row.event['type']}` | {row.case} | {', '.join(_chunk(chunk) for chunk in row.chunks) or 'nothing'} |"
        for row in sorted(ROWS, key=lambda row: _place(row.event["type"]))
    ]
    return "\n".join(["| event | when | chunks |", "|---|---|---|", *rows, ""])


def _place(event_type: str) -> int:
    return next(place for place, row in enumerate(ROWS) if row.event["type"] == event_type)


def _chunk(chunk: Mapping[str, Any]) -> str:
    """The chunk's type, with what of it tells more than the type does."""
    told = next((str(chunk[name]) for name in ("errorText", "finishReason") if name in chunk), "")
    if "data" in chunk and "status" in chunk["data"]:
        told = chunk["data"]["status"]
    return f"`{chunk['type']}`" + (f" ({told})" if told else "")


def events() -> str:
    kinds = [kind for kind in get_args(AgentEvent) if kind.__module__ == Text.__module__]
    rows = [f"| `{_signature(kind)}` | {_sentences(kind)} |" for kind in kinds]
    return "\n".join(["| event | what it does |", "|---|---|", *rows, ""])


def _signature(kind: type[Any]) -> str:
    fields = [field.name if field.required else f"{field.name}={field.default!r}" for field in structs.fields(kind)]
    return f"{kind.__name__}({', '.join(fields)})"


def _sentences(kind: type[Any]) -> str:
    return " ".join((inspect.getdoc(kind) or "").split()).replace("|", "\\|")


BLOCKS: dict[str, Callable[[], str]] = {
    "events": events,
    "message": lambda: diagram(MESSAGE),
    "part": lambda: diagram({name: row for name, row in PARTS.items() if name.startswith("text")}),
    "call": lambda: diagram(CALLS),
    "rules": rules,
    "chunks": chunks,
    "clients": clients,
    "frameworks": frameworks,
    "open-harness": open_harness,
    "deep-agent": deep_agent_parts,
}


def main() -> None:
    stale: list[str] = []
    for page in [*sorted(DOCS.rglob("*.md")), REACT]:
        text = page.read_text(encoding="utf-8")
        fresh = BLOCK.sub(lambda block: f"{block[1]}\n{BLOCKS[block[2]]()}\n{block[3]}", text)
        if fresh != text and "--check" in sys.argv:
            stale.append(str(page.relative_to(DOCS.parent)))
        elif fresh != text:
            page.write_text(fresh, encoding="utf-8")
    if stale:
        sys.exit(f"Made from the tables and out of date: {', '.join(stale)}. Run: make docs")


if __name__ == "__main__":
    main()
