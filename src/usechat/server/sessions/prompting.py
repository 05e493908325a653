"""What of a request goes to a session: the last message of the user, as far as the session takes it."""

import re
from typing import Any, Final

from usechat.agents.agent_ops import Prompt
from usechat.errors import RequestError
from usechat.ids import new_id
from usechat.protocol.requests import ChatRequest

__all__ = ["prompt_of"]

# What the session takes; it drops the rest without a word.
_MOST_FILES: Final = 8
_MOST_CHARACTERS: Final = 12_000_000
_MOST_IN_ALL: Final = 25_000_000
# So much of a data URL is looked at: the expression takes time and memory for each of its characters.
_LONGEST_HEAD: Final = 1_000
_TAKEN: Final = re.compile(r"data:(?:image|audio)/[^;,\s]+(?:;[^;,\s]+)*;base64,", re.IGNORECASE)


def prompt_of(request: ChatRequest) -> Prompt | None:
    """The prompt that a request asks for; None if it ends with a message of the assistant, which asks for nothing.

    Raises:
        RequestError: The message is from the system, or says nothing (400), has too much (413) or a file of a kind that
            no session takes (415).
    """
    message = request.last
    if message.role == "assistant":
        return None
    if message.role != "user":
        raise RequestError("The last message must be from the user or the assistant.")
    text = "\n".join(part["text"] for part in message.parts if part["type"] == "text")
    files = [part for part in message.parts if part["type"] == "file"]
    _check_size(files)
    attachments = tuple(_attachment(file, number) for number, file in enumerate(files, 1))
    if not text.strip() and not attachments:
        raise RequestError("The message has neither text nor files.")
    return Prompt(message.id or new_id(), text, attachments)


def _check_size(files: list[dict[str, Any]]) -> None:
    total = 0
    for number, file in enumerate(files, 1):
        size = len(file["url"])
        total += size
        if number > _MOST_FILES:
            raise _too_large(file, number, f"is one too many: a message may have {_MOST_FILES} files")
        if size > _MOST_CHARACTERS:
            raise _too_large(file, number, f"is larger than {_MOST_CHARACTERS:,} characters")
        if total > _MOST_IN_ALL:
            raise _too_large(file, number, f"makes the files together larger than {_MOST_IN_ALL:,} characters")


def _attachment(file: dict[str, Any], number: int) -> dict[str, str]:
    mime, url, name = file["mediaType"], file["url"], file.get("filename")
    if not _TAKEN.match(url, 0, _LONGEST_HEAD) or not mime.lower().startswith(("image/", "audio/")):
        raise RequestError(
            f"{_called(file, number)} cannot be sent: sessions take images and audio, as base64 data URLs.", status=415
        )
    attachment = {"type": "file", "mime": mime, "url": url}
    return {**attachment, "filename": name} if isinstance(name, str) else attachment


def _too_large(file: dict[str, Any], number: int, why: str) -> RequestError:
    return RequestError(f"{_called(file, number)} {why}.", status=413)


def _called(file: dict[str, Any], number: int) -> str:
    name = file.get("filename")
    return f"The file {name!r:.80}" if isinstance(name, str) and name else f"File {number}, {file['mediaType']!r:.60},"
