"""DeepAgent: what can be cited. The pages in the result of a search, and the kind of a file that was written."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from usechat.events import Document, Source

__all__ = ["document_of", "found_pages"]

_MOST: Final = 100
# How many characters of a result are read, and of a title are kept.
_LONGEST: Final = 1024 * 1024
_TITLE: Final = 300
_URL_LINE: Final = re.compile(r"[\s*_>-]*(?:url|link|source)[*_]*:[*_]*\s*<?(https?://[^\s<>]+)>?", re.IGNORECASE)
_HEADING: Final = re.compile(r"[\s#*_>-]*(?:(?:result\s+)?\[?\d+\]?[.:)]?\s+)?(.*?)[\s*_]*", re.IGNORECASE)
_LINK: Final = re.compile(r"\[([^\[\]\n]{1,300})\]\((https?://[^\s()<>]+)\)")
_KINDS: Final = {
    "css": "text/css",
    "csv": "text/csv",
    "htm": "text/html",
    "html": "text/html",
    "js": "text/javascript",
    "json": "application/json",
    "md": "text/markdown",
    "pdf": "application/pdf",
    "py": "text/x-python",
    "svg": "image/svg+xml",
    "ts": "text/typescript",
    "xml": "application/xml",
    "yaml": "application/yaml",
    "yml": "application/yaml",
}


def found_pages(result: object) -> list[Source]:
    """The pages in the result of a search: of its JSON, else of its lines `URL: …`, else of its links.

    The title stands in the line before: the original writes `## Result 1: title`, and below it `URL: …`.
    """
    found: dict[str, Source] = {}
    for page in _pages(result):
        found.setdefault(page.url, page)
        if len(found) == _MOST:
            break
    return list(found.values())


def _pages(result: object) -> Iterator[Source]:
    if not isinstance(result, str):
        yield from _in_json(result)
        return
    text = result[:_LONGEST]
    if text.lstrip().startswith(("[{", "{", "[\n")):
        try:
            yield from _in_json(json.loads(text))
        except (ValueError, RecursionError):
            yield from _in_text(text)
    else:
        yield from _in_text(text)


def _in_json(value: object) -> Iterator[Source]:
    """The pages of a list, or of an object that has them under `results`."""
    if isinstance(value, Mapping):
        value = cast("Mapping[str, object]", value).get("results")
    if isinstance(value, list | tuple):
        for item in cast("list[object]", value):
            if isinstance(item, Mapping):
                fields = cast("Mapping[str, Any]", item)
                url, title = fields.get("url") or fields.get("link"), fields.get("title")
                if isinstance(url, str) and url.startswith(("https://", "http://")):
                    yield Source(str.__str__(url), str.__str__(title)[:_TITLE] if isinstance(title, str) else "")


def _in_text(text: str) -> Iterator[Source]:
    title, has_lines = "", False
    for line in text.splitlines():
        if page := _URL_LINE.match(line[:4096]):
            has_lines = True
            yield Source(page[1], title)
            title = ""
        elif line.strip():
            heading = _HEADING.fullmatch(line[:_TITLE].strip())
            title = heading[1] if heading else ""
    if not has_lines:
        for link in _LINK.finditer(text):
            yield Source(link[2], link[1])


def document_of(path: str) -> Document:
    """A file that was written, as a source."""
    name = path.rpartition("/")[2] or path
    return Document(path, _KINDS.get(name.rpartition(".")[2].lower(), "text/plain"), name)
