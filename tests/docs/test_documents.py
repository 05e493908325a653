"""What the documents name is there."""

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
NAMED: Final = re.compile(r"`([\w./]+\.py|…)(?:::(test_\w+))?`")
LINKED: Final = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?")
HEADING: Final = re.compile(r"^#+ (.+)$", re.MULTILINE)


def named_tests(page: Path) -> list[tuple[str, str]]:
    """Each test that the page names; … stands for the file of the one before."""
    named: list[tuple[str, str]] = []
    for file, test in NAMED.findall(page.read_text(encoding="utf-8")):
        if test:
            named.append((named[-1][0] if file == "…" else file, test))
    return named


def test_every_test_that_a_document_names_is_there() -> None:
    named = [(file, test) for page in PAGES for file, test in named_tests(page)]
    assert len(named) > 20
    assert [
        f"{file}::{test}"
        for file, test in named
        if not (ROOT / file).is_file() or f"def {test}(" not in (ROOT / file).read_text(encoding="utf-8")
    ] == []


def anchors(page: Path) -> list[str]:
    """The names of the page's headings, as GitHub makes them."""
    headings = HEADING.findall(page.read_text(encoding="utf-8"))
    return [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings]


def test_every_link_between_documents_leads_somewhere() -> None:
    links = [(page, *link) for page in PAGES for link in LINKED.findall(page.read_text(encoding="utf-8"))]
    assert len(links) > 5
    assert [f"{page.name}: {link}" for page, link, _ in links if not (page.parent / link).exists()] == []
    assert [
        f"{page.name}: {link}#{anchor}"
        for page, link, anchor in links
        if anchor and anchor not in anchors(page.parent / link if link else page)
    ] == []


def test_every_module_of_the_protocol_is_named() -> None:
    modules = {path.stem for path in (ROOT / "src/usechat/protocol").glob("*.py")} - {"__init__"}
    page = (ROOT / "docs/concepts/protocol.md").read_text(encoding="utf-8").partition("\n## ")[0]
    rows = [row.split("|")[1] for row in page.splitlines() if row.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == modules
