"""DeepAgent: the pages that a run has found and the files that it has written, as the sources of its answer."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, cast

from msgspec import UNSET

from usechat.protocol.chunks import Chunk
from usechat.protocol.writer import MessageWriter

__all__ = ["SEARCH", "Citations", "Page", "found_pages"]

SEARCH: Final = "web_search"
"""The search tool of the original."""

_MOST: Final = 100
# So much of a result is read, and so much of a title is kept.
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


class Page(NamedTuple):
    url: str
    title: str


def found_pages(result: object) -> list[Page]:
    """The pages in the result of a search: of its JSON, else of its lines `URL: …`, else of its links.

    The title stands in the line before: the original writes `## Result 1: title`, and below it `URL: …`.
    """
    found: dict[str, Page] = {}
    for page in _pages(result):
        found.setdefault(page.url, page)
        if len(found) == _MOST:
            break
    return list(found.values())


def _pages(result: object) -> Iterator[Page]:
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


def _in_json(value: object) -> Iterator[Page]:
    """The pages of a list, or of an object that has them under `results`."""
    if isinstance(value, Mapping):
        value = cast("Mapping[str, object]", value).get("results")
    if isinstance(value, list | tuple):
        for item in cast("list[object]", value):
            if isinstance(item, Mapping):
                fields = cast("Mapping[str, Any]", item)
                url, title = fields.get("url") or fields.get("link"), fields.get("title")
                if isinstance(url, str) and url.startswith(("https://", "http://")):
                    yield Page(str.__str__(url), str.__str__(title)[:_TITLE] if isinstance(title, str) else "")


def _in_text(text: str) -> Iterator[Page]:
    title, has_lines = "", False
    for line in text.splitlines():
        if page := _URL_LINE.match(line[:4096]):
            has_lines = True
            yield Page(page[1], title)
            title = ""
        elif line.strip():
            heading = _HEADING.fullmatch(line[:_TITLE].strip())
            title = heading[1] if heading else ""
    if not has_lines:
        for link in _LINK.finditer(text):
            yield Page(link[2], link[1])


class Citations:
    """Writes the sources of a message, each of them once."""

    def __init__(self, writer: MessageWriter) -> None:
        self._writer = writer
        self._cited: set[str] = set()

    def page(self, url: str, title: str = "") -> list[Chunk]:
        return self._writer.source_url(url, title=title or UNSET) if self._is_new(url) else []

    def pages(self, result: object) -> list[Chunk]:
        """Cite what a search has found."""
        return [chunk for page in found_pages(result) for chunk in self.page(*page)]

    def side_event(self, name: str, data: Mapping[str, Any]) -> list[Chunk]:
        """Cite what a side event tells of: a file, a page that was read, or what a sub-agent has found."""
        match name:
            case "file-written":
                return self._document(data["path"])
            case "fetch-url-finish" if data["success"]:
                return self.page(data["url"])
            case "subagent-step":
                results = [_output(call.get("result")) for call in data["toolCalls"] if call["toolName"] == SEARCH]
                return [chunk for result in results for chunk in self.pages(result)]
            case _:
                return []

    def _document(self, path: str) -> list[Chunk]:
        if not self._is_new(path):
            return []
        name = path.rpartition("/")[2] or path
        kind = _KINDS.get(name.rpartition(".")[2].lower(), "text/plain")
        return self._writer.source_document(path, kind, filename=name)

    def _is_new(self, source: str) -> bool:
        if source in self._cited:
            return False
        self._cited.add(source)
        return True


def _output(result: object) -> object:
    """The output of a sub-agent's call, which the original wraps."""
    return cast("Mapping[str, object]", result).get("output") if isinstance(result, Mapping) else result
