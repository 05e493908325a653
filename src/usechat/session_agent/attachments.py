"""What a SessionAgent takes of a prompt's attachments; the rest it drops without a word."""

import re
from collections.abc import Iterator
from typing import Any, Final

from msgspec import Struct, ValidationError, convert

from usechat.session_agent.frames import Frame, present

__all__ = ["attachment_parts"]

_FILES: Final = 8
_FILE_SIZE: Final = 12_000_000
_ALL_SIZE: Final = 25_000_000
_DATA_URL: Final = re.compile(r"data:((image|audio)/[\w.+-]+)[^,]*;base64,")


class _File(Struct):
    url: str
    filename: str | None = None


def attachment_parts(attachments: Any) -> Iterator[Frame]:
    """The parts of the echoed message: images and sounds in base64 data URLs, as many as there is room for."""
    size = 0
    try:
        files = convert(attachments or [], list[_File])
    except ValidationError:
        return
    for file in files[:_FILES]:
        kind = _DATA_URL.match(file.url)
        size += len(file.url)
        if kind is None or len(file.url) > _FILE_SIZE or size > _ALL_SIZE:
            continue
        data = file.url[kind.end() :]
        yield present(type=kind[2], data=data, mimeType=kind[1], filename=file.filename)
