import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROWS = [
    line.strip("| \n").split(" | ")
    for line in (ROOT / "docs/reference/threats.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| threat")
]


def test_each_threat_names_what_protects_and_a_test() -> None:
    assert len(ROWS) >= 22
    assert [
        row for row in ROWS if len(row) != 3 or not re.fullmatch(r"(?:`\w+/[\w/]+\.py::test_\w+` ?)+", row[2])
    ] == []
